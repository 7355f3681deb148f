"""The losses as Keras takes them: the functions' values, `compile`, `get_config`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf import losses

SETTINGS = {
    losses.NTXent: {"temperature": 0.2},
    losses.VMFAlignment: {"align_weight": 0.1, "penalty_weight": 0.02, "regularizer": "vmf"},
    losses.MCInfoNCE: {
        "temperature": 0.3,
        "num_samples": 5,
        "aggregation": "logmeanexp",
        "seed": 7,
    },
}


@pytest.fixture
def views(rng):
    def view():
        x = rng.normal(size=(6, 4)).astype(np.float32)
        kappa = rng.uniform(1, 5, size=6).astype(np.float32)
        return {
            "mean_direction": x / np.linalg.norm(x, axis=1, keepdims=True),
            "concentration": kappa,
        }

    return view(), view()


@pytest.mark.parametrize("loss", SETTINGS)
def test_they_are_serialized_with_their_settings(loss, views):
    made = loss(name="mine", **SETTINGS[loss])
    assert made.get_config() == {"name": "mine", **SETTINGS[loss]}
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    assert again.get_config() == made.get_config()
    pair = views
    if loss not in (losses.VMFAlignment, losses.MCInfoNCE):
        pair = [view["mean_direction"] for view in views]
    assert float(again(*pair)) == float(made(*pair))
    with pytest.raises(ValueError, match="mine takes no sample weights"):
        made(*pair, sample_weight=np.ones(6))


def test_they_compute_what_the_functions_do(views):
    first, second = views
    mu_1, mu_2 = first["mean_direction"], second["mean_direction"]
    cosines = (mu_1 * mu_2).sum(axis=1)
    same = keras.losses.CosineSimilarity()(mu_1, mu_2)  # what the module's docstring says
    assert float(same) == pytest.approx(float(losses.negative_cosine(mu_2, mu_1)), rel=1e-5)
    everyone = np.concatenate([mu_1, mu_2])
    logits = everyone @ everyone.T / 0.2
    np.fill_diagonal(logits, -np.inf)
    found = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(12), (np.arange(12) + 6) % 12]
    assert float(losses.NTXent(temperature=0.2)(mu_1, mu_2)) == pytest.approx(
        found.mean(), rel=1e-5
    )
    kappas = first["concentration"], second["concentration"]
    both = -0.05 * ((kappas[0] + kappas[1]) * cosines).mean()
    both += 0.005 * (kappas[0] ** 2 + kappas[1] ** 2).mean()
    assert float(losses.VMFAlignment()(first, second)) == pytest.approx(both, rel=1e-5)
    one = -0.05 * (kappas[1] * cosines).mean() + 0.005 * (kappas[1] ** 2).mean()
    packed = np.concatenate([mu_2, kappas[1][:, None]], axis=1)
    assert float(losses.VMFAlignment()(mu_1, packed)) == pytest.approx(one, rel=1e-5)


def test_a_seeded_loss_draws_new_samples_each_time_and_the_same_again(views):
    first, second = (losses.MCInfoNCE(num_samples=2, seed=3) for _ in range(2))
    drawn = [float(first(*views)) for _ in range(2)]
    assert drawn == [float(second(*views)) for _ in range(2)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("loss", [losses.NTXent, losses.VMFAlignment])
def test_compile_takes_them(loss, rng):
    """A student learns the directions of a teacher; with VMFAlignment also how well it does."""
    inputs = keras.Input((3,))
    direction = keras.layers.UnitNormalization()(keras.layers.Dense(4)(inputs))
    outputs = direction
    if loss is losses.VMFAlignment:
        kappa = keras.layers.Dense(1, activation="softplus")(inputs)
        outputs = keras.layers.Concatenate()([direction, kappa])
    student = keras.Model(inputs, outputs)
    student.compile(keras.optimizers.Adam(0.05), loss=loss())
    x = rng.normal(size=(64, 3)).astype(np.float32)
    target = tf.math.l2_normalize(x @ rng.normal(size=(3, 4)).astype(np.float32), axis=1)
    history = student.fit(x, target, batch_size=32, epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_views_of_different_numbers_of_images_are_refused(views):
    first, second = views
    with pytest.raises(ValueError, match=r"shapes \(6, 4\) and \(3, 4\): expected unit vectors"):
        losses.nt_xent(first["mean_direction"], second["mean_direction"][:3])
    short = {name: values[:3] for name, values in second.items()}
    with pytest.raises(ValueError, match=r"shapes \(6, 4\) and \(3, 4\)"):
        losses.MCInfoNCE()(first, short)
