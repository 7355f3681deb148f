"""Suites that measure an encoder on data, with numbers, tables and plots.

    subject = evaluation.subject_from_run("runs/mine")  # or Subject(encoder=..., train=, test=)
    results = evaluation.cifar10c(subject, max_images=1000)

Every suite of `SUITES` is a function of this package. TensorFlow is imported on first use.
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
    evaluate,
)

if TYPE_CHECKING:
    from tfvmf.evaluation.report import write_report
    from tfvmf.evaluation.subject import Subject, subject_from_run

__all__ = [
    "SCORES", "SUITES", "Headline", "Measured", "NotApplicable", "Options", "Results", "Subject",
    "Suite", "Uncertainty", "check_names", "evaluate", "subject_from_run", "uncertainty",
    "write_report",
]  # fmt: skip

_LATE = {"Subject": "subject", "subject_from_run": "subject", "write_report": "report"}


def __getattr__(name: str) -> Any:
    if name in SUITES:
        return SUITES[name]
    if name in _LATE:
        return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE, *SUITES})
