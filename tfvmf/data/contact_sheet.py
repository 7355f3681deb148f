"""Contact sheets: what an augmentation does, and which images an encoder doubts."""

import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

from tfvmf.counter_random import example_seeds
from tfvmf.data.augment import Augmentation
from tfvmf.data.base import Source
from tfvmf.data.images import read_image, resize_image
from tfvmf.errors import UserError
from tfvmf.files import replacing

TILE = 96  # pixels, so that an image of 32x32 can be seen
_CAPTION = 14  # pixels below a tile
_VIEW_GAP, _RANKED_GAP = 2, 4  # pixels between tiles
_ROWS = 10  # images whose views are drawn
_COLUMNS = 10  # of ranked images
MAX_RANKED = 100  # images


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
    zoom = -(-TILE // size)
    tiles = tiles.repeat(zoom, axis=1).repeat(zoom, axis=2)
    return np.asarray(_lay_out(tiles, columns=1 + views, gap=_VIEW_GAP))


def write_views(
    source: Source, augmentation: Augmentation, path: str | os.PathLike[str], *, seed: int = 0
) -> None:
    """Writes a PNG of `views_sheet` for ten images of a source: look before you train."""
    rows = np.unique(np.linspace(0, source.size - 1, _ROWS).astype(np.int64))
    sheet = views_sheet(source.take(rows), augmentation, seed=seed)
    _write(Image.fromarray(sheet), path)


def write_ranked(
    image: Callable[[int], str | np.ndarray],
    concentration: np.ndarray,
    path: str | os.PathLike[str],
) -> np.ndarray:
    """Writes a PNG of images from the least to the most certain, row by row, each with its kappa.

    Args:
        image: Position -> file name, or pixels uint8 [H, W, 3].
        concentration: kappa [N]. If there are more than `MAX_RANKED` images, so many are drawn,
            evenly spaced by rank, the least and the most certain among them.
        path: The PNG file.

    Returns:
        The positions of the images that were drawn, in order.
    """
    order = np.argsort(concentration, kind="stable")
    if len(order) > MAX_RANKED:
        order = order[np.linspace(0, len(order) - 1, MAX_RANKED).round().astype(int)]
    tiles = [_tile(image(index)) for index in order]
    captions = [f"{concentration[index]:#.3g}" for index in order]
    columns = min(_COLUMNS, len(tiles))
    _write(_lay_out(tiles, columns=columns, gap=_RANKED_GAP, captions=captions), path)
    return order


def _lay_out(
    tiles: Sequence[np.ndarray] | np.ndarray,
    *,
    columns: int,
    gap: int,
    captions: Sequence[str] = (),
) -> Image.Image:
    """Square tiles uint8 [side, side, 3], row by row; with captions, also a margin to the left."""
    side = len(tiles[0])
    margin, caption = (gap, _CAPTION) if captions else (0, 0)
    width, height = side + gap, side + caption + gap
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * width + margin, rows * height + margin), "white")
    pen = ImageDraw.Draw(sheet)
    for place, tile in enumerate(tiles):
        left, top = margin + place % columns * width, margin + place // columns * height
        sheet.paste(Image.fromarray(tile), (left, top))
        if captions:
            pen.text((left + 2, top + side), captions[place], fill="black")
    return sheet


def _write(sheet: Image.Image, path: str | os.PathLike[str]) -> None:
    try:
        with replacing(pathlib.Path(path).expanduser()) as file:
            sheet.save(file, format="PNG")
    except OSError as error:
        raise UserError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error


def _tile(image: str | np.ndarray) -> np.ndarray:
    return read_image(image, TILE) if isinstance(image, str) else resize_image(image, TILE)


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
