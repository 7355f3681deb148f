"""Batch normalization by TensorFlow's fused kernel, synchronized across replicas."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfvmf import distribute


@keras.saving.register_keras_serializable(package="tfvmf")
class BatchNorm(keras.layers.Layer):
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, over all axes but the last.

    In training, mean and variance are those of the *global* batch: with one replica the fused
    kernel computes them, with several the replicas share theirs first. Keras 3's own layer is
    composed of elementary operations; the fused kernel makes a whole ResNet-18 (width 16) train
    step 1.3 to 1.8 times as fast on 2 CPU cores.

    The moving statistics follow PyTorch's convention (unbiased variance, `momentum` = 1 - 0.1).

    Args:
        momentum: Share of the old moving statistics that each training step keeps.
        epsilon: Added to the variance.
        affine: Whether gamma and beta are learned; they stay 1 and 0 otherwise.
        **kwargs: As of every Keras layer (`name`, `dtype`).
    """

    def __init__(
        self, *, momentum: float = 0.9, epsilon: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.epsilon = epsilon
        self.affine = affine

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates scale, offset and the moving statistics, one of each a channel."""
        # Statistics and scale stay in float32 whatever the compute type: the kernel wants it so.
        shared: dict[str, Any] = {
            "shape": (input_shape[-1],),
            "dtype": "float32",
            "autocast": False,
        }
        # Every replica computes the same global statistics: the first one's are everyone's.
        moving = {"trainable": False, "aggregation": "only_first_replica"}
        learned = {"trainable": self.affine}
        self.gamma = self.add_weight(name="gamma", initializer="ones", **learned, **shared)
        self.beta = self.add_weight(name="beta", initializer="zeros", **learned, **shared)
        self.moving_mean = self.add_weight(
            name="moving_mean", initializer="zeros", **moving, **shared
        )
        self.moving_variance = self.add_weight(
            name="moving_variance", initializer="ones", **moving, **shared
        )

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalizes [B, C] or [B, H, W, C]; `training` uses and records the batch's statistics."""
        if training and distribute.num_replicas() > 1:
            return self._synchronized(inputs)
        # One row a pixel: in training the kernel is 10 to 25 % faster so than on maps. When served,
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
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mean: tf.Tensor,
    scale: tf.Tensor,
    count: tf.Tensor,
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor | None, ...]]]:
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
