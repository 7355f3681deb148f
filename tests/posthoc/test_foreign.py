"""Files of models from elsewhere: what is taken from them, and what is refused in one line."""

import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.foreign import foreign_cnn
from helpers.tiny import tiny_config
from helpers.untrained import make_run

from tfvmf import posthoc
from tfvmf.errors import UserError
from tfvmf.posthoc.kappa import fit_config

CNN = {"fit_kappa.feature_layer": "avg", "fit_kappa.input_range": "0..255"}


class Twice(tf.Module):
    """Two functions: no signature is the obvious one."""

    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(tf.random.stateless_normal([3, 6], (1, 2)))

    @tf.function
    def __call__(self, images, training=False):
        noise = 1.0 if training else 0.0
        return tf.reduce_mean(images, [1, 2]) @ self.weights + noise

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def other(self, x):
        return x


def test_a_saved_model_without_a_signature_is_called(tmp_path):
    module, spec = Twice(), tf.TensorSpec([None, None, None, 3], tf.float32)
    for training_mode in (True, False):
        module.__call__.get_concrete_function(spec, training=training_mode)
    tf.saved_model.save(module, tmp_path / "twice", signatures={})
    encoder = posthoc.build_foreign_encoder(tmp_path / "twice", "saved_model", hidden=4)
    images = np.random.default_rng(0).uniform(size=(3, 5, 5, 3)).astype(np.float32)
    expected = images.mean(axis=(1, 2)) @ module.weights.numpy()
    np.testing.assert_allclose(encoder(images)["features"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "--features=NAME"),
        ({"fit_kappa.feature_layer": "nosuch"}, "no such output or layer: it has avg, top"),
        (
            {"fit_kappa.feature_layer": "top", "fit_kappa.level_layers": "nosuch"},
            "level_layers=nosuch",
        ),
        (
            {"fit_kappa.feature_layer": "avg", "fit_kappa.level_layers": "avg"},
            r"maps \[N, H, W, C\]",
        ),
        ({"fit_kappa.feature_layer": "avg", "concentration.levels": "all"}, "--level_layers=a,b,c"),
        ({"fit_kappa.feature_layer": "avg", "fit_kappa.input_range": "0..2"}, "input_range"),
        ({"fit_kappa.feature_layer": "avg", "fit_kappa.cache_views": 1}, "at least 2 views"),
    ],
)
def test_what_a_keras_model_lacks_is_named(keras_file, changes, message):
    with pytest.raises(UserError, match=message):
        fit_config(keras_file, changes, tiny_config())


def test_outputs_that_are_no_features_are_refused(tmp_path):
    foreign_cnn(outputs="boxes").save(tmp_path / "boxes.keras")
    with pytest.raises(UserError, match=r"\[N, 4, 4\].*--features=NAME"):
        fit_config(tmp_path / "boxes.keras", {}, tiny_config())


def test_what_a_saved_model_lacks_is_named(saved_model, tmp_path):
    changes = {"fit_kappa.level_layers": "conv"}
    with pytest.raises(UserError, match="does not show its layers"):
        fit_config(saved_model, changes, tiny_config())
    module = tf.Module()
    module.f = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None, 7])])
    tf.saved_model.save(module, tmp_path / "vectors")
    with pytest.raises(UserError, match="of images"):
        fit_config(tmp_path / "vectors", {}, tiny_config())
    tf.saved_model.save(tf.Module(), tmp_path / "empty")
    with pytest.raises(UserError, match="serving_default"):
        fit_config(tmp_path / "empty", {}, tiny_config())


@pytest.mark.parametrize("kind", ["missing", "junk", "lambda", "unknown", "folder", "versions"])
def test_files_that_cannot_be_used_are_named(kind, saved_model, tmp_path):
    path = tmp_path / "model.keras"
    message = {"missing": "no such file", "junk": "damaged", "lambda": "SavedModel"}.get(kind)
    if kind == "junk":
        path.write_bytes(b"junk")
    if kind == "lambda":  # Python code in a file is never run
        inputs = keras.Input((8, 8, 3))
        keras.Model(inputs, keras.layers.Lambda(lambda x: x[:, 0, 0])(inputs)).save(path)
    if kind == "unknown":
        path = tmp_path / "model.h5"
        path.write_bytes(b"")
        message = "unknown kind"
    if kind == "folder":
        path, message = tmp_path, "neither a run directory"
    if kind == "versions":
        shutil.copytree(saved_model, tmp_path / "models" / "3")
        path, message = tmp_path / "models", "models/3"
    with pytest.raises(UserError, match=message):
        fit_config(path, {}, tiny_config())


def test_a_cut_off_file_is_refused(keras_file, tmp_path):
    path = tmp_path / "cut.keras"
    with zipfile.ZipFile(keras_file) as whole, zipfile.ZipFile(path, "w") as part:
        part.writestr("config.json", whole.read("config.json"))
    with pytest.raises(UserError, match="cannot be loaded by Keras"):
        fit_config(path, CNN, tiny_config())


def test_flags_of_models_are_refused_for_runs(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="--features=avg"):
        fit_config(run, {"fit_kappa.feature_layer": "avg"})
