import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf.models.layers import Convolution, winograd

PLAIN = {"filters": 64, "kernel_size": 3, "padding": "same", "use_bias": False}
PRODUCT = "BatchMatMulV2"


def with_gradients(function, x, kernel, upstream):
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = function(x, kernel)
    return y, *tape.gradient(y, [x, kernel], upstream)


def direct(x, kernel):
    return tf.nn.conv2d(x, kernel, 1, "SAME")


def drawn(rng, shape, filters, dtype):
    shapes = (shape, (3, 3, shape[-1], filters), (*shape[:3], filters))
    return [tf.constant(rng.normal(size=size), dtype) for size in shapes]


@pytest.mark.parametrize(
    "shape", [(3, 4, 4, 5), (2, 7, 5, 3), (1, 1, 1, 2), (2, 16, 9, 4), (2, 12, 3, 4)]
)
def test_winograds_method_is_a_convolution(rng, shape):
    tensors = drawn(rng, shape, 6, tf.float64)
    for found, expected in zip(
        with_gradients(winograd, *tensors),
        with_gradients(direct, *tensors),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("side", "times"), [(3, 3), (8, 4), (12, 15)])
def test_rounding_errors_are_a_few_times_those_of_a_direct_convolution(rng, side, times):
    exact = drawn(rng, (32, side, side, 64), 64, tf.float64)
    single = [tf.cast(t, tf.float32) for t in exact]
    exact = [tf.cast(t, tf.float64) for t in single]
    truth = with_gradients(direct, *exact)
    ours = with_gradients(winograd, *single)
    theirs = with_gradients(direct, *single)
    for value, our, their in zip(truth, ours, theirs, strict=True):
        error = np.std(our.numpy() - value)
        assert error < times * np.std(their.numpy() - value)
        assert error < 5e-7 * times * np.std(value)


def operations(layer, training, height=8, channels=64):
    graph = tf.function(lambda x: layer(x, training=training))
    concrete = graph.get_concrete_function(tf.TensorSpec([None, height, 8, channels]))
    return {operation.type for operation in concrete.graph.get_operations()}


def test_the_layer_trains_by_it_and_computes_what_kerass_does(rng):
    ours, kerass = Convolution(**PLAIN), keras.layers.Conv2D(**PLAIN)
    x = tf.constant(rng.normal(size=(2, 8, 8, 64)).astype(np.float32))
    for layer in (ours, kerass):
        layer.build(x.shape)
    kerass.kernel.assign(ours.kernel)
    np.testing.assert_allclose(ours(x, training=True), kerass(x), atol=1e-5)
    np.testing.assert_array_equal(ours(x), kerass(x))
    assert PRODUCT in operations(ours, training=True)


def test_what_is_served_is_one_operation():
    assert PRODUCT not in operations(Convolution(**PLAIN), training=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"filters": 8},
        {"kernel_size": 1},
        {"strides": 2},
        {"dilation_rate": 2},
        {"padding": "valid"},
        {"groups": 2},
        {"use_bias": True},
        {"activation": "relu"},
        {"dtype": "mixed_float16"},
    ],
)
def test_all_others_are_kerass(changes):
    assert PRODUCT not in operations(Convolution(**PLAIN | changes), training=True)


@pytest.mark.parametrize("height", [None, 32])
def test_so_are_maps_of_unknown_or_great_size(height):
    assert PRODUCT not in operations(Convolution(**PLAIN), training=True, height=height)
