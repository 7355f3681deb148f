"""The noises: Gaussian, shot, impulse, speckle.

Each function takes uint8 [N, H, H, 3], a severity of 1 to 5 and the images' random draws, and
returns [N, H, H, 3] on the 0 to 255 scale.
"""

import numpy as np

from tfvmf.data.corruptions.draws import Draws, Floats, Images

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
