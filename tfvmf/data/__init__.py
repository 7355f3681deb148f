"""Data: sources of images, views of them, corruptions.

Sources and corruptions work without TensorFlow, so views load when first used.
"""

from typing import TYPE_CHECKING, Any

from tfvmf.data.base import Source
from tfvmf.data.sources import download
from tfvmf.data.sources import load as load_source

if TYPE_CHECKING:
    from tfvmf.data.augment import Augmentation
    from tfvmf.data.wide import WideViews

__all__ = ["Augmentation", "Source", "WideViews", "download", "load_source"]


def __getattr__(name: str) -> Any:
    if name == "Augmentation":
        from tfvmf.data.augment import Augmentation

        return Augmentation
    if name == "WideViews":
        from tfvmf.data.wide import WideViews

        return WideViews
    raise AttributeError(f"module 'tfvmf.data' has no attribute {name!r}")
