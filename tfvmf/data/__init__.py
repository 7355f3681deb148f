"""Data: sources of images, views of them, corruptions."""

import importlib
from typing import TYPE_CHECKING, Any

from tfvmf.data.base import Source
from tfvmf.data.sources import download
from tfvmf.data.sources import load as load_source

if TYPE_CHECKING:
    from tfvmf.data.augment import Augmentation
    from tfvmf.data.wide import WideViews

__all__ = ["Augmentation", "Source", "WideViews", "download", "load_source"]


def __getattr__(name: str) -> Any:  # views need TensorFlow: they are imported on first use
    modules = {"Augmentation": "tfvmf.data.augment", "WideViews": "tfvmf.data.wide"}
    if name in modules:
        return getattr(importlib.import_module(modules[name]), name)
    raise AttributeError(f"module 'tfvmf.data' has no attribute {name!r}")
