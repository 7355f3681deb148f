import numpy as np
import tensorflow as tf

from tfvmf.models import resnet


def test_gradients_are_the_same_every_time(rng):
    """Narrow strided shortcuts once met a race in a kernel: see `resnet._block`."""
    backbone = resnet.build_backbone("resnet10", width=2)
    images = tf.constant(rng.random((698, 8, 8, 3), np.float32))

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(backbone(images, training=True)["features"]))
        return tape.gradient(loss, backbone.trainable_variables)

    expected = [g.numpy() for g in gradients()]
    for _ in range(30):
        for value, first in zip(gradients(), expected, strict=True):
            np.testing.assert_array_equal(value, first)
