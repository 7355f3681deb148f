import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf import models
from tfvmf.errors import UserError


def count(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


@pytest.mark.parametrize(
    ("backbone", "bare", "with_heads"),
    [
        ("resnet18", 11_168_832, 11_761_345),
        ("resnet34", 21_276_992, 21_869_505),
        ("resnet50", 23_500_352, 25_665_729),
    ],
)
def test_parameter_counts_are_the_papers(backbone, bare, with_heads):
    encoder = models.build_encoder(backbone=backbone, width=64, dimension=128, stem="cifar")
    assert count(encoder.get_layer(backbone)) == bare
    assert count(encoder) == with_heads


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(1)
    return models.build_encoder(width=8, dimension=16, hidden=32)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(size=(5, 32, 32, 3)).astype(np.float32)


def test_outputs(encoder, images):
    outputs = encoder(images, training=False)
    assert set(outputs) == set(models.OUTPUTS)
    assert outputs["features"].shape == (5, 64)
    assert outputs["mean_direction"].shape == (5, 16)
    assert outputs["concentration"].shape == (5,)
    assert {value.dtype.name for value in outputs.values()} == {"float32"}
    np.testing.assert_allclose(np.linalg.norm(outputs["mean_direction"], axis=1), 1.0, rtol=1e-5)
    assert np.all(outputs["concentration"] > 0)


def test_keras_round_trip(encoder, images, tmp_path):
    encoder.save(tmp_path / "encoder.keras")
    again = keras.models.load_model(tmp_path / "encoder.keras")  # safe mode
    for name, value in encoder(images).items():
        np.testing.assert_array_equal(again(images)[name], value)


def test_takes_images_of_any_size(encoder):
    outputs = encoder(np.zeros((2, 48, 40, 3), np.float32))
    assert outputs["features"].shape == (2, 64)


def test_an_image_does_not_depend_on_its_neighbors(encoder, images):
    alone = encoder(images[:1], training=False)["mean_direction"]
    together = encoder(images, training=False)["mean_direction"][:1]
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_without_a_concentration_head_there_is_no_opinion(images):
    encoder = models.build_encoder(width=4, concentration=False)
    np.testing.assert_array_equal(encoder(images)["concentration"], np.ones(5, np.float32))
    assert "concentration_head" not in [layer.name for layer in encoder.layers]


def test_without_a_direction_head_the_features_point(images):
    outputs = models.build_encoder(width=4, dimension=None)(images)
    features = outputs["features"].numpy()
    expected = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(outputs["mean_direction"], expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"concentration_levels": "all"},
        {"dimension": None},
        {"concentration": False, "dimension": None},
    ],
)
def test_levels_are_one_more_output_of_the_same_encoder(images, options):
    encoder = models.build_encoder(width=4, hidden=8, **options)
    outputs = models.with_levels(encoder)(images, training=False)
    for name, value in encoder(images, training=False).items():
        np.testing.assert_array_equal(outputs[name], value)
    maps = encoder.get_layer("resnet18")(images, training=False)
    expected = []
    for stage in ("stage1", "stage2", "stage3", "stage4"):
        values = maps[stage].numpy()
        expected += [values.mean(axis=(1, 2)), np.sqrt(values.var(axis=(1, 2)) + 1e-6)]
    np.testing.assert_allclose(outputs["levels"], np.concatenate(expected, axis=1), atol=1e-5)


def test_imagenet_stem_reduces_by_four():
    backbone = models.build_backbone("resnet18", width=4, stem="imagenet")
    assert backbone(np.zeros((1, 64, 64, 3), np.float32))["stage1"].shape == (1, 16, 16, 4)
    backbone = models.build_backbone("resnet18", width=4, stem="cifar")
    assert backbone(np.zeros((1, 64, 64, 3), np.float32))["stage1"].shape == (1, 64, 64, 4)


def test_heads_stay_in_float32_under_mixed_precision(images):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        encoder = models.build_encoder(width=4, dimension=8, hidden=8)
    finally:
        keras.config.set_dtype_policy("float32")
    assert encoder.get_layer("resnet18").get_layer("stem_conv").compute_dtype == "bfloat16"
    heads = [encoder.get_layer(name) for name in ("direction_head", "concentration_head")]
    for head in heads:
        assert {layer.compute_dtype for layer in head.layers[1:]} == {"float32"}  # [0] is the input
    assert {output.dtype for output in encoder.outputs} == {"float32"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "resnet19"}, "resnet19"),
        ({"stem": "mnist"}, "stem"),
        ({"width": 0}, "width"),
        ({"dimension": 1}, "dimension"),
        ({"hidden": 0}, "hidden"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.build_encoder(**arguments)


def test_pixels_are_checked_where_they_are_known(encoder, images):
    pixels = (images * 255).astype(np.uint8)
    right = encoder(pixels / np.float32(255))
    for name, value in encoder(pixels).items():  # the same, not nonsense
        np.testing.assert_allclose(value, right[name], rtol=1e-4, atol=1e-5)
    for name, value in tf.function(encoder)(tf.constant(pixels)).items():
        np.testing.assert_allclose(value, right[name], rtol=1e-3, atol=1e-4)
    for wrong in (images * 255, images * 2 - 1, pixels.astype(np.int64)):
        with pytest.raises(UserError, match=r"expected uint8 .* or float in \[0, 1\]"):
            encoder(wrong)


FRESH = """
import sys
import keras
import {module}
model = keras.models.load_model(sys.argv[1])
assert set(model.output) == {{"features", "mean_direction", "concentration"}}
"""
LOAD = """
import sys
import tfvmf
assert "tensorflow" not in sys.modules
tfvmf.load(sys.argv[1], image_size=16).encoder
"""


@pytest.mark.parametrize(
    "program", [FRESH.format(module="tfvmf"), FRESH.format(module="tfvmf.models"), LOAD]
)
def test_files_load_in_a_new_process(encoder, tmp_path, program):
    encoder.save(tmp_path / "encoder.keras")
    command = [sys.executable, "-c", program, str(tmp_path / "encoder.keras")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
