"""Suites by name: each takes an `Evaluation`, writes files and returns its numbers."""

from collections.abc import Callable

from tfvmf.errors import UserError
from tfvmf.evaluation import (
    agreement,
    along_training,
    cifar10c,
    curves,
    failure,
    ood,
    probe,
    projector,
    report,
)
from tfvmf.evaluation.run import Evaluation, NotApplicable, load
from tfvmf.evaluation.scores import SCORES, Uncertainty, uncertainty

SUITES: dict[str, Callable[[Evaluation], dict[str, object]]] = {
    "curves": curves.run,
    "probe": probe.run,
    "failure": failure.run,
    "ood": ood.run,
    "cifar10c": cifar10c.run,
    "projector": projector.run,
    "agreement": agreement.run,
}
# Many passes over many images: only for those who ask.
_BY_NAME_ONLY = ("agreement",)


def suites_by_name(names: str) -> list[str]:
    """The suites that a comma-separated list names; `all` is every one but agreement."""
    if names == "all":
        return [name for name in SUITES if name not in _BY_NAME_ONLY]
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in SUITES:
            raise UserError(f"--suite={name} is unknown: use all or some of {', '.join(SUITES)}")
    if not chosen:
        raise UserError(f"--suite names no suite: use all or some of {', '.join(SUITES)}")
    return chosen


__all__ = [
    "SCORES",
    "SUITES",
    "Evaluation",
    "NotApplicable",
    "Uncertainty",
    "along_training",
    "load",
    "report",
    "suites_by_name",
    "uncertainty",
]
