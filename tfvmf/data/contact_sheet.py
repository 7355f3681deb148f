"""Contact sheets: images with captions, under headings."""

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfvmf.files import replacing

TILE = 112  # pixels
_GAP = 6  # pixels between tiles of a row
_SPACE = 16  # pixels between a caption and the next row, so that it belongs to the tile above it
_LINE = 14  # height of a caption line
_HEAD = 28  # height of a heading, and of the title
_TEXT, _TITLE = 11, 15  # font sizes


class Picture(NamedTuple):
    """One image of a sheet: uint8 [side, side, 3], its file name and its caption."""

    pixels: np.ndarray
    file: str = ""
    note: str = ""


class Block(NamedTuple):
    """Pictures under a heading, row by row, in `columns` columns."""

    heading: str
    pictures: Sequence[Picture]
    columns: int


def write_sheet(blocks: Sequence[Block], path: str | os.PathLike[str], *, title: str = "") -> None:
    """Writes a PNG with the blocks of pictures side by side."""
    face = pathlib.Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    text, large = (ImageFont.truetype(face, size) for size in (_TEXT, _TITLE))
    blocks = [block for block in blocks if block.pictures]
    captions = [[_caption(picture, text) for picture in block.pictures] for block in blocks]
    lines = max(len(caption) for texts in captions for caption in texts)
    first, height = _HEAD * (2 if title else 1), TILE + lines * _LINE + _SPACE
    rows = max(-(-len(block.pictures) // block.columns) for block in blocks)
    widths = [block.columns * (TILE + _GAP) + 2 * _GAP for block in blocks]
    sheet = Image.new("RGB", (sum(widths), first + rows * height), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_GAP, _GAP), title, fill="black", font=large)
    left = _GAP
    for block, texts, width in zip(blocks, captions, widths, strict=True):
        pen.text((left, first - _HEAD + _GAP), block.heading, fill="black", font=large)
        for place, (picture, caption) in enumerate(zip(block.pictures, texts, strict=True)):
            x = left + place % block.columns * (TILE + _GAP)
            y = first + place // block.columns * height
            sheet.paste(_tile(picture.pixels), (x, y))
            for line, (words, color) in enumerate(caption):
                pen.text((x, y + TILE + line * _LINE), words, fill=color, font=text)
        left += width
    with replacing(pathlib.Path(path).expanduser()) as file:
        sheet.save(file, format="PNG")


def _tile(pixels: np.ndarray) -> Image.Image:
    """Fits an image into TILE x TILE: resampled if larger, else enlarged by whole pixels."""
    image, zoom = Image.fromarray(pixels), TILE // len(pixels)
    if not zoom:
        return image.resize((TILE, TILE), Image.Resampling.BICUBIC)
    return image.resize((zoom * image.width, zoom * image.height), Image.Resampling.NEAREST)


def _caption(picture: Picture, font: ImageFont.FreeTypeFont) -> list[tuple[str, str]]:
    """Lines and their colors: the last part of the path on one or two lines, and the note."""
    file = picture.file.rsplit("/", 1)[-1]
    name = "".join(each if each.isprintable() else "\ufffd" for each in file)
    first = _fitting(name, font)
    rest = name[len(first) :]
    if len(last := _fitting(rest[::-1], font)[::-1]) < len(rest):
        last = f"\u2026{last[2:]}"  # the middle is cut if the name is too long
    lines = [(first, "black"), (last, "black"), (picture.note, "gray")]
    return [line for line in lines if line[0]]


def _fitting(text: str, font: ImageFont.FreeTypeFont) -> str:
    """The longest beginning of the text that fits the width of a tile."""
    length = 0
    while length < len(text) and font.getlength(text[: length + 1]) <= TILE:
        length += 1
    return text[:length]
