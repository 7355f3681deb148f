"""All levels of a backbone as one vector: what a concentration head can see beside the features."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tfvmf")
class Levels(keras.layers.Layer):
    """Feature maps {name: [B, H, W, C]} -> [B, 2 * sum of C]: mean and deviation of each channel.

    The last features forget what an image looked like; the deviations of the first levels know
    whether it was noisy, flat or filtered.
    """

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Pools over space, the maps in the order of their names."""
        parts = []
        for name in sorted(inputs):
            mean, variance = tf.nn.moments(tf.cast(inputs[name], tf.float32), [1, 2])
            parts += [mean, tf.sqrt(variance + 1e-6)]
        return tf.concat(parts, axis=1)

    def compute_output_shape(
        self, input_shape: dict[str, tuple[int | None, ...]]
    ) -> tuple[int | None, int]:
        """One vector a row."""
        shapes = list(input_shape.values())
        return (shapes[0][0], 2 * sum(shape[-1] or 0 for shape in shapes))
