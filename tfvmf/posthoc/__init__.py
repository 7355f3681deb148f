"""What is fitted to an encoder after its training: a concentration head for any frozen encoder."""

import importlib
from typing import Any

# Imported when first used: the settings of `FitKappa` are read without TensorFlow.
_MODULES = {
    "FitKappa": "method",
    "fit_kappa": "kappa",
}

__all__ = ["FitKappa", "fit_kappa"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
