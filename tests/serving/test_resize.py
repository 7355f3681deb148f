import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfvmf.data.images import resize_image
from tfvmf.serving.decode import fit


def both(image, size):
    served = fit(tf.constant(image[None]), size)
    assert served.dtype == tf.float32
    assert served.shape == (1, size, size, 3)
    return served[0].numpy(), resize_image(image, size).astype(np.float32)


@pytest.mark.parametrize(
    "shape", [(33, 32), (40, 60), (61, 40), (8, 8), (1, 1), (1, 300), (31, 17), (64, 64), (90, 91)]
)
def test_it_is_what_pillow_does_in_training(shape, rng):
    # Levels that no overshoot drives out of 0 to 255: where something is cut off, it matters which
    # side comes first, and that depends on Pillow's version.
    served, trained = both(rng.integers(60, 196, (*shape, 3), dtype=np.uint8), 32)
    assert np.abs(served - trained).max() <= 1


@pytest.mark.parametrize("shape", [(33, 33), (40, 60), (8, 8), (64, 64), (16, 20)])
def test_rounding_and_cutting_off_after_the_width_is_pillows(shape, rng):
    served, trained = both(rng.integers(0, 256, (*shape, 3), dtype=np.uint8), 32)
    assert np.abs(served - trained).max() <= 1  # it computes in fixed point
    assert (served != trained).mean() < 0.01


def test_of_large_images_pillow_takes_short_cuts_and_stays_near(rng):
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    served, trained = both(np.asarray(coarse.resize((900, 600), Image.Resampling.BICUBIC)), 32)
    assert np.abs(served - trained).max() <= 2


@pytest.mark.parametrize("size", [8, 32, 33])
def test_the_training_size_passes_unchanged(size, rng):
    images = rng.integers(0, 256, (3, size, size, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit(tf.constant(images), size), images)


def test_levels_are_whole_and_never_leave_0_to_255(rng):
    checks = np.where(rng.uniform(size=(50, 70, 3)) > 0.5, 255, 0).astype(np.uint8)
    served = fit(tf.constant(checks[None]), 64).numpy()
    np.testing.assert_array_equal(served, np.round(served))
    assert served.min() == 0
    assert served.max() == 255


def test_each_image_of_a_batch_is_resized_alone(rng):
    images = rng.integers(0, 256, (4, 20, 50, 3), dtype=np.uint8)
    alone = [fit(tf.constant(image[None]), 32)[0] for image in images]
    np.testing.assert_array_equal(fit(tf.constant(images), 32), alone)


def test_an_empty_batch(rng):
    for shape in ([0, 40, 50, 3], [0, 0, 0, 3]):
        assert fit(tf.zeros(shape, tf.uint8), 32).shape == (0, 32, 32, 3)
