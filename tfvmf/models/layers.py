"""Layers that are faster than those of Keras, or compute the same on any number of replicas."""

import contextlib
import functools
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.polynomial import polynomial

from tfvmf import counter_random, distribute


@keras.saving.register_keras_serializable(package="tfvmf")
class BatchNorm(keras.layers.Layer):
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, over all axes but the last.

    In training, mean and variance are those of the *global* batch. With one replica the fused
    kernel makes a whole ResNet-18 (width 16) train step 1.3 to 1.8 times as fast on 2 CPU cores as
    Keras 3's own layer. The moving statistics keep the share `momentum` per step, with PyTorch's
    unbiased variance. Unless `affine`, gamma is 1 and beta 0.
    """

    def __init__(
        self, *, momentum: float = 0.9, epsilon: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.momentum, self.epsilon, self.affine = momentum, epsilon, affine

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates scale, offset and moving statistics per channel."""
        # Statistics and scale are float32 for any compute type, as the kernel requires.
        shape = (input_shape[-1],)
        add = functools.partial(self.add_weight, shape=shape, dtype="float32", autocast=False)
        # Every replica computes the same global statistics, so the first one's are enough.
        moving = {"trainable": False, "aggregation": "only_first_replica"}
        self.gamma = add(name="gamma", initializer="ones", trainable=self.affine)
        self.beta = add(name="beta", initializer="zeros", trainable=self.affine)
        self.moving_mean = add(name="moving_mean", initializer="zeros", **moving)
        self.moving_variance = add(name="moving_variance", initializer="ones", **moving)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalizes [B, C] or [B, H, W, C]; `training` uses and records the batch's statistics."""
        training = training and self.trainable  # inference mode if frozen, as in Keras
        if training and distribute.num_replicas() > 1:
            return self._synchronized(inputs)
        # One row per pixel: in training 10 to 25 % faster than maps. When served, TensorFlow
        # fuses it with the preceding convolution, which needs the shape of the maps.
        by_rows = training or inputs.shape.rank == 2
        images = tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]]) if by_rows else inputs
        outputs, mean, variance = tf.raw_ops.FusedBatchNormV3(
            x=images,
            scale=self.gamma,
            offset=self.beta,
            mean=self.moving_mean,
            variance=self.moving_variance,
            epsilon=self.epsilon,
            exponential_avg_factor=1.0 - self.momentum,
            is_training=training,
        )[:3]
        if training:  # the updated moving statistics
            self.moving_mean.assign(mean)
            self.moving_variance.assign(variance)
        return tf.reshape(outputs, tf.shape(inputs)) if by_rows else outputs

    def _synchronized(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalizes with statistics over the batches of all replicas."""
        values = tf.cast(inputs, tf.float32)
        axes = list(range(inputs.shape.rank - 1))
        mean, variance = tf.nn.moments(values, axes)
        # Variance of the whole = mean of the variances + variance of the means. E[x^2] - E[x]^2
        # would lose digits in float32.
        means, variances = tf.unstack(distribute.stack(tf.stack([mean, variance])), axis=1)
        mean = tf.reduce_mean(means, axis=0)
        variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)

        count = tf.cast(tf.size(values) / tf.size(mean), tf.float32) * distribute.num_replicas()
        unbiased = variance * count / tf.maximum(count - 1.0, 1.0)
        keep = self.momentum
        self.moving_mean.assign(keep * self.moving_mean + (1.0 - keep) * mean)
        self.moving_variance.assign(keep * self.moving_variance + (1.0 - keep) * unbiased)
        scale = tf.math.rsqrt(variance + self.epsilon)
        return _normalize(inputs, self.gamma.value, self.beta.value, mean, scale, count)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        own = {"momentum": self.momentum, "epsilon": self.epsilon, "affine": self.affine}
        return {**super().get_config(), **own}


@tf.custom_gradient
def _normalize(
    x: Any, gamma: tf.Tensor, beta: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor, count: tf.Tensor
) -> Any:
    """Returns gamma * (x - mean) * scale + beta, with mean and scale of all replicas' x.

    With z = (x - mean) * scale and averages E over the `count` rows of the whole batch, the
    gradient of x is gamma * scale * (g - E[g] - z E[g z]). Replicas share only the two averages.
    Differences come before scaling, as in the fused kernel, so that both round alike.
    """
    centered = tf.cast(x, tf.float32) - mean
    outputs = centered * (gamma * scale) + beta

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        g, z = tf.cast(upstream, tf.float32), centered * scale
        axes = list(range(x.shape.rank - 1))
        sums = tf.stack([tf.reduce_sum(g, axes), tf.reduce_sum(g * z, axes)])
        shared = tf.reduce_sum(distribute.stack(sums), axis=0) / count
        inner = gamma * scale * (g - shared[0] - z * shared[1])
        return tf.cast(inner, x.dtype), sums[1], sums[0], None, None, None

    return tf.cast(outputs, x.dtype), gradient


# Speed-up of Winograd's method, forward and backward, on 2 cores with AVX2 and with AVX-512
# (benchmarks/convolutions.py): [512, 4, 4, 128] 2.6 and 1.3 times, [64, 16, 16, 128] 2.1 and 1.4,
# [512, 8, 8, 64] 1.8 and 1.0; with AVX-512 also [512, 6, 6, 192] 2.6, [512, 3, 3, 384] 2.2, and 1.4
# for [512, 12, 12, 32] to 128 channels. With fewer channels (harmonic mean of inputs and outputs)
# or on larger maps, the transforms cost what the products save.
_CHANNELS = 48
_SIDE = 16

# Outputs of a tile per dimension -> the points at which polynomials are evaluated, besides
# infinity. Their rounding errors are 0.8, 1.5 and 6 times those of a direct convolution.
_POINTS = {
    3: (1 / 2, -1 / 2, 4 / 3, -4 / 3),
    4: (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2),
    6: (0.0, 1 / 2, -1 / 2, 1.0, -1.0, 2.0, -2.0),
}


@keras.saving.register_keras_serializable(package="tfvmf")
class Convolution(keras.layers.Conv2D):
    """Keras's `Conv2D`, which in training on a CPU uses `winograd` where that is faster."""

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
            and 2 * channels * self.filters >= _CHANNELS * (channels + self.filters)
            and None not in (height, width)
            and max(height, width) <= _SIDE
            and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
        )


