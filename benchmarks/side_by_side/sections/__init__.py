"""The sections of `make bench` by name. Each measures in turn and gives rows of the table."""

from collections.abc import Callable

from benchmarks.side_by_side.bench import Bench
from benchmarks.side_by_side.sections import (
    evaluation,
    growth,
    limit,
    pipeline,
    runtimes,
    startup,
    train_step,
    uncertainty,
)
from benchmarks.side_by_side.table import Row

SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "train_step": train_step.measure,
    "trunk": train_step.measure_trunk,
    "pipeline": pipeline.measure,
    "uncertainty": uncertainty.measure,
    "evaluation": evaluation.measure,
    "startup": startup.measure,
    "runtimes": runtimes.measure,
    "limit": limit.measure,
    "growth": growth.measure,
}
