"""Layers that train faster, or the same on any number of replicas, than Keras's of that name."""

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

    In training, mean and variance are those of the *global* batch: with one replica the fused
    kernel computes them, with several the replicas share theirs first. Keras 3's own layer is
    composed of elementary operations; the fused kernel makes a whole ResNet-18 (width 16) train
    step 1.3 to 1.8 times as fast on 2 CPU cores.

    A training step keeps the share `momentum` of the moving statistics, which follow PyTorch's
    convention (unbiased variance). Unless `affine`, gamma and beta stay 1 and 0.
    """

    def __init__(
        self, *, momentum: float = 0.9, epsilon: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.momentum, self.epsilon, self.affine = momentum, epsilon, affine

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates scale, offset and the moving statistics, one of each per channel."""
        # Statistics and scale stay in float32 whatever the compute type: the kernel needs it.
        shape = (input_shape[-1],)
        add = functools.partial(self.add_weight, shape=shape, dtype="float32", autocast=False)
        # Every replica computes the same global statistics: the first one's are everyone's.
        moving = {"trainable": False, "aggregation": "only_first_replica"}
        self.gamma = add(name="gamma", initializer="ones", trainable=self.affine)
        self.beta = add(name="beta", initializer="zeros", trainable=self.affine)
        self.moving_mean = add(name="moving_mean", initializer="zeros", **moving)
        self.moving_variance = add(name="moving_variance", initializer="ones", **moving)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalizes [B, C] or [B, H, W, C]; `training` uses and records the batch's statistics."""
        training = training and self.trainable  # frozen: in inference mode, as in Keras
        if training and distribute.num_replicas() > 1:
            return self._synchronized(inputs)
        # One row per pixel: in training this is 10 to 25 % faster than maps. When served,
        # TensorFlow fuses it with the convolution before it, of which it must then have the shape.
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
        if training:  # The kernel has already mixed old and new.
            self.moving_mean.assign(mean)
            self.moving_variance.assign(variance)
        return tf.reshape(outputs, tf.shape(inputs)) if by_rows else outputs

    def _synchronized(self, inputs: tf.Tensor) -> tf.Tensor:
        """The same with statistics over the batches of all replicas."""
        values = tf.cast(inputs, tf.float32)
        axes = list(range(inputs.shape.rank - 1))
        mean, variance = tf.nn.moments(values, axes)
        # Variance of the whole = mean of the variances + variance of the means: no E[x^2] - E[x]^2,
        # which loses digits in float32.
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
        """What `from_config` needs to build the layer again."""
        own = {"momentum": self.momentum, "epsilon": self.epsilon, "affine": self.affine}
        return {**super().get_config(), **own}


