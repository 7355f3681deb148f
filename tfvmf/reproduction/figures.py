"""Pictures of numbers: bars beside the paper's marks, and lines along training."""

import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfvmf.evaluation import plots
from tfvmf.evaluation.plots import BLUE, GRAY, GREEN, ORANGE

Points = Sequence[tuple[float, float]]

_COLOURS = (BLUE, ORANGE, GREEN)
_FOOT = 0.15  # inches a line


def finish(figure: Figure, path: pathlib.Path, title: str, below: str) -> None:
    """Writes a picture with its title above and where it is from below."""
    width, height = figure.get_size_inches()
    columns = int(15 * width)
    foot = "\n".join(line for part in below.splitlines() for line in textwrap.wrap(part, columns))
    lines = foot.count("\n") + 1
    figure.suptitle(
        "\n".join(textwrap.wrap(title, int(11.5 * width))), x=0.01, ha="left", fontsize=11
    )
    figure.tight_layout()
    figure.text(
        0.01, -(0.08 + _FOOT * lines) / height, foot, fontsize=8, color="#555b66", va="bottom"
    )
    plots.save(figure, path)


def draw_bars(
    path: pathlib.Path,
    title: str,
    below: str,
    *,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    printed: Mapping[str, Sequence[float]],
    axis_label: str,
    line: float = 0.0,
    colors: Sequence[str] = _COLOURS,
) -> None:
    """Groups of bars.

    Args:
        path: The PNG.
        title: Above it.
        below: Below it.
        labels: Of the groups.
        series: Name -> a bar a group.
        printed: Name of a series -> the paper's numbers, as marks on its bars.
        axis_label: What the numbers are.
        line: Where nothing was learnt.
        colors: Of the series.
    """
    with plt.rc_context(plots.STYLE):
        width = min(12.0, max(6.0, 0.6 * len(labels) * max(1.0, 0.7 * len(series))))
        figure, axis = plt.subplots(figsize=(width, 3.4))
        _bars(axis, labels, series, printed, colors)
        axis.axhline(line, color=GRAY, linewidth=1.0)
        axis.margins(y=0.12)
        axis.set_ylabel(axis_label)
        _legend(axis)
        finish(figure, path, title, below)


def draw_panels(
    path: pathlib.Path,
    title: str,
    below: str,
    *,
    labels: Sequence[str],
    panels: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    axis_label: str,
) -> None:
    """One row of bars a panel: {title: (ours, the paper's)}, the same labels for all."""
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(
            len(panels), 1, figsize=(10, 1.7 * len(panels)), sharex=True, sharey=True, squeeze=False
        )
        for axis, (name, (ours, printed)) in zip(axes.flat, panels.items(), strict=True):
            color = BLUE if name.endswith("(-)") else ORANGE
            _bars(axis, labels, {"tfvmf": ours}, {"tfvmf": printed}, (color,))
            axis.axhline(0, color=GRAY, linewidth=1.0)
            axis.set_ylim(-1.1, 1.1)
            means = f"mean {np.mean(ours):+.2f}, paper {np.mean(printed):+.2f}"
            axis.set_title(f"{name}: {means}", loc="left")
        axes[0, 0].legend(*_handles(axes[0, 0]), loc="upper right", ncols=2)
        figure.supylabel(axis_label, fontsize=9)
        finish(figure, path, title, below)


def draw_lines(
    path: pathlib.Path,
    title: str,
    below: str,
    *,
    left: Mapping[str, Points],
    right: Mapping[str, Points],
    ends: Mapping[str, float],
) -> None:
    """Accuracy (left) and mean correlation (right) by epoch; `ends` are the paper's last."""
    colors = dict(zip(left, (GRAY, BLUE, ORANGE), strict=True))
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
        for axis, lines in zip(axes, (left, right), strict=True):
            for name, points in lines.items():
                axis.plot(*zip(*points, strict=True), "o-", color=colors[name], label=name)
            axis.set_xlabel("epoch")
        for name, value in ends.items():
            axes[1].axhline(value, color=colors[name], linestyle=":", linewidth=1.2)
            axes[1].annotate(
                f"paper, 1000 epochs: {value:.2f}", (1.0, value), ha="right", va="bottom",
                xycoords=("axes fraction", "data"), fontsize=8, color=colors[name],
            )  # fmt: skip
        axes[0].set_title("accuracy of a linear probe", loc="left")
        axes[1].set_title("mean Spearman correlation of kappa with severity", loc="left")
        axes[0].legend()
        finish(figure, path, title, below)


def _bars(
    axis: Axes,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    printed: Mapping[str, Sequence[float]],
    colors: Sequence[str],
) -> None:
    places, share = np.arange(len(labels)), 0.8 / len(series)
    for number, ((name, values), color) in enumerate(zip(series.items(), colors, strict=False)):
        shifted = places + (number - (len(series) - 1) / 2) * share
        axis.bar(shifted, values, width=0.9 * share, color=color, label=name)
        if name in printed:
            axis.plot(shifted, printed[name], "D", markersize=4, color="black", label="paper")
    long = len(labels) > 8
    axis.set_xticks(places, labels, rotation=40 if long else 0, ha="right" if long else "center")
    axis.grid(visible=False, axis="x")


def _handles(axis: Axes) -> tuple[list, list[str]]:
    """Legend entries, each name once."""
    handles, names = axis.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    return list(once.values()), list(once)


def _legend(axis: Axes) -> None:
    handles, names = _handles(axis)
    axis.legend(
        handles, names, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(names),
        borderaxespad=0.2,
    )  # fmt: skip
