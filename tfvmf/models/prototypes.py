"""SwAV's prototypes: directions that stand for clusters, and the queue of past embeddings."""

from typing import Any

import keras
import tensorflow as tf

from tfvmf import distribute


@keras.saving.register_keras_serializable(package="tfvmf")
class Prototypes(keras.layers.Layer):
    """Directions [B, d] -> cosines [B, count] with learned unit vectors.

    Args:
        count: Number of prototypes K.
        queue_length: How many directions of past batches are kept for each of two views; 0 for
            no queue.
        **kwargs: As of every Keras layer.
    """

    def __init__(self, count: int, *, queue_length: int = 0, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.count = count
        self.queue_length = queue_length

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the prototypes [d, K], random unit vectors, and an empty queue [2, L, d]."""
        dimension = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel", shape=(dimension, self.count), initializer="random_normal"
        )
        self.kernel.assign(tf.math.l2_normalize(self.kernel, axis=0))
        if self.queue_length:
            self.queue = self.add_weight(
                name="queue",
                shape=(2, self.queue_length, dimension),
                initializer="zeros",
                trainable=False,
                aggregation="only_first_replica",  # every replica pushes the same global batch
            )

    def call(self, inputs: tf.Tensor, learn: tf.Tensor | bool = True) -> tf.Tensor:
        """The cosines; where `learn` is false no gradient reaches the prototypes."""
        return tf.matmul(inputs, tf.where(learn, self.kernel, tf.stop_gradient(self.kernel)))

    def normalize(self) -> None:
        """Gives all prototypes length 1 again, after the optimizer has moved them."""
        distribute.update(self.kernel, lambda kernel: tf.math.l2_normalize(kernel, axis=0))

    def push(self, view: int, directions: tf.Tensor) -> None:
        """Puts a batch [B, d] of the view in front of the queue; the oldest fall out."""
        past = self.queue[view, : self.queue_length - tf.shape(directions)[0]]
        queues = tf.unstack(self.queue)
        queues[view] = tf.concat([tf.stop_gradient(directions), past], axis=0)
        self.queue.assign(tf.ensure_shape(tf.stack(queues), self.queue.shape))

    def is_full(self, view: int) -> tf.Tensor:
        """Whether every place of the queue of a view has been filled."""
        return tf.reduce_any(tf.not_equal(self.queue[view, -1], 0.0))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the layer again."""
        config = super().get_config()
        config.pop("dtype", None)  # always float32
        return {**config, "count": self.count, "queue_length": self.queue_length}
