import numpy as np
import pytest
import tensorflow as tf

from tfvmf import losses, vmf

SEED = (1, 2)


@pytest.fixture
def pair(rng):
    x = rng.normal(size=(2, 5, 8))
    mu = (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)
    kappa = rng.uniform(5, 30, (2, 5)).astype(np.float32)
    return [tf.constant(v) for v in (mu[0], kappa[0], mu[1], kappa[1])]


def reference(pair, temperature, num_samples, aggregation):
    """The equation, term by term, on the samples of the same seed."""
    mu_1, kappa_1, mu_2, kappa_2 = pair
    distribution = vmf.VonMisesFisher(tf.concat([mu_1, mu_2], 0), tf.concat([kappa_1, kappa_2], 0))
    z = distribution.sample(num_samples, seed=SEED).numpy().astype(np.float64)
    count = len(mu_1)
    log_p = np.zeros((num_samples, 2 * count))
    for s in range(num_samples):
        for i in range(2 * count):
            j = (i + count) % (2 * count)
            others = [np.exp(z[s, i] @ z[s, k] / temperature) for k in range(2 * count) if k != i]
            log_p[s, i] = z[s, i] @ z[s, j] / temperature - np.log(sum(others))
    if aggregation == "mean_log":
        return -log_p.mean()
    return -np.log(np.exp(log_p).mean(axis=0)).mean()


@pytest.mark.parametrize("aggregation", ["mean_log", "logmeanexp"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_equals_the_equation_in_chunks_of_any_size(pair, aggregation, chunk):
    loss = losses.mc_infonce(
        *pair, seed=SEED, temperature=0.4, num_samples=7, aggregation=aggregation, chunk=chunk
    )
    assert float(loss) == pytest.approx(reference(pair, 0.4, 7, aggregation), rel=1e-5)


@pytest.mark.parametrize("aggregation", ["mean_log", "logmeanexp"])
def test_gradient_is_that_of_a_plain_computation(pair, aggregation):
    def plain():
        mu = tf.concat([pair[0], pair[2]], 0)
        kappa = tf.concat([pair[1], pair[3]], 0)
        z = vmf.VonMisesFisher(mu, kappa).sample(6, seed=SEED)
        logits = tf.matmul(z, z, transpose_b=True) / 0.5
        logits = tf.linalg.set_diag(logits, tf.fill([6, 10], -1e9))
        partner = tf.one_hot((np.arange(10) + 5) % 10, 10)
        log_p = tf.reduce_sum(tf.nn.log_softmax(logits) * partner, axis=-1)
        if aggregation == "mean_log":
            return -tf.reduce_mean(log_p)
        return -tf.reduce_mean(tf.reduce_logsumexp(log_p, axis=0) - np.log(6.0))

    def ours():
        return losses.mc_infonce(*pair, seed=SEED, num_samples=6, aggregation=aggregation, chunk=4)

    gradients = []
    for function in (plain, ours):
        with tf.GradientTape() as tape:
            tape.watch(pair)
            loss = function()
        gradients.append(tape.gradient(loss, pair))
    for want, got in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_certain_views_give_the_contrastive_loss(pair):
    certain = tf.fill([5], 1e7)
    loss = losses.mc_infonce(pair[0], certain, pair[2], certain, seed=SEED, num_samples=2)
    assert float(loss) == pytest.approx(float(losses.nt_xent(pair[0], pair[2])), rel=1e-3)


def test_the_log_of_the_mean_is_below_the_mean_of_the_logs(pair):
    by_name = {
        name: float(losses.mc_infonce(*pair, seed=SEED, num_samples=16, aggregation=name))
        for name in ("mean_log", "logmeanexp")
    }
    assert by_name["logmeanexp"] < by_name["mean_log"]


def test_shares_of_a_batch_average_to_the_whole(pair):
    whole = losses.mc_infonce(*pair, seed=SEED, num_samples=4)
    parts = [
        count * losses.mc_infonce(*pair, seed=SEED, num_samples=4, rows=count, first_row=first)
        for first, count in ((0, 2), (2, 3))
    ]
    assert float(sum(parts) / 5) == pytest.approx(float(whole), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"aggregation": "max"}, "aggregation"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_bad_arguments_are_named(pair, arguments, message):
    with pytest.raises(ValueError, match=message):
        losses.mc_infonce(*pair, seed=SEED, **arguments)
