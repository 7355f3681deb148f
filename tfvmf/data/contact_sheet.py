"""Pictures of what an augmentation does: look before you train."""

import os

import numpy as np
import tensorflow as tf
from PIL import Image

from tfvmf.counter_random import example_seeds
from tfvmf.data.augment import Augmentation

_GAP = 2  # pixels between tiles
_PAPER = 255  # white
_TILE = 96  # pixels at least, so that an image of 32x32 can be seen


def draw_views(
    images: np.ndarray, augmentation: Augmentation, *, views: int = 8, seed: int = 0
) -> np.ndarray:
    """Draws a row for each image: the image itself, then `views` views of it.

    Args:
        images: uint8 [N, H, W, 3].
        augmentation: makes the views.
        views: in a row.
        seed: of the run whose first step is drawn.

    Returns:
        uint8 [height, width, 3]. Tiles are enlarged by whole pixels, so what one sees is what the
        encoder gets; only the originals are resampled, when their size is not that of a view.
    """
    size = augmentation.size
    columns = [np.stack([_resized(image, size) for image in images])]
    for view in range(views):
        drawn = augmentation(images, example_seeds(seed, 0, tf.range(len(images)), view))
        columns.append(np.rint(255.0 * drawn.numpy()).astype(np.uint8))
    tiles = np.stack(columns, axis=1)  # [N, 1 + views, size, size, 3]

    zoom = -(-_TILE // size)
    tiles = tiles.repeat(zoom, axis=2).repeat(zoom, axis=3)
    gap = [(0, 0), (0, 0), (0, _GAP), (0, _GAP), (0, 0)]
    tiles = np.pad(tiles, gap, constant_values=_PAPER)
    rows, count, height, width, _ = tiles.shape
    return tiles.transpose(0, 2, 1, 3, 4).reshape(rows * height, count * width, 3)


def contact_sheet(
    images: np.ndarray,
    augmentation: Augmentation,
    *,
    path: str | os.PathLike[str],
    views: int = 8,
    seed: int = 0,
) -> None:
    """Writes what `draw_views` draws to `path`, as PNG."""
    sheet = draw_views(images, augmentation, views=views, seed=seed)
    Image.fromarray(sheet).save(path, format="PNG")


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
