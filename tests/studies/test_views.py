"""Wide views that the study of kappa tried."""

import numpy as np
import pytest
import tensorflow as tf

from studies.kappa.views import wide_views
from tfvmf import data
from tfvmf.counter_random import example_seeds


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)


def made(images, kind):
    plain = data.Augmentation(
        size=images.shape[1],
        crop_min=1.0,
        flip_probability=0.0,
        jitter_probability=0.0,
        gray_probability=0.0,
    )
    seeds = example_seeds(0, 0, tf.range(len(images)), 0)
    return wide_views(plain, kind)(images, seeds).numpy()


def test_mixed_views_are_on_the_line_between_two_images(images):
    pixels = images / np.float32(255)
    others = np.roll(pixels, -20, axis=0)  # half a batch away
    views = made(images, "mix")
    difference = others - pixels
    share = ((views - pixels) * difference).sum(axis=(1, 2, 3)) / (difference**2).sum((1, 2, 3))
    expected = pixels + share[:, None, None, None] * difference
    np.testing.assert_allclose(views, expected, atol=1e-5)
    assert share.min() >= 0.0
    assert share.max() <= 1.0
    assert share.std() > 0.2


def test_patched_views_hold_a_square_of_another_image(images):
    pixels = images / np.float32(255)
    others = np.roll(pixels, -20, axis=0)
    views = made(images, "patch")
    foreign = (np.abs(views - pixels) > 1e-6).any(axis=3)
    np.testing.assert_allclose(views[foreign], others[foreign], atol=1e-6)
    for mask in foreign:
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert mask.sum() == len(rows) * len(columns)
    assert foreign.mean() == pytest.approx(0.5, abs=0.15)  # areas from 0 to all


def test_crops_are_small():
    # A ramp: the range of values in a crop is its side.
    ramp = np.broadcast_to(np.arange(64, dtype=np.float32) / 64, (30, 64, 64))
    ramp = np.stack([ramp] * 3, axis=3)
    views = made(tf.constant(ramp), "crop")
    area = np.ptp(views[:, 32, :, 0], axis=1) ** 2
    assert area.min() > 0.02
    assert area.max() < 0.3
