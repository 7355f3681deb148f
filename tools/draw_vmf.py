"""Draws docs/vmf.png: what the concentration of a von Mises-Fisher distribution means.

    python tools/draw_vmf.py

Above, samples around one mean direction on the sphere of R^3 as kappa grows; below, the mean cosine
A_d and the log-normalizer log C_d against kappa. The same kappa is concentrated in 3 dimensions and
nearly uniform in 2048: read kappa on the scale of d.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tfvmf import vmf
from tfvmf.evaluation.plots import BLUE, GREEN, ORANGE
from tfvmf.reproduction.figures import MEAN, draw_sphere

OUTPUT = Path(__file__).parents[1] / "docs" / "vmf.png"
CONCENTRATIONS = (1.0, 10.0, 100.0, 1000.0)
DIMS = {3: BLUE, 128: ORANGE, 2048: GREEN}
FAINT = "#b9bcc6"


def draw_labeled_sphere(axes: Axes, kappa: float) -> None:
    """The sphere of Figure 1 with meridians, parallels and the mean cosine."""
    for line in graticule():
        front = np.where(line[:, 2:] > 0, line[:, :2], np.nan)
        axes.plot(*front.T, color=FAINT, linewidth=0.5, zorder=1)
    draw_sphere(axes, kappa)
    axes.annotate(r"$\mu$", tuple(1.25 * MEAN[:2]), xytext=(3, 2), textcoords="offset points")
    mean_cosine = float(vmf.mean_resultant_length(kappa, 3))
    axes.set_title(rf"$\kappa$ = {kappa:g}    mean cosine {mean_cosine:.3g}", fontsize=10)


def graticule() -> list[np.ndarray]:
    """Meridians and parallels around MEAN, each a curve [100, 3]."""
    across = np.cross(MEAN, [0.0, 1.0, 0.0])
    across /= np.linalg.norm(across)
    up = np.cross(across, MEAN)
    turn = np.linspace(0, 2 * np.pi, 100)[:, None]
    ring = np.cos(turn) * across + np.sin(turn) * up
    parallels = [np.cos(a) * MEAN + np.sin(a) * ring for a in np.radians([30, 60, 90, 120])]
    meridians = []
    for angle in np.radians(np.arange(0, 180, 30)):
        sideways = np.cos(angle) * across + np.sin(angle) * up
        meridians.append(np.cos(turn) * MEAN + np.sin(turn) * sideways)
    return parallels + meridians


def draw_curves(lengths: Axes, normalizers: Axes) -> None:
    """A_d and log C_d over eight decades of kappa."""
    kappa = np.geomspace(1e-2, 1e6, 400)
    for dim, color in DIMS.items():
        lengths.plot(kappa, vmf.mean_resultant_length(kappa, dim), color=color, label=f"d = {dim}")
        lengths.axvline(dim, color=color, linewidth=0.8, linestyle=":")
        normalizers.plot(kappa, vmf.log_normalizer(kappa, dim), color=color)
    lengths.set(ylim=(0, 1.02), title=r"mean cosine  $A_d(\kappa)$   (dotted: $\kappa = d$)")
    normalizers.set_yscale("asinh", linear_width=3)
    normalizers.axhline(0, color=FAINT, linewidth=0.8)
    normalizers.set_yticks([-1e6, -1e4, -1e2, 0, 1e2, 1e4])
    normalizers.minorticks_off()
    normalizers.set_title(r"log-normalizer  $\log C_d(\kappa)$")
    for axes in (lengths, normalizers):
        axes.set(xscale="log", xlim=(kappa[0], kappa[-1]), xlabel=r"concentration $\kappa$")
        axes.title.set_fontsize(10)
        axes.grid(color="#e6e7ec", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    lengths.legend(frameon=False, loc="upper left")


def main() -> None:
    """Writes the picture."""
    with matplotlib.rc_context({"lines.linewidth": 2.0}):
        figure = Figure(figsize=(11, 6.4), layout=ConstrainedLayoutEngine(h_pad=0.1))
        above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(1, 1.08)))
        for axes, kappa in zip(above.subplots(1, 4), CONCENTRATIONS, strict=True):
            draw_labeled_sphere(axes, kappa)
        draw_curves(*below.subplots(1, 2))
        figure.savefig(OUTPUT, dpi=110)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
