"""Contact sheets: what an augmentation does."""

import os
import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image

from tfvmf.counter_random import example_seeds
from tfvmf.data.augment import Augmentation
from tfvmf.data.base import Source
from tfvmf.files import replacing

_TILE = 96  # pixels, so that an image of 32x32 can be seen
_GAP = 2  # pixels between tiles
_ROWS = 10  # images whose views are drawn


def views_sheet(
    images: np.ndarray, augmentation: Augmentation, *, views: int = 8, seed: int = 0
) -> np.ndarray:
    """Draws a row for each image: the image itself, then `views` views of it.

    Args:
        images: uint8 [N, H, W, 3].
        augmentation: Makes the views.
        views: Number of views in a row.
        seed: Seed of the run whose first step is drawn.

    Returns:
        uint8 [height, width, 3]. Tiles are enlarged by whole pixels, so what one sees is what the
        encoder gets; only the originals are resampled, when their size is not that of a view.
    """
    size = augmentation.size
    columns = [np.stack([_resized(image, size) for image in images])]
    for view in range(views):
        drawn = augmentation(images, example_seeds(seed, 0, tf.range(len(images)), view))
        columns.append(np.rint(255.0 * drawn.numpy()).astype(np.uint8))
    tiles = np.stack(columns, axis=1).reshape(-1, size, size, 3)  # row by row
    zoom = -(-_TILE // size)
    tiles = tiles.repeat(zoom, axis=1).repeat(zoom, axis=2)
    return _lay_out(tiles, columns=1 + views)


def write_views(
    source: Source, augmentation: Augmentation, path: str | os.PathLike[str], *, seed: int = 0
) -> None:
    """Writes a PNG of `views_sheet` for ten images of a source: look before you train."""
    rows = np.unique(np.linspace(0, source.size - 1, _ROWS).astype(np.int64))
    sheet = views_sheet(source.take(rows), augmentation, seed=seed)
    _write(Image.fromarray(sheet), path)


def _lay_out(tiles: np.ndarray, *, columns: int) -> np.ndarray:
    """Square tiles uint8 [N, side, side, 3], row by row."""
    width = tiles.shape[1] + _GAP
    sheet = np.full((len(tiles) // columns * width, columns * width, 3), 255, np.uint8)
    for place, tile in enumerate(tiles):
        left, top = place % columns * width, place // columns * width
        sheet[top : top + len(tile), left : left + len(tile)] = tile
    return sheet


def _write(sheet: Image.Image, path: str | os.PathLike[str]) -> None:
    with replacing(pathlib.Path(path).expanduser()) as file:
        sheet.save(file, format="PNG")


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
