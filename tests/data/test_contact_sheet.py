import numpy as np
import pytest
from PIL import Image

from tfvmf.data import contact_sheet, load_source
from tfvmf.data.augment import Augmentation
from tfvmf.data.contact_sheet import views_sheet
from tfvmf.errors import UserError


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(256, size=(3, 32, 32, 3), dtype=np.uint8)


def test_a_row_for_each_image_and_the_original_first(images):
    sheet = views_sheet(images, Augmentation(), views=4)
    assert sheet.dtype == np.uint8
    assert sheet.shape == (3 * 98, 5 * 98, 3)  # tiles of 3 x 32 pixels and a gap of 2
    for row, image in enumerate(images):
        np.testing.assert_array_equal(sheet[row * 98 : row * 98 + 96 : 3, 0:96:3], image)


def test_the_views_are_those_of_the_augmentation(images):
    nothing = Augmentation(
        crop_min=1.0, flip_probability=0.0, jitter_probability=0.0, gray_probability=0.0
    )
    sheet = views_sheet(images, nothing, views=2)
    for column in (1, 2):
        np.testing.assert_array_equal(sheet[:, column * 98 : column * 98 + 98], sheet[:, :98])
    first, second = (views_sheet(images, Augmentation(), views=2, seed=seed) for seed in (0, 1))
    assert (first[:, :98] == second[:, :98]).all()
    assert (first[:, 98:196] != second[:, 98:196]).any()
    assert (first[:, 98:196] != first[:, 196:]).any()


def test_views_are_written_as_png(tmp_path):
    source = load_source("digits", "test", image_size=16)
    contact_sheet.write_views(source, Augmentation(size=48), tmp_path / "views.png", seed=5)
    with Image.open(tmp_path / "views.png") as picture:
        assert picture.format == "PNG"
        drawn = np.asarray(picture)
    rows = np.linspace(0, 399, 10).astype(int)  # from all over the source
    expected = views_sheet(source.array[rows], Augmentation(size=48), seed=5)
    np.testing.assert_array_equal(drawn, expected)
    below = tmp_path / "views.png" / "views.png"
    with pytest.raises(UserError, match=r"views\.png/views\.png cannot be written: File exists"):
        contact_sheet.write_views(source, Augmentation(size=8), below)
