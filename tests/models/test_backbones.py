"""Any network as a backbone: what is found by rule, what is refused, and what comes out."""

import functools
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.foreign import foreign_cnn
from helpers.states import assert_equal_weights, weights
from helpers.tiny import tiny_config
from keras import layers
from sklearn.datasets import load_sample_images

import tfvmf
from tfvmf import models, serving, training
from tfvmf.errors import UserError
from tfvmf.methods import build_method, building
from tfvmf.models import backbones
from tfvmf.settings import INPUT_RANGES, parse_backbone
from tfvmf.training import loop


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(size=(3, 32, 32, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def small():
    """MobileNetV3, untrained."""
    keras.utils.set_random_seed(0)
    return keras.applications.MobileNetV3Small(weights=None, include_top=False)


def blocks():
    """Two blocks of a MobileNet, the second with a shortcut."""
    x = inputs = keras.Input((None, None, 3))
    for name, stride in (("a", 2), ("b", 2), ("c", 1)):
        before = x
        x = layers.Conv2D(24, 1, name=f"{name}_expand")(x)
        x = layers.DepthwiseConv2D(3, stride, padding="same", name=f"{name}_depthwise")(x)
        x = layers.Conv2D(8, 1, name=f"{name}_project")(x)
        if stride == 1:
            x = layers.Add(name=f"{name}_add")([before, x])
    x = layers.Conv2D(32, 1, name="top")(x)
    return keras.Model(inputs, layers.GlobalAveragePooling2D(name="pool")(x))


def test_levels_are_the_last_block_of_each_resolution(small):
    # `b_expand` is wide and of the first resolution: the block before it ended at `a_project`.
    assert models.adapt(blocks()).level_layers == ("a_expand", "a_project", "c_add")
    found = models.adapt(small)
    assert found.level_layers[-2:] == ("expanded_conv_7_add", "expanded_conv_10_add")
    shapes = [small.get_layer(name).output.shape[-1] for name in found.level_layers]
    maps = [value for name, value in found.model.output.items() if name != "features"]
    assert sorted(shapes) == sorted(value.shape[-1] for value in maps)
    assert found.describe(64).startswith("images 64x64, pixels 0..255, features ")


def test_features_are_what_goes_into_a_classifier():
    x = inputs = keras.Input((8, 8, 3))
    x = layers.GlobalAveragePooling2D(name="pool")(layers.Conv2D(6, 3, name="conv")(x))
    x = layers.Dropout(0.5)(layers.Dense(7, activation="relu", name="hidden")(x))
    for end in (layers.Dense(5, activation="softmax"), layers.Softmax()):
        y = end(x if isinstance(end, layers.Dense) else layers.Dense(5)(x))
        assert models.adapt(keras.Model(inputs, y)).feature_layer == "hidden"


def test_the_pixels_that_a_network_takes_are_found(images, small):
    assert models.adapt(small).input_range == "0..255"  # its first layer rescales
    assert models.adapt(foreign_cnn(outputs="dict")).input_range == "0..255"
    assert models.adapt(blocks()).input_range == "0..1"
    expected = keras.ops.mean(small(images * 255.0, training=False), axis=[1, 2])
    np.testing.assert_allclose(
        models.adapt(small).model(images)["features"], expected, rtol=1e-4, atol=1e-5
    )


def test_statistics_of_a_trained_network_tell_its_pixels():
    """A network whose batch norm has seen photographs in a range is given that range."""
    photos = np.stack([photo[:424, :640] for photo in load_sample_images().images]) / 255.0
    images = keras.Input((None, None, 3))
    x = layers.Conv2D(16, 3, strides=2, use_bias=False, name="conv")(images)
    x = layers.BatchNormalization(name="norm")(x)
    network = keras.Model(images, layers.GlobalAveragePooling2D()(x))
    norm = network.get_layer("norm")
    assert models.adapt(network).input_range == "0..1"  # untrained: nothing is known
    for name in INPUT_RANGES:
        pixels = models.Pixels((None, None, None, 3), input_range=name)(photos.astype(np.float32))
        made = network.get_layer("conv")(pixels).numpy()
        norm.moving_mean.assign(made.mean(axis=(0, 1, 2)))
        norm.moving_variance.assign(made.var(axis=(0, 1, 2)))
        assert models.adapt(network).input_range == name


@pytest.mark.parametrize(("mode", "pixel"), [("caffe", (255, 0, 0)), ("torch", (255, 128, 0))])
def test_pixels_as_keras_converts_them(mode, pixel):
    images = np.full((1, 2, 2, 3), pixel, np.float32)
    layer = models.Pixels((None, None, None, 3), input_range=mode)
    expected = keras.applications.imagenet_utils.preprocess_input(images.copy(), mode=mode)
    np.testing.assert_allclose(layer(images / 255.0), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("ResNet50", "caffe"),
        ("MobileNetV2", "-1..1"),
        ("DenseNet121", "torch"),
        ("MobileNetV3Small", "0..255"),
    ],
)
def test_applications_have_their_own_pixels(name, pixels, monkeypatch):
    network = functools.wraps(getattr(keras.applications, name))(lambda **_: blocks())
    monkeypatch.setattr(keras.applications, name, network)
    assert models.load_backbone(f"applications:{name}", weights="none").input_range == pixels


def test_every_application_says_what_it_makes_of_pixels(monkeypatch):
    names = [name for name in dir(keras.applications) if name[0].isupper()]
    assert len(names) > 30
    for name in names:
        network = functools.wraps(getattr(keras.applications, name))(lambda **_: None)
        monkeypatch.setattr(keras.applications, name, network)
        assert backbones._load_application(name, "none")[1].shape == (2, 3), name


def test_an_encoder_on_any_keras_model(small, images, tmp_path):
    encoder = models.build_encoder(backbone=small, dimension=8, hidden=16)
    outputs = encoder(images)
    assert outputs["features"].shape == (3, 576)
    np.testing.assert_allclose(np.linalg.norm(outputs["mean_direction"], axis=1), 1.0, rtol=1e-5)
    encoder.save(tmp_path / "encoder.keras")
    again = tfvmf.load(tmp_path / "encoder.keras", image_size=32).encoder(images)
    for name, value in outputs.items():
        np.testing.assert_array_equal(again[name], value)


@pytest.mark.parametrize("kind", ["layer", "sequential", "vectors"])
def test_maps_vectors_and_layers_are_backbones(kind, images):
    conv = layers.Conv2D(5, 3, name="conv")
    pool = layers.GlobalAveragePooling2D()
    backbone = {
        "layer": lambda: conv,
        "sequential": lambda: keras.Sequential([keras.Input((None, None, 3)), conv]),
        "vectors": lambda: keras.Sequential([keras.Input((None, None, 3)), conv, pool]),
    }[kind]()
    encoder = models.build_encoder(
        backbone=backbone, dimension=4, hidden=4, concentration_levels="all"
    )
    features = encoder(images)["features"]
    np.testing.assert_allclose(features, tf.reduce_mean(conv(images), [1, 2]), rtol=1e-4, atol=1e-6)
    assert encoder.get_layer("concentration_head").input.shape == (None, 10)


def test_every_layer_comes_back_from_its_config(tmp_path):
    tf.saved_model.save(_Module(), tmp_path / "saved")
    made = [
        models.BatchNorm(momentum=0.8, affine=False),
        models.Convolution(4, 3, strides=2),
        models.Dropout(0.25),
        models.Levels(dtype="float32"),
        models.Prototypes(7, queue_length=3),
        models.Pixels((None, 8, 8, 1), pixel_type="uint8"),
        backbones.SavedFunction(tmp_path / "saved"),
        models.build_encoder(width=2, dimension=4, hidden=4),
        models.build_predictor(4, hidden=2),
    ]
    for layer in made:
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        packed = keras.saving.serialize_keras_object(layer)
        assert type(keras.saving.deserialize_keras_object(packed)) is type(layer)


class _Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 3], tf.float32)])
    def __call__(self, images):
        return tf.reduce_mean(images, [1, 2])


