import numpy as np
import pytest
import tensorflow as tf

from tfvmf import data
from tfvmf.counter_random import example_seeds
from tfvmf.data.wide import KINDS, WideViews

PLAIN = data.Augmentation(
    size=8, crop_min=1.0, flip_probability=0.0, jitter_probability=0.0, gray_probability=0.0
)


def seeds(count, step=0):
    return example_seeds(0, step, tf.range(count), 0)


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)


def made(images, *kinds, step=0):
    views = WideViews(augmentation=PLAIN, kinds=kinds)
    return views(images, seeds(len(images), step)).numpy()


def test_views_are_images_and_of_the_seed_alone(images):
    whole = made(images, *KINDS)
    assert whole.shape == (40, 8, 8, 3)
    assert whole.dtype == np.float32
    assert whole.min() >= 0.0
    assert whole.max() <= 1.0
    np.testing.assert_array_equal(made(images, *KINDS), whole)
    assert (np.abs(made(images, *KINDS, step=1) - whole).max(axis=(1, 2, 3)) > 0).mean() > 0.9


def test_filtered_views_keep_brightness_but_not_the_picture(images):
    views = made(images, "filter")
    pixels = images / np.float32(255)
    np.testing.assert_allclose(views.mean(), pixels.mean(), atol=0.03)
    change = np.abs(views - pixels).mean(axis=(1, 2, 3))
    assert change.max() > 0.1  # from nothing to all of it
    assert change.min() < 0.03


def test_a_view_with_a_foreign_spectrum_keeps_its_phases(rng):
    images = rng.uniform(0.4, 0.6, (40, 8, 8, 3)).astype(np.float32)  # nothing is clipped
    views = made(images, "spectrum")
    ours, theirs, mixed = (
        np.fft.fft2(x, axes=(1, 2)) for x in (images, np.roll(images, -20, axis=0), views)
    )
    gap = np.abs(theirs) - np.abs(ours)
    share = ((np.abs(mixed) - np.abs(ours)) * gap).sum((1, 2, 3)) / (gap**2).sum((1, 2, 3))
    assert share.min() >= -1e-4
    assert share.max() <= 1.0
    assert share.std() > 0.2
    amplitude = np.abs(ours) + share[:, None, None, None] * gap
    expected = np.fft.ifft2(amplitude * np.exp(1j * np.angle(ours)), axes=(1, 2)).real
    np.testing.assert_allclose(views, expected, atol=1e-5)


def test_refuses_what_is_not_a_kind():
    with pytest.raises(ValueError, match="kinds"):
        WideViews(augmentation=PLAIN, kinds=("noise",))
