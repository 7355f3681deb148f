"""The pictures: bars next to the paper's marks, lines along training, spheres, example images.

Bars and lines are drawn from a table's columns, {title: cells}, the rest from measured results.
"""

import itertools
import pathlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from tfvmf import vmf
from tfvmf.evaluation import plots
from tfvmf.evaluation.plots import BLUE, GRAY, ORANGE
from tfvmf.reproduction.measure import read_images

Columns = Mapping[str, Sequence[Any]]
# The panels of a bar chart: {title: {column: (name in the legend, color)}}.
Panels = Mapping[str, Mapping[str, tuple[str, str]]]

CHOSEN_KAPPAS = (1000.0, 100.0, 20.0, 5.0, 1.0)

_FAINT = "#b9bcc6"
_SAMPLES = 500
# The eye looks along -z; the mean leans out of the picture, up and to the right.
MEAN = np.array([0.36, 0.42, np.sqrt(1 - 0.36**2 - 0.42**2)])


def write(path: pathlib.Path, title: str, below: str, draw: Callable[[], Figure]) -> None:
    """Draws a picture and writes it as PNG, with a title above and text below."""
    with matplotlib.rc_context({**plots.STYLE, "figure.constrained_layout.use": True}):
        figure = draw()
        width = figure.get_size_inches()[0]
        foot = [
            line for part in below.splitlines() for line in textwrap.wrap(part, int(15 * width))
        ]
        headline = textwrap.wrap(title, int(11.5 * width))
        figure.suptitle("\n".join(headline), x=0.01, ha="left", fontsize=11)
        figure.supxlabel("\n".join(foot), x=0.01, ha="left", fontsize=8, color="#555b66")
        plots.save(figure, path)


