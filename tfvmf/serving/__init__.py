"""One loader for all kinds of models, and exports for servers and other runtimes."""

import importlib
from typing import TYPE_CHECKING, Any

from tfvmf.serving.loader import EmbeddingModel, load, read_card, shipped_models

if TYPE_CHECKING:
    from tfvmf.serving.export import calibration_data, export_model, oldest_server

__all__ = [
    "EmbeddingModel", "calibration_data", "export_model", "load", "oldest_server", "read_card",
    "shipped_models",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # loading an ONNX file does not need TensorFlow
    if name in ("calibration_data", "export_model", "oldest_server"):
        return getattr(importlib.import_module("tfvmf.serving.export"), name)
    raise AttributeError(f"module 'tfvmf.serving' has no attribute {name!r}")
