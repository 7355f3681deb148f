import keras
import ml_collections
import numpy as np
import pytest

from tfvmf.training.optimizers import make_optimizer


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
