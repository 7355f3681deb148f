"""Heads for encoders from elsewhere: Keras files and SavedModels become runs like any other."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.fitting import fit_head
from helpers.foreign import foreign_cnn
from helpers.states import assert_equal_weights, weights
from helpers.subjects import embeddings
from helpers.tiny import tiny_config
from helpers.untrained import make_run

from tfvmf import evaluation, posthoc, serving, training
from tfvmf.errors import UserError
from tfvmf.methods import build_method
from tfvmf.models.backbones import resources
from tfvmf.posthoc.kappa import fit_config
from tfvmf.training import loop

QUICK = {"epochs": 1, "monitor.every_epochs": 0.0, "concentration.view_kind": "augment"}
CNN = {"model.feature_layer": "avg", "model.input_range": "0..255"}


@pytest.fixture(scope="module")
def cnn():
    return foreign_cnn()


def fit(encoder, workdir, **changes):
    posthoc.fit_kappa(encoder, workdir, config=tiny_config(), changes={**QUICK, **changes})
    return workdir


@pytest.fixture(scope="module")
def keras_run(tmp_path_factory, keras_file):
    original = tmp_path_factory.mktemp("moved") / "cnn.keras"
    shutil.copy(keras_file, original)
    workdir = fit(original, tmp_path_factory.mktemp("keras_run"), **CNN)
    original.unlink()  # the run can do without
    return workdir


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory, saved_model):
    changes = {"model.input_range": "0..255", "model.level_layers": "stem,block"}
    changes["concentration.view_kind"] = "wide"
    return fit(saved_model, tmp_path_factory.mktemp("saved_run"), **changes)


@pytest.fixture(params=["keras_run", "saved_run"])
def workdir(request):
    return request.getfixturevalue(request.param)


def expected_features(cnn, images):
    resized = tf.image.resize(tf.cast(images, tf.float32), [24, 24])
    return cnn(resized, training=False)[0].numpy()


def test_features_and_directions_are_those_of_the_model(cnn, workdir):
    run = evaluation.subject_from_run(workdir)
    features = expected_features(cnn, run.test.images(0, 20))
    found = run.embed(run.test.subset(np.arange(20)))
    np.testing.assert_allclose(found["features"], features, rtol=1e-4, atol=1e-5)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(found["mean_direction"], unit, rtol=1e-4, atol=1e-5)
    assert found["concentration"].std() > 0
    assert run.score(evaluation.Options()).name == "kappa"


def test_the_weights_of_the_model_are_unchanged_bit_for_bit(cnn, keras_run, saved_run):
    keras_encoder = training.load_method(keras_run)[1].encoder
    for layer in keras_encoder.get_layer("backbone").get_layer("trunk").layers:
        original = cnn.get_layer(layer.name) if layer.weights else layer
        for one, other in zip(layer.get_weights(), original.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    kept = {v.name.split("/")[-1] + str(v.shape): v for v in resources(
        training.load_method(saved_run)[1].encoder
    )}  # fmt: skip
    assert kept
    known = [weight.tobytes() for weight in foreign_cnn(outputs="maps").get_weights()]
    assert all(variable.numpy().tobytes() in known for variable in kept.values())


def test_no_weight_of_the_model_is_trained_or_saved_again(workdir):
    method = training.load_method(workdir)[1]
    head = method.encoder.get_layer("concentration_head")
    assert set(method.models) == {"concentration_head"}
    assert [v.path for v in method.trainable_variables] == [
        v.path for v in head.trainable_variables
    ]
    assert not method.encoder.get_layer("backbone").trainable_variables


def test_the_head_sees_the_named_layers(keras_file, saved_run):
    layers = {"model.level_layers": "stem, block", **CNN}
    built = build_method(fit_config(keras_file, layers, tiny_config()))
    assert built.config.concentration.levels == "all"
    for method in (built, training.load_method(saved_run)[1]):
        # Means and deviations of 8 + 16 channels.
        assert method.encoder.get_layer("concentration_head").input.shape[1] == 48


@pytest.mark.slow
@pytest.mark.parametrize(("name", "suite"), [("keras_run", "probe"), ("saved_run", "cifar10c")])
def test_suites_measure_it(request, name, suite):
    run = evaluation.subject_from_run(request.getfixturevalue(name))
    results = evaluation.SUITES[suite](run, max_images=20)
    assert (results["images"], results["method"]) == (20, "fit_kappa")


@pytest.mark.parametrize("name", ["saved_run", pytest.param("keras_run", marks=pytest.mark.slow)])
def test_it_is_exported(request, name, tmp_path):
    workdir = request.getfixturevalue(name)
    path = serving.export_model(workdir, tmp_path)
    run = evaluation.subject_from_run(workdir)
    served = serving.load(path).embed(run.test.images(0, 10))
    for name, value in run.embed(run.test.subset(np.arange(10))).items():
        np.testing.assert_allclose(served[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_keras_encoder_is_exported_for_keras_too(keras_run, saved_run, tmp_path):
    path = serving.export_model(keras_run, tmp_path / "keras", keras_file=True)
    encoder = keras.saving.load_model(path / "assets.extra" / "encoder.keras")
    run = evaluation.subject_from_run(keras_run)
    kappa = encoder(run.test.images(0, 10) / np.float32(255))["concentration"]
    np.testing.assert_allclose(
        kappa, run.embed(run.test.subset(np.arange(10)))["concentration"], rtol=1e-4
    )
    with pytest.raises(UserError, match="keras_file"):
        serving.export_model(saved_run, tmp_path / "saved", keras_file=True)


@pytest.mark.slow
def test_what_was_exported_is_an_encoder_again(keras_run, tmp_path):
    # The signature takes uint8 images, and has a mean_direction of its own.
    path = serving.export_model(keras_run, tmp_path / "models")
    again = fit(path, tmp_path / "again", **{"data.image_size": 24})
    before, after = (embeddings(w, 10) for w in (keras_run, again))
    for name in ("features", "mean_direction"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_our_own_keras_file_is_an_encoder(tmp_path):
    run = make_run(tmp_path / "run")
    encoder = training.load_method(run)[1].encoder
    encoder.save(tmp_path / "encoder.keras")
    fitted = fit(tmp_path / "encoder.keras", tmp_path / "fitted", **{"data.image_size": 16})
    before, after = (embeddings(w, 10) for w in (run, fitted))
    for name in ("features", "mean_direction"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-5)
    assert np.abs(after["concentration"] - before["concentration"]).max() > 1e-3


@pytest.mark.slow
def test_a_fitted_run_gets_another_head(keras_run, tmp_path):
    again = fit(keras_run, tmp_path / "again", **{"concentration.view_kind": "wide"})
    shutil.copytree(again, tmp_path / "elsewhere")  # a run may be moved
    before, after = (embeddings(w, 10) for w in (keras_run, tmp_path / "elsewhere"))
    np.testing.assert_array_equal(after["mean_direction"], before["mean_direction"])
    assert np.abs(after["concentration"] - before["concentration"]).max() > 1e-3


@pytest.mark.parametrize(("name", "changes"), [("keras_file", CNN), ("saved_model", {})])
def test_kappa_becomes_five_times_the_cosine(request, name, changes, rng):
    changes = {"model.hidden": 64, "concentration.view_kind": "augment", **changes}
    changes["fit_kappa.cache_views"] = 0
    changes["model.input_range"] = "0..255"
    keras.utils.set_random_seed(0)  # from some weights 300 steps do not suffice
    method = build_method(fit_config(request.getfixturevalue(name), changes, tiny_config()))
    colors = [rng.uniform(size=(24, 1, 1, 3)) ** 3 for _ in range(2)]
    views = [tf.constant(color * rng.uniform(size=(24, 8, 8, 3)), tf.float32) for color in colors]
    cosines, kappas = fit_head(method, views)
    for cosine, kappa in zip(cosines, kappas, strict=True):
        assert np.abs(kappa - 5 * np.maximum(cosine, 0)).mean() < 0.1
        assert np.std(cosine) > 0.05


@pytest.mark.slow
def test_replicas_fit_what_one_device_does(saved_model, tmp_path, two_replicas, monkeypatch):
    changes = {"optimizer.name": "sgd", "optimizer.learning_rate": 0.1, "batch_size": 348}
    changes["model.input_range"] = "0..255"
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    two = fit(saved_model, tmp_path / "two", **changes)
    monkeypatch.undo()
    one = fit(saved_model, tmp_path / "one", **changes)
    assert_equal_weights(weights(one), weights(two), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_run_continues_only_with_the_same_model(keras_file, tmp_path):
    path = tmp_path / "cnn.keras"
    shutil.copy(keras_file, path)
    workdir = fit(path, tmp_path / "run", **CNN)
    assert fit(path, workdir, **CNN)  # finished: nothing happens
    other = foreign_cnn()
    other.get_layer("conv").kernel.assign(other.get_layer("conv").kernel * 2)
    other.save(path)
    with pytest.raises(UserError, match="fingerprint"):
        fit(path, workdir, **CNN)
    shutil.copy(path, workdir / "encoder.keras")
    with pytest.raises(UserError, match="not the encoder"):
        training.load_method(workdir)
