"""A contact sheet from the least to the most certain image: see what the encoder doubts."""

import pathlib
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from tfvmf.data.images import read_image

_TILE, _CAPTION, _GAP = 96, 14, 4  # pixels
_COLUMNS = 10
LIMIT = 100  # images; of more, every so many are drawn


def draw_sheet(
    paths: Sequence[str], concentration: np.ndarray, *, output: pathlib.Path
) -> np.ndarray:
    """Draws images in the order of their kappa, row by row, each with its kappa; writes a PNG.

    Args:
        paths: The files [N]. Of more than `LIMIT`, as many are drawn, evenly spaced by rank, the
            least and the most certain among them.
        concentration: kappa [N].
        output: The PNG file.

    Returns:
        The positions of the images that were drawn, in order.
    """
    order = np.argsort(concentration, kind="stable")
    if len(order) > LIMIT:
        order = order[np.linspace(0, len(order) - 1, LIMIT).round().astype(int)]
    width, height = _TILE + _GAP, _TILE + _CAPTION + _GAP
    columns = min(_COLUMNS, max(len(order), 1))
    rows = max(-(-len(order) // columns), 1)
    sheet = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for place, index in enumerate(order):
        left = _GAP + place % columns * width
        top = _GAP + place // columns * height
        sheet.paste(Image.fromarray(read_image(paths[index], _TILE)), (left, top))
        pen.text((left + 2, top + _TILE), f"{concentration[index]:#.3g}", fill="black")
    temporary = output.with_name(f".{output.name}")
    sheet.save(temporary, format="PNG")
    temporary.replace(output)
    return order
