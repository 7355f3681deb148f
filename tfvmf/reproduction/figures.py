"""The pictures: bars next to the paper's marks, lines along training, spheres, example images."""

import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from tfvmf import vmf
from tfvmf.evaluation import plots
from tfvmf.evaluation.plots import BLUE, GRAY, GREEN, ORANGE

Points = Sequence[tuple[float, float]]

CHOSEN_KAPPAS = (1000.0, 100.0, 20.0, 5.0, 1.0)

_FAINT = "#b9bcc6"
_LINE_HEIGHT = 0.15  # inches, of the text below a picture
_SAMPLES = 500
# The eye looks along -z; the mean leans out of the picture, up and to the right.
MEAN = np.array([0.36, 0.42, np.sqrt(1 - 0.36**2 - 0.42**2)])


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
    colors: Sequence[str] = (BLUE, ORANGE, GREEN),
) -> None:
    """Draws groups of bars.

    Args:
        path: The PNG file.
        title: Text above.
        below: Text below.
        labels: Label of each group.
        series: {name: one bar per group}.
        printed: {name of a series: the paper's numbers}, drawn as marks on its bars.
        axis_label: What the numbers are.
        line: The value at which nothing was learned.
        colors: Color of each series.
    """
    with matplotlib.rc_context(plots.STYLE):
        width = min(12.0, max(6.0, 0.6 * len(labels) * max(1.0, 0.7 * len(series))))
        figure = Figure(figsize=(width, 3.4))
        axis = figure.subplots()
        _bars(axis, labels, series, printed, colors)
        axis.axhline(line, color=GRAY, linewidth=1.0)
        axis.margins(y=0.12)
        axis.set_ylabel(axis_label)
        handles, names = _handles(axis)
        axis.legend(
            handles, names, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(names),
            borderaxespad=0.2,
        )  # fmt: skip
        _finish(figure, path, title, below)


def draw_panels(
    path: pathlib.Path,
    title: str,
    below: str,
    *,
    labels: Sequence[str],
    panels: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    axis_label: str,
) -> None:
    """Draws one panel of bars for each {title: (ours, the paper's)}, with the same labels."""
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(10, 1.7 * len(panels)))
        axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)
        for axis, (name, (ours, printed)) in zip(axes.flat, panels.items(), strict=True):
            color = BLUE if name.endswith("(-)") else ORANGE
            _bars(axis, labels, {"tfvmf": ours}, {"tfvmf": printed}, (color,))
            axis.axhline(0, color=GRAY, linewidth=1.0)
            axis.set_ylim(-1.1, 1.1)
            means = f"mean {np.mean(ours):+.2f}, paper {np.mean(printed):+.2f}"
            axis.set_title(f"{name}: {means}", loc="left")
        axes[0, 0].legend(*_handles(axes[0, 0]), loc="upper right", ncols=2)
        figure.supylabel(axis_label, fontsize=9)
        _finish(figure, path, title, below)


def draw_lines(
    path: pathlib.Path,
    title: str,
    below: str,
    *,
    left: Mapping[str, Points],
    right: Mapping[str, Points],
    ends: Mapping[str, float],
) -> None:
    """Draws accuracy (left) and mean correlation (right) by epoch.

    Args:
        path: The PNG file.
        title: Text above.
        below: Text below.
        left: {method: (epoch, accuracy) pairs}.
        right: {method: (epoch, correlation) pairs}.
        ends: {method: the paper's correlation at the end of training}.
    """
    colors = dict(zip(left, (GRAY, BLUE, ORANGE), strict=True))
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(9, 3.2))
        axes = figure.subplots(1, 2)
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
        _finish(figure, path, title, below)


def draw_distributions(
    path: pathlib.Path, title: str, below: str, *, found: dict[str, Any]
) -> None:
    """Draws Figure 1: spheres with samples at chosen kappas, and at those of images below them.

    Args:
        path: The PNG file.
        title: Text above.
        below: Text below.
        found: The result of `measure.spread`.
    """
    with matplotlib.rc_context({**plots.STYLE, "axes.grid": False}):
        figure = Figure(figsize=(10, 6.2))
        axes = figure.subplots(3, len(CHOSEN_KAPPAS), gridspec_kw={"height_ratios": (1, 1, 0.55)})
        for axis, kappa in zip(axes[0], CHOSEN_KAPPAS, strict=True):
            draw_sphere(axis, kappa)
        for column, kappa in enumerate(found["kappa"]):
            draw_sphere(axes[1, column], kappa)
            caption = found["conditions"][column].replace("_", " ")
            _show(axes[2, column], found["images"][column], caption)
        for row, text in enumerate(("chosen kappa", "kappa of the image below", "test image")):
            axes[row, 0].annotate(
                text, (-0.08, 0.5), xycoords="axes fraction", rotation=90, ha="right", va="center"
            )
        _finish(figure, path, title, below)


