import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf.models import convolution
from tfvmf.models.convolution import Convolution


@pytest.mark.parametrize("shape", [(3, 4, 4, 5), (2, 7, 5, 3), (1, 1, 1, 2)])
def test_the_product_is_the_filters_gradient(rng, shape):
    x = rng.normal(size=shape).astype(np.float32)
    upstream = rng.normal(size=(*shape[:3], 6)).astype(np.float32)
    expected = tf.raw_ops.Conv2DBackpropFilter(
        input=x,
        filter_sizes=[3, 3, shape[-1], 6],
        out_backprop=upstream,
        strides=[1, 1, 1, 1],
        padding="SAME",
    )
    found = convolution.filter_gradient(tf.constant(x), tf.constant(upstream))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def gradients(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.square(layer(x)))
    return tape.gradient(loss, [x, layer.kernel.value])


def operations(layer, channels):
    graph = tf.function(lambda x: gradients(layer, x))
    concrete = graph.get_concrete_function(tf.TensorSpec([None, None, None, channels]))
    return {operation.type for operation in concrete.graph.get_operations()}


def test_many_channels_train_by_a_product_as_keras_does(rng):
    settings = {"filters": 256, "kernel_size": 3, "padding": "same", "use_bias": False}
    ours, keras_layer = Convolution(**settings), keras.layers.Conv2D(**settings)
    x = tf.constant(rng.normal(size=(2, 3, 3, 256)).astype(np.float32))
    ours.build(x.shape)
    keras_layer.build(x.shape)
    keras_layer.kernel.assign(ours.kernel)
    np.testing.assert_allclose(ours(x), keras_layer(x), rtol=1e-4, atol=1e-4)
    for found, expected in zip(gradients(ours, x), gradients(keras_layer, x), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)
    assert "Conv2DBackpropFilter" not in operations(ours, 256)


@pytest.mark.parametrize(
    "changes", [{"filters": 8}, {"kernel_size": 1}, {"strides": 2}, {"padding": "valid"}]
)
def test_all_others_are_kerass(changes):
    layer = Convolution(**{"filters": 256, "kernel_size": 3, "padding": "same"} | changes)
    layer.build((None, None, None, 256))
    assert "Conv2DBackpropFilter" in operations(layer, 256)
