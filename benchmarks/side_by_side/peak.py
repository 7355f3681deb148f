"""What the machine can do: matrix products and 3x3 convolutions of TensorFlow, alone."""

import benchmarks.side_by_side.as_programs  # isort: skip # noqa: F401

from collections.abc import Callable

import tensorflow as tf


def matmul(size: int) -> Callable[[int], None]:
    """A function that multiplies two square matrices so many times: 2 size^3 operations each."""
    left, right = (tf.Variable(tf.random.normal([size, size])) for _ in range(2))
    return _repeated(tf.function(lambda: tf.matmul(left, right)))


def convolution(batch: int, side: int, channels: int) -> Callable[[int], None]:
    """A function that convolves a batch so many times: 18 batch side^2 channels^2 operations."""
    images = tf.Variable(tf.random.normal([batch, side, side, channels]))
    kernel = tf.Variable(tf.random.normal([3, 3, channels, channels]))
    return _repeated(tf.function(lambda: tf.nn.conv2d(images, kernel, 1, "SAME")))


def _repeated(function: Callable[[], tf.Tensor]) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            result = function()
        result[0].numpy()

    return run
