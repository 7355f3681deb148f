"""Tables and pages of them, written as Markdown, CSV, HTML or LaTeX.

Every cell is text or a number. Text may come from data (class names, paths, settings), so each form
escapes it: it is shown as it is, and is never markup, another cell or a formula.
"""

import csv
import dataclasses
import io
import numbers
import re
import textwrap
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from tfvmf.files import csv_text, is_number
from tfvmf.progress import printable

Cell = str | float | int | None

# Markdown: what may start markup within a line, and what only at the beginning of a paragraph.
# An underscore within a word and brackets that no link follows are harmless, and common here.
_MARKDOWN = re.compile(r"[\\`*<~$&]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])")
_MARKDOWN_START = re.compile(r"^([#+>=-]|\d+(?=[.)](\s|$)))")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under titles.

    Attributes:
        columns: Titles of the columns.
        rows: Cells of each row; None is empty.
        footer: Rows that sum the others up; they come last and are emphasized.
        form: How numbers with a fraction are written, as `format` takes it; CSV has six digits.
        align: `l` or `r` for each column; by default a column with text is left-aligned.
        title: Heading on a page; "" for none.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    footer: Sequence[Sequence[Cell]] = ()
    form: str = ".3f"
    align: str = ""
    title: str = ""

    def markdown(self) -> str:
        """The table in GitHub's Markdown, without its title."""

        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cells)} |"

        sides = " | ".join("---:" if side == "r" else "---" for side in self._sides())
        lines = [line(map(_markdown_cell, self.columns)), f"| {sides} |"]
        lines += [line(map(_markdown_cell, self._texts(row))) for row in self.rows]
        for row in self.footer:
            cells = map(_markdown_cell, self._texts(row))
            lines.append(line(f"**{cell}**" if cell else "" for cell in cells))
        return "\n".join(lines) + "\n"

    def text(self, *, width: int = 80) -> str:
        """The table for a terminal of this width; columns that do not fit follow below it."""
        cells = [self._texts(row) for row in (*self.rows, *self.footer)]
        sizes = [
            max(len(word) for word in (*title.split(), "", *(row[place] for row in cells)))
            for place, title in enumerate(self.columns)
        ]
        sides = self._sides()
        names = list(range(max(1, len(sides) - len(sides.lstrip("l")))))  # in every block
        blocks = [list(names)]
        for place in range(len(names), len(sizes)):
            if sum(sizes[each] + 2 for each in (*blocks[-1], place)) - 2 > width:
                blocks.append(list(names))
            blocks[-1].append(place)

        def line(texts: Mapping[int, str] | Sequence[str], block: Sequence[int]) -> str:
            parts = (
                f"{texts[place]:{'<' if sides[place] == 'l' else '>'}{sizes[place]}}"
                for place in block
            )
            return "  ".join(parts).rstrip()

        lines: list[str] = []
        for block in blocks:
            titles = [textwrap.wrap(self.columns[place], sizes[place]) for place in block]
            height = max(map(len, titles))
            heads = dict(zip(block, ([""] * (height - len(t)) + t for t in titles), strict=True))
            lines += ["", *(line({p: heads[p][n] for p in block}, block) for n in range(height))]
            rule = "-" * (sum(sizes[place] + 2 for place in block) - 2)
            body = [line(row, block) for row in cells]
            split = len(self.rows)
            lines += [rule, *body[:split], *([rule] if self.footer else []), *body[split:]]
        return "\n".join(lines[1:]) + "\n"

    def csv(self, *, beside: Mapping[str, Cell] | None = None) -> str:
        """The table as comma-separated values.

        Args:
            beside: Further columns that have the same value in every row.
        """
        beside = beside or {}
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([_csv_cell(cell) for cell in (*self.columns, *beside)])
        for row in (*self.rows, *self.footer):
            writer.writerow([_csv_cell(cell) for cell in (*row, *beside.values())])
        return file.getvalue()

    def html(self) -> str:
        """The table as HTML, without its title; numbers have the class `number`."""
        sides = [' class="number"' if side == "r" else "" for side in self._sides()]

        def line(cells: Iterable[str], tag: str) -> str:
            marked = (
                f"<{tag}{side}>{escape(cell)}</{tag}>"
                for cell, side in zip(cells, sides, strict=True)
            )
            return f"<tr>{''.join(marked)}</tr>\n"

        def part(tag: str, rows: Sequence[Sequence[Cell]], cell: str) -> str:
            lines = "".join(line(self._texts(row), cell) for row in rows)
            return f"<{tag}>\n{lines}</{tag}>\n" if lines else ""

        head = part("thead", [self.columns], "th")
        return (
            f"<table>\n{head}{part('tbody', self.rows, 'td')}{part('tfoot', self.footer, 'td')}"
            "</table>\n"
        )

    __html__ = html  # templates that escape (Jinja's) take the table as it is

    def latex(self) -> str:
        r"""The table as LaTeX's `tabular` with the rules of the package `booktabs`."""

        def line(cells: Iterable[str]) -> str:
            return " & ".join(cells) + r" \\"

        lines = [f"\\begin{{tabular}}{{{self._sides()}}}", r"\toprule"]
        lines += [line(map(_latex_cell, self.columns)), r"\midrule"]
        lines += [line(map(_latex_cell, self._texts(row))) for row in self.rows]
        lines += [r"\midrule"] if self.footer else []
        lines += [line(map(_latex_cell, self._texts(row))) for row in self.footer]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _sides(self) -> str:
        """`l` or `r` for each column."""
        rows = (*self.rows, *self.footer)
        return self.align or "".join(
            "l" if any(isinstance(row[place], str) for row in rows) else "r"
            for place in range(len(self.columns))
        )

    def _texts(self, row: Sequence[Cell]) -> list[str]:
        return [self._text(cell) for cell in row]

    def _text(self, cell: Cell) -> str:
        if cell is None:
            return ""
        if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
            return format(float(cell), self.form)
        return one_line(str(cell))


