import keras
import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from tfvmf.training.optimizers import Adam, make_optimizer


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


@pytest.mark.parametrize("name", ["adam", "sgd"])
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


@pytest.mark.parametrize("replicas", [1, 2])
def test_adam_equals_numpy_over_three_steps(rng, replicas, request):
    strategy = tf.distribute.get_strategy()
    if replicas == 2:
        strategy = request.getfixturevalue("two_replicas")
    w, m, v = rng.normal(size=(4, 3)), np.zeros((4, 3)), np.zeros((4, 3))
    with strategy.scope():
        weight = keras.Variable(w)
        optimizer = Adam(0.1)
        optimizer.build([weight])

    @tf.function
    def step(gradient):
        strategy.run(lambda: optimizer.apply([tf.identity(gradient)], [weight]))

    for t in range(1, 4):
        gradient = rng.normal(size=w.shape)
        step(tf.constant(gradient, tf.float32))
        gradient = replicas * gradient  # their sum
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        w = w - 0.1 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
    np.testing.assert_allclose(weight, w, atol=1e-5)  # 1 - 0.999 ** t in float32


def test_adam_refuses_what_its_kernel_has_not(rng):
    weight = keras.Variable(rng.normal(size=3))
    optimizer = Adam(0.1, amsgrad=True)
    optimizer.build([weight])
    with pytest.raises(ValueError, match="amsgrad"):
        optimizer.apply([np.ones(3, np.float32)], [weight])
