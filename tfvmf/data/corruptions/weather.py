"""The weather: fog, frost, snow (`spatter.py` has the fourth).

Each function takes uint8 [N, H, H, 3], a severity of 1 to 5 and the images' random draws, and
returns [N, H, H, 3] on the 0 to 255 scale.
"""

import numpy as np

from tfvmf.data.corruptions import filters, frost_textures
from tfvmf.data.corruptions.draws import Draws, Floats, Images

# Thickness of the fog, and how fast its detail fades from coarse to fine.
_FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
# Weights of the image and of the ice.
_FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
# Flakes: mean, deviation, zoom, threshold; their motion: radius, sigma; weight of the image
# against its whitened self.
_SNOW = (
    (0.10, 0.2, 1.00, 0.60, 8, 3, 0.95),
    (0.10, 0.2, 1.00, 0.50, 10, 4, 0.90),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.90),
    (0.25, 0.3, 2.25, 0.60, 12, 6, 0.85),
    (0.30, 0.3, 1.25, 0.65, 14, 12, 0.80),
)
# ITU-R BT.601 luma.
_LUMA = (0.299, 0.587, 0.114)


def fog(images: Images, severity: int, draws: Draws) -> Floats:
    """Mist: (x + c plasma) m / (m + c) on the 0 to 1 scale, m the image's brightest value."""
    thickness, decay = _FOG[severity - 1]
    brightest = images.max(axis=(1, 2, 3), keepdims=True).astype(np.float32)
    mist = _plasma(images.shape[1], decay, draws)[..., None]
    mist *= 255 * thickness
    return (images + mist) * (brightest / (brightest + 255 * thickness))


def frost(images: Images, severity: int, draws: Draws) -> Floats:
    """Blends in a random crop of a random texture of ice: a x + b ice."""
    image_weight, ice_weight = _FROST[severity - 1]
    side = images.shape[1]
    textures = frost_textures.textures(side)
    which = draws.integers(len(textures))
    down, right = draws.uniform(0, 1), draws.uniform(0, 1)
    blend = np.empty(images.shape, np.float32)
    for number, texture in enumerate(textures):
        chosen = np.flatnonzero(which == number)
        windows = np.lib.stride_tricks.sliding_window_view(texture, (side, side), axis=(0, 1))
        # The last window is left out, as the published program does.
        top = (down[chosen] * max(len(windows) - 1, 1)).astype(np.intp)
        left = (right[chosen] * max(windows.shape[1] - 1, 1)).astype(np.intp)
        blend[chosen] = windows[top, left].transpose(0, 2, 3, 1)
    blend *= ice_weight
    blend += np.float32(image_weight) * images
    return blend


def snow(images: Images, severity: int, draws: Draws) -> Floats:
    """The image, whitened, with moving flakes from two opposite directions.

    y = w x + (1 - w) max(x, 1.5 luma(x) + 0.5) + s + rot180(s) on the 0 to 1 scale, where s is
    thresholded noise, zoomed and blurred along a line.
    """
    mean, deviation, zoom, threshold, radius, sigma, weight = _SNOW[severity - 1]
    side = images.shape[1]
    flakes = draws.normal((side, side, 1))
    flakes *= deviation
    flakes += mean
    if zoom > 1:
        flakes = filters.apply_separable(flakes, filters.zoom_matrix(side, zoom))
    flakes[flakes < threshold] = 0
    # Whole levels before and after the blur: the published program passes 8-bit images around.
    levels = (np.minimum(flakes, 1) * 255).astype(np.uint8)
    falling = filters.motion_blur(
        levels, radius=radius, sigma=sigma, angles=draws.uniform(-135, -45)
    )
    falling = np.rint(falling)

    pixels = images.astype(np.float32)
    red, green, blue = (share * pixels[..., i] for i, share in enumerate(_LUMA))
    whitened = (1.5 * (red + green + blue) + 127.5)[..., None]
    snowy = np.maximum(pixels, whitened)
    snowy *= 1 - weight
    pixels *= weight
    snowy += pixels
    snowy += falling + falling[:, ::-1, ::-1]
    return snowy


def _plasma(side: int, decay: float, draws: Draws) -> Floats:
    """Clouds by the diamond-square algorithm on a torus, each scaled to [0, 1].

    From coarse to fine, the center of each square and then of each diamond becomes the mean of
    its four corners plus uniform noise, whose size falls by decay^2 with every halving.
    """
    size = 1 << (side - 1).bit_length()
    # One number for each point of the grid: where it is used decides how much it is scaled.
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
    return field[:, :side, :side].copy()
