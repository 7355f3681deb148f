import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf import models
from tfvmf.counter_random import example_seeds


def seeds(rows, step=0):
    return example_seeds(0, step, tf.range(rows), 0)


def test_drops_a_share_and_keeps_the_mean():
    layer = models.Dropout(0.3, name="dropout")
    inputs = tf.ones([200, 300])
    np.testing.assert_array_equal(layer(inputs), inputs)  # no seeds, no dropout
    with models.dropout_masks(seeds(200)):
        outputs = layer(inputs).numpy()
    assert (outputs == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert outputs.mean() == pytest.approx(1.0, abs=0.01)
    np.testing.assert_array_equal(layer(inputs), inputs)  # nothing is left switched on


def test_drops_whole_channels_of_a_feature_map():
    with models.dropout_masks(seeds(5)):
        outputs = models.Dropout(0.5, name="dropout")(tf.ones([5, 3, 3, 16])).numpy()
    assert ((outputs == 0).all(axis=(1, 2)) | (outputs == 2).all(axis=(1, 2))).all()


def test_masks_are_of_the_seed_and_the_layer():
    inputs = tf.ones([4, 1000])
    first, second = (models.Dropout(0.5, name=name) for name in ("one", "two"))
    with models.dropout_masks(seeds(4)):
        whole, other = first(inputs).numpy(), second(inputs).numpy()
        with models.dropout_masks(seeds(4)[2:]):
            part = first(inputs[2:]).numpy()  # what a second replica would drop
        np.testing.assert_array_equal(first(inputs), whole)
    with models.dropout_masks(seeds(4, step=1)):
        later = first(inputs).numpy()
    np.testing.assert_array_equal(part, whole[2:])
    for different in (other, later):
        assert np.mean((whole == 0) == (different == 0)) == pytest.approx(0.5, abs=0.05)


def test_an_encoder_with_dropout_drops_everywhere_and_is_itself_without_seeds(rng, tmp_path):
    encoder = models.build_encoder(width=2, dimension=8, hidden=16, dropout=0.2)
    assert models.has_dropout(encoder)
    assert not models.has_dropout(models.build_encoder(width=2, dimension=8, hidden=16))
    images = tf.constant(rng.uniform(size=(3, 8, 8, 3)), tf.float32)
    plain = encoder(images)
    drawn = []
    for step in range(2):
        with models.dropout_masks(seeds(3, step)):
            drawn.append(encoder(images))
    for name in models.OUTPUTS:
        assert np.abs(drawn[0][name] - drawn[1][name]).max() > 1e-4
        assert np.abs(drawn[0][name] - plain[name]).max() > 1e-4
        np.testing.assert_array_equal(encoder(images)[name], plain[name])
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.saving.load_model(tmp_path / "encoder.keras")
    with models.dropout_masks(seeds(3)):
        again = loaded(images)
    np.testing.assert_allclose(again["features"], drawn[0]["features"], rtol=1e-5)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_refuses_a_rate_that_is_no_probability(rate):
    with pytest.raises(ValueError, match="rate"):
        models.Dropout(rate)


def test_drops_under_training_as_keras_does():
    layer = models.Dropout(0.3, name="dropout")
    inputs = tf.ones([200, 300])
    np.testing.assert_array_equal(layer(inputs, training=False), inputs)
    step = tf.function(lambda: layer(inputs, training=True))
    for first, second in ((step(), step()), (layer(inputs, training=True), step())):
        assert (first.numpy() == 0).mean() == pytest.approx(0.3, abs=0.01)
        assert (first.numpy() != second.numpy()).mean() == pytest.approx(0.42, abs=0.02)
    with models.dropout_masks(None):  # where the project's own training asks for none
        np.testing.assert_array_equal(layer(inputs, training=True), inputs)
    model = keras.Sequential([keras.Input((4,)), models.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.fit(np.ones((8, 4)), np.ones(8), verbose=0).history["loss"]
