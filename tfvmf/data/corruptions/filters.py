"""Random numbers and linear filters for image batches, with the published generator's borders."""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# A tap below this weight changes no pixel by more than 0.03 of a level.
_LIGHTEST_TAP = 1e-4
# BLAS libraries keep a matrix product below this many multiplications in the calling thread. The
# chunks of a batch already run in threads; products that start more threads are much slower.
_SMALL_PRODUCT = 1 << 17


class Draws:
    """The random draws for a batch of images: every method returns one row per image.

    Each image has its own generator, keyed by (seed, corruption, severity, index in its data set).
    """

    def __init__(self, key: str, indices: Sequence[int] | npt.NDArray[np.integer]) -> None:
        self._keys = [f"{key}/{index}" for index in indices]

    @functools.cached_property
    def _generators(self) -> list[np.random.Generator]:
        digests = [hashlib.blake2b(key.encode(), digest_size=16).digest() for key in self._keys]
        numbers = [int.from_bytes(digest, "little") for digest in digests]
        return [np.random.Generator(np.random.Philox(key=number)) for number in numbers]

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """Standard normal numbers, float32 [N, *shape]."""
        return np.stack([rng.standard_normal(shape, np.float32) for rng in self._generators])

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> Floats:
        """Uniform numbers in [low, high), float32 [N, *shape]."""
        rows = np.stack([rng.random(shape, np.float32) for rng in self._generators])
        return rows * np.float32(high - low) + np.float32(low)

    def integers(self, high: int) -> npt.NDArray[np.int64]:
        """One integer in [0, high) per image, int64 [N]."""
        return np.array([rng.integers(high) for rng in self._generators], np.int64)

    def poisson(self, rates: npt.NDArray[np.floating]) -> Floats:
        """Poisson counts for the rates [N, ...], float32 of the same shape."""
        pairs = zip(self._generators, rates, strict=True)
        return np.stack([rng.poisson(rate).astype(np.float32) for rng, rate in pairs])


@functools.cache
def gaussian_matrix(
    side: int, sigma: float, *, mode: str = "nearest", truncate: float = 4.0
) -> Floats:
    """SciPy's Gaussian blur of `side` samples as a matrix [side, side], border included."""
    blurred = ndimage.gaussian_filter1d(np.eye(side), sigma, axis=0, mode=mode, truncate=truncate)
    return blurred.astype(np.float32)


@functools.cache
def zoom_matrix(side: int, factor: float) -> Floats:
    """Linear zoom of the central ceil(side / factor) samples to `side`, trimmed: [side, side]."""
    crop = int(np.ceil(side / factor))
    start = (side - crop) // 2
    zoomed = ndimage.zoom(np.eye(side)[start : start + crop], (factor, 1), order=1)
    trim = (len(zoomed) - side) // 2
    return zoomed[trim : trim + side].astype(np.float32)


def apply_separable(images: Floats, matrix: Floats) -> Floats:
    """Applies one matrix to rows and columns: y[n, :, :, c] = A x[n, :, :, c] A^T."""
    count, height, width, channels = images.shape
    rows = images.reshape(count, height, width * channels)
    blurred = np.empty(rows.shape, np.float32)
    step = max(1, _SMALL_PRODUCT // height**2)
    for start in range(0, width * channels, step):
        part = slice(start, start + step)
        np.matmul(matrix, rows[:, :, part], out=blurred[:, :, part])
    return np.matmul(matrix, blurred.reshape(-1, width, channels)).reshape(images.shape)


def gaussian_blur(images: Floats, sigma: float, **options: float | str) -> Floats:
    """Gaussian blur of [N, H, H, C] by `gaussian_matrix`."""
    return apply_separable(images, gaussian_matrix(images.shape[1], sigma, **options))


def correlate(images: Floats, kernel: Floats) -> Floats:
    """y[n, i, j] = sum_ab kernel[a, b] x[n, i + a - r, j + b - r], mirrored without the edge."""
    radius = len(kernel) // 2
    height, width = images.shape[1:3]
    margins = [(0, 0), (radius, radius), (radius, radius)] + [(0, 0)] * (images.ndim - 3)
    padded = np.pad(images, margins, mode="reflect")
    total = np.zeros(images.shape, np.float32)
    for row, column in zip(*np.nonzero(kernel), strict=True):
        total += kernel[row, column] * padded[:, row : row + height, column : column + width]
    return total


def motion_blur(
    images: npt.NDArray[np.generic], radius: float, sigma: float, *, angles: Floats
) -> Floats:
    """One-sided Gaussian along a line at `angles` [N] in degrees: ImageMagick's, as in CIFAR-10-C.

    y[n, i, j] = sum_t w_t x[n, i + round(t sin a_n), j + round(t cos a_n)] for t = 0 to
    2 ceil(radius), w_t proportional to exp(-t^2 / (2 sigma^2)), edge pixels repeated.
    """
    steps = np.arange(2 * np.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    steps, weights = steps[weights >= _LIGHTEST_TAP], weights[weights >= _LIGHTEST_TAP]
    weights = (weights / weights.sum()).astype(np.float32)
    turn = np.deg2rad(angles.astype(np.float64))[:, None]
    margin = int(steps[-1])
    down = np.ceil(steps * np.sin(turn) - 0.5).astype(np.intp) + margin
    right = np.ceil(steps * np.cos(turn) - 0.5).astype(np.intp) + margin
    count, height, width, channels = images.shape
    padded = np.pad(images, [(0, 0), (margin, margin), (margin, margin), (0, 0)], mode="edge")
    rows = padded.reshape(count, height + 2 * margin, -1)
    # windows[n, i, j] is image n moved by (i, j): picking one per image copies whole windows.
    window = (height, width * channels)
    windows = np.lib.stride_tricks.sliding_window_view(rows, window, axis=(1, 2))
    which = np.arange(count)
    total = np.zeros((count, *window), np.float32)
    for tap, weight in enumerate(weights):
        total += weight * windows[which, down[:, tap], right[:, tap] * channels]
    return total.reshape(images.shape)
