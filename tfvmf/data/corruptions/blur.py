"""The blurs: defocus, Gaussian, glass, motion, zoom.

Each function takes uint8 [N, H, H, 3], a severity of 1 to 5 and the images' random draws, and
returns [N, H, H, 3] on the 0 to 255 scale. Lengths are in pixels, whatever the size of the image.
"""

import functools

import numpy as np
from scipy import sparse

from tfvmf.data.corruptions import filters
from tfvmf.data.corruptions.draws import Draws, Floats, Images

# Radius of the disk, and sigma of the Gaussian that softens its rim.
_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
_GAUSSIAN_SIGMA = (0.4, 0.6, 0.7, 0.8, 1.0)
# Sigma of the blur before and after, and how often pixels are scattered.
_GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
# Radius and sigma of the line.
_MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
# Zooms from 1 by steps of 0.01 to below this. The same expression as published makes the factors:
# a rounding error more or less decides how many there are and how much the last one crops.
_ZOOM_END = (1.06, 1.11, 1.16, 1.21, 1.26)


def defocus_blur(images: Images, severity: int, draws: Draws) -> Floats:
    """Correlation with a softened disk."""
    return filters.correlate(images.astype(np.float32), _soft_disk(*_DEFOCUS[severity - 1]))


def gaussian_blur(images: Images, severity: int, draws: Draws) -> Floats:
    """Gaussian blur."""
    return filters.gaussian_blur(images.astype(np.float32), _GAUSSIAN_SIGMA[severity - 1])


def glass_blur(images: Images, severity: int, draws: Draws) -> Floats:
    """Gaussian blur, scattered pixels, Gaussian blur.

    Scattering: x[i, j] <- x[i - a, j - b] for i, j >= 2, with a and b 0 or 1 by chance. The
    published program means to swap neighbors in place, going up and left from the last pixel;
    its swap writes through a view and so copies, and from where it has not been yet.
    """
    sigma, rounds = _GLASS[severity - 1]
    side = images.shape[1]
    # The published program truncates here to whole levels, not only at the end.
    blurred = filters.gaussian_blur(images.astype(np.float32), sigma) + np.float32(1e-3)
    # A pixel as one 32-bit number: its three values move together, and faster.
    bytes_of = np.zeros((*images.shape[:3], 4), np.uint8)
    bytes_of[..., :3] = blurred
    pixels = bytes_of.view(np.uint32)[..., 0]
    for _ in range(rounds):
        chance = draws.uniform(0, 4, (side - 2, side - 2)).astype(np.uint8)
        same_row = np.where(chance & 1, pixels[:, 2:, 1:-1], pixels[:, 2:, 2:])
        row_above = np.where(chance & 1, pixels[:, 1:-1, 1:-1], pixels[:, 1:-1, 2:])
        pixels[:, 2:, 2:] = np.where(chance & 2, row_above, same_row)
    return filters.gaussian_blur(bytes_of[..., :3].astype(np.float32), sigma)


def motion_blur(images: Images, severity: int, draws: Draws) -> Floats:
    """One-sided Gaussian along a line, at an angle between -45 and 45 degrees."""
    radius, sigma = _MOTION[severity - 1]
    return filters.motion_blur(images, radius=radius, sigma=sigma, angles=draws.uniform(-45, 45))


def zoom_blur(images: Images, severity: int, draws: Draws) -> Floats:
    """The mean of the image and of its zooms by 1.00, 1.01, 1.02, ..."""
    count, side, _, channels = images.shape
    pixels_first = images.reshape(count, side * side, channels).transpose(1, 0, 2)
    blurred = _zoom_operator(side, _ZOOM_END[severity - 1]) @ pixels_first.reshape(
        side * side, -1
    ).astype(np.float32)
    return blurred.reshape(side * side, count, channels).transpose(1, 0, 2).reshape(images.shape)


@functools.cache
def _soft_disk(radius: float, rim: float) -> Floats:
    """A disk of unit weight convolved with a 3 x 3 Gaussian, [7, 7]."""
    grid = np.arange(-3, 4)
    disk = (grid[:, None] ** 2 + grid[None, :] ** 2 <= radius**2).astype(np.float32)
    profile = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * rim**2))
    profile /= profile.sum()
    # The disk ends two pixels inside the grid, so the border rule of `correlate` never shows.
    return filters.correlate((disk / disk.sum())[None], np.outer(profile, profile))[0]


@functools.cache
def _zoom_operator(side: int, end: float) -> sparse.csr_array:
    """The whole zoom blur as one sparse matrix on the side * side pixels of a channel.

    Sum of the zooms is linear, and a pixel of the result touches few pixels of the image: one
    sparse product instead of up to 26 interpolations.
    """
    total = sparse.eye_array(side * side, dtype=np.float32, format="csr")
    factors = np.arange(1, end, 0.01)
    for factor in factors:
        along = sparse.csr_array(filters.zoom_matrix(side, float(factor)))
        total = total + sparse.kron(along, along, format="csr")
    return total / np.float32(len(factors) + 1)
