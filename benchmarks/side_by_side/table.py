"""What a measurement is, and the table of all: as Markdown and as JSON."""

import dataclasses
import operator
import re
from collections.abc import Sequence
from typing import Any

_OPERATORS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        section: What was measured together.
        what: Ours against theirs, in words.
        ours: The number of the first.
        unit: Of both.
        theirs: The number of the second, if there is one.
        ratio: Of the two, the median over rounds; None where ours stands alone.
        goal: As `>= 1.3`, on the ratio or, without one, on ours; "" for none.
        noisy: Others were busy, and what was measured is not alike for both: nothing is judged.
    """

    section: str
    what: str
    ours: float
    unit: str
    theirs: float | None = None
    ratio: float | None = None
    goal: str = ""
    noisy: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal, or where noise forbids to say."""
        if not self.goal or self.noisy:
            return None
        match = re.match(r"(>=|<=|<) ([0-9.]+)", self.goal)
        assert match, self.goal
        value = self.ours if self.ratio is None else self.ratio
        return bool(_OPERATORS[match[1]](value, float(match[2])))

    def content(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**dataclasses.asdict(self), "met": self.met}


def markdown(rows: Sequence[Row]) -> str:
    """All rows as one table."""
    lines = [
        "| section | what | ours | theirs | unit | ratio | goal | met |",
        "| --- | --- | ---: | ---: | --- | ---: | --- | --- |",
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        met = "noisy" if row.noisy else met
        numbers = f"{number(row.ours)} | {number(row.theirs)} | {row.unit} | {ratio}"
        lines.append(f"| {row.section} | {row.what} | {numbers} | {row.goal} | {met} |")
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Three digits, and thousands with commas."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
