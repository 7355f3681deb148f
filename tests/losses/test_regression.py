import numpy as np
import pytest
import tensorflow as tf

from tfvmf import losses


@pytest.fixture
def pair(rng):
    vectors = rng.normal(size=(2, 7, 5))
    return (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).astype(np.float32)


def test_negative_cosine(pair):
    expected = -(pair[0] * pair[1]).sum(axis=1).mean()
    assert float(losses.negative_cosine(*pair)) == pytest.approx(expected, rel=1e-5)
    assert float(losses.negative_cosine(pair[0], pair[0])) == pytest.approx(-1.0)


def test_squared_distance(pair):
    expected = ((pair[0] - pair[1]) ** 2).sum(axis=1).mean()
    assert float(losses.squared_distance(*pair)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [losses.negative_cosine, losses.squared_distance])
def test_the_target_stands_still(loss, pair):
    predicted, target = tf.constant(pair[0]), tf.constant(pair[1])
    with tf.GradientTape() as tape:
        tape.watch([predicted, target])
        value = loss(predicted, target)
    gradients = tape.gradient(value, [predicted, target])
    assert gradients[1] is None
    # d/dp of -mean(p.z) is -z / B; the distance's is twice that.
    scale = 1.0 if loss is losses.negative_cosine else 2.0
    np.testing.assert_allclose(gradients[0], -scale * pair[1] / 7, rtol=1e-5)
