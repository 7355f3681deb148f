"""Draw docs/vmf.png: what the concentration of a von Mises-Fisher distribution means.

    python docs/draw_vmf.py

Above, samples around one mean direction on the sphere of R^3 as kappa grows; below, the mean cosine
A_d and the log-normalizer log C_d against kappa. The same kappa is sure in 3 dimensions and next to
uniform in 2048: kappa is to be read on the scale of d.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from tfvmf import vmf

OUTPUT = Path(__file__).with_name("vmf.png")
CONCENTRATIONS = (1.0, 10.0, 100.0, 1000.0)
SAMPLES = 600
DIMS = {3: "#3b6fb6", 128: "#d1663a", 2048: "#4a9a6b"}
INK, FAINT = "#2b2b33", "#b9bcc6"

# The eye looks along -z; the mean leans out of the picture, up and to the right.
MEAN = np.array([0.36, 0.42, 0.0])
MEAN[2] = np.sqrt(1.0 - MEAN @ MEAN)


def draw_sphere(axes: Axes, kappa: float) -> None:
    """An orthographic view of the sphere with samples: those behind it shine through."""
    axes.add_patch(Circle((0, 0), 1, facecolor="#f4f5f8", edgecolor=FAINT, linewidth=1.0, zorder=0))
    for line in graticule():
        front = np.where(line[:, 2:] > 0, line[:, :2], np.nan)
        axes.plot(*front.T, color=FAINT, linewidth=0.5, zorder=1)
    samples = vmf.VonMisesFisher(MEAN, kappa).sample(SAMPLES, seed=(3, int(kappa))).numpy()
    behind = samples[:, 2] < 0
    for chosen, color, alpha in ((behind, FAINT, 0.9), (~behind, DIMS[3], 0.65)):
        x, y, _ = samples[chosen].T
        axes.scatter(x, y, s=5, color=color, alpha=alpha, linewidths=0, zorder=2)
    tip = (1.22 * MEAN[0], 1.22 * MEAN[1])
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=tip, xytext=(0, 0), arrowprops=arrow, zorder=4)
    axes.annotate(r"$\mu$", xy=tip, xytext=(3, 2), textcoords="offset points", color=INK)
    mean_cosine = float(vmf.mean_resultant_length(kappa, 3))
    axes.set_title(
        rf"$\kappa$ = {kappa:g}    mean cosine {mean_cosine:.3g}", color=INK, fontsize=10
    )
    axes.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
    axes.axis("off")


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
        axes.title.set(color=INK, fontsize=10)
        axes.grid(color="#e6e7ec", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    lengths.legend(frameon=False, loc="upper left")


def main() -> None:
    """Write the picture."""
    plt.rcParams["lines.linewidth"] = 2.0
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.08))
    for axes, kappa in zip(above.subplots(1, 4), CONCENTRATIONS, strict=True):
        draw_sphere(axes, kappa)
    draw_curves(*below.subplots(1, 2))
    figure.savefig(OUTPUT, dpi=110)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
