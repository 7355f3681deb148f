"""The contact sheet of a table: which images the model doubts, which it is sure of."""

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfvmf.files import replacing

TILE = 112  # pixels
_GAP = 6  # between tiles
_COLUMNS = 5  # of either half
_LINE = 14  # of a caption, which has three
_HEAD = 28
_TEXT, _TITLE = 11, 15  # sizes of the font


class Picture(NamedTuple):
    """An image of the sheet: pixels uint8 [TILE, TILE, 3], the name of its file, its kappa."""

    pixels: np.ndarray
    file: str
    concentration: float


def write_sheet(
    least: Sequence[Picture], most: Sequence[Picture], path: str | os.PathLike[str]
) -> None:
    """Writes a PNG: the least certain images on the left, the most certain ones on the right.

    Args:
        least: Images, in the order in which they are laid out, row by row.
        most: The same for the right half; may be empty.
        path: The PNG file.
    """
    face = pathlib.Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    text, title = (ImageFont.truetype(face, size) for size in (_TEXT, _TITLE))
    width, height = TILE + _GAP, TILE + 3 * _LINE + _GAP
    rows = -(-max(len(least), len(most)) // _COLUMNS)
    half = _COLUMNS * width + 2 * _GAP
    sheet = Image.new("RGB", ((2 if most else 1) * half, _HEAD + rows * height), "white")
    pen = ImageDraw.Draw(sheet)
    for side, (heading, pictures) in enumerate((("least", least), ("most", most))):
        first = side * half + _GAP
        if pictures:
            pen.text((first, _GAP), f"{heading} certain first", fill="black", font=title)
        for place, picture in enumerate(pictures):
            left, top = first + place % _COLUMNS * width, _HEAD + place // _COLUMNS * height
            sheet.paste(Image.fromarray(picture.pixels), (left, top))
            caption = f"{_lines(picture.file, text)}\nconcentration {picture.concentration:#.3g}"
            for line, words in enumerate(caption.split("\n")):
                color = "gray" if line == 2 else "black"
                pen.text((left, top + TILE + line * _LINE), words, fill=color, font=text)
    with replacing(path) as file:
        sheet.save(file, format="PNG")


def _lines(file: str, font: ImageFont.FreeTypeFont) -> str:
    """The last part of a path on two lines as wide as a tile, without its middle if too long."""
    name = "".join(each if each.isprintable() else "\ufffd" for each in file.rsplit("/", 1)[-1])
    first = _fitting(name, font)
    rest = name[len(first) :]
    if len(last := _fitting(rest[::-1], font)[::-1]) < len(rest):
        last = f"\u2026{last[2:]}"
    return f"{first}\n{last}"


def _fitting(text: str, font: ImageFont.FreeTypeFont) -> str:
    """As much of the beginning as a tile is wide."""
    length = 0
    while length < len(text) and font.getlength(text[: length + 1]) <= TILE:
        length += 1
    return text[:length]
