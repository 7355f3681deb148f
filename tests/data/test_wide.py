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


def test_the_taps_of_a_filter_are_1_2_or_4_pixels_apart(rng):
    """A single bright pixel shows where the taps are; the strength may hide them."""
    images = np.zeros((60, 16, 16, 3), np.uint8)
    images[:, 8, 8] = 255
    plain = data.Augmentation(
        size=16, crop_min=1.0, flip_probability=0.0, jitter_probability=0.0, gray_probability=0.0
    )
    views = WideViews(augmentation=plain, kinds=("filter",))(images, seeds(60)).numpy()
    background = np.median(views, axis=(1, 2), keepdims=True)
    lit = (np.abs(views - background).max(axis=3) > 0.02).any(axis=1)  # columns [60, 16]
    spans = {tuple(np.flatnonzero(row) - 8) for row in lit}
    assert {(-1, 0, 1), (-2, 0, 2), (-4, 0, 4)} <= spans
    apart = [set(span) for span in spans]
    assert all(any(span <= {-s, 0, s} for s in (1, 2, 4)) for span in apart)


def test_half_of_the_views_of_enlarged_images_are_damaged_at_their_own_size(rng):
    small = rng.uniform(0.3, 0.7, (60, 8, 8, 3)).astype(np.float32)
    images = tf.image.resize(small, [24, 24])
    plain = data.Augmentation(
        size=24, crop_min=1.0, flip_probability=0.0, jitter_probability=0.0, gray_probability=0.0
    )
    views = WideViews(augmentation=plain, native_size=8)
    whole = views(images, seeds(60)).numpy()
    assert whole.shape == (60, 24, 24, 3)
    # What was damaged at 8 x 8 has no detail beyond: resized there and back, it is what it was.
    there = tf.image.resize(whole, [8, 8], method="area")
    lost = np.abs(tf.image.resize(there, [24, 24]) - whole).mean(axis=(1, 2, 3))
    assert 0.3 < (lost < np.median(lost)).mean() < 0.7
    part = WideViews(augmentation=plain, native_size=8, kinds=("filter",))
    np.testing.assert_allclose(
        part(images, seeds(60)).numpy()[:20], part(images[:20], seeds(20)).numpy(), atol=1e-6
    )
