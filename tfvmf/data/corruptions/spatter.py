"""Spatter: drops of water on the lens at severities 1 to 3, of mud at 4 and 5.

The water needs an edge detector, a distance transform and a histogram equalization, written here
for whole batches of small images.
"""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tfvmf.data.corruptions import filters
from tfvmf.data.corruptions.filters import Draws, Floats, Images

Masks = npt.NDArray[np.bool_]

_WATER_COLOR = np.array([175, 238, 238], np.float32)
_MUD_COLOR = np.array([63, 42, 20], np.float32)
_EDGE_LOW, _EDGE_HIGH = 50, 150
_FARTHEST = 20
_BOX = np.full((3, 3), 1 / 9, np.float32)
# Light from the upper left, which gives the drops a bright and a dark side.
_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])

# Distances of 0 to `_FARTHEST` + 1 pixels both ways in Borgefors' metric of 5 x 5 steps, by which
# the published program approximates Euclid's: the shortest way in steps along a row (length 1),
# diagonal (1.4) and of a knight (2.1969).
_OFFSETS = np.arange(_FARTHEST + 2)
_P, _Q = np.maximum.outer(_OFFSETS, _OFFSETS), np.minimum.outer(_OFFSETS, _OFFSETS)
_LONG, _SHORT = _P + 0.1969 * _Q, 2.1969 * (_P - _Q) + 1.4 * (2 * _Q - _P)
_METRIC = np.where(_P >= 2 * _Q, _LONG, _SHORT).astype(np.float32)


def spatter(
    images: Images,
    draws: Draws,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
) -> Floats:
    """Water: x + s m color; mud: (1 - m) x + m color, with m the mask of the drops in [0, 1].

    The liquid is blurred noise (mean, deviation, sigma), and a drop where that is above
    `threshold`; `strength` is s of water, and the blur of the mask of mud.
    """
    side = images.shape[1]
    liquid = draws.normal((side, side, 1)) * np.float32(deviation) + np.float32(mean)
    liquid = filters.gaussian_blur(liquid, sigma)
    drops = liquid >= threshold
    if mud:
        mask = filters.gaussian_blur(drops.astype(np.float32), strength)
        mask[mask < 0.8] = 0
        return images * (1 - mask) + mask * _MUD_COLOR
    levels = np.minimum(np.where(drops, liquid, 0) * 255, 255).astype(np.uint8)
    return images + (strength * _water(levels[..., 0]))[..., None] * _WATER_COLOR


def _water(levels: npt.NDArray[np.uint8]) -> Floats:
    """Shaded drops, brightest point 1: liquid times the relief of the distance to its edges.

    Of levels [N, H, H], 0 where there is no liquid: an image without a drop stays dry.
    """
    distance = np.minimum(_distance(_edges(levels)), _FARTHEST)
    depth = _equalize(filters.correlate(distance, _BOX).astype(np.uint8))
    relief = np.clip(filters.correlate(depth.astype(np.float32), _RELIEF), 0, 255)
    shaded = levels * np.rint(filters.correlate(relief, _BOX))
    brightest = shaded.max(axis=(1, 2), keepdims=True)
    return shaded / np.maximum(brightest, 1)


def _edges(levels: npt.NDArray[np.uint8]) -> Masks:
    """Canny's edges: thin ridges of the gradient above 150, and those above 50 that touch them."""
    gx, gy = (
        ndimage.correlate(levels.astype(np.int32), kernel[None], mode="nearest")
        for kernel in (_SOBEL, _SOBEL.T)
    )
    size = np.abs(gx) + np.abs(gy)
    height, width = levels.shape[1:]
    framed = np.pad(size, [(0, 0), (1, 1), (1, 1)])

    def moved(down: int, right: int) -> npt.NDArray[np.int32]:
        return framed[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    # A ridge is higher than its two neighbors in the direction of the gradient, of four.
    slope = np.tan(np.pi / 8)
    flat = np.abs(gy) < slope * np.abs(gx)
    steep = slope * np.abs(gy) > np.abs(gx)
    falling = (gx < 0) != (gy < 0)
    ridge = (size > moved(-1, -1)) & (size > moved(1, 1))
    ridge = np.where(falling, (size > moved(-1, 1)) & (size > moved(1, -1)), ridge)
    ridge = np.where(steep, (size > moved(-1, 0)) & (size >= moved(1, 0)), ridge)
    ridge = np.where(flat, (size > moved(0, -1)) & (size >= moved(0, 1)), ridge)
    strong, weak = ridge & (size > _EDGE_HIGH), ridge & (size > _EDGE_LOW)
    return ndimage.binary_propagation(strong, structure=np.ones((1, 3, 3)), mask=weak)


def _distance(edges: Masks) -> Floats:
    """Distance to the nearest edge pixel in the metric of `_METRIC`; only up to `_FARTHEST` exact.

    First along rows; then the minimum over rows of metric(offset of the row, distance in that row).
    """
    reach = _FARTHEST + 1
    row = np.where(edges, np.uint8(0), np.uint8(reach))
    for column in range(1, row.shape[2]):
        np.minimum(row[:, :, column], row[:, :, column - 1] + 1, out=row[:, :, column])
    for column in range(row.shape[2] - 2, -1, -1):
        np.minimum(row[:, :, column], row[:, :, column + 1] + 1, out=row[:, :, column])
    nearest = _METRIC[0].take(row)
    for offset in range(1, min(reach, edges.shape[1])):
        beyond = _METRIC[offset].take(row)
        np.minimum(nearest[:, offset:], beyond[:, :-offset], out=nearest[:, offset:])
        np.minimum(nearest[:, :-offset], beyond[:, offset:], out=nearest[:, :-offset])
    return nearest


def _equalize(levels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Histogram equalization: darkest level to 0, brightest to 255; of one level as it is."""
    count, bins = len(levels), _FARTHEST + 1
    bin_of = levels.reshape(count, -1) + bins * np.arange(count)[:, None]
    histogram = np.bincount(bin_of.ravel(), minlength=bins * count).reshape(count, bins)
    below = histogram.cumsum(axis=1)
    pixels = below[:, -1:]
    darkest = np.take_along_axis(histogram, (histogram > 0).argmax(axis=1)[:, None], axis=1)
    table = np.rint((below - darkest) * (255 / np.maximum(pixels - darkest, 1)))
    table = np.where(darkest == pixels, np.arange(bins), np.clip(table, 0, 255))
    return table.astype(np.uint8).ravel()[bin_of].reshape(levels.shape)
