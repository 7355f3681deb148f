"""Fog, frost, snow, and spatter: drops of water (severities 1 to 3) or mud (4, 5) on the lens.

The published generator blends in photographs of frost, which the `imagecorruptions` wheel (extra
`corruptions`) ships. Without it, textures of ice are made here, with the brightness, color,
deviation and gradient of the photographs.
"""

import functools
import importlib.util
import pathlib

import numpy as np
from PIL import Image
from scipy import ndimage, spatial

from tfvmf.data.corruptions import filters
from tfvmf.data.corruptions.filters import Draws, Floats, Images

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601

# The published program uses the first five of its six photographs.
_PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# Their mean color, and the standard deviation and mean absolute gradient of their brightness.
_STATISTICS = (
    ((78, 149, 166), 18.0, 11.5),
    ((201, 205, 214), 22.0, 14.4),
    ((201, 205, 214), 22.0, 14.4),
    ((138, 153, 166), 29.3, 21.9),
    ((112, 123, 135), 43.0, 29.2),
)
_ICE_SIZE, _CRYSTALS, _DIRECTIONS = (120, 180), 60, 12

_WATER_COLOR = np.array([175, 238, 238], np.float32)
_MUD_COLOR = np.array([63, 42, 20], np.float32)
_EDGE_LOW, _EDGE_HIGH = 50, 150
_FARTHEST = 20
_BOX = np.full((3, 3), 1 / 9, np.float32)
# Light from the upper left gives the drops a bright and a dark side.
_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
# Distances of 0 to `_FARTHEST` + 1 pixels both ways in Borgefors' metric of 5 x 5 steps, the
# published program's approximation of Euclid's: the shortest path in steps along a row (length
# 1), diagonal (1.4) and of a knight (2.1969).
_OFFSETS = np.arange(_FARTHEST + 2)
_P, _Q = np.maximum.outer(_OFFSETS, _OFFSETS), np.minimum.outer(_OFFSETS, _OFFSETS)
_LONG, _SHORT = _P + 0.1969 * _Q, 2.1969 * (_P - _Q) + 1.4 * (2 * _Q - _P)
_METRIC = np.where(_P >= 2 * _Q, _LONG, _SHORT).astype(np.float32)


def fog(images: Images, draws: Draws, thickness: float, decay: float) -> Floats:
    """(x + c plasma) m / (m + c) on the 0 to 1 scale, where m is the image's brightest value."""
    brightest = images.max(axis=(1, 2, 3), keepdims=True).astype(np.float32)
    mist = 255 * thickness * _plasma(images.shape[1], decay, draws)[..., None]
    return (images + mist) * (brightest / (brightest + 255 * thickness))


def _plasma(side: int, decay: float, draws: Draws) -> Floats:
    """Clouds by the diamond-square algorithm on a torus, each scaled to [0, 1].

    From coarse to fine, the center of each square and then of each diamond becomes the mean of
    its four corners plus uniform noise, whose scale falls by decay^2 with every halving.
    """
    size = 1 << (side - 1).bit_length()
    # One number per grid point; where it is used decides its scale.
    field = draws.uniform(-1, 1, (size, size))
    field[:, 0, 0] = 0
    step, wobble = size, 100.0**2
    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=1)
        centers = field[:, half::step, half::step]
        centers *= wobble
        centers += (pairs + np.roll(pairs, -1, axis=2)) / 4
        across, along = field[:, ::step, half::step], field[:, half::step, ::step]
        for edges, axis, other in ((across, 1, 2), (along, 2, 1)):
            around = centers + np.roll(centers, 1, axis=axis) + corners
            edges *= wobble
            edges += (around + np.roll(corners, -1, axis=other)) / 4
        step, wobble = half, wobble / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field[:, :side, :side]


