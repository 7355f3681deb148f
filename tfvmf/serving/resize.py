"""Resizing inside a served graph as training does it, by operations that every loader has.

A bicubic, anti-aliased resize is linear and separable: images go through one matrix a side, are
rounded to whole gray levels in between, and come out as from Pillow. TensorFlow's own anti-aliased
resize is an operation that other loaders (OpenVINO) do not have, and it does not round.
"""

import tensorflow as tf

_SUPPORT = 2.0  # pixels, on the coarser side, to which a cubic reaches


def fit(images: tf.Tensor, size: int) -> tf.Tensor:
    """Short side to `size`, then center crop: `tfvmf.data.images` for a whole batch.

    Args:
        images: uint8 [N, H, W, 3]; H and W at least 1.
        size: height and width to return.

    Returns:
        float32 [N, size, size, 3], whole numbers from 0 to 255: as Pillow, rounded after each side.
    """
    there = tf.reduce_all(tf.shape(images)[1:3] == size)
    pixels = tf.cond(there, lambda: tf.cast(images, tf.float32), lambda: _resized(images, size))
    return tf.ensure_shape(pixels, [None, size, size, 3])


def _resized(images: tf.Tensor, size: int) -> tf.Tensor:
    side = tf.reduce_min(tf.shape(images)[1:3])
    images, columns = _window(images, 2, side, size)
    images, rows = _window(images, 1, side, size)
    count, height, width = tf.unstack(tf.shape(images)[:3])
    pixels = tf.cast(images, tf.float32)
    pixels = _levels(tf.matmul(columns, tf.reshape(pixels, [count * height, width, 3])))
    pixels = _levels(tf.matmul(rows, tf.reshape(pixels, [count, height, size * 3])))
    return tf.reshape(pixels, [count, size, size, 3])


def _window(
    images: tf.Tensor, axis: int, side: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts `axis` to what the center square's cubics reach; returns that and its matrix."""
    length = tf.shape(images)[axis]
    scale = tf.cast(side, tf.float32) / size
    reach = _SUPPORT * tf.maximum(scale, 1.0)
    first = tf.cast(length - side, tf.float32) / 2.0
    start = tf.maximum(tf.cast(tf.floor(first - reach), tf.int32), 0)
    stop = tf.minimum(tf.cast(tf.math.ceil(first + reach), tf.int32) + side, length)
    window = images[:, :, start:stop] if axis == 2 else images[:, start:stop]

    centers = first + (tf.range(size, dtype=tf.float32) + 0.5) * scale
    inputs = tf.cast(tf.range(start, stop), tf.float32) + 0.5
    distance = tf.abs(inputs[None, :] - centers[:, None]) / tf.maximum(scale, 1.0)
    weights = _cubic(distance)
    return window, weights / tf.reduce_sum(weights, axis=1, keepdims=True)


def _cubic(x: tf.Tensor) -> tf.Tensor:
    """Keys' cubic with a = -1/2 of distances x >= 0: 1 at 0, and 0 at 1 and from 2 on."""
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return tf.where(x < 1.0, near, tf.where(x < 2.0, far, tf.zeros_like(x)))


def _levels(pixels: tf.Tensor) -> tf.Tensor:
    """To whole gray levels: a cubic overshoots at edges."""
    return tf.floor(tf.clip_by_value(pixels, 0.0, 255.0) + 0.5)
