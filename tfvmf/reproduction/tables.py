"""Measured numbers, and the forms in which reports are written."""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tfvmf.reproduction.measurements import Measurement

Cell = str | float | int | None


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


def markdown(title: str, sentences: Sequence[str], report: Report) -> str:
    """A Markdown page: title, sentences, the table, notes."""
    numeric = [
        all(not isinstance(row[place], str) for row in report.rows)
        for place in range(len(report.columns))
    ]
    lines = [f"# {title}", "", *(f"{line}\n" for line in sentences)]
    lines.append(_line(report.columns))
    lines.append("|" + "".join(" ---: |" if right else " --- |" for right in numeric))
    lines += [_line([_text(cell, report.form) for cell in row]) for row in report.rows]
    lines += [f"\n{note}" for note in report.notes]
    return "\n".join(lines) + "\n"


def comma_separated(report: Report, provenance: dict[str, Cell]) -> str:
    """The table as CSV; every line ends with where its numbers are from."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*report.columns, *provenance])
    for row in report.rows:
        cells = [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row]
        writer.writerow([*cells, *provenance.values()])
    return file.getvalue()


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(cell: Cell, form: str) -> str:
    if cell is None:
        return ""
    return format(cell, form) if isinstance(cell, float) else str(cell)
