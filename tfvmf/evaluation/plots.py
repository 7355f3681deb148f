"""The style of all plots, drawn without a screen and without pyplot's global state."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image

from tfvmf.files import replacing

BLUE, ORANGE, GREEN, GRAY = "#2f6db3", "#d95319", "#5f9e3f", "#8a8f98"

# For `matplotlib.rc_context`, around the drawing and saving of a figure.
STYLE = {
    "figure.dpi": 130,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # names of data may contain dollar signs
}

_MIN_BINS, _MAX_BINS = 8, 40
_TAIL = 0.001


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a PNG atomically."""
    with replacing(path) as file:
        figure.savefig(file, format="png", bbox_inches="tight")


def save_pixels(pixels: np.ndarray, path: pathlib.Path) -> None:
    """Writes uint8 pixels [H, W, 3] as a PNG, atomically."""
    with replacing(path) as file:
        Image.fromarray(pixels).save(file, format="PNG")


@contextlib.contextmanager
def drawing(path: pathlib.Path, width: float, height: float, **style: Any) -> Iterator[Figure]:
    """A figure in our style, sized in inches, that is written to `path` at the end."""
    with matplotlib.rc_context({**STYLE, "axes.titlelocation": "left", **style}):
        figure = Figure(figsize=(width, height))
        yield figure
        save(figure, path)


def draw_shares(axis: Axes, places: Any, shares: Any, labels: Sequence[str], **style: Any) -> None:
    """Draws bars of shares, each with its label, on an axis of percentages."""
    axis.bar_label(axis.bar(places, shares, **style), labels, padding=2)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.grid(visible=False, axis="x")


def draw_groups(axis: Axes, groups: Mapping[str, np.ndarray]) -> None:
    """Draws histograms of one or two groups {label: [N]}: the same bins, equal areas.

    The outermost thousandths are in the first and last bin, so that outliers do not squeeze others.
    """
    filled = {label: values for label, values in groups.items() if len(values)}
    low = min(np.quantile(values, _TAIL) for values in filled.values())
    high = max(np.quantile(values, 1 - _TAIL) for values in filled.values())
    if not low < high:  # all values are equal
        low, high = low - 0.5, high + 0.5
    smallest = min(map(len, filled.values()))
    count = int(np.clip(np.sqrt(smallest), _MIN_BINS, _MAX_BINS))
    bins = np.linspace(low, high, count + 1)
    colors = dict(zip(groups, (BLUE, ORANGE), strict=False))
    for label, values in filled.items():
        drawn = np.clip(values, low, high)
        density, _ = np.histogram(drawn, bins, density=True)
        axis.stairs(density, bins, fill=True, alpha=0.25, color=colors[label])
        axis.stairs(density, bins, label=label, linewidth=1.3, color=colors[label])
    axis.set_yticks([])
