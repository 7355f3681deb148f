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

from tfvmf import models
from tfvmf.errors import UserError
from tfvmf.methods import build_method
from tfvmf.posthoc import kappa

CNN = {"model.feature_layer": "avg", "model.input_range": "0..255"}


def build(path, changes):
    """The method that would be trained."""
    return build_method(kappa.fit_config(path, changes, tiny_config()))


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
    model = models.load_backbone(str(tmp_path / "twice"), kind="saved_model").model
    images = np.random.default_rng(0).uniform(size=(3, 5, 5, 3)).astype(np.float32)
    expected = images.mean(axis=(1, 2)) @ module.weights.numpy()
    np.testing.assert_allclose(model(images)["features"], expected, rtol=1e-4, atol=1e-5)


def sequential_cnn():
    """A network from elsewhere, as tutorials write them."""
    return keras.Sequential(
        [
            keras.Input((10, 10, 3)),
            keras.layers.Conv2D(4, 3, activation="relu", name="conv"),
            keras.layers.GlobalAveragePooling2D(name="pool"),
            keras.layers.Dense(6, name="projection"),
        ],
        name="mine",
    )


@pytest.mark.parametrize("name", ["", "pool", "conv"])
def test_a_sequential_model_is_an_encoder(tmp_path, rng, name):
    model = sequential_cnn()
    model.save(tmp_path / "mine.keras")
    backbone = models.load_backbone(str(tmp_path / "mine.keras"), feature_layer=name)
    encoder = models.build_encoder(backbone=backbone, dimension=None, hidden=4)
    images = rng.uniform(size=(3, 10, 10, 3)).astype(np.float32)
    expected = images
    for layer in model.layers:
        expected = layer(expected)
        if layer.name == (name or "projection"):
            break
    if name == "conv":  # maps are averaged over space
        expected = tf.reduce_mean(expected, axis=[1, 2])
    found = encoder(images)
    np.testing.assert_allclose(found["features"], expected, rtol=1e-4, atol=1e-5)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found["mean_direction"], unit, rtol=1e-4, atol=1e-5)
    assert found["concentration"].shape == (3,)


def test_a_layer_is_named_before_others_if_it_was_nearly_meant(tmp_path):
    layers = [keras.layers.ReLU(name=f"relu_{number}") for number in range(30)]
    layers += [keras.layers.GlobalAveragePooling2D(name="global_pool_1"), keras.layers.Dense(3)]
    keras.Sequential([keras.Input((8, 8, 3)), *layers]).save(tmp_path / "deep.keras")
    with pytest.raises(UserError, match=r"it has global_pool_1, .* \(32 in all\)"):
        build(tmp_path / "deep.keras", {"model.feature_layer": "global_pool"})


def test_a_model_inside_a_model_is_no_layer(tmp_path):
    images = keras.Input((10, 10, 3))
    keras.Model(images, keras.layers.Dense(3)(sequential_cnn()(images))).save(tmp_path / "m.keras")
    with pytest.raises(UserError, match=r"feature_layer=mine: .* a whole model of this name"):
        build(tmp_path / "m.keras", {"model.feature_layer": "mine"})


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (keras.layers.Conv2D(4, 9), "fails on images of 8x8 .*data.image_size"),
        (keras.layers.Rescaling(1e38), "not finite.* input_range"),
    ],
)
def test_a_model_that_fails_on_images_is_refused(tmp_path, layer, message):
    images = keras.Input((None, None, 3))
    keras.Model(images, layer(images)).save(tmp_path / "m.keras")
    method = build(tmp_path / "m.keras", {})
    with pytest.raises(UserError, match=message):
        kappa.check_outputs(method)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "feature_layer=NAME"),
        ({"model.feature_layer": "nosuch"}, "no such output or layer: it has avg, top"),
        (
            {"model.feature_layer": "top", "model.level_layers": "nosuch"},
            "level_layers=nosuch",
        ),
        (
            {"model.feature_layer": "avg", "model.level_layers": "avg"},
            r"maps \[N, H, W, C\]",
        ),
        (
            {
                "model.feature_layer": "avg",
                "model.level_layers": "none",
                "concentration.levels": "all",
            },
            "level_layers=a,b,c",
        ),
        ({"model.feature_layer": "avg", "model.input_range": "0..2"}, "input_range"),
        ({"model.feature_layer": "avg", "fit_kappa.cache_views": 1}, "at least 2 views"),
    ],
)
def test_what_a_keras_model_lacks_is_named(keras_file, changes, message):
    with pytest.raises(UserError, match=message):
        build(keras_file, changes)


def test_outputs_that_are_no_features_are_refused(tmp_path):
    foreign_cnn(outputs="boxes").save(tmp_path / "boxes.keras")
    with pytest.raises(UserError, match=r"\[N, 4, 4\].*feature_layer=NAME"):
        build(tmp_path / "boxes.keras", {})


def test_what_a_saved_model_lacks_is_named(saved_model, tmp_path):
    changes = {"model.level_layers": "conv"}
    with pytest.raises(UserError, match="does not show its layers"):
        build(saved_model, changes)
    module = tf.Module()
    module.f = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None, 7])])
    tf.saved_model.save(module, tmp_path / "vectors")
    with pytest.raises(UserError, match="of images"):
        build(tmp_path / "vectors", {})
    tf.saved_model.save(tf.Module(), tmp_path / "empty")
    with pytest.raises(UserError, match="serving_default"):
        build(tmp_path / "empty", {})


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
        build(path, {})


def test_a_cut_off_file_is_refused(keras_file, tmp_path):
    path = tmp_path / "cut.keras"
    with zipfile.ZipFile(keras_file) as whole, zipfile.ZipFile(path, "w") as part:
        part.writestr("config.json", whole.read("config.json"))
    with pytest.raises(UserError, match="cannot be loaded by Keras"):
        build(path, CNN)


def test_flags_of_models_are_refused_for_runs(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="feature_layer=avg"):
        kappa.fit_config(run, {"model.feature_layer": "avg"})
