"""Noise and digital processing: brightness, contrast, elastic transform, JPEG, pixelate, saturate.

Each function takes uint8 [N, H, H, 3], a severity of 1 to 5 and the images' random draws, and
returns [N, H, H, 3] on the 0 to 255 scale.
"""

import functools
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfvmf.data.corruptions import filters
from tfvmf.data.corruptions.draws import Draws, Floats, Images

_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
# Amplitude and sigma of the displacements, and reach of the affine map, in sides of the image.
_ELASTIC = (
    (0.00, 0.00, 0.08),
    (0.05, 0.20, 0.07),
    (0.08, 0.06, 0.06),
    (0.10, 0.04, 0.05),
    (0.10, 0.03, 0.03),
)
_JPEG_QUALITY = (80, 65, 58, 50, 40)
_PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)
# s -> a s + b. As published: the levels are not in the order of their strength.
_SATURATE = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
_GAUSSIAN_DEVIATION = (0.04, 0.06, 0.08, 0.09, 0.10)
_SHOT_PHOTONS = (500, 250, 100, 75, 50)
_IMPULSE_SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)
_SPECKLE_DEVIATION = (0.06, 0.10, 0.12, 0.16, 0.20)


def gaussian_noise(images: Images, severity: int, draws: Draws) -> Floats:
    """Noise of an electronic sensor: x + 255 s e, with e normal."""
    noise = draws.normal(images.shape[1:])
    noise *= 255 * _GAUSSIAN_DEVIATION[severity - 1]
    noise += images
    return noise


def shot_noise(images: Images, severity: int, draws: Draws) -> Floats:
    """Noise of counting photons: Poisson(c x) / c on the 0 to 1 scale."""
    photons = _SHOT_PHOTONS[severity - 1]
    counts = draws.poisson(images * (photons / 255))
    counts *= 255 / photons
    return counts


def impulse_noise(images: Images, severity: int, draws: Draws) -> Images:
    """Sets a share of the values, channel by channel, to black or white with equal chances."""
    share = _IMPULSE_SHARE[severity - 1]
    chance = draws.uniform(0, 1, images.shape[1:])
    noisy = np.where(chance < share, np.uint8(0), images)
    noisy[chance < share / 2] = 255
    return noisy


def speckle_noise(images: Images, severity: int, draws: Draws) -> Floats:
    """Noise that grows with the signal: x + x s e, with e normal."""
    noise = draws.normal(images.shape[1:])
    noise *= _SPECKLE_DEVIATION[severity - 1]
    noise += 1
    noise *= images
    return noise


def brightness(images: Images, severity: int, draws: Draws) -> Floats:
    """HSV value v -> min(v + c, 1). Hue and saturation stay, so x -> x v' / v; black turns gray."""
    pixels = images.astype(np.float32)
    value = pixels.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + 255 * _BRIGHTNESS[severity - 1], 255)
    return np.where(value > 0, pixels * (brighter / np.maximum(value, 1)), brighter)


def contrast(images: Images, severity: int, draws: Draws) -> Floats:
    """Towards the mean m of the channel over the image: m + c (x - m)."""
    factor = np.float32(_CONTRAST[severity - 1])
    mean = images.mean(axis=(1, 2), keepdims=True, dtype=np.float32)
    return images * factor + mean * (1 - factor)


def saturate(images: Images, severity: int, draws: Draws) -> Floats:
    """HSV saturation s -> clip(a s + b, 0, 1). Hue and value stay: x -> v - (v - x) s' / s.

    A gray pixel has no hue; the published program takes it for red.
    """
    factor, offset = _SATURATE[severity - 1]
    pixels = images.astype(np.float32)
    value = pixels.max(axis=-1, keepdims=True)
    spread = value - pixels.min(axis=-1, keepdims=True)
    saturation = spread / np.maximum(value, 1)
    target = np.clip(saturation * factor + offset, 0, 1)
    towards_gray = (value - pixels) / np.maximum(spread, 1)
    towards_gray = np.where(spread > 0, towards_gray, np.array([0, 1, 1], np.float32))
    return value - towards_gray * (target * value)


