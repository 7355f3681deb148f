"""Suites: what an encoder and its data are worth, in numbers, tables and plots.

    subject = evaluation.subject_from_run("runs/mine")  # or Subject(encoder=..., train=, test=)
    results = evaluation.cifar10c(subject, max_images=1000)

Every suite of `SUITES` is a function here, by its name. Importing this package does not import
TensorFlow; what needs it loads when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfvmf.evaluation.scores import SCORES, Uncertainty, uncertainty
from tfvmf.evaluation.suites import (
    SUITES,
    Headline,
    Measured,
    NotApplicable,
    Options,
    Results,
    Suite,
    check_names,
    describe_suites,
    evaluate,
    write_report,
)

if TYPE_CHECKING:
    from tfvmf.evaluation.subject import Subject, subject_from_run
    from tfvmf.evaluation.suites.cifar10c import along_training

__all__ = [
    "SCORES",
    "SUITES",
    "Headline",
    "Measured",
    "NotApplicable",
    "Options",
    "Results",
    "Subject",
    "Suite",
    "Uncertainty",
    "along_training",
    "check_names",
    "describe_suites",
    "evaluate",
    "subject_from_run",
    "uncertainty",
    "write_report",
]

_HOMES = {
    "Subject": "subject",
    "subject_from_run": "subject",
    "along_training": "suites.cifar10c",
}


def __getattr__(name: str) -> Any:
    if name in SUITES:
        return SUITES[name]
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *SUITES})
