"""What is fitted to a trained encoder: a concentration head, familiarity, a decision."""

import importlib
from typing import Any

# Imported when first used: the settings of `FitKappa` are read without TensorFlow.
_MODULES = {
    "Decision": "decision",
    "Familiarity": "familiarity",
    "FitKappa": "method",
    "Judge": "judge",
    "fit_judge": "judge",
    "fit_kappa": "kappa",
    "load": "judge",
}

__all__ = ["Decision", "Familiarity", "FitKappa", "Judge", "fit_judge", "fit_kappa", "load"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