def test_a_spec_names_a_backbone():
    assert parse_backbone("resnet18") == ("built_in", "resnet18")
    for spec in ("keras:/a/b.keras", "/a/b.keras"):
        assert parse_backbone(spec) == ("keras", "/a/b.keras")
    assert parse_backbone("hub:dinov2_small") == ("hub", "dinov2_small")
    with pytest.raises(UserError, match=r"resnet19 is unknown: did you mean resnet1.*applications"):
        parse_backbone("resnet19")


def mixed(path):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(3, 3)])
    finally:
        keras.config.set_dtype_policy("float32")
    model.save(path)


def two_inputs(path):
    inputs = [keras.Input((8, 8, 3)) for _ in range(2)]
    keras.Model(inputs, layers.Add()(inputs)).save(path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("applications:ResNet51", "unknown: Keras has ResNet50"),
        ("applications:MobileNetV3Small@/nosuch.h5", "expected none, imagenet or a .weights.h5"),
        ("resnet18@none", "expected applications:NAME or hub:PRESET"),
        ("keras:/nosuch.keras", "no such file"),
        (mixed, "computes in float16: save it with layers of float32"),
        (two_inputs, "with one input, of images"),
        (lambda path: foreign_cnn().save(path), "the outputs avg, top: choose one"),
    ],
)
def test_what_cannot_be_a_backbone_is_one_line(spec, message, tmp_path):
    if not isinstance(spec, str):
        spec(tmp_path / "m.keras")
        spec = str(tmp_path / "m.keras")
    spec, _, weights = spec.partition("@")
    with pytest.raises(UserError, match=message) as caught:
        models.load_backbone(spec, weights=weights)
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_downloaded_are_named(monkeypatch):
    def fetch(**_):
        raise Exception("URL fetch failure on https://host.example/a/net_notop.h5: None -- down")

    monkeypatch.setattr(keras.applications, "MobileNetV3Small", fetch)
    with pytest.raises(UserError, match=r"put net_notop\.h5 into ~/\.keras/models, or use weights"):
        models.load_backbone("applications:MobileNetV3Small")