@tf.custom_gradient
def _normalize(
    x: Any, gamma: tf.Tensor, beta: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor, count: tf.Tensor
) -> Any:
    """Returns gamma * (x - mean) * scale + beta, with mean and scale of all replicas' x.

    With z = (x - mean) * scale and averages E over the `count` rows of the whole batch, the
    gradient of x is gamma * scale * (g - E[g] - z E[g z]): what comes back through the statistics
    is in the two averages, the only numbers that the replicas have to share. The differences are
    taken before anything is scaled, as the fused kernel does, so that both round alike.
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


# How much faster Winograd's method is, forward and backward, on 2 cores with AVX2 and with AVX-512
# (benchmarks/convolutions.py): [512, 4, 4, 128] 2.6 and 1.3 times, [64, 16, 16, 128] 2.1 and 1.4,
# [512, 8, 8, 64] 1.8 and 1.0; with AVX-512 also [512, 6, 6, 192] 2.6, [512, 3, 3, 384] 2.2, and 1.4
# of [512, 12, 12, 32] to 128 channels. With fewer channels (the harmonic mean of those in and out
# counts) or on larger maps the ways to the points and back cost what the products save.
_CHANNELS = 48
_SIDE = 16

# Outputs of a tile, in each dimension -> where the polynomials are evaluated, besides infinity. The
# points keep rounding errors small: beside those of a direct convolution 0.8, 1.5 and 6 times.
_POINTS = {
    3: (1 / 2, -1 / 2, 4 / 3, -4 / 3),
    4: (0.0, 2 / 3, -2 / 3, 3 / 2, -3 / 2),
    6: (0.0, 1 / 2, -1 / 2, 1.0, -1.0, 2.0, -2.0),
}


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
            and 2 * channels * self.filters >= _CHANNELS * (channels + self.filters)
            and None not in (height, width)
            and max(height, width) <= _SIDE
            and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
        )


def winograd(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Maps [B, H, W, C] and filters [3, 3, C, K] -> [B, H, W, K], as `tf.nn.conv2d` of stride 1.

    Four outputs in a row of a filter of three are a product of polynomials of degrees 3 and 2,
    which is known from its values at six points: y = A' [(G g) * (B' d)] with six multiplications
    instead of twelve, and in two dimensions 36 instead of 144. Maps that three or six divide get
    tiles of that size. The values of all tiles at one point, over all channels, are one matrix
    product, and so are the input and output transforms. H and W must be known when the graph is
    made.

    Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016.
    """
    _, height, width, channels = x.shape
    filters = kernel.shape[-1]
    batch = tf.shape(x)[0]
    to_rows, from_rows = (tf.constant(m, x.dtype) for m in _of_maps(height))
    to_columns, from_columns = (tf.constant(m, x.dtype) for m in _of_maps(width))
    rows, columns = to_rows.shape[0], to_columns.shape[0]  # points times tiles
    high, wide = (_tile(size) + 2 for size in (height, width))  # numbers of points

    to_points = tf.constant(np.kron(_of_filters(height), _of_filters(width)), x.dtype)
    kernel = to_points @ tf.reshape(kernel, [9, channels * filters])
    kernel = tf.reshape(kernel, [high, 1, wide, channels, filters])

    # Pixels first, so that each way is one product with all images and channels side by side.
    x = tf.transpose(x, [1, 2, 0, 3])
    x = to_rows @ tf.reshape(x, [height, -1])
    x = to_columns @ tf.reshape(x, [rows, width, -1])
    x = tf.reshape(x, [high, rows // high, wide, -1, channels]) @ kernel
    x = from_columns @ tf.reshape(x, [rows, columns, -1])
    x = from_rows @ tf.reshape(x, [rows, -1])
    return tf.transpose(tf.reshape(x, [height, width, batch, filters]), [2, 0, 1, 3])


def _tile(size: int) -> int:
    """The outputs of a tile with which a side of a map takes the fewest multiplications."""
    return min(_POINTS, key=lambda tile: (-(-size // tile) * (tile + 2), tile))


@functools.cache
def _of_filters(size: int) -> np.ndarray:
    """From the 3 weights of a filter to its values at the points of a side of a map, [T + 2, 3]."""
    points = _POINTS[_tile(size)]
    powers = np.vander(points, 3, increasing=True)
    others = [np.prod(point - np.delete(points, j)) for j, point in enumerate(points)]
    return np.vstack([powers / np.reshape(others, [-1, 1]), [0.0, 0.0, 1.0]])  # G


@functools.cache
def _of_maps(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Along one side of a map, from pixels to points and tiles [P, size], and back [size, P].

    P is the number of points times that of tiles. What is beyond the map is 0, or not wanted.
    """
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
    inwards = inwards[:, :, 1 : size + 1]  # a pixel of padding on each side
    return inwards.reshape([-1, size]), outwards[:size].reshape([size, -1])


_UNSET = object()
_active = threading.local()  # replicas build their graphs in threads of their own


@contextlib.contextmanager
def dropout_masks(seeds: tf.Tensor | None) -> Iterator[None]:
    """Switches on every `Dropout` of the models that are called inside, by seeds.

    It says nothing of `training`: with `training=False`, batch norm keeps its moving statistics
    and a pass is one draw of Monte Carlo dropout.

    `seeds` are int32 [B, 2], one per row of the batch (`counter_random.example_seeds`); rows with
    the same seed drop the same units. None: nothing is dropped inside.
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

    Of a feature map [B, H, W, C] whole channels are dropped: neighboring pixels say the same.
    Inside of `dropout_masks` masks are a function of the seeds and of the layer's name, so N
    replicas and a resumed run drop what one uninterrupted device would. Elsewhere the layer drops
    under `training=True`, as Keras's does, by TensorFlow's random numbers. Its name must be unique
    in its model.
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
            # A seed of the operation: without any, TensorFlow refuses under op determinism.
            drawn = tf.random.uniform([tf.shape(inputs)[0], channels], seed=code % 2**31)
        else:
            salt = tf.bitcast(tf.constant(code, tf.uint32), tf.int32)
            drawn = counter_random.uniforms(tf.bitwise.bitwise_xor(seeds, salt), channels)
        mask = tf.cast(drawn >= self.rate, inputs.dtype) / (1.0 - self.rate)
        if inputs.shape.rank == 4:
            mask = mask[:, None, None, :]
        return inputs * mask

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the layer again."""
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
