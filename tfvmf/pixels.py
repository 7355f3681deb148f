"""Checks the type and range of arrays of images: uint8, or float in [0, 1]."""

from typing import Any

import numpy as np

from tfvmf.errors import UserError

_EXPECTED = "expected uint8 (0 to 255) or float in [0, 1]"
_SLACK = 1e-4  # resizing in float32 may overshoot by rounding


def check_pixels(images: Any, *, name: str = "images") -> np.ndarray:
    """Images [N, H, W, 3] (array, tensor, list) as uint8 or float32 in [0, 1], or UserError."""
    try:
        pixels = np.asarray(images)
    except ValueError as error:  # a list of images of different sizes
        raise UserError(f"{name} are not one array [N, H, W, 3]: {error}") from error
    if pixels.size == 0:
        raise UserError(f"{name} have the shape {list(pixels.shape)}: there are no images")
    if pixels.ndim != 4 or pixels.shape[3] != 3:
        raise UserError(f"{name} have the shape {list(pixels.shape)}: expected [N, H, W, 3]")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == object or not np.issubdtype(pixels.dtype, np.number):
        raise UserError(f"{name} are of type {pixels.dtype}: {_EXPECTED}")
    low, high = pixels.min(), pixels.max()
    if not np.issubdtype(pixels.dtype, np.floating):
        raise UserError(f"{name} are {pixels.dtype} from {low} to {high}: {_EXPECTED}")
    if not (low >= -_SLACK and high <= 1 + _SLACK):  # also rejects NaN
        raise UserError(f"{name} are {pixels.dtype} from {low:.4g} to {high:.4g}: {_EXPECTED}")
    return pixels.astype(np.float32, copy=False)
