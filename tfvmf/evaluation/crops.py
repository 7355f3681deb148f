"""The crop test: a part of an image says less than the whole, so the score should say so too."""

import numpy as np
import tensorflow as tf

from tfvmf.data import image_ops
from tfvmf.evaluation.run import Evaluation
from tfvmf.progress import Progress

AREAS = (0.75, 0.5, 0.25, 0.1)
_BATCH = 250


def crop_test(evaluation: Evaluation, whole: np.ndarray, *, seed: int = 0) -> list[dict]:
    """How often an image is less certain once it is cropped.

    Each of the first N test images is cut to a square of a share of its area and scaled up again.
    Where the square lies is drawn once an image, from `seed` and its index alone: the same at
    every area, and whatever the number of images.

    Args:
        evaluation: Its main score is tested.
        whole: The score [N] of the images as they are.
        seed: Of the positions.

    Returns:
        For each of `AREAS` its `area`, the `share` of images that became less certain (a draw
        counts half), and the `mean` of the score.
    """
    score, size = evaluation.score, len(whole)
    corners = np.random.default_rng(seed).random((size, 2))
    cropped = np.empty((len(AREAS), size))
    with Progress(size * len(AREAS), unit="image", description="crops ") as progress:
        for start in range(0, size, _BATCH):
            part = slice(start, min(start + _BATCH, size))
            images = evaluation.test.images(part.start, part.stop)
            for row, area in enumerate(AREAS):
                values = evaluation.uncertainty(crop(images, corners[part], area))
                cropped[row, part] = values[score.name]
                progress.update(len(images))
    before, after = score.uncertainty(whole), score.uncertainty(cropped)
    shares = (after > before).mean(axis=1) + 0.5 * (after == before).mean(axis=1)
    return [
        {"area": area, "share": float(share), "mean": float(values.mean())}
        for area, share, values in zip(AREAS, shares, cropped, strict=True)
    ]


def crop(images: np.ndarray, corners: np.ndarray, area: float) -> np.ndarray:
    """Cuts squares out of images and scales them up to the images' size.

    Args:
        images: uint8 [N, S, S, 3].
        corners: [N, 2] in [0, 1], where the square lies between the top (left) and the bottom
            (right) of the image.
        area: The share of the image that is left.

    Returns:
        uint8 [N, S, S, 3].
    """
    size = images.shape[1]
    side = size * np.sqrt(area)
    top, left = (corners * (size - side)).T
    boxes = np.stack([top, left, top + side, left + side], axis=1)
    cut = image_ops.resized_crop(
        tf.cast(images, tf.float32) / 255.0, tf.constant(boxes, tf.float32), size
    )
    return np.round(255.0 * cut.numpy()).astype(np.uint8)
