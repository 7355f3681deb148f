"""Histograms of groups on one axis, with the same bins and equal areas."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from tfvmf.evaluation import plots

_MIN_BINS, _MAX_BINS = 8, 40
_TAIL = 0.001


def draw_groups(axis: Axes, groups: Mapping[str, np.ndarray]) -> None:
    """Draws the values of one or two groups {label: [N]}, the second in orange.

    The outermost thousandth on either side is drawn into the first and the last bin, so that an
    outlier does not squeeze the rest.
    """
    filled = {label: values for label, values in groups.items() if len(values)}
    low = min(np.quantile(values, _TAIL) for values in filled.values())
    high = max(np.quantile(values, 1 - _TAIL) for values in filled.values())
    if not low < high:  # all the same
        low, high = low - 0.5, high + 0.5
    smallest = min(map(len, filled.values()))
    count = int(np.clip(np.sqrt(smallest), _MIN_BINS, _MAX_BINS))
    bins = np.linspace(low, high, count + 1)
    colors = dict(zip(groups, (plots.BLUE, plots.ORANGE), strict=False))
    for label, values in filled.items():
        drawn = np.clip(values, low, high)
        density, _ = np.histogram(drawn, bins, density=True)
        axis.stairs(density, bins, fill=True, alpha=0.25, color=colors[label])
        axis.stairs(density, bins, label=label, linewidth=1.3, color=colors[label])
    axis.set_yticks([])
