"""Tables and pages of them as Markdown, CSV, HTML or LaTeX, with all text escaped."""

import csv
import dataclasses
import io
import numbers
import re
import textwrap
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from tfvmf.files import csv_text, is_number
from tfvmf.progress import printable

Cell = str | float | int | None

# Markdown: characters that may start markup within a line, or only at the start of a paragraph.
# Underscores within words and brackets without a link are harmless, and common here.
_MARKDOWN = re.compile(r"[\\`*<~$&]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])")
_MARKDOWN_START = re.compile(r"^(?:(?P<mark>[#+>=-])|(?P<number>\d+)(?=[.)](\s|$)))")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under titles."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]  # None is an empty cell
    footer: Sequence[Sequence[Cell]] = ()  # summary rows
    form: str = ".3f"  # format of numbers with a fraction; CSV has six digits
    align: str = ""  # `l` or `r` per column; by default columns with text are left-aligned
    title: str = ""  # heading on a page

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Cell]], **style: str) -> "Table":
        """A table of rows {column: cell}; columns that a row lacks are empty in it."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        return cls(columns, [[row.get(column) for column in columns] for row in rows], **style)

    def markdown(self) -> str:
        """The table in GitHub's Markdown, without its title."""
        (head,), rows, footer = self._parts(_markdown_cell)
        sides = ["---:" if side == "r" else "---" for side in self._sides()]
        footer = [[f"**{cell}**" if cell else "" for cell in row] for row in footer]
        return "".join(f"| {' | '.join(row)} |\n" for row in (head, sides, *rows, *footer))

    def text(self, *, width: int = 80) -> str:
        """The table for a terminal of this width; columns that do not fit follow below it."""
        (columns,), *parts = self._parts(str)
        cells, sides = [row for part in parts for row in part], self._sides()
        sizes = [
            max(len(word) for word in (*title.split(), "", *(row[place] for row in cells)))
            for place, title in enumerate(columns)
        ]
        names = list(range(max(1, len(sides) - len(sides.lstrip("l")))))  # repeated in every block
        blocks = [list(names)]
        for place in range(len(names), len(sizes)):
            if sum(sizes[each] + 2 for each in (*blocks[-1], place)) - 2 > width:
                blocks.append(list(names))
            blocks[-1].append(place)
        titles = list(map(textwrap.wrap, columns, sizes))
        lines: list[str] = []
        for block in blocks:
            aligned = ((place, "<" if sides[place] == "l" else ">") for place in block)
            pattern = "  ".join(f"{{{place}:{side}{sizes[place]}}}" for place, side in aligned)
            height = max(len(titles[place]) for place in block)
            lower = [[""] * (height - len(words)) + words for words in titles]
            heads = [[words[line] for words in lower] for line in range(height)]
            head, body, foot = (
                [pattern.format(*row).rstrip() for row in rows] for rows in (heads, *parts)
            )
            rule = "-" * (sum(sizes[place] + 2 for place in block) - 2)
            lines += ["", *head, rule, *body, *([rule] if foot else []), *foot]
        return "\n".join(lines[1:]) + "\n"

    def csv(self, *, beside: Mapping[str, Cell] | None = None) -> str:
        """The table as CSV; `beside` adds columns with one value each."""
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
        text = ""
        tags = (("thead", "th"), ("tbody", "td"), ("tfoot", "td"))
        for (part, tag), rows in zip(tags, self._parts(escape), strict=True):
            lines = ""
            for row in rows:
                cells = (f"<{tag}{s}>{cell}</{tag}>" for s, cell in zip(sides, row, strict=True))
                lines += f"<tr>{''.join(cells)}</tr>\n"
            text += f"<{part}>\n{lines}</{part}>\n" if rows else ""
        return f"<table>\n{text}</table>\n"

    __html__ = html  # escaping templates (Jinja) insert the table as it is

    def latex(self) -> str:
        r"""The table as a LaTeX `tabular` with `booktabs` rules."""
        head, rows, footer = (
            [" & ".join(row) + r" \\" for row in part] for part in self._parts(_latex_cell)
        )
        lines = [f"\\begin{{tabular}}{{{self._sides()}}}", r"\toprule", *head, r"\midrule", *rows]
        lines += [r"\midrule", *footer] if footer else []
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _sides(self) -> str:
        """`l` or `r` per column."""
        rows = (*self.rows, *self.footer)
        return self.align or "".join(
            "l" if any(isinstance(row[place], str) for row in rows) else "r"
            for place in range(len(self.columns))
        )

    def _parts(self, escaped: Callable[[str], str]) -> Iterator[list[list[str]]]:
        """The cells of the head, the rows and the footer as text."""
        for part in ([self.columns], self.rows, self.footer):
            yield [[escaped(self._text(cell)) for cell in row] for row in part]

    def _text(self, cell: Cell) -> str:
        if cell is None:
            return ""
        if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
            return format(float(cell), self.form)
        return one_line(str(cell))


class Picture(NamedTuple):
    """A picture on a page: its path, relative to the page, and its description."""

    file: str
    title: str


@dataclasses.dataclass(frozen=True)
class Page:
    """A title followed by paragraphs of text, tables and pictures."""

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
                parts.append(_MARKDOWN_START.sub(r"\g<number>\\\g<mark>", _markdown_text(block)))
        return "\n\n".join(parts) + "\n"


def one_line(text: str) -> str:
    """Text without line breaks, tabs and control characters."""
    return printable(" ".join(text.split()))


def _markdown_text(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text))


def _markdown_cell(text: str) -> str:
    return _markdown_text(text).replace("|", r"\|")


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