def snow(
    images: Images,
    draws: Draws,
    flakes: tuple[float, ...],
    motion: tuple[float, ...],
    weight: float,
) -> Floats:
    """The image, whitened, with moving flakes from two opposite directions.

    y = w x + (1 - w) max(x, 1.5 luma(x) + 0.5) + s + rot180(s) on the 0 to 1 scale, where s is
    thresholded noise (mean, deviation, zoom, threshold), blurred along a line (radius, sigma).
    """
    mean, deviation, zoom, threshold = flakes
    side = images.shape[1]
    field = draws.normal((side, side, 1)) * np.float32(deviation) + np.float32(mean)
    if zoom > 1:
        field = filters.apply_separable(field, filters.zoom_matrix(side, zoom))
    field[field < threshold] = 0
    # Whole levels before and after the blur: the published program passes 8-bit images.
    levels = (np.minimum(field, 1) * 255).astype(np.uint8)
    falling = np.rint(filters.motion_blur(levels, *motion, angles=draws.uniform(-135, -45)))
    pixels = images.astype(np.float32)
    red, green, blue = (share * pixels[..., i] for i, share in enumerate(_LUMA))
    whitened = np.maximum(pixels, (1.5 * (red + green + blue) + 127.5)[..., None])
    snowy = (1 - weight) * whitened + weight * pixels
    return snowy + (falling + falling[:, ::-1, ::-1])


def frost(images: Images, draws: Draws, image_weight: float, ice_weight: float) -> Floats:
    """Blends in a random crop of a random ice texture."""
    side = images.shape[1]
    found = textures(side)
    which = draws.integers(len(found))
    down, right = draws.uniform(0, 1), draws.uniform(0, 1)
    blend = np.empty(images.shape, np.float32)
    for number, texture in enumerate(found):
        chosen = np.flatnonzero(which == number)
        windows = np.lib.stride_tricks.sliding_window_view(texture, (side, side), axis=(0, 1))
        # The last window is left out, as in the published program.
        top = (down[chosen] * max(len(windows) - 1, 1)).astype(np.intp)
        left = (right[chosen] * max(windows.shape[1] - 1, 1)).astype(np.intp)
        blend[chosen] = windows[top, left].transpose(0, 2, 3, 1)
    return ice_weight * blend + np.float32(image_weight) * images


def frost_source() -> str:
    """The origin of the frost textures on this machine."""
    found = _photographs_directory() is not None
    return "photographs of the imagecorruptions package" if found else "procedural ice texture"


def textures(side: int) -> tuple[Images, ...]:
    """Five textures, uint8 [h, w, 3], with h and w above `side`, mirrored if smaller."""
    return _textures(_photographs_directory(), side)


def _photographs_directory() -> pathlib.Path | None:
    """The photographs of `imagecorruptions`; its import needs OpenCV, scikit-image and Numba."""
    spec = importlib.util.find_spec("imagecorruptions")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        directory = pathlib.Path(place) / "frost"
        if all((directory / name).is_file() for name in _PHOTOGRAPHS):
            return directory
    return None


@functools.cache
def _textures(directory: pathlib.Path | None, side: int) -> tuple[Images, ...]:
    if directory is None:
        found = [_make_ice(number) for number in range(len(_STATISTICS))]
    else:
        photographs = [Image.open(directory / name).convert("RGB") for name in _PHOTOGRAPHS]
        # The published program shrinks them to a fifth by picking every fifth pixel.
        found = [np.asarray(each)[2::5, 2::5] for each in photographs]
    missing = [[(0, max(0, side + 1 - length)) for length in each.shape[:2]] for each in found]
    return tuple(
        np.pad(texture, [*margins, (0, 0)], mode="symmetric")
        for texture, margins in zip(found, missing, strict=True)
    )