def test_levels_of_tokens_are_four_depths_without_the_class_token(images):
    x = inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((16, 6))(layers.Conv2D(6, 8, strides=8)(x))
    x = layers.ZeroPadding1D((1, 0))(x)
    for number in range(8):
        x = layers.Add(name=f"block{number}")([x, layers.Dense(6)(x)])
    network = keras.Model(inputs, layers.LayerNormalization(name="norm")(x))
    found = models.adapt(network, feature_layer="norm", input_range="0..1")
    assert found.level_layers == ("block1", "block3", "block5", "block7")
    outputs = found.model(images)
    np.testing.assert_allclose(outputs["features"], network(images)[:, 0], atol=1e-5)
    deep = keras.Model(inputs, network.get_layer("block7").output)(images)
    np.testing.assert_allclose(outputs["level:block7"], deep[:, 1:], rtol=1e-4, atol=1e-5)
    pooled = models.Levels()({"x": deep[:, 1:]}).numpy()
    np.testing.assert_allclose(pooled[:, :6], deep[:, 1:].numpy().mean(axis=1), atol=1e-5)


@pytest.mark.parametrize("backbone", ["resnet10", "foreign"])
def test_frozen_stages_stay_as_they_are(backbone, tmp_path, images):
    if backbone == "foreign":
        blocks().save(tmp_path / "m.keras")
        backbone = str(tmp_path / "m.keras")
    whole, frozen = (
        build_method(tiny_config(**{"model.backbone": backbone, "model.freeze_stages": count}))
        for count in (0, 2)
    )
    all_of_it = build_method(tiny_config(**{"model.backbone": backbone, "model.freeze_stages": 99}))
    counts = [len(m.backbone.model.trainable_variables) for m in (whole, frozen, all_of_it)]
    assert counts[0] > counts[1] > counts[2] == 0
    still = [v for v in frozen.backbone.model.variables if not v.trainable]
    assert len(still) > len([v for v in whole.backbone.model.variables if not v.trainable])
    before = [v.numpy() for v in still]
    frozen.encoder(images, training=True)
    if not frozen.backbone.built_in:
        return  # it has no statistics
    first = frozen.backbone.model.get_layer("stem_norm")
    np.testing.assert_array_equal(first.moving_mean, np.zeros(first.moving_mean.shape))
    last = frozen.backbone.model.get_layer("stage4_block1_1_norm")
    assert np.abs(last.moving_mean).max() > 0  # what is not frozen learns
    assert len(before) == len(still)


