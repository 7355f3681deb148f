"""Fitted to a trained encoder: a concentration head, familiarity, a decision, a probe."""

import importlib
from typing import Any

# Imported on first use: the settings of `FitKappa` are read without TensorFlow.
_MODULES = {
    "Decision": "decision",
    "Familiarity": "familiarity",
    "FitKappa": "method",
    "Judge": "judge",
    "LinearProbe": "probe",
    "fit_judge": "judge",
    "fit_kappa": "kappa",
    "load": "judge",
    "load_probe": "probe",
    "require_probe": "probe",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
