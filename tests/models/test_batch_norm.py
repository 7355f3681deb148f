import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf.models import BatchNorm


def reference(x, gamma, beta, epsilon=1e-5):
    axes = tuple(range(x.ndim - 1))
    x = x.astype(np.float64)
    mean, variance = x.mean(axes), x.var(axes)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta, mean, variance


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 2, 5)])
def test_training_equals_numpy(rng, shape):
    x = rng.normal(2.0, 3.0, shape).astype(np.float32)
    layer = BatchNorm(momentum=0.9)
    layer.build(shape)
    gamma, beta = rng.normal(size=5), rng.normal(size=5)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    outputs = layer(x, training=True)
    expected, mean, variance = reference(x, gamma, beta)
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    count = x.size / 5
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean, rtol=1e-4)
    unbiased = variance * count / (count - 1)
    np.testing.assert_allclose(layer.moving_variance, 0.9 + 0.1 * unbiased, rtol=1e-4)


def test_inference_uses_the_moving_statistics(rng):
    layer = BatchNorm()
    x = rng.normal(size=(8, 3)).astype(np.float32)
    for _ in range(5):
        layer(x, training=True)
    before = np.array(layer.moving_mean)
    alone = layer(x[:1], training=False)
    np.testing.assert_allclose(alone, layer(x, training=False)[:1], rtol=1e-6)
    np.testing.assert_array_equal(before, layer.moving_mean)


def test_is_the_fused_kernel():
    layer = BatchNorm()
    graph = tf.function(lambda x: layer(x, training=True))
    concrete = graph.get_concrete_function(tf.TensorSpec([None, 4, 4, 3]))
    assert "FusedBatchNormV3" in [operation.type for operation in concrete.graph.get_operations()]


@pytest.mark.parametrize("shape", [(8, 3), (8, 2, 2, 3)])
def test_two_replicas_compute_what_one_would(rng, two_replicas, shape):
    # A large mean: E[x^2] - E[x]^2 would lose its digits here.
    x = rng.normal(100.0, 1.0, shape).astype(np.float32)
    weights = rng.normal(size=shape).astype(np.float32)

    def gradient(layer, inputs, factors):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
            loss = tf.reduce_sum(outputs * factors)
        return outputs, tape.gradient(loss, inputs)

    single = BatchNorm()
    expected = gradient(single, tf.constant(x), tf.constant(weights))

    with two_replicas.scope():
        shared = BatchNorm()
        shared.build(shape)

    @tf.function
    def run():
        def step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.range(4) + 4 * replica
            return gradient(shared, tf.gather(x, rows), tf.gather(weights, rows))

        return two_replicas.run(step)

    for got, want in zip(run(), expected, strict=True):
        merged = tf.concat(two_replicas.experimental_local_results(got), axis=0)
        np.testing.assert_allclose(merged, want, atol=2e-3)
    np.testing.assert_allclose(shared.moving_mean, single.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(shared.moving_variance, single.moving_variance, rtol=1e-4)


def test_keeps_statistics_in_float32_under_mixed_precision(rng):
    layer = BatchNorm(dtype="mixed_bfloat16")
    outputs = layer(tf.cast(rng.normal(size=(4, 2, 2, 3)), tf.bfloat16), training=True)
    assert outputs.dtype == tf.bfloat16
    assert {v.dtype for v in layer.variables} == {"float32"}


def test_survives_serialization():
    layer = keras.layers.deserialize(keras.layers.serialize(BatchNorm(momentum=0.5, epsilon=1e-3)))
    assert (layer.momentum, layer.epsilon) == (0.5, 1e-3)