def winograd(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Maps [B, H, W, C] and filters [3, 3, C, K] -> [B, H, W, K], as `tf.nn.conv2d` of stride 1.

    Winograd's method (Lavin and Gray, arXiv 1509.09308): four outputs of a filter of three are a
    product of polynomials of degrees 3 and 2, determined by its values at six points. So
    y = A' [(G g) * (B' d)] takes 6 multiplications instead of 12, and in two dimensions 36 instead
    of 144. Maps that three or six divide get tiles of that size. All products over channels, and
    the input and output transforms, are matrix products. H and W must be static.
    """
    _, height, width, channels = x.shape
    filters = kernel.shape[-1]
    batch = tf.shape(x)[0]
    to_rows, from_rows = (tf.constant(m, x.dtype) for m in _of_maps(height))
    to_columns, from_columns = (tf.constant(m, x.dtype) for m in _of_maps(width))
    rows, columns = to_rows.shape[0], to_columns.shape[0]  # points times tiles
    high, wide = (_tile(size) + 2 for size in (height, width))  # number of points

    to_points = tf.constant(np.kron(_of_filters(height), _of_filters(width)), x.dtype)
    kernel = to_points @ tf.reshape(kernel, [9, channels * filters])
    kernel = tf.reshape(kernel, [high, 1, wide, channels, filters])

    # Pixels first, so that each transform is one product over all images and channels.
    x = tf.transpose(x, [1, 2, 0, 3])
    x = to_rows @ tf.reshape(x, [height, -1])
    x = to_columns @ tf.reshape(x, [rows, width, -1])
    x = tf.reshape(x, [high, rows // high, wide, -1, channels]) @ kernel
    x = from_columns @ tf.reshape(x, [rows, columns, -1])
    x = from_rows @ tf.reshape(x, [rows, -1])
    return tf.transpose(tf.reshape(x, [height, width, batch, filters]), [2, 0, 1, 3])


def _tile(size: int) -> int:
    """The tile size with the fewest multiplications for a side of a map."""
    return min(_POINTS, key=lambda tile: (-(-size // tile) * (tile + 2), tile))


@functools.cache
def _of_filters(size: int) -> np.ndarray:
    """Matrix from the 3 weights of a filter to its values at the points, [T + 2, 3]."""
    points = _POINTS[_tile(size)]
    powers = np.vander(points, 3, increasing=True)
    others = [np.prod(point - np.delete(points, j)) for j, point in enumerate(points)]
    return np.vstack([powers / np.reshape(others, [-1, 1]), [0.0, 0.0, 1.0]])  # G


@functools.cache
def _of_maps(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices along a side of a map, from pixels to points of tiles [P, size], and back."""
    tile = _tile(size)
    points = _POINTS[tile]
    lagrange = [polynomial.polyfromroots(np.delete(points, j)) for j in range(len(points))]
    infinity = polynomial.polyfromroots(points)
    there = np.vstack([np.pad(lagrange, [[0, 0], [0, 1]]), infinity])  # B'
    back = np.vander(points, tile, increasing=True).T  # A'
    back = np.hstack([back, np.eye(tile)[:, -1:]])
    tiles, count = -(-size // tile), len(there)
    inwards = np.zeros([count, tiles, tiles * tile + 2])
    outwards = np.zeros([tiles * tile, count, tiles])
    for number in range(tiles):
        start = number * tile
        inwards[:, number, start : start + count] = there
        outwards[start : start + tile, :, number] = back
    inwards = inwards[:, :, 1 : size + 1]  # one pixel of padding on each side
    return inwards.reshape([-1, size]), outwards[:size].reshape([size, -1])


_UNSET = object()
_active = threading.local()  # replicas build their graphs in separate threads


@contextlib.contextmanager
def dropout_masks(seeds: tf.Tensor | None) -> Iterator[None]:
    """Makes every `Dropout` called inside drop units by `seeds`, whatever `training` is.

    With `training=False` this is Monte Carlo dropout. `seeds` are int32 [B, 2]
    (`counter_random.example_seeds`); equal seeds drop the same units. None disables dropout.
    """
    before = getattr(_active, "seeds", _UNSET)
    _active.seeds = seeds
    try:
        yield
    finally:
        _active.seeds = before


@keras.saving.register_keras_serializable(package="tfvmf")
class Dropout(keras.layers.Layer):
    """Sets units to zero with probability `rate` and scales the rest by 1 / (1 - rate).

    Drops whole channels of maps [B, H, W, C], because neighboring pixels are similar. Inside
    `dropout_masks`, masks depend only on the seeds and the layer's name (unique in its model), so
    that replicas and resumed runs drop the same units as one device. Elsewhere it works like
    Keras's layer: units are dropped if `training`, with TensorFlow's random numbers.
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"rate must be in [0, 1), not {rate}")
        self.rate = rate

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Drops units of [B, C] or channels of [B, H, W, C]."""
        seeds = getattr(_active, "seeds", _UNSET)
        if seeds is None or self.rate == 0.0 or (seeds is _UNSET and not training):
            return inputs
        channels, code = inputs.shape[-1], zlib.crc32(self.name.encode())
        if seeds is _UNSET:
            # With an operation seed, because TensorFlow's op determinism requires one.
            drawn = tf.random.uniform([tf.shape(inputs)[0], channels], seed=code % 2**31)
        else:
            salt = tf.bitcast(tf.constant(code, tf.uint32), tf.int32)
            drawn = counter_random.uniforms(tf.bitwise.bitwise_xor(seeds, salt), channels)
        mask = tf.cast(drawn >= self.rate, inputs.dtype) / (1.0 - self.rate)
        if inputs.shape.rank == 4:
            mask = mask[:, None, None, :]
        return inputs * mask

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        return {**super().get_config(), "rate": self.rate}


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """The layers of a model, and of the models inside it."""
    found = []
    for layer in model.layers:
        found += all_layers(layer) if isinstance(layer, keras.Model) else [layer]
    return found


def has_dropout(model: keras.Model) -> bool:
    """Whether a layer of the model, or of a model inside it, drops units."""
    return any(isinstance(layer, Dropout) for layer in all_layers(model))
