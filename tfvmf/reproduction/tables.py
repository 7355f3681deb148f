"""Measured numbers, and what is reported of them."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tfvmf.evaluation.tables import Cell, Table
from tfvmf.reproduction.measurements import Measurement


class Results:
    """The results of an experiment's measurements, all of them kept.

    Args:
        measurements: The experiment's.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._found: dict[tuple[str, str], list[tuple[float, dict[str, Any]]]] = {}
        for item in sorted(measurements, key=lambda item: item.step):
            result = item.read()
            if result is None:
                raise ValueError(f"{item.label} was not measured")
            self._found.setdefault((item.task.run, item.task.kind), []).append((item.epoch, result))

    def __call__(self, run: str, kind: str) -> dict[str, Any]:
        """What was measured of a run at the end of its training."""
        return self._found[run, kind][-1][1]

    def along(self, run: str, kind: str) -> list[tuple[float, dict[str, Any]]]:
        """What was measured along a run: (epoch, result) pairs, the earliest first."""
        return self._found[run, kind]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What is written of an experiment.

    Attributes:
        columns: Titles of the table.
        rows: Its cells; None is empty.
        form: How its numbers are written, as `format` takes it.
        notes: Sentences that a reader of the numbers needs.
        draw: Draws the picture to a file, with a title and a line below.
    """

    columns: list[str]
    rows: list[list[Cell]]
    form: str = ".3f"
    notes: list[str] = dataclasses.field(default_factory=list)
    draw: Callable[[pathlib.Path, str, str], None]

    @property
    def table(self) -> Table:
        """The numbers."""
        return Table(columns=self.columns, rows=self.rows, form=self.form)
