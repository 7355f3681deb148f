"""Data sets that need no download, for a budget without MNIST and CIFAR-100.

`digits_turned` is close to the digits (the same strokes and classes, turned by 90 degrees).
`photo_patches` is far from both: square patches of scikit-learn's two sample photographs, with the
photograph as the class. Test patches come from the right quarter of the photographs, training
patches from the rest: no pixel is in both.
"""

import pathlib

import numpy as np

from tfvmf import data
from tfvmf.data.images import resize_image
from tfvmf.files import replacing

Split = tuple[np.ndarray, np.ndarray]  # images uint8 [N, S, S, 3], labels [N]

_PATCH = 64  # side in pixels of the photographs
_TRAIN, _TEST = 1400, 400


def digits_turned(split: str, size: int) -> Split:
    """The digits, turned counter-clockwise."""
    source = data.load_source("digits", split, image_size=size)
    assert source.labels is not None
    return np.rot90(source.images(), axes=(1, 2)), source.labels


def photo_patches(split: str, size: int) -> Split:
    """Patches at random places of a photograph of a temple and one of a flower."""
    from sklearn.datasets import load_sample_images

    photos = load_sample_images().images
    count, seed = (_TRAIN, 0) if split == "train" else (_TEST, 1)
    draws = np.random.default_rng(seed)
    labels = np.arange(count) % len(photos)
    patches = []
    for label in labels:
        height, width, _ = photos[label].shape
        border = 3 * width // 4
        left, right = (0, border) if split == "train" else (border, width)
        y = draws.integers(0, height - _PATCH + 1)
        x = draws.integers(left, right - _PATCH + 1)
        patches.append(resize_image(photos[label][y : y + _PATCH, x : x + _PATCH], size))
    return np.stack(patches), labels


MAKERS = {"digits_turned": digits_turned, "photo_patches": photo_patches}


def write(name: str, path: pathlib.Path, *, size: int) -> None:
    """Writes a stand-in as an npz file (`npz:<path>` reads it), unless it exists."""
    if path.exists():
        return
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = MAKERS[name](split, size)
    with replacing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