def draw_sphere(axis: Axes, kappa: float) -> None:
    """Draws samples around the fixed direction `MEAN`, seen from outside; those behind are faint.

    Args:
        axis: Where to draw.
        kappa: Concentration of the samples.
    """
    axis.add_patch(Circle((0, 0), 1, facecolor="#f4f5f8", edgecolor=_FAINT, zorder=0))
    samples = vmf.VonMisesFisher(MEAN, kappa).sample(_SAMPLES, seed=(3, 7)).numpy()
    behind = samples[:, 2] < 0
    for chosen, color, alpha in ((behind, _FAINT, 0.9), (~behind, BLUE, 0.6)):
        x, y, _ = samples[chosen].T
        axis.scatter(x, y, s=4, color=color, alpha=alpha, linewidths=0, zorder=2)
    arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    tip = (1.25 * MEAN[0], 1.25 * MEAN[1])
    axis.annotate("", xy=tip, xytext=(0, 0), arrowprops=arrow, zorder=4)
    axis.set_title(f"kappa = {kappa:.4g}")
    axis.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
    axis.axis("off")


def draw_images_and_failures(
    path: pathlib.Path, title: str, below: str, *, examples: dict[str, Any], failure: dict[str, Any]
) -> None:
    """Draws Figure 2: images with their kappa (A), histograms of right and wrong predictions (B).

    Args:
        path: The PNG file.
        title: Text above.
        below: Text below.
        examples: The result of `measure.examples`.
        failure: The result of `measure.failure`.
    """
    rows = [("most certain", examples["most"]), ("least certain", examples["least"])]
    rows += [(name.replace("_", " "), entry) for name, entry in examples["corrupted"].items()]
    columns = max(len(entry["kappa"]) for _, entry in rows)
    with matplotlib.rc_context({**plots.STYLE, "axes.grid": False}):
        figure = Figure(figsize=(11, 1.25 * len(rows) + 0.4))
        widths = [1.0] * columns + [0.3, 3.3]
        grid = figure.add_gridspec(len(rows), len(widths), width_ratios=widths)
        for row, (name, entry) in enumerate(rows):
            for column, (image, kappa) in enumerate(
                zip(entry["images"], entry["kappa"], strict=True)
            ):
                axis = figure.add_subplot(grid[row, column])
                _show(axis, image, f"{kappa:.2f}")
                if column == 0:
                    axis.set_ylabel(name, fontsize=8)
                    axis.axis("on")
                    axis.spines[:].set_visible(False)
                if row == 0 and column == 0:
                    axis.set_title("A: kappa below the images", loc="left")
                if row == 2:
                    axis.set_title("clean" if column == 0 else f"severity {column}", fontsize=8)
        axis = figure.add_subplot(grid[:, -1])
        plots.draw_groups(
            axis,
            {
                f"correct ({failure['correct']:,})": np.array(failure["kappa_correct"]),
                f"wrong ({failure['wrong']:,})": np.array(failure["kappa_wrong"]),
            },
        )
        axis.set_xlabel("kappa")
        axis.set_ylim(top=1.15 * axis.get_ylim()[1])  # room for the legend
        axis.legend(loc="upper left", ncols=2)
        auroc = failure["auroc"]
        known = "" if auroc is None else f", AUROC {auroc:.3f}"
        axis.set_title(f"B: correct and wrong predictions{known}", loc="left")
        _finish(figure, path, title, below)


def _finish(figure: Figure, path: pathlib.Path, title: str, below: str) -> None:
    """Writes a picture with its title above and text below."""
    width, height = figure.get_size_inches()
    columns = int(15 * width)
    foot = "\n".join(line for part in below.splitlines() for line in textwrap.wrap(part, columns))
    lines = foot.count("\n") + 1
    figure.suptitle(
        "\n".join(textwrap.wrap(title, int(11.5 * width))), x=0.01, ha="left", fontsize=11
    )
    figure.tight_layout()
    y = -(0.08 + _LINE_HEIGHT * lines) / height
    figure.text(0.01, y, foot, fontsize=8, color="#555b66", va="bottom")
    plots.save(figure, path)


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


def _show(axis: Axes, image: Any, caption: str) -> None:
    axis.imshow(np.array(image, np.uint8), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel(caption, fontsize=8, labelpad=2)
    axis.spines[:].set_visible(False)
