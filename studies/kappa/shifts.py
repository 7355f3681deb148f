"""Shifts of images that no corruption of the suite resembles: what choices may be made on.

Each takes uint8 images [N, H, W, 3] and a severity 1 ... 5 and returns the like. None is random, so
that two settings are compared on the same pixels.
"""

from collections.abc import Callable

import numpy as np
from scipy import ndimage

Images = np.ndarray


def rotation(images: Images, severity: int) -> Images:
    """Turned by 9, 18, 27, 36, 45 degrees about the center, the corners mirrored."""
    angle = 9 * severity
    turned = ndimage.rotate(images, angle, axes=(1, 2), reshape=False, order=1, mode="mirror")
    return turned.astype(np.uint8)


def shear(images: Images, severity: int) -> Images:
    """Rows pushed sideways by 0.2 ... 1 pixel per row, mirrored at the sides."""
    rows = np.arange(images.shape[1]) - images.shape[1] / 2
    side = images.shape[2]
    columns = np.arange(side)[None] + np.round(0.2 * severity * rows)[:, None].astype(int)
    columns = np.abs((columns + side) % (2 * side) - side).clip(0, side - 1)
    return images[:, np.arange(images.shape[1])[:, None], columns]


def occlusion(images: Images, severity: int) -> Images:
    """A gray square in the middle with 30 ... 90 % of the side."""
    side = images.shape[1]
    hidden = round(side * (0.15 + 0.15 * severity))
    start = (side - hidden) // 2
    covered = images.copy()
    covered[:, start : start + hidden, start : start + hidden] = 128
    return covered


def tiles(images: Images, severity: int) -> Images:
    """So many pairs out of 16 tiles trade places: 1, 2, 4, 6, 8."""
    side = images.shape[1] // 4
    order = np.arange(16)
    drawn = np.random.default_rng(0).permutation(16)
    for pair in range((1, 2, 4, 6, 8)[severity - 1]):
        first, second = drawn[2 * pair], drawn[2 * pair + 1]
        order[first], order[second] = order[second], order[first]
    count, channels = len(images), images.shape[-1]
    cells = images[:, : 4 * side, : 4 * side].reshape(count, 4, side, 4, side, channels)
    cells = cells.transpose(0, 1, 3, 2, 4, 5).reshape(count, 16, side, side, channels)[:, order]
    cells = cells.reshape(count, 4, 4, side, side, channels).transpose(0, 1, 3, 2, 4, 5)
    return cells.reshape(count, 4 * side, 4 * side, channels)


def channels(images: Images, severity: int) -> Images:
    """Mixed with its own channels in the order blue, red, green: 20 ... 100 %."""
    share = 0.2 * severity
    mixed = (1.0 - share) * images + share * images[..., [2, 0, 1]]
    return np.round(mixed).astype(np.uint8)


def solarise(images: Images, severity: int) -> Images:
    """Values above 220, 180, 140, 100, 60 turned to their negative."""
    return np.where(images > 260 - 40 * severity, 255 - images, images).astype(np.uint8)


def posterise(images: Images, severity: int) -> Images:
    """5, 4, 3, 2, 1 bits a channel."""
    step = 2 ** (2 + severity)
    return (images // step * step + step // 2).clip(0, 255).astype(np.uint8)


def hue(images: Images, severity: int) -> Images:
    """Colors turned by 36 ... 180 degrees about the gray axis."""
    turn = np.pi * severity / 5.0  # of the color circle
    gray = images.mean(axis=-1, keepdims=True)
    axis = np.ones(3) / np.sqrt(3.0)
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / np.sqrt(3.0)
    matrix = np.cos(turn) * np.eye(3) + np.sin(turn) * cross
    matrix += (1.0 - np.cos(turn)) * np.outer(axis, axis)
    return np.round((images - gray) @ matrix.T + gray).clip(0, 255).astype(np.uint8)


def swirl(images: Images, severity: int) -> Images:
    """Turned about the center by 0.5 ... 2.5 radians there and not at all at the border."""
    side = images.shape[1]
    offsets = np.arange(side) - (side - 1) / 2.0
    rows, columns = np.meshgrid(offsets, offsets, indexing="ij")
    near = np.clip(1.0 - 2.0 * np.hypot(rows, columns) / side, 0.0, 1.0)
    turn = 0.5 * severity * near
    y = np.cos(turn) * rows - np.sin(turn) * columns + (side - 1) / 2.0
    x = np.sin(turn) * rows + np.cos(turn) * columns + (side - 1) / 2.0
    return images[:, np.round(y).astype(int), np.round(x).astype(int)]


def lines(images: Images, severity: int) -> Images:
    """Rows of pixels blackened, one in 16, 8, 4, 3, 2."""
    ruled = images.copy()
    ruled[:, :: (16, 8, 4, 3, 2)[severity - 1]] = 0
    return ruled


def dither(images: Images, severity: int) -> Images:
    """Blended with its halftone, black and white by an ordered 4x4 pattern: 20 ... 100 %."""
    pattern = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])
    side = images.shape[1]
    repeats = -(-side // 4)
    threshold = (np.tile(pattern, (repeats, repeats))[:side, :side, None] + 0.5) * 16.0
    halftone = np.where(images > threshold, 255.0, 0.0)
    share = 0.2 * severity
    return np.round((1.0 - share) * images + share * halftone).astype(np.uint8)


def sketch(images: Images, severity: int) -> Images:
    """Blended with its outlines, dark on white: 20 ... 100 %."""
    values = images.astype(float)
    edges = np.hypot(*np.gradient(values, axis=(1, 2)))
    drawing = 255.0 - np.clip(5.0 * edges, 0.0, 255.0)
    share = 0.2 * severity
    return np.round((1.0 - share) * values + share * drawing).astype(np.uint8)


def low_rank(images: Images, severity: int) -> Images:
    """Each channel, a matrix, by its largest 10, 7, 5, 3, 2 singular values."""
    rank = (10, 7, 5, 3, 2)[severity - 1]
    left, values, right = np.linalg.svd(np.moveaxis(images, -1, 1).astype(np.float32))
    product = left[..., :rank] * values[..., None, :rank] @ right[..., :rank, :]
    return np.moveaxis(np.round(product).clip(0, 255), 1, -1).astype(np.uint8)


def opening(images: Images, severity: int) -> Images:
    """Bright details narrower than 2 ... 6 pixels taken away (morphological opening)."""
    size = severity + 1
    return ndimage.grey_opening(images, size=(1, size, size, 1))


def enlarged(images: Images, severity: int) -> Images:
    """The middle, 85 ... 25 % of the side, enlarged to the whole."""
    side = images.shape[1]
    reach = (side - 1) / 2.0
    places = reach + np.linspace(-reach, reach, side) * (1.0 - 0.15 * severity)
    low = np.floor(places).astype(int).clip(0, side - 2)
    share = places - low
    for axis in (1, 2):
        weight = np.expand_dims(share, tuple(a for a in range(4) if a != axis))
        first, second = np.take(images, low, axis), np.take(images, low + 1, axis)
        images = (1.0 - weight) * first + weight * second
    return np.round(images).astype(np.uint8)


FAMILIES: dict[str, tuple[Callable[[Images, int], Images], ...]] = {
    "places": (rotation, shear, swirl, tiles),
    "colors": (channels, hue, solarise, posterise),
    "edges": (occlusion, lines, dither, sketch),  # more of them
    "detail": (low_rank, opening, enlarged),  # less of it
}
SHIFTS = {shift.__name__: shift for family in FAMILIES.values() for shift in family}