def _make_ice(number: int) -> Images:
    """Clouds plus ice needles: brightness = mean + s (sqrt(1 - a^2) clouds + a needles).

    Both fields have unit deviation; the share a is chosen to match the gradient. The needles are
    fine streaks, with one direction per crystal, a cell of a Voronoi diagram.
    """
    color, deviation, gradient = _STATISTICS[number]
    rng = np.random.Generator(np.random.Philox(key=number))
    noise = rng.standard_normal(_ICE_SIZE)
    streaks = []
    for turn in np.arange(_DIRECTIONS) * np.pi / _DIRECTIONS:
        path = 2 + np.arange(-2, 3) * np.array([[np.sin(turn)], [np.cos(turn)]])
        line = np.zeros((5, 5))
        line[tuple(np.rint(path).astype(int))] = 1
        streaks.append(ndimage.correlate(noise, line, mode="wrap"))
    centers = rng.uniform(0, _ICE_SIZE, (_CRYSTALS, 2))
    points = np.indices(_ICE_SIZE).reshape(2, -1).T
    crystal = spatial.cKDTree(centers).query(points)[1].reshape(_ICE_SIZE)
    direction = rng.integers(_DIRECTIONS, size=_CRYSTALS)[crystal]
    field = np.take_along_axis(np.stack(streaks), direction[None], axis=0)[0]
    # Grain between the needles keeps the finest detail of photographs.
    needles = field + 1.5 * rng.standard_normal(_ICE_SIZE)
    clouds = ndimage.gaussian_filter(rng.standard_normal(_ICE_SIZE), 10, mode="wrap")
    needles, clouds = ((each - each.mean()) / each.std() for each in (needles, clouds))
    share = min(1.0, gradient / (deviation * np.abs(np.diff(needles, axis=1)).mean()))
    height = np.sqrt(1 - share**2) * clouds + share * needles
    pixels = np.array(color) + deviation * height[..., None]
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def spatter(
    images: Images, draws: Draws, noise: tuple[float, ...], strength: float, mud: bool
) -> Floats:
    """Water: x + s m color; mud: (1 - m) x + m color, where m in [0, 1] is the mask of the drops.

    The liquid is blurred noise (mean, deviation, sigma, threshold); drops are where it exceeds
    the threshold. `strength` is s for water, and the blur of the mask for mud.
    """
    mean, deviation, sigma, threshold = noise
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


def _water(levels: Images) -> Floats:
    """Shaded drops, brightest point 1: liquid [N, H, H] times relief of the distance to edges."""
    distance = np.minimum(_distance(_edges(levels)), _FARTHEST)
    depth = _equalize(filters.correlate(distance, _BOX).astype(np.uint8))
    relief = np.clip(filters.correlate(depth.astype(np.float32), _RELIEF), 0, 255)
    shaded = levels * np.rint(filters.correlate(relief, _BOX))
    return shaded / np.maximum(shaded.max(axis=(1, 2), keepdims=True), 1)


def _edges(levels: Images) -> np.ndarray:
    """Canny edges: thin ridges of the gradient above 150, and those above 50 that touch them."""
    whole = levels.astype(np.int32)
    gx, gy = (ndimage.correlate(whole, k[None], mode="nearest") for k in (_SOBEL, _SOBEL.T))
    size = np.abs(gx) + np.abs(gy)
    height, width = levels.shape[1:]
    framed = np.pad(size, [(0, 0), (1, 1), (1, 1)])

    def moved(down: int, right: int) -> np.ndarray:
        return framed[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    # A ridge is higher than its two neighbors along the gradient, in one of four directions.
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


def _distance(edges: np.ndarray) -> Floats:
    """Distance to the nearest edge pixel in `_METRIC`, by rows first; exact up to `_FARTHEST`."""
    reach = _FARTHEST + 1
    place = np.arange(edges.shape[2])
    row = np.minimum.accumulate(np.where(edges, 0, reach) - place, axis=2) + place
    row = np.minimum.accumulate((row + place)[..., ::-1], axis=2)[..., ::-1] - place
    nearest = _METRIC[0].take(row)
    for offset in range(1, min(reach, edges.shape[1])):
        beyond = _METRIC[offset].take(row)
        np.minimum(nearest[:, offset:], beyond[:, :-offset], out=nearest[:, offset:])
        np.minimum(nearest[:, :-offset], beyond[:, offset:], out=nearest[:, :-offset])
    return nearest


def _equalize(levels: Images) -> Images:
    """Histogram equalization: darkest level to 0, brightest to 255; a single level stays."""
    count, bins = len(levels), _FARTHEST + 1
    bin_of = levels.reshape(count, -1) + bins * np.arange(count)[:, None]
    histogram = np.bincount(bin_of.ravel(), minlength=bins * count).reshape(count, bins)
    below = histogram.cumsum(axis=1)
    pixels = below[:, -1:]
    darkest = np.take_along_axis(histogram, (histogram > 0).argmax(axis=1)[:, None], axis=1)
    table = np.rint((below - darkest) * (255 / np.maximum(pixels - darkest, 1)))
    table = np.where(darkest == pixels, np.arange(bins), np.clip(table, 0, 255))
    return table.astype(np.uint8).ravel()[bin_of].reshape(levels.shape)
