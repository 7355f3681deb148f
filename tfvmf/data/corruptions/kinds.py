"""All kinds of corruptions: blurs, noises, digital processing, and `weather`.

Each function takes uint8 [N, H, H, 3], the images' random draws and the parameters of a severity
(`KINDS`), and returns [N, H, H, 3] on the 0 to 255 scale. Lengths are in pixels unless stated.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import sparse

from tfvmf.data.corruptions import filters
from tfvmf.data.corruptions.filters import Draws, Floats, Images
from tfvmf.data.corruptions.weather import fog, frost, snow, spatter


def defocus_blur(images: Images, draws: Draws, radius: float, rim: float) -> Floats:
    """Correlation with a disk whose rim is softened by a Gaussian of sigma `rim`."""
    return filters.correlate(images.astype(np.float32), _soft_disk(radius, rim))


def gaussian_blur(images: Images, draws: Draws, sigma: float) -> Floats:
    """Gaussian blur."""
    return filters.gaussian_blur(images.astype(np.float32), sigma)


def glass_blur(images: Images, draws: Draws, sigma: float, rounds: int) -> Floats:
    """Gaussian blur, scattering, Gaussian blur.

    Scattering copies x[i, j] <- x[i - a, j - b] for i, j >= 2, random a, b in {0, 1}, as published.
    """
    side = images.shape[1]
    # The published program truncates to whole levels here, not only at the end.
    blurred = filters.gaussian_blur(images.astype(np.float32), sigma) + np.float32(1e-3)
    # A pixel as one 32-bit number: its three values move together, which is faster.
    bytes_of = np.zeros((*images.shape[:3], 4), np.uint8)
    bytes_of[..., :3] = blurred
    pixels = bytes_of.view(np.uint32)[..., 0]
    for _ in range(rounds):
        chance = draws.uniform(0, 4, (side - 2, side - 2)).astype(np.uint8)
        same_row = np.where(chance & 1, pixels[:, 2:, 1:-1], pixels[:, 2:, 2:])
        row_above = np.where(chance & 1, pixels[:, 1:-1, 1:-1], pixels[:, 1:-1, 2:])
        pixels[:, 2:, 2:] = np.where(chance & 2, row_above, same_row)
    return filters.gaussian_blur(bytes_of[..., :3].astype(np.float32), sigma)


def motion_blur(images: Images, draws: Draws, radius: float, sigma: float) -> Floats:
    """One-sided Gaussian along a line, at an angle from -45 to 45 degrees."""
    return filters.motion_blur(images, radius, sigma, angles=draws.uniform(-45, 45))


def zoom_blur(images: Images, draws: Draws, end: float) -> Floats:
    """The mean of the image and its zooms by 1.00, 1.01, 1.02, ... below `end`."""
    count, side, _, channels = images.shape
    pixels_first = images.reshape(count, side * side, channels).transpose(1, 0, 2)
    blurred = _zoom_operator(side, end) @ pixels_first.reshape(side * side, -1).astype(np.float32)
    return blurred.reshape(side * side, count, channels).transpose(1, 0, 2).reshape(images.shape)


@functools.cache
def _soft_disk(radius: float, rim: float) -> Floats:
    """A disk of unit weight convolved with a 3 x 3 Gaussian, [7, 7]."""
    grid = np.arange(-3, 4)
    disk = (grid[:, None] ** 2 + grid[None, :] ** 2 <= radius**2).astype(np.float32)
    profile = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * rim**2))
    profile /= profile.sum()
    # The disk ends two pixels inside the grid, so the border rule of `correlate` has no effect.
    return filters.correlate((disk / disk.sum())[None], np.outer(profile, profile))[0]


@functools.cache
def _zoom_operator(side: int, end: float) -> sparse.csr_array:
    """The zoom blur as one sparse matrix on the pixels of a channel, not 26 interpolations."""
    total = sparse.eye_array(side * side, dtype=np.float32, format="csr")
    # As published: a rounding error decides their number and how much the last one crops.
    factors = np.arange(1, end, 0.01)
    for factor in factors:
        along = sparse.csr_array(filters.zoom_matrix(side, float(factor)))
        total = total + sparse.kron(along, along, format="csr")
    return total / np.float32(len(factors) + 1)


def gaussian_noise(images: Images, draws: Draws, deviation: float) -> Floats:
    """Electronic sensor noise: x + 255 s e, with e normal."""
    return 255 * deviation * draws.normal(images.shape[1:]) + images


def shot_noise(images: Images, draws: Draws, photons: int) -> Floats:
    """Photon counting noise: Poisson(c x) / c on the 0 to 1 scale."""
    return 255 / photons * draws.poisson(images * (photons / 255))


def impulse_noise(images: Images, draws: Draws, share: float) -> Images:
    """Sets a share of the values, per channel, to black or white with equal probability."""
    chance = draws.uniform(0, 1, images.shape[1:])
    noisy = np.where(chance < share, np.uint8(0), images)
    noisy[chance < share / 2] = 255
    return noisy


def speckle_noise(images: Images, draws: Draws, deviation: float) -> Floats:
    """Noise that grows with the signal: x + x s e, with e normal."""
    return (deviation * draws.normal(images.shape[1:]) + 1) * images


def brightness(images: Images, draws: Draws, more: float) -> Floats:
    """HSV value v -> min(v + more, 1), so that x -> x v' / v; black turns gray."""
    pixels = images.astype(np.float32)
    value = pixels.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + 255 * more, 255)
    return np.where(value > 0, pixels * (brighter / np.maximum(value, 1)), brighter)


