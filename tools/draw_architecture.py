"""Draws docs/architecture.png and writes the table of packages into docs/architecture.md.

    .venv/bin/python -m tools.draw_architecture

Both are made from what the modules of tfvmf really import (grimp, which import-linter brings), from
the layers in pyproject.toml and from the first line of each package's docstring. A test compares
the page with `table()`: run this after a package imports another one for the first time.
"""

import ast
import functools
import pathlib
import re
import textwrap
import tomllib

import grimp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.png"
BEGIN, END = "<!-- made by tools/draw_architecture.py -->\n", "<!-- end -->"
INK, LINE, PACKAGE, MODULE = "#2b2b33", "#8a93a6", "#dfe9f7", "#f4f5f8"
WIDTH, HEIGHT, COLUMN, ROW = 1.9, 0.62, 2.5, 1.25  # size of a box, distances between boxes

Imports = dict[str, set[str]]


def layers() -> list[list[str]]:
    """The packages by layer, the highest first, as import-linter reads them."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [[name.strip(" ()") for name in re.split("[|:]", layer)] for layer in found]


def imports() -> Imports:
    """Which package imports which; single modules directly below tfvmf count as packages."""
    graph = grimp.build_graph("tfvmf", cache_dir=None)
    outside = {"tfvmf", "tfvmf.__main__"}
    rooms = sorted(graph.find_children("tfvmf") - outside)
    found: Imports = {room.removeprefix("tfvmf."): set() for room in rooms}
    for module in graph.modules - outside:
        for imported in graph.find_modules_directly_imported_by(module) - outside:
            ours, theirs = (name.split(".")[1] for name in (module, imported))
            found[ours] |= {theirs} - {ours}
    return found


def path_of(room: str) -> pathlib.Path:
    """The file with the docstring of a package."""
    directory = ROOT / "tfvmf" / room
    return directory / "__init__.py" if directory.is_dir() else directory.with_suffix(".py")


def is_package(room: str) -> bool:
    """Whether a package is a directory, not a single file."""
    return path_of(room).name == "__init__.py"


def purpose(room: str) -> str:
    """The first line of a package's docstring."""
    return (ast.get_docstring(ast.parse(path_of(room).read_text())) or "").partition("\n")[0]


def table() -> str:
    """Every package, what it is and what it imports, as Markdown, from the highest layer down."""
    order = [room for layer in layers() for room in layer]
    found = imports()
    lines = ["| package | what it is | imports |", "| --- | --- | --- |"]
    for room in sorted(found, key=lambda room: (not is_package(room), order.index(room))):
        names = ", ".join(sorted(found[room], key=order.index)) or "-"
        lines.append(f"| `{room}` | {purpose(room)} | {names} |")
    return "\n".join(lines) + "\n"


def between_packages(found: Imports) -> Imports:
    """Imports between packages, direct or through modules, without those that others imply."""

    @functools.cache
    def below(room: str) -> frozenset[str]:
        return frozenset(found[room]).union(*(below(name) for name in found[room]))

    packages = {room for room in found if is_package(room)}
    return {
        room: {
            name
            for name in below(room) & packages
            if not any(name in below(other) for other in below(room) & packages)
        }
        for room in packages
    }


def places(edges: Imports) -> dict[str, tuple[float, float]]:
    """The center of each package's box: one row per layer, near the boxes it is connected to."""
    rows = [row for layer in layers() if (row := [room for room in layer if room in edges])]
    x = dict.fromkeys(edges, 0.0)
    for _ in range(20):
        for row in rows:
            wanted = {}
            for room in row:
                near = [x[other] for other in edges if room in edges[other] or other in edges[room]]
                wanted[room] = sum(near) / len(near) if near else COLUMN
            row.sort(key=lambda room: wanted[room])
            spread = [wanted[row[0]]]
            for room in row[1:]:
                spread.append(max(wanted[room], spread[-1] + COLUMN))
            shift = (sum(wanted.values()) - sum(spread)) / len(row)
            x |= {room: value + shift for room, value in zip(row, spread, strict=True)}
    return {room: (x[room], -ROW * number) for number, row in enumerate(rows) for room in row}


def box(axes: Axes, x: float, y: float, text: str, *, width: float = WIDTH, color: str) -> None:
    """A labeled box around a point."""
    height = HEIGHT * (1 + 0.6 * text.count("\n"))
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, zorder=3,
            boxstyle="round,pad=0,rounding_size=0.12", facecolor=color, edgecolor=LINE,
        )
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", fontsize=10, color=INK, zorder=4)


def draw(axes: Axes) -> None:
    """Draws packages in rows with arrows to what they import, and single modules at the bottom."""
    found = imports()
    edges = between_packages(found)
    place = places(edges)
    for room, names in edges.items():
        for name in names:
            (x0, y0), (x1, y1) = place[room], place[name]
            axes.annotate(
                "",
                (x1, y1 + HEIGHT / 2),
                (x0, y0 - HEIGHT / 2),
                arrowprops={"arrowstyle": "-|>", "color": LINE, "linewidth": 1.2},
            )
    for room, (x, y) in place.items():
        box(axes, x, y, room, color=PACKAGE)
    bottom = min(y for _, y in place.values()) - 1.2 * ROW
    left, *_, right = sorted(x for x, _ in place.values())
    modules = textwrap.fill(",  ".join(room for room in found if not is_package(room)), 60)
    box(axes, (left + right) / 2, bottom, modules, width=right - left + WIDTH, color=MODULE)
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.axis("off")


def main() -> None:
    """Writes the picture and the table."""
    figure = Figure(figsize=(6.5, 8), layout="constrained")
    draw(figure.subplots())
    figure.savefig(PICTURE, dpi=90)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
