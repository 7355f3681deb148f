"""How long things will take: from what the run itself, others of the budget, or the budget say."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

import ml_collections

from tfvmf.errors import UserError
from tfvmf.reproduction.budgets import Budget
from tfvmf.training import read_metrics, run_directory

# Time of a step relative to simclr_vmf with a ResNet-18. Networks: their multiplications at 32x32.
# Methods: passes through the encoder. BYOL's target sees both views too, without a gradient; a
# classifier sees one view; MC-InfoNCE's samples as benchmarks/mc_infonce.py measured them.
NETWORK_COST = {"resnet18": 1.0, "resnet34": 2.1, "resnet50": 2.3}
METHOD_COST = {"mc_infonce": 1.3, "byol": 1.3, "byol_vmf": 1.3, "supervised": 0.5}
_LINES = 20


@dataclasses.dataclass(frozen=True)
class Estimator:
    """Seconds that trainings and measurements take.

    Attributes:
        budget: Whose times hold where nothing was measured.
        training: Factor on its times of training, from the runs that are there.
        measuring: Factor on its times of measuring.
    """

    budget: Budget
    training: float = 1.0
    measuring: float = 1.0

    def train(
        self, config: ml_collections.ConfigDict, directory: pathlib.Path, steps: int
    ) -> tuple[float, str]:
        """Seconds of so many steps of a run, and what that is from."""
        if not steps:
            return 0.0, ""
        start = self.training * self.budget.seconds_to_start
        own = seconds_per_step(directory, config.batch_size)
        if own:
            return start + steps * own, "its own pace"
        step = self.training * self.budget.seconds_per_step * self.cost(config)
        source = "the pace of other runs here" if self.training != 1.0 else self.budget.timing
        return start + steps * step, source

    def measure(self, config: ml_collections.ConfigDict, forward_images: int) -> float:
        """Seconds of so many forward passes of one image."""
        return self.measuring * expected_seconds(self.budget, config, forward_images)

    def cost(self, config: ml_collections.ConfigDict) -> float:
        """Of a step of a run, relative to the budget's simclr_vmf."""
        base = self.budget.base
        return relative_cost(config) / relative_cost(base)


def relative_cost(config: ml_collections.ConfigDict) -> float:
    """Of a step, relative to simclr_vmf with a ResNet-18."""
    return NETWORK_COST[config.model.backbone] * METHOD_COST.get(config.method, 1.0)


def expected_seconds(
    budget: Budget, config: ml_collections.ConfigDict, forward_images: int
) -> float:
    """Seconds of a measurement, by the budget's own times."""
    network = NETWORK_COST[config.model.backbone]
    network /= NETWORK_COST[budget.base.model.backbone]
    return budget.seconds_to_measure + forward_images * network / budget.images_per_second


def seconds_per_step(directory: pathlib.Path, batch_size: int) -> float | None:
    """The pace of a run's latest steps; None if it has not logged any."""
    rates = [
        line["images_per_second"]
        for line in read_metrics(directory)
        if line.get("images_per_second")
    ]
    return batch_size / statistics.median(rates[-_LINES:]) if rates else None


def make_estimator(budget: Budget, directory: pathlib.Path) -> Estimator:
    """An estimator that has looked at the runs and measurements of a workspace."""
    plain = Estimator(budget)
    paces = [
        pace / (budget.seconds_per_step * plain.cost(config))
        for place, config in _trained(directory)
        if (pace := seconds_per_step(place, config.batch_size))
    ]
    taken = expected = 0.0
    for path in directory.glob("runs/**/eval/reproduce/*.json"):
        entry = read_kept(path)
        taken, expected = taken + entry["seconds"], expected + entry["expected_seconds"]
    return Estimator(
        budget,
        training=statistics.median(paces) if paces else 1.0,
        measuring=taken / expected if expected else 1.0,
    )


def read_kept(path: pathlib.Path) -> dict[str, Any]:
    """A kept measurement: `key`, `seconds`, `expected_seconds` and `results`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}): remove it") from error


def _trained(
    directory: pathlib.Path,
) -> Iterator[tuple[pathlib.Path, ml_collections.ConfigDict]]:
    for path in sorted(directory.glob("runs/**/metrics.jsonl")):
        yield path.parent, run_directory.read(path.parent)[0]