def jpeg_compression(images: Images, severity: int, draws: Draws) -> Images:
    """Through a JPEG file, chroma halved as encoders do by default."""
    quality = _JPEG_QUALITY[severity - 1]
    decoded = np.empty_like(images)
    for image, out in zip(images, decoded, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        out[...] = np.asarray(Image.open(file))
    return decoded


def pixelate(images: Images, severity: int, draws: Draws) -> Images:
    """Down to a share of the side and up again, both with a box filter."""
    side = images.shape[1]
    small = int(side * _PIXELATE[severity - 1])
    blocks = np.empty_like(images)
    for image, out in zip(images, blocks, strict=True):
        shrunk = Image.fromarray(image).resize((small, small), Image.Resampling.BOX)
        out[...] = np.asarray(shrunk.resize((side, side), Image.Resampling.BOX))
    return blocks


def elastic_transform(images: Images, severity: int, draws: Draws) -> Floats:
    """A random affine map, then random smooth displacements.

    The affine map takes three corners of a central square, each moved by up to `reach`, back to
    where they were. The displacement of a pixel is uniform noise, blurred, times `amplitude`.
    Both lengths grow with the side of the image.
    """
    amplitude, sigma, reach = (share * images.shape[1] for share in _ELASTIC[severity - 1])
    count, side = images.shape[:2]
    middle, arm = side // 2, side // 3
    corners = middle + arm * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = corners + draws.uniform(-reach, reach, (3, 2))
    ones = np.ones((count, 3, 1))
    affine = np.linalg.solve(
        np.concatenate([moved, ones], axis=2), np.broadcast_to(corners, moved.shape)
    )
    grid = np.arange(side, dtype=np.float32)
    a = affine.astype(np.float32)[:, :, :, None, None]
    x = a[:, 0, 0] * grid + a[:, 1, 0] * grid[:, None] + a[:, 2, 0]
    y = a[:, 0, 1] * grid + a[:, 1, 1] * grid[:, None] + a[:, 2, 1]
    warped = _sample(images.astype(np.float32), y, x, mirror="reflect")
    if amplitude == 0:
        return warped
    noise = draws.uniform(-1, 1, (side, side, 2))
    shift = amplitude * filters.gaussian_blur(noise, sigma, mode="reflect", truncate=3.0)
    return _sample(warped, shift[..., 1] + grid[:, None], shift[..., 0] + grid, mirror="symmetric")


def _sample(images: Floats, y: Floats, x: Floats, *, mirror: str) -> Floats:
    """Bilinear samples of each image at its own points, the image mirrored beyond its borders.

    `mirror`: "reflect" does not repeat the border pixel, "symmetric" does (numpy.pad's names).
    """
    count, side = images.shape[:2]
    inside = _mirrored_indices(side, mirror)
    margin = 2 * side
    top, left = np.floor(y), np.floor(x)
    down, right = (y - top)[..., None], (x - left)[..., None]
    row = np.clip(top.astype(np.intp) + margin, 0, len(inside) - 2)
    column = np.clip(left.astype(np.intp) + margin, 0, len(inside) - 2)
    first_pixel = np.arange(0, count * side * side, side * side)[:, None, None]
    upper, lower = first_pixel + inside[row] * side, first_pixel + inside[row + 1] * side
    left_column, right_column = inside[column], inside[column + 1]

    # Four floats are one 16-byte number to `take`, which moves single numbers several times as
    # fast as short rows.
    padded = np.zeros((count, side, side, 4), np.float32)
    padded[..., :3] = images
    pixels = padded.view(np.complex128).ravel()

    def between(rows: npt.NDArray[np.intp]) -> Floats:
        start = pixels.take(rows + left_column)[..., None].view(np.float32)
        stop = pixels.take(rows + right_column)[..., None].view(np.float32)
        stop -= start
        stop *= right
        stop += start
        return stop

    above, below = between(upper), between(lower)
    below -= above
    below *= down
    below += above
    return below[..., :3]


@functools.cache
def _mirrored_indices(side: int, mirror: str) -> npt.NDArray[np.int64]:
    """Index of the pixel that stands at position i - 2 side, int64 [5 side]."""
    return np.pad(np.arange(side), 2 * side, mode=mirror)  # type: ignore[call-overload]