def contrast(images: Images, draws: Draws, share: float) -> Floats:
    """Moves values toward the mean m of their channel in the image: m + share (x - m)."""
    factor = np.float32(share)
    mean = images.mean(axis=(1, 2), keepdims=True, dtype=np.float32)
    return images * factor + mean * (1 - factor)


def saturate(images: Images, draws: Draws, factor: float, offset: float) -> Floats:
    """HSV saturation s -> clip(factor s + offset, 0, 1): x -> v - (v - x) s' / s; gray is red."""
    pixels = images.astype(np.float32)
    value = pixels.max(axis=-1, keepdims=True)
    spread = value - pixels.min(axis=-1, keepdims=True)
    saturation = spread / np.maximum(value, 1)
    target = np.clip(saturation * factor + offset, 0, 1)
    towards_gray = (value - pixels) / np.maximum(spread, 1)
    towards_gray = np.where(spread > 0, towards_gray, np.array([0, 1, 1], np.float32))
    return value - towards_gray * (target * value)


def jpeg_compression(images: Images, draws: Draws, quality: int) -> Images:
    """JPEG compression with halved chroma, the default of encoders."""
    decoded = np.empty_like(images)
    for image, out in zip(images, decoded, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        out[...] = np.asarray(Image.open(file))
    return decoded


def pixelate(images: Images, draws: Draws, share: float) -> Images:
    """Shrinks to a share of the side and enlarges again, both with a box filter."""
    side = images.shape[1]
    small = int(side * share)
    blocks = np.empty_like(images)
    for image, out in zip(images, blocks, strict=True):
        shrunk = Image.fromarray(image).resize((small, small), Image.Resampling.BOX)
        out[...] = np.asarray(shrunk.resize((side, side), Image.Resampling.BOX))
    return blocks


def elastic_transform(
    images: Images, draws: Draws, amplitude: float, sigma: float, reach: float
) -> Floats:
    """A random affine map, then random smooth displacements. All lengths are shares of the side.

    The affine map takes three corners of a central square, each moved by up to `reach`, back to
    their places. The displacement of a pixel is uniform noise, blurred, times `amplitude`.
    """
    count, side = images.shape[:2]
    amplitude, sigma, reach = (share * side for share in (amplitude, sigma, reach))
    middle, arm = side // 2, side // 3
    corners = middle + arm * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = corners + draws.uniform(-reach, reach, (3, 2))
    moved = np.concatenate([moved, np.ones((count, 3, 1))], axis=2)
    affine = np.linalg.solve(moved, np.broadcast_to(corners, (count, 3, 2)))
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
    """Bilinear samples of each image at its own points; `mirror` is a mode of `np.pad`."""
    count, side = images.shape[:2]
    margin = 2 * side
    # The pixel at position i - margin, int64 [5 side].
    inside = np.pad(np.arange(side), margin, mode=mirror)  # type: ignore[call-overload]
    top, left = np.floor(y), np.floor(x)
    down, right = (y - top)[..., None], (x - left)[..., None]
    row = np.clip(top.astype(np.intp) + margin, 0, len(inside) - 2)
    column = np.clip(left.astype(np.intp) + margin, 0, len(inside) - 2)
    first_pixel = np.arange(0, count * side * side, side * side)[:, None, None]
    upper, lower = first_pixel + inside[row] * side, first_pixel + inside[row + 1] * side
    left_column, right_column = inside[column], inside[column + 1]
    pixels = images.reshape(-1, 3)

    def between(rows: npt.NDArray[np.intp]) -> Floats:
        start = pixels.take(rows + left_column, axis=0)
        stop = pixels.take(rows + right_column, axis=0)
        return (stop - start) * right + start

    above, below = between(upper), between(lower)
    return (below - above) * down + above


# Each function and its parameters at severities 1 to 5, in the order of the paper's Table 1. Shot
# noise, which the table omits, comes last.
KINDS: dict[str, tuple[Callable[..., npt.NDArray[Any]], tuple[Any, ...]]] = {
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "fog": (fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    "frost": (frost, ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
    "motion_blur": (motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    # As published: the severities are not in the order of strength.
    "saturate": (saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))),
    "snow": (
        snow,
        (
            ((0.10, 0.2, 1.00, 0.60), (8, 3), 0.95),
            ((0.10, 0.2, 1.00, 0.50), (10, 4), 0.90),
            ((0.15, 0.3, 1.75, 0.55), (10, 4), 0.90),
            ((0.25, 0.3, 2.25, 0.60), (12, 6), 0.85),
            ((0.30, 0.3, 1.25, 0.65), (14, 12), 0.80),
        ),
    ),
    "spatter": (
        spatter,
        (
            ((0.62, 0.1, 0.7, 0.70), 0.5, False),
            ((0.65, 0.1, 0.8, 0.70), 0.5, False),
            ((0.65, 0.3, 1.0, 0.69), 0.5, False),
            ((0.65, 0.1, 0.7, 0.69), 0.6, True),
            ((0.65, 0.1, 0.5, 0.68), 0.6, True),
        ),
    ),
    "speckle_noise": (speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20)),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
}
