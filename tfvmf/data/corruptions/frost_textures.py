"""Textures of ice for the frost corruption.

The published generator blends in photographs of frost, which the `imagecorruptions` wheel (extra
`corruptions`) ships. Without it, textures are made here, with the brightness, color, deviation and
gradient of the photographs.
"""

import functools
import importlib.util
import pathlib

import numpy as np
from PIL import Image
from scipy import ndimage, spatial

from tfvmf.data.corruptions.filters import Floats, Images

# The published program draws from the first five of its six photographs.
_PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# It shrinks them to a fifth: with that factor, linear resizing picks every fifth pixel.
_SHRINK = 5

# Of the shrunk photographs: mean color, standard deviation and mean absolute gradient of the
# brightness. The second and third are the same picture.
_STATISTICS = (
    ((78, 149, 166), 18.0, 11.5),
    ((201, 205, 214), 22.0, 14.4),
    ((201, 205, 214), 22.0, 14.4),
    ((138, 153, 166), 29.3, 21.9),
    ((112, 123, 135), 43.0, 29.2),
)
_MADE_SIZE = (120, 180)
_CRYSTALS = 60
_DIRECTIONS = 12


def frost_source() -> str:
    """Where frost comes from on this machine, for the report."""
    found = _photographs_directory() is not None
    return "photographs of the imagecorruptions package" if found else "procedural ice texture"


def textures(side: int) -> tuple[Images, ...]:
    """Five textures, uint8 [h, w, 3], with h and w above `side`: mirrored if they are smaller."""
    return _textures(_photographs_directory(), side)


def _photographs_directory() -> pathlib.Path | None:
    """Finds the package's files; importing it would need OpenCV, scikit-image and Numba."""
    spec = importlib.util.find_spec("imagecorruptions")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        directory = pathlib.Path(place) / "frost"
        if all((directory / name).is_file() for name in _PHOTOGRAPHS):
            return directory
    return None


@functools.cache
def _textures(directory: pathlib.Path | None, side: int) -> tuple[Images, ...]:
    if directory is None:
        found = [_make(number) for number in range(len(_STATISTICS))]
    else:
        photographs = [Image.open(directory / name).convert("RGB") for name in _PHOTOGRAPHS]
        middle = _SHRINK // 2
        found = [np.asarray(each)[middle::_SHRINK, middle::_SHRINK] for each in photographs]
    missing = [[(0, max(0, side + 1 - length)) for length in each.shape[:2]] for each in found]
    return tuple(
        np.pad(texture, [*margins, (0, 0)], mode="symmetric")
        for texture, margins in zip(found, missing, strict=True)
    )


def _make(number: int) -> Images:
    """Clouds plus needles of ice: brightness = mean + s (sqrt(1 - a^2) clouds + a needles).

    Both fields have unit deviation; the share a of the needles is chosen for the gradient.
    """
    color, deviation, gradient = _STATISTICS[number]
    rng = np.random.Generator(np.random.Philox(key=number))
    needles = _needles(rng)
    clouds = _unit(ndimage.gaussian_filter(rng.standard_normal(_MADE_SIZE), 10, mode="wrap"))
    share = min(1.0, gradient / (deviation * np.abs(np.diff(needles, axis=1)).mean()))
    height = np.sqrt(1 - share**2) * clouds + share * needles
    pixels = np.array(color) + deviation * height[..., None]
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def _needles(rng: np.random.Generator) -> Floats:
    """Crystals, the cells of a Voronoi diagram, each with fine streaks in its own direction."""
    height, width = _MADE_SIZE
    noise = rng.standard_normal(_MADE_SIZE)
    reach = np.arange(-2, 3)
    streaks = []
    for turn in np.arange(_DIRECTIONS) * np.pi / _DIRECTIONS:
        line, path = np.zeros((5, 5)), 2 + reach * np.array([[np.sin(turn)], [np.cos(turn)]])
        line[tuple(np.rint(path).astype(int))] = 1
        streaks.append(ndimage.correlate(noise, line, mode="wrap"))
    seeds = rng.uniform(0, _MADE_SIZE, (_CRYSTALS, 2))
    points = np.indices(_MADE_SIZE).reshape(2, -1).T
    cell = spatial.cKDTree(seeds).query(points)[1].reshape(height, width)
    direction = rng.integers(_DIRECTIONS, size=_CRYSTALS)[cell]
    field = np.take_along_axis(np.stack(streaks), direction[None], axis=0)[0]
    # Grains between the needles keep the finest detail that photographs have.
    return _unit(field + 1.5 * rng.standard_normal(_MADE_SIZE))


def _unit(field: Floats) -> Floats:
    return (field - field.mean()) / field.std()
