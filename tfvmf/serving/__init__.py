"""Serving: one loader for all kinds of models, and exports for TensorFlow Serving."""

from tfvmf.serving.export import calibration_data, export_model, oldest_server
from tfvmf.serving.loader import EmbeddingModel, load, read_card, shipped_models

__all__ = [
    "EmbeddingModel",
    "calibration_data",
    "export_model",
    "load",
    "oldest_server",
    "read_card",
    "shipped_models",
]
