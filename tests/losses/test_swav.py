import numpy as np
import pytest
import tensorflow as tf

from tfvmf import losses


def plain_sinkhorn(scores, epsilon, iterations):
    """As in the method's paper, in float64 and without logarithms."""
    q = np.exp(scores.astype(np.float64) / epsilon)
    samples, prototypes = q.shape
    for _ in range(iterations):
        q /= q.sum(axis=0, keepdims=True) * prototypes
        q /= q.sum(axis=1, keepdims=True) * samples
    return q * samples


@pytest.fixture
def scores(rng):
    vectors = rng.normal(size=(64, 16))
    prototypes = rng.normal(size=(16, 10))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    prototypes /= np.linalg.norm(prototypes, axis=0)
    return (vectors @ prototypes).astype(np.float32)


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_sinkhorn_is_the_plain_algorithm(scores, iterations):
    codes = losses.sinkhorn(scores, epsilon=0.05, iterations=iterations)
    np.testing.assert_allclose(codes, plain_sinkhorn(scores, 0.05, iterations), atol=2e-6)


def test_sinkhorn_gives_every_sample_one_assignment_and_every_prototype_its_share(scores):
    codes = losses.sinkhorn(scores, epsilon=0.05, iterations=3).numpy()
    np.testing.assert_allclose(codes.sum(axis=1), 1.0, atol=1e-5)
    # After three iterations the shares are off by what theory leaves: the contraction is slow where
    # scores / epsilon spans 20. Softer assignments get there.
    soft = losses.sinkhorn(scores, epsilon=0.5, iterations=3).numpy()
    np.testing.assert_allclose(soft.sum(axis=0), 6.4, rtol=1e-3)
    limit = losses.sinkhorn(scores, epsilon=0.05, iterations=300).numpy()
    np.testing.assert_allclose(limit.sum(axis=0), 6.4, rtol=1e-4)
    np.testing.assert_allclose(limit.sum(axis=1), 1.0, rtol=1e-5)


def test_sinkhorn_survives_scores_that_overflow(scores):
    codes = losses.sinkhorn(100.0 * scores, epsilon=0.05, iterations=50).numpy()  # exp(2000)
    assert np.isfinite(codes).all()
    np.testing.assert_allclose(codes.sum(axis=1), 1.0, atol=1e-4)
    half = losses.sinkhorn(tf.cast(scores, tf.float16))
    assert half.dtype == tf.float32


def test_sinkhorn_has_no_gradient(scores):
    tensor = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        total = tf.reduce_sum(losses.sinkhorn(tensor) ** 2)
    assert tape.gradient(total, tensor) is None


def test_swapped_prediction_is_the_cross_entropy(scores, rng):
    codes = rng.dirichlet(np.ones(10), size=64).astype(np.float32)
    logits = scores.astype(np.float64) / 0.1
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -(codes * log_p).sum(axis=1).mean()
    assert float(losses.swapped_prediction(codes, scores)) == pytest.approx(expected, rel=1e-5)
    nothing = losses.swapped_prediction(codes, np.zeros_like(scores))
    assert float(nothing) == pytest.approx(np.log(10.0), rel=1e-5)
