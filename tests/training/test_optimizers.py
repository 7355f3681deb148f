import keras
import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from tfvmf.training.optimizers import Muon, make_optimizer


def settings(**changes):
    values = {
        "name": "adam",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "warmup_epochs": 2.0,
    }
    return ml_collections.ConfigDict({**values, **changes})


def variables(rng):
    shapes = {"kernel": (4, 3), "bias": (3,), "gamma": (3,)}
    return [keras.Variable(rng.normal(size=s), name=n) for n, s in shapes.items()]


def test_learning_rate_warms_up_and_falls_along_a_cosine(rng):
    optimizer = make_optimizer(settings(), variables(rng), steps_per_epoch=5, total_steps=50)
    rates = []
    for step in (0, 5, 10, 30, 50):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer.learning_rate))
    assert rates == pytest.approx([0.0, 0.05, 0.1, 0.05, 0.0], abs=1e-6)


def test_without_warmup_it_starts_at_the_top(rng):
    optimizer = make_optimizer(
        settings(warmup_epochs=0.0), variables(rng), steps_per_epoch=5, total_steps=50
    )
    assert float(optimizer.learning_rate) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["adam", "sgd", "muon"])
def test_weight_decay_spares_biases_and_norms(rng, name):
    weights = variables(rng)
    before = [np.array(v) for v in weights]
    optimizer = make_optimizer(
        settings(name=name, weight_decay=0.5, warmup_epochs=0.0),
        weights,
        steps_per_epoch=5,
        total_steps=50,
    )
    optimizer.apply([np.zeros(v.shape, np.float32) for v in weights], weights)
    kernel, bias, gamma = (np.array(v) for v in weights)
    assert np.all(np.abs(kernel) < np.abs(before[0]))
    np.testing.assert_array_equal(bias, before[1])
    np.testing.assert_array_equal(gamma, before[2])


def orthogonal(matrix):
    """The polynomial that Newton and Schulz iterate, of the singular values alone."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


@pytest.mark.parametrize("shape", [(3, 3, 2, 5), (3, 3, 1, 12), (6, 4), (4, 6)])
def test_muon_moves_all_directions_alike(rng, shape):
    """Three steps against NumPy: momentum by Nesterov's rule, decay, U V' of filters by columns."""
    start = rng.normal(size=shape)
    weights = keras.Variable(start, name="kernel"), keras.Variable(rng.normal(size=5), name="bias")
    optimizer = make_optimizer(
        settings(name="muon", learning_rate=0.2, weight_decay=0.1, warmup_epochs=0.0),
        list(weights),
        steps_per_epoch=5,
        total_steps=10**9,
    )
    columns = shape[-1]
    expected, momentum = start.reshape(-1, columns), 0.0
    for _ in range(3):
        gradient = rng.normal(size=shape)
        bias = np.array(weights[1])
        optimizer.apply([gradient.astype(np.float32), np.ones(5, np.float32)], list(weights))
        matrix = gradient.reshape(-1, columns)
        momentum = 0.9 * momentum + matrix
        scale = max(1.0, columns / len(matrix)) ** 0.5
        step = scale * orthogonal(matrix + 0.9 * momentum)
        expected = (1 - 0.2 * 0.1) * expected - 0.2 * step
        # Adam at a tenth of the rate: a constant gradient moves by the rate.
        np.testing.assert_allclose(bias - np.array(weights[1]), 0.02, rtol=1e-4)
    np.testing.assert_allclose(
        np.array(weights[0]).reshape(-1, columns), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("shape", [(300, 24), (24, 300), (30, 24)])
@pytest.mark.parametrize("smallest", [1.0, 1e-3, 1e-6])
def test_muon_is_right_for_small_singular_values(rng, shape, smallest):
    u, _, v = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    matrix = (u * np.geomspace(1.0, smallest, 24)) @ v
    found = Muon(0.1).zeropower_via_newtonschulz5(tf.constant(matrix, tf.float32), 5)
    expected = orthogonal(matrix)
    # Of rounding: eigenvalues of the small square matrix are squares of singular values.
    np.testing.assert_allclose(found, expected, atol=3e-3 * np.abs(expected).max())


def test_muon_comes_back_from_its_configuration():
    optimizer = Muon(0.03, momentum=0.8, matrix_decay=0.2)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, Muon)
    assert again.get_config() == optimizer.get_config()


def test_muon_on_two_replicas_is_muon_on_one(rng, two_replicas):
    start = rng.normal(size=(3, 3, 2, 4)).astype(np.float32), np.ones(4, np.float32)
    gradients = [[rng.normal(size=v.shape).astype(np.float32) for v in start] for _ in range(2)]
    config = settings(name="muon", weight_decay=0.1, warmup_epochs=0.0)

    def train(strategy):
        with strategy.scope():
            weights = [keras.Variable(v, name=f"v{i}") for i, v in enumerate(start)]
            optimizer = make_optimizer(config, weights, steps_per_epoch=5, total_steps=50)
        share = 1.0 / strategy.num_replicas_in_sync  # which the optimizer adds up

        @tf.function
        def step(*values):
            strategy.run(lambda: optimizer.apply([share * v for v in values], weights))

        for values in gradients:
            step(*map(tf.constant, values))
        return [np.array(v) for v in weights]

    one, two = train(tf.distribute.get_strategy()), train(two_replicas)
    for a, b, before in zip(one, two, start, strict=True):
        assert np.abs(a - before).max() > 1e-3
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_muon_continues_from_a_checkpoint_bit_for_bit(rng, tmp_path):
    start = rng.normal(size=(3, 3, 2, 4)).astype(np.float32), np.ones(4, np.float32)
    gradients = [[rng.normal(size=v.shape).astype(np.float32) for v in start] for _ in range(4)]

    def begin():
        weights = [keras.Variable(v, name=f"v{i}") for i, v in enumerate(start)]
        config = settings(name="muon", warmup_epochs=0.0)
        optimizer = make_optimizer(config, weights, steps_per_epoch=5, total_steps=50)
        state = tf.train.Checkpoint(optimizer=optimizer, weights=[v.value for v in weights])
        return weights, optimizer, state

    def steps(weights, optimizer, values):
        for step in values:
            optimizer.apply([tf.constant(g) for g in step], weights)
        return [np.array(v) for v in weights]

    whole, optimizer, _ = begin()
    expected = steps(whole, optimizer, gradients)
    half, optimizer, state = begin()
    steps(half, optimizer, gradients[:2])
    path = state.write(str(tmp_path / "state"))
    rest, optimizer, state = begin()
    state.read(path).assert_consumed()
    for a, b in zip(steps(rest, optimizer, gradients[2:]), expected, strict=True):
        np.testing.assert_array_equal(a, b)