@pytest.mark.parametrize("trained", [True, False])
def test_a_trained_network_keeps_its_statistics(trained, tmp_path):
    network = foreign_cnn(size=8, outputs="one")
    if not trained:
        network.get_layer("norm").moving_mean.assign(np.zeros(8))
    network.save(tmp_path / "m.keras")
    method = build_method(tiny_config(**{"model.backbone": str(tmp_path / "m.keras")}))
    norm = method.backbone.model.get_layer("trunk").get_layer("norm")
    before = norm.moving_mean.numpy()
    method.encoder(np.random.default_rng(0).uniform(size=(4, 8, 8, 3)), training=True)
    assert np.array_equal(norm.moving_mean, before) == trained
    assert norm.trainable != trained


def test_a_run_on_a_network_from_elsewhere_trains_and_exports_without_it(tmp_path):
    path = tmp_path / "mine.keras"
    foreign_cnn(size=8, outputs="one").save(path)
    changes = {"model.backbone": f"keras:{path}", "epochs": 1, "data.image_size": 8}
    changes |= {"concentration.levels": "all", "monitor.every_epochs": 0.0}
    training.train(tiny_config(**changes), tmp_path / "run")
    path.unlink()
    config, method, _ = training.load_method(tmp_path / "run")
    assert config.model.feature_layer == "avg"  # not the classes
    served = serving.load(serving.export_model(tmp_path / "run", tmp_path / "out"))
    pictures = np.random.default_rng(1).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    for name, value in method.encoder(pictures).items():
        np.testing.assert_allclose(served.embed(pictures)[name], value, rtol=1e-3, atol=1e-4)
    foreign_cnn(size=8).save(path)
    wrong = {**changes, "data.image_size": 16, "model.feature_layer": "avg"}
    with pytest.raises(UserError, match="image_size=16: the backbone takes images of 8x8 only"):
        training.train(tiny_config(**wrong), tmp_path / "other")


def test_hub_names_its_package_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(
        UserError, match=r"hub:dinov2_small needs KerasHub: pip install 'tfvmf\[hub"
    ):
        models.load_backbone("hub:dinov2_small")


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["foreign", "applications:MobileNetV3Small"])
def test_replicas_train_what_one_device_does(backbone, tmp_path, two_replicas, monkeypatch):
    """Statistics of Keras's own batch norms are those of the global batch."""
    changes = {"model.backbone": backbone, "optimizer.name": "sgd", "epochs": 1}
    changes |= {"data.image_size": 32, "monitor.every_epochs": 0.0, "batch_size": 348}
    changes |= {"model.freeze_stages": 1, "optimizer.backbone_rate": 0.5}
    changes |= {"optimizer.learning_rate": 0.01, "optimizer.weight_decay": 0.0}
    if backbone == "foreign":
        foreign_cnn(size=32, outputs="one").save(tmp_path / "m.keras")
        changes["model.backbone"] = str(tmp_path / "m.keras")
    else:
        changes["model.weights"] = "none"
    training.train(tiny_config(**changes), tmp_path / "one")
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    training.train(tiny_config(**changes), tmp_path / "two")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert_equal_weights(one, two, rtol=1e-3, atol=1e-4)


def test_the_backbone_learns_at_its_own_rate(tmp_path):
    """One step of SGD: its weights move a tenth as far, those of the heads as before."""
    moved = {}
    for rate in (1.0, 0.1):
        changes = {"optimizer.name": "sgd", "optimizer.warmup_epochs": 0.0, "epochs": 1}
        changes |= {"batch_size": 1397, "monitor.every_epochs": 0.0, "model.width": 2}
        changes |= {"optimizer.backbone_rate": rate, "optimizer.weight_decay": 0.0}
        config = tiny_config(**changes)
        with building(seed=config.seed):
            start = build_method(config)
        training.train(config, tmp_path / str(rate))
        trained = training.load_method(tmp_path / str(rate))[1]
        moved[rate] = [
            np.concatenate(
                [
                    np.ravel(new - old)
                    for new, old in zip(
                        trained.encoder.get_layer(name).trainable_variables,
                        start.encoder.get_layer(name).trainable_variables,
                        strict=True,
                    )
                ]
            )
            for name in ("resnet10", "direction_head")
        ]
    (fast, head), (slow, same) = moved[1.0], moved[0.1]
    assert np.abs(fast).max() > 1e-5
    np.testing.assert_allclose(slow, fast / 10, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(same, head, rtol=1e-5, atol=1e-8)
