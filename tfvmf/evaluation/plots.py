"""The look of all pictures: one style, drawn without a screen."""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from tfvmf.files import replacing

BLUE, ORANGE, GREEN, GRAY = "#2f6db3", "#d95319", "#5f9e3f", "#8a8f98"

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
}


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a PNG whole or not at all, and forgets the figure."""
    with replacing(path) as file:
        figure.savefig(file, format="png", bbox_inches="tight")
    plt.close(figure)
