"""Serving: one loader for all kinds of models, and exports for TensorFlow Serving."""

from tfvmf.serving.export import export_model
from tfvmf.serving.loader import EmbeddingModel, load, read_card

__all__ = ["EmbeddingModel", "export_model", "load", "read_card"]
