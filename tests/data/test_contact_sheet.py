import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfvmf import training
from tfvmf.config import default_config
from tfvmf.counter_random import example_seeds
from tfvmf.data import contact_sheet, load_source
from tfvmf.data.contact_sheet import _GAP, _HEAD, TILE, Block, Picture, write_sheet
from tfvmf.errors import UserError
from tfvmf.training.inputs import augmentation_from_config


def drawn(path):
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture)


def test_the_sheet(tmp_path):
    pixels = np.full((TILE, TILE, 3), 90, np.uint8)
    names = ["a.png", "dir/" + "long name " * 9 + ".png", "new\nline.png", "grün.png"]
    pictures = [Picture(pixels + 10 * i, name, "note") for i, name in enumerate(names)]
    blocks = [Block("first", pictures, 4), Block("second", pictures[:1], 2), Block("none", [], 2)]
    write_sheet(blocks, tmp_path / "sheet.png", title="title")
    sheet = drawn(tmp_path / "sheet.png")
    for number in range(4):
        assert (sheet == 90 + 10 * number).all(axis=2).sum() >= (1 + (number == 0)) * TILE**2
    dark = (sheet < 60).all(axis=2)
    assert dark[:_HEAD].any()  # title
    assert dark[_HEAD : 2 * _HEAD].any()  # headings
    below = dark[2 * _HEAD + TILE :]
    for number in range(4):  # a name below each picture, none beyond its tile
        left = _GAP + number * (TILE + _GAP)
        assert below[:, left : left + TILE].any()
        assert not below[:, left + TILE : left + TILE + _GAP].any()


def test_a_caption_is_closer_to_its_own_picture_than_to_the_next(tmp_path):
    pixels = np.full((TILE, TILE, 3), 200, np.uint8)
    write_sheet([Block("", [Picture(pixels, "a.png", "note")] * 2, 1)], tmp_path / "sheet.png")
    below = drawn(tmp_path / "sheet.png")[_HEAD + TILE :, _GAP : _GAP + TILE]
    until = np.flatnonzero((below == 200).all(axis=(1, 2)))[0]  # the next picture
    written = np.flatnonzero((below[:until] != 255).any(axis=(1, 2)))
    assert written[0] < until - written[-1]


def test_small_images_are_enlarged_by_whole_pixels_and_large_ones_fit(tmp_path):
    images = np.random.default_rng(0).integers(256, size=(2, 32, 32, 3), dtype=np.uint8)
    large = np.full((300, 300, 3), 50, np.uint8)
    pictures = [*map(Picture, images), Picture(large)]
    write_sheet([Block("", pictures, 3)], tmp_path / "sheet.png")
    row = drawn(tmp_path / "sheet.png")[_HEAD : _HEAD + TILE]
    for number, image in enumerate(images):
        left = _GAP + number * (TILE + _GAP)
        np.testing.assert_array_equal(row[: 3 * 32 : 3, left : left + 3 * 32 : 3], image)
    left = _GAP + 2 * (TILE + _GAP)
    assert (row[:, left : left + TILE] == 50).all()
    assert (row[:, left + TILE :] == 255).all()


def test_views_are_those_that_are_trained_on(tmp_path, monkeypatch):
    config = default_config()
    config.seed, config.data.image_size, config.data.view_share = 5, 16, 0.75
    sheets = []
    real = contact_sheet.write_sheet
    monkeypatch.setattr(
        contact_sheet,
        "write_sheet",
        lambda blocks, path, **more: (sheets.append(blocks), real(blocks, path, **more)),
    )
    training.draw_views(config, tmp_path / "views.png")
    assert drawn(tmp_path / "views.png").any()
    ((originals, views),) = sheets
    source = load_source("digits", "train", image_size=16)
    rows = np.linspace(0, source.size - 1, 10).astype(int)  # from all over the source
    images = source.take(rows)
    for picture, image, row in zip(originals.pictures, images, rows, strict=True):
        np.testing.assert_array_equal(picture.pixels, image)
        assert picture.file == f"digits/train:{row}"
    augmentation = augmentation_from_config(config, size=12)
    second = augmentation(images, example_seeds(5, 0, tf.range(10), 1)).numpy()
    for row in range(10):
        pixels = views.pictures[row * views.columns + 1].pixels
        np.testing.assert_array_equal(pixels, np.rint(255 * second[row]))
    below = tmp_path / "views.png" / "views.png"
    with pytest.raises(UserError, match=r"views\.png/views\.png cannot be written: File exists"):
        training.draw_views(config, below)
