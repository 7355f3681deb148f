"""3x3 convolutions that train with a quarter of the multiplications, by Winograd's method.

Four outputs in a row of a filter of three are a product of polynomials of degrees 3 and 2, which
is known from its values at six points: y = A' [(G g) * (B' d)] with six multiplications instead of
twelve, and in two dimensions 36 instead of 144. The values of all tiles at one point, over all
channels, are one matrix product, and so are the ways to the points and back. TensorFlow derives
the gradients, which are products of the same kind and save as much.

Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016.
"""

import functools

import keras
import numpy as np
import tensorflow as tf
from numpy.polynomial import polynomial

# Measured on 2 cores with AVX2, forward and backward, direct and by Winograd's method:
# [512, 4, 4, 128] 67 and 26 ms, [512, 8, 8, 64] 69 and 38, [64, 16, 16, 128] 101 and 49,
# [64, 8, 8, 256] 122 and 46, [64, 4, 4, 512] 132 and 53. With fewer channels or on larger maps the
# ways to the points and back cost what the products save: [512, 16, 16, 32] 68 and 85,
# [64, 32, 32, 64] 135 and 126.
_CHANNELS = 64
_SIDE = 16

_TILE = 4  # outputs, in each dimension
# Where the polynomials are evaluated, besides infinity. Pairs of reciprocals keep the powers small:
# rounding errors are twice those of a direct convolution, with 0, 1, -1, 2, -2 five times.
_POINTS = (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2)
_COUNT = len(_POINTS) + 1


@keras.saving.register_keras_serializable(package="tfvmf")
class Convolution(keras.layers.Conv2D):
    """Keras's convolution, faster to train on a CPU where it is of 3x3 pixels and many channels.

    Only training takes the other way: what is exported and served stays one operation, which
    TensorFlow fuses with what follows.
    """

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Convolves [B, H, W, C]."""
        if training and self._saves_time(inputs):
            return winograd(inputs, tf.convert_to_tensor(self.kernel))
        return super().call(inputs)

    def _saves_time(self, inputs: tf.Tensor) -> bool:
        """Whether Winograd's method is possible and faster."""
        _, height, width, channels = inputs.shape
        return (
            self.kernel_size == (3, 3)
            and self.strides == self.dilation_rate == (1, 1)
            and self.padding == "same"
            and self.data_format == "channels_last"
            and self.groups == 1
            and not self.use_bias
            and self.activation is keras.activations.linear
            and inputs.dtype in (tf.float32, tf.float64)
            and min(channels, self.filters) >= _CHANNELS
            and None not in (height, width)
            and max(height, width) <= _SIDE
            and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
        )


def winograd(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Convolution of stride 1, padded to the same size, as of `tf.nn.conv2d`.

    Args:
        x: Maps [B, H, W, C]; H and W must be known when the graph is made.
        kernel: Filters [3, 3, C, K].

    Returns:
        Maps [B, H, W, K].
    """
    _, height, width, channels = x.shape
    filters = kernel.shape[-1]
    batch = tf.shape(x)[0]
    to_rows, from_rows = (tf.constant(m, x.dtype) for m in _of_maps(height))
    to_columns, from_columns = (tf.constant(m, x.dtype) for m in _of_maps(width))
    rows, columns = to_rows.shape[0], to_columns.shape[0]  # points times tiles
    tiles = rows // _COUNT

    to_points = tf.constant(_of_filters(), x.dtype)
    kernel = to_points @ tf.reshape(kernel, [9, channels * filters])
    kernel = tf.reshape(kernel, [_COUNT, 1, _COUNT, channels, filters])

    # Pixels first, so that each way is one product with all images and channels side by side.
    x = tf.transpose(x, [1, 2, 0, 3])
    x = to_rows @ tf.reshape(x, [height, -1])
    x = to_columns @ tf.reshape(x, [rows, width, -1])
    x = tf.reshape(x, [_COUNT, tiles, _COUNT, -1, channels]) @ kernel
    x = from_columns @ tf.reshape(x, [rows, columns, -1])
    x = from_rows @ tf.reshape(x, [rows, -1])
    return tf.transpose(tf.reshape(x, [height, width, batch, filters]), [2, 0, 1, 3])


@functools.cache
def _of_filters() -> np.ndarray:
    """From the 9 weights of a filter to its values at all pairs of points, [36, 9]."""
    powers = np.vander(_POINTS, 3, increasing=True)
    others = [np.prod(point - np.delete(_POINTS, j)) for j, point in enumerate(_POINTS)]
    one_way = np.vstack([powers / np.reshape(others, [-1, 1]), [0.0, 0.0, 1.0]])  # G
    return np.kron(one_way, one_way)


@functools.cache
def _of_maps(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Along one side of a map: to the points of its tiles and back.

    Returns:
        From pixels to points and tiles, [6 T, size], and from these to pixels, [size, 6 T], for
        T = size / 4 tiles, rounded up. What is beyond the map is 0, or not wanted.
    """
    lagrange = [polynomial.polyfromroots(np.delete(_POINTS, j)) for j in range(len(_POINTS))]
    infinity = polynomial.polyfromroots(_POINTS)
    there = np.vstack([np.pad(lagrange, [[0, 0], [0, 1]]), infinity])  # B', [6, 6]
    back = np.vander(_POINTS, _TILE, increasing=True).T  # A', [4, 6]
    back = np.hstack([back, np.eye(_TILE)[:, -1:]])
    tiles = -(-size // _TILE)
    inwards = np.zeros([_COUNT, tiles, tiles * _TILE + 2])
    outwards = np.zeros([tiles * _TILE, _COUNT, tiles])
    for tile in range(tiles):
        start = tile * _TILE
        inwards[:, tile, start : start + _COUNT] = there
        outwards[start : start + _TILE, :, tile] = back
    inwards = inwards[:, :, 1 : size + 1]  # a pixel of padding on each side
    return inwards.reshape([-1, size]), outwards[:size].reshape([size, -1])
