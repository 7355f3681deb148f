import numpy as np
import pytest

from tfvmf import data
from tfvmf.reproduction import measure
from tfvmf.reproduction.experiments import DIGITS


@pytest.mark.parametrize("images", DIGITS.sets[1:], ids=lambda images: images.name)
def test_they_are_what_the_budget_says(images, tmp_path):
    path = tmp_path / "new" / "set.npz"
    measure.write_stand_in(images.name, path, size=16)
    train, test = (data.load_source(f"npz:{path}", s, image_size=16) for s in ("train", "test"))
    assert (train.size, test.size) == (images.train_images, images.test_images)
    assert train.image_shape == (16, 16, 3)
    assert train.num_classes == test.num_classes >= 2
    written = path.stat().st_mtime_ns
    measure.write_stand_in(images.name, path, size=16)
    assert path.stat().st_mtime_ns == written


def test_turned_digits_are_digits():
    turned, labels = measure.digits_turned("test", 16)
    digits = data.load_source("digits", "test", image_size=16)
    np.testing.assert_array_equal(labels, digits.labels)
    # The upper right corner of an image becomes its upper left one.
    np.testing.assert_array_equal(turned[:, 0, 0], digits.images()[:, 0, -1])


@pytest.mark.parametrize(
    ("split", "columns"), [("train", slice(0, 480)), ("test", slice(480, 640))]
)
def test_patches_are_of_both_photographs_and_do_not_overlap(split, columns):
    from sklearn.datasets import load_sample_images

    patches, labels = measure.photo_patches(split, 64)  # as cut, not resized
    assert np.ptp(np.bincount(labels)) == 0
    for label, photo in enumerate(load_sample_images().images):
        rows = np.lib.stride_tricks.sliding_window_view(photo[:, columns, 0], 64, axis=1)
        assert (rows == patches[label, 0, :, 0]).all(axis=2).any()