def draw_bars(
    columns: Columns,
    *,
    labels: Sequence[str],
    panels: Panels,
    axis_label: str,
    line: float = 0.0,
    paper: bool = False,
) -> Figure:
    """Groups of bars under their labels.

    `line` is the value at which nothing was learned. Columns `<title>, sd` are error bars; with
    `paper`, columns `paper: <title>` or a column `paper` are marks.
    """
    places, most = np.arange(len(labels)), max(map(len, panels.values()))
    width = min(12.0, max(6.0, 0.6 * len(labels) * max(1.0, 0.7 * most)))
    figure = Figure(figsize=(width, 2.0 + 1.4 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    marks = {"linestyle": "", "marker": "D", "markersize": 4, "color": "black"}
    for axis, (title, series) in zip(axes, panels.items(), strict=True):
        share = 0.8 / len(series)
        for number, (column, (name, color)) in enumerate(series.items()):
            shifted = places + (number - (len(series) - 1) / 2) * share
            heights, spread = columns[column], columns.get(f"{column}, sd")
            errors = np.array(spread, float) if spread else None  # NaN: not repeated
            look = {"width": 0.9 * share, "color": color, "label": name, "capsize": 2}
            axis.bar(shifted, heights, yerr=errors, ecolor="#333333", **look)
            printed = columns.get(f"paper: {column}", columns.get("paper")) if paper else None
            if printed:
                axis.plot(shifted, printed, label="paper", **marks)
        axis.axhline(line, color=GRAY, linewidth=1.0)
        axis.margins(y=0.12)
        axis.grid(visible=False, axis="x")
        if title:  # the panel has one series
            theirs = f", paper's {np.mean(printed):+.2f}" if printed else ""
            axis.set_title(f"{title}: mean {np.mean(heights):+.2f}{theirs}", loc="left")
    if len(labels) > 8:
        axes[-1].set_xticks(places, labels, rotation=40, ha="right")
    else:
        values = [f"\n{value:.3f}" if most == 1 else "" for value in heights]
        texts = [a + b for a, b in zip(labels, values, strict=True)]
        axes[-1].set_xticks(places, texts, fontsize=9 if len(labels) < 6 else 8)
    figure.supylabel(axis_label, fontsize=9)
    pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
    once = {name: handle for handle, name in itertools.chain(*pairs)}  # each name once
    names = sorted(once, key=lambda name: name == "paper")
    axes[0].legend(
        [once[name] for name in names], names, loc="lower right", bbox_to_anchor=(1.0, 1.0),
        ncols=len(names), borderaxespad=0.2,
    )  # fmt: skip
    return figure


def draw_lines(columns: Columns, *, ends: Mapping[str, float]) -> Figure:
    """Accuracy (left) and mean correlation (right) by epoch.

    Args:
        columns: `method`, `epoch`, `accuracy: linear`, `mean Spearman`; `<title>, sd`: error bars.
        ends: {method: the paper's correlation at the end of training}.
    """
    methods = [name for name in dict.fromkeys(columns["method"]) if not name.startswith("paper")]
    colors = dict(zip(methods, (GRAY, BLUE, ORANGE), strict=True))
    figure = Figure(figsize=(9, 4.8))
    axes, legends = figure.subplots(2, 2, gridspec_kw={"height_ratios": (1, 0.6)})
    unknown = [None] * len(columns["method"])
    for axis, title in zip(axes, ("accuracy: linear", "mean Spearman"), strict=True):
        kept = (columns[title], columns.get(f"{title}, sd", unknown))
        rows = list(zip(columns["method"], columns["epoch"], *kept, strict=True))
        for name, color in colors.items():
            points = [row[1:] for row in rows if row[0] == name and row[2] is not None]
            if points:
                epochs, values, errors = zip(*points, strict=True)
                spread = None if None in errors else errors
                axis.errorbar(epochs, values, spread, marker="o", color=color, label=name)
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for name, value in ends.items():
        label = f"the paper's {name}, epoch 1000: {value:.2f}"
        axes[1].axhline(value, color=colors[name], linestyle=":", linewidth=1.2, label=label)
    axes[0].set_title("accuracy of a linear probe", loc="left")
    axes[1].set_title("mean Spearman correlation of kappa with severity", loc="left")
    for axis, below in zip(axes, legends, strict=True):  # below the curves
        below.legend(*axis.get_legend_handles_labels(), loc="upper left")
        below.axis("off")
    return figure


def draw_distributions(_: Columns, *, found: dict[str, Any]) -> Figure:
    """Figure 1: spheres with samples at chosen kappas, and at the kappas of the images below.

    `found` is the result of `measure.spread`.
    """
    figure = Figure(figsize=(10, 6.2))
    axes = figure.subplots(3, len(CHOSEN_KAPPAS), gridspec_kw={"height_ratios": (1, 1, 0.55)})
    for axis, kappa in zip(axes[0], CHOSEN_KAPPAS, strict=True):
        draw_sphere(axis, kappa)
    images = read_images(found)
    for column, kappa in enumerate(found["kappa"]):
        draw_sphere(axes[1, column], kappa)
        caption = found["conditions"][column].replace("_", " ")
        _show(axes[2, column], images[column], caption)
    for row, text in enumerate(("chosen kappa", "kappa of the image below", "test image")):
        axes[row, 0].annotate(
            text, (-0.08, 0.5), xycoords="axes fraction", rotation=90, ha="right", va="center"
        )
    return figure


def draw_sphere(axis: Axes, kappa: float) -> None:
    """Draws samples around `MEAN`, seen from outside; those on the far side are faint."""
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
    _: Columns, *, examples: dict[str, Any], failure: dict[str, Any]
) -> Figure:
    """Figure 2: images with their kappa (A), histograms of right and wrong predictions (B).

    `examples` and `failure` are the results of `measure.examples` and `measure.failure`.
    """
    rows = [("most certain", examples["most"]), ("least certain", examples["least"])]
    rows += [(name.replace("_", " "), entry) for name, entry in examples["corrupted"].items()]
    columns = max(len(entry["kappa"]) for _, entry in rows)
    figure = Figure(figsize=(11, 1.25 * len(rows) + 0.4))
    widths = [1.0] * columns + [0.3, 3.3]
    grid = figure.add_gridspec(len(rows), len(widths), width_ratios=widths)
    for row, (name, entry) in enumerate(rows):
        for column, (image, kappa) in enumerate(
            zip(read_images(entry), entry["kappa"], strict=True)
        ):
            axis = figure.add_subplot(grid[row, column])
            level = "clean: " if column == 0 else f"severity {column}: "
            _show(axis, image, f"{level if row >= 2 else ''}{kappa:.2f}")
            if column == 0:
                axis.set_ylabel(name, fontsize=8)
    figure.axes[0].set_title("A: kappa below the images", loc="left")
    axis = figure.add_subplot(grid[:, -1])
    axis.grid(visible=False)
    groups = {name: np.array(failure[f"kappa_{name}"]) for name in ("correct", "wrong")}
    plots.draw_groups(axis, {f"{name} ({len(each):,})": each for name, each in groups.items()})
    axis.set_xlabel("kappa")
    axis.set_ylim(top=1.15 * axis.get_ylim()[1])  # room for the legend
    axis.legend(loc="upper left", ncols=2)
    auroc = failure["auroc"]
    known = "" if auroc is None else f", AUROC {auroc:.3f}"
    axis.set_title(f"B: correct and wrong predictions{known}", loc="left")
    return figure


def _show(axis: Axes, image: np.ndarray, caption: str) -> None:
    axis.imshow(image, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.set_xlabel(caption, fontsize=7.5, labelpad=2)
    axis.spines[:].set_visible(False)
