"""The von Mises-Fisher distribution, exact in every dimension from 2 to 8192."""

import importlib
from typing import TYPE_CHECKING, Any

from tfvmf.vmf.functions import (
    entropy,
    inverse_mean_resultant_length,
    kl_divergence,
    kl_to_uniform,
    log_expected_likelihood,
    log_normalizer,
    mean_resultant_length,
)

if TYPE_CHECKING:
    from tfvmf.vmf.distribution import VonMisesFisher

__all__ = [
    "VonMisesFisher", "entropy", "inverse_mean_resultant_length", "kl_divergence", "kl_to_uniform",
    "log_expected_likelihood", "log_normalizer", "mean_resultant_length",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports the distribution on first use: TensorFlow Probability takes seconds."""
    if name == "VonMisesFisher":
        return importlib.import_module("tfvmf.vmf.distribution").VonMisesFisher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
