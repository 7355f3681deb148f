"""Each operation against NumPy, Pillow, SciPy or colorsys."""

import colorsys

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf
from PIL import Image

from tfvmf.data import image_ops

GRAY = np.array([0.299, 0.587, 0.114])


@pytest.fixture
def images():
    return np.random.default_rng(0).random((5, 9, 12, 3), np.float32)


def vector(*values):
    return tf.constant(values, tf.float32)


def per_image(values):
    return np.asarray(values, np.float64)[:, None, None, None]


def pillow_resize(image, box, size):
    """One image, channel by channel, as 32-bit floats."""
    top, left, bottom, right = (float(edge) for edge in box)
    channels = [
        Image.fromarray(channel).resize(
            (size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom)
        )
        for channel in np.moveaxis(image, -1, 0)
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=-1)


@pytest.mark.parametrize("size", [1, 4, 8, 25], ids="size{}".format)
def test_resized_crop_is_pillows(images, size):
    boxes = np.array(
        [[0, 0, 9, 12], [1, 2, 8, 7], [0.3, 5.7, 4.9, 11.2], [4, 4, 5, 5], [0, 0, 2.5, 12]],
        np.float32,
    )
    got = image_ops.resized_crop(images, boxes, size)
    want = np.stack([pillow_resize(i, b, size) for i, b in zip(images, boxes, strict=True)])
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_resized_crop_of_the_whole_image_is_the_image(images):
    square = images[:, :, :9]
    boxes = tf.tile(tf.constant([[0.0, 0.0, 9.0, 9.0]]), [5, 1])
    np.testing.assert_array_equal(image_ops.resized_crop(square, boxes, 9), square)


def test_resized_crop_with_left_and_right_swapped_mirrors(images):
    boxes = np.tile(np.array([[0.5, 1.25, 7.0, 10.5]], np.float32), [5, 1])
    straight = image_ops.resized_crop(images, boxes, 7)
    mirrored = image_ops.resized_crop(images, boxes[:, [0, 3, 2, 1]], 7)
    np.testing.assert_allclose(mirrored, straight[:, :, ::-1], atol=2e-6)


def test_adjust_brightness(images):
    factors = vector(0.0, 0.5, 1.0, 1.3, 4.0)
    want = np.clip(images * per_image(factors), 0, 1)
    np.testing.assert_allclose(image_ops.adjust_brightness(images, factors), want, atol=1e-6)


def test_adjust_contrast(images):
    factors = vector(0.0, 0.5, 1.0, 1.3, 4.0)
    mean = (images.astype(np.float64) @ GRAY).mean(axis=(1, 2))[:, None, None, None]
    want = np.clip(images * per_image(factors) + (1 - per_image(factors)) * mean, 0, 1)
    np.testing.assert_allclose(image_ops.adjust_contrast(images, factors), want, atol=1e-6)


def test_adjust_saturation(images):
    factors = vector(0.0, 0.5, 1.0, 1.3, 4.0)
    gray = (images.astype(np.float64) @ GRAY)[..., None]
    want = np.clip(images * per_image(factors) + (1 - per_image(factors)) * gray, 0, 1)
    np.testing.assert_allclose(image_ops.adjust_saturation(images, factors), want, atol=1e-6)


def test_to_gray(images):
    got = image_ops.to_gray(images, vector(0, 1, 0, 1, 1))
    np.testing.assert_array_equal(got[0], images[0])
    want = np.repeat((images[1] @ GRAY)[..., None], 3, axis=-1)
    np.testing.assert_allclose(got[1], want, atol=1e-6)
    pillow = Image.fromarray(np.rint(255 * images[1]).astype(np.uint8)).convert("L")
    np.testing.assert_allclose(255 * got[1, :, :, 0], np.asarray(pillow), atol=1.1)


def test_adjust_hue_is_colorsys(images):
    images[0, 0, :8] = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).reshape(3, 8).T  # corners
    images[0, 1, :6] = [[a, b, c] for a in (0, 0.7) for b, c in ((0.7, 0), (0.2, 0.2), (0, 0.7))]
    shifts = [0.1, -0.1, 0.5, -0.5, 1 / 3]
    got = image_ops.adjust_hue(images, vector(*shifts))
    want = np.empty_like(images)
    for index in np.ndindex(images.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*images[index])
        want[index] = colorsys.hsv_to_rgb((hue + shifts[index[0]]) % 1.0, saturation, value)
    np.testing.assert_allclose(got, want, atol=5e-6)


def test_gaussian_blur_is_scipys(images):
    sigmas = [0.0, 0.1, 0.5, 1.0, 2.0]
    got = image_ops.gaussian_blur(images, vector(*sigmas), max_sigma=2.0)
    np.testing.assert_array_equal(got[0], images[0])
    for view, image, sigma in zip(got[1:], images[1:], sigmas[1:], strict=True):
        want = scipy.ndimage.gaussian_filter(
            image.astype(np.float64), sigma, mode="mirror", radius=6, axes=(0, 1)
        )
        np.testing.assert_allclose(view, want, atol=1e-6)


def test_gaussian_blur_of_an_image_smaller_than_the_kernel():
    images = tf.random.stateless_uniform([2, 2, 1, 3], seed=[0, 0])
    blurred = image_ops.gaussian_blur(images, vector(2.0, 0.0)).numpy()
    assert np.ptp(blurred[0, :, 0], axis=0).max() < np.ptp(images[0, :, 0], axis=0).max()
    np.testing.assert_array_equal(blurred[1], images[1])


def test_add_noise(images):
    noise = np.random.default_rng(1).normal(size=images.shape).astype(np.float32)
    sigmas = vector(0.0, 0.1, 0.25, 1.0, 5.0)
    want = np.clip(images + per_image(sigmas) * noise, 0, 1)
    np.testing.assert_allclose(image_ops.add_noise(images, sigmas, noise), want, atol=1e-6)


@pytest.mark.parametrize(
    ("operation", "neutral"),
    [
        (image_ops.adjust_brightness, 1.0),
        (image_ops.adjust_contrast, 1.0),
        (image_ops.adjust_saturation, 1.0),
        (image_ops.to_gray, 0.0),
        (image_ops.gaussian_blur, 0.0),
        (lambda images, sigmas: image_ops.add_noise(images, sigmas, images), 0.0),
    ],
)
def test_a_neutral_parameter_changes_no_bit(images, operation, neutral):
    np.testing.assert_array_equal(operation(images, tf.fill([5], neutral)), images)


def test_no_hue_shift_changes_only_the_last_bits(images):
    np.testing.assert_allclose(image_ops.adjust_hue(images, tf.zeros([5])), images, atol=1e-6)
