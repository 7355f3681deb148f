"""Pictures with images in them: Figure 1's spheres, Figure 2's examples."""

import pathlib
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from tfvmf import vmf
from tfvmf.evaluation import histograms, plots
from tfvmf.reproduction.figures import finish

CHOSEN = (1000.0, 100.0, 20.0, 5.0, 1.0)

_SAMPLES = 500
_FAINT = "#b9bcc6"
# The eye looks along -z; the mean leans out of the picture, up and to the right.
_MEAN = np.array([0.36, 0.42, np.sqrt(1 - 0.36**2 - 0.42**2)])


def draw_distributions(
    path: pathlib.Path, title: str, below: str, *, found: dict[str, Any]
) -> None:
    """Spheres with samples at chosen kappas, and at those of images, which are drawn below.

    Args:
        path: The PNG.
        title: Above it.
        below: Below it.
        found: What `measure.spread` returns.
    """
    with plt.rc_context({**plots.STYLE, "axes.grid": False}):
        figure, axes = plt.subplots(
            3, len(CHOSEN), figsize=(10, 6.2), gridspec_kw={"height_ratios": (1, 1, 0.55)}
        )
        for axis, kappa in zip(axes[0], CHOSEN, strict=True):
            draw_sphere(axis, kappa)
        for column, kappa in enumerate(found["kappa"]):
            draw_sphere(axes[1, column], kappa)
            caption = found["conditions"][column].replace("_", " ")
            _show(axes[2, column], found["images"][column], caption)
        for row, text in enumerate(("chosen kappa", "kappa of the image below", "test image")):
            axes[row, 0].annotate(
                text, (-0.08, 0.5), xycoords="axes fraction", rotation=90, ha="right", va="center"
            )
        finish(figure, path, title, below)


def draw_sphere(axis: Axes, kappa: float) -> None:
    """Samples around a fixed mean direction, seen from outside: those behind are faint."""
    axis.add_patch(Circle((0, 0), 1, facecolor="#f4f5f8", edgecolor=_FAINT, zorder=0))
    distribution = vmf.VonMisesFisher(_MEAN, kappa)
    samples = distribution.sample(_SAMPLES, seed=(3, 7)).numpy()
    behind = samples[:, 2] < 0
    for chosen, color, alpha in ((behind, _FAINT, 0.9), (~behind, plots.BLUE, 0.6)):
        x, y, _ = samples[chosen].T
        axis.scatter(x, y, s=4, color=color, alpha=alpha, linewidths=0, zorder=2)
    arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    tip = (1.25 * _MEAN[0], 1.25 * _MEAN[1])
    axis.annotate("", xy=tip, xytext=(0, 0), arrowprops=arrow, zorder=4)
    axis.set_title(f"kappa = {kappa:.4g}")
    axis.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
    axis.axis("off")


def draw_images_and_failures(
    path: pathlib.Path, title: str, below: str, *, examples: dict[str, Any], failure: dict[str, Any]
) -> None:
    """A: images with their kappa below, certain to uncertain and mild to severe. B: histograms.

    Args:
        path: The PNG.
        title: Above it.
        below: Below it.
        examples: What `measure.examples` returns.
        failure: What `measure.failure` returns.
    """
    rows = [("most certain", examples["most"]), ("least certain", examples["least"])]
    rows += [(name.replace("_", " "), entry) for name, entry in examples["corrupted"].items()]
    columns = max(len(entry["kappa"]) for _, entry in rows)
    with plt.rc_context({**plots.STYLE, "axes.grid": False}):
        figure = plt.figure(figsize=(11, 1.25 * len(rows) + 0.4))
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
        histograms.draw_groups(
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
        finish(figure, path, title, below)


def _show(axis: Axes, image: Any, caption: str) -> None:
    axis.imshow(np.array(image, np.uint8), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel(caption, fontsize=8, labelpad=2)
    axis.spines[:].set_visible(False)