class Picture(NamedTuple):
    """A picture on a page: its path, relative to the page, and what it shows."""

    file: str
    title: str


@dataclasses.dataclass(frozen=True)
class Page:
    """A title, and below it, from the top, paragraphs of text, tables and pictures."""

    title: str
    blocks: Sequence[str | Table | Picture]

    def markdown(self) -> str:
        """The page in GitHub's Markdown."""
        parts = [f"# {_markdown_text(self.title)}"]
        for block in self.blocks:
            if isinstance(block, Table):
                parts += [f"## {_markdown_text(block.title)}"] if block.title else []
                parts.append(block.markdown().rstrip("\n"))
            elif isinstance(block, Picture):
                address = urllib.parse.quote(block.file)
                parts.append(f"![{_markdown_text(block.title)}]({address})")
            else:
                parts.append(_MARKDOWN_START.sub(_escape_start, _markdown_text(block)))
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """The page as a part of an HTML document: its title is a heading of the third level."""
        parts = [f"<h3>{escape(self.title)}</h3>\n"]
        for block in self.blocks:
            if isinstance(block, Table):
                parts += [f"<h4>{escape(block.title)}</h4>\n"] if block.title else []
                parts.append(f'<div class="scroll">{block.html()}</div>\n')
            elif isinstance(block, Picture):
                address = escape(urllib.parse.quote(block.file))
                parts.append(f'<img alt="{escape(block.title)}" src="{address}">\n')
            else:
                parts.append(f"<p>{escape(block)}</p>\n")
        return "".join(parts)

    __html__ = html


def one_line(text: str) -> str:
    """Text without line breaks, tabs and control characters."""
    return printable(" ".join(text.split()))


def _markdown_text(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text))


def _markdown_cell(text: str) -> str:
    return _markdown_text(text).replace("|", r"\|")


def _escape_start(found: re.Match[str]) -> str:
    start = found[0]
    return f"{start}\\" if start.isdigit() else f"\\{start}"


def _csv_cell(cell: Cell) -> str | int:
    if cell is None:
        return ""
    if isinstance(cell, numbers.Integral):
        return int(cell)
    if isinstance(cell, numbers.Real):
        return f"{float(cell):.6g}"
    return csv_text(str(cell))


def _latex_cell(text: str) -> str:
    if text.startswith("-") and is_number(text):
        return f"${text}$"  # a minus, not a hyphen
    return "".join(_LATEX.get(character, character) for character in text)
