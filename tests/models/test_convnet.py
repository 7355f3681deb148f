import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import tiny_config

from tfvmf import models, training
from tfvmf.models import resnet
from tfvmf.training import loop
from tfvmf.training.checkpoints import load_method


@pytest.mark.parametrize(("stem", "first"), [("cifar", 24), ("imagenet", 6)])
def test_every_level_is_seen(stem, first):
    """Each stage halves the map, rounding up, and has 1, 2, 8, 16 times the width."""
    backbone = resnet.build_backbone("convnet8", width=3, stem=stem)
    outputs = backbone(np.zeros((2, 24, 24, 3), np.float32))
    side = first
    for stage, channels in enumerate([3, 6, 24, 48], start=1):
        assert outputs[f"stage{stage}"].shape == (2, side, side, channels)
        side = -(-side // 2)
    np.testing.assert_allclose(
        outputs["features"], np.mean(outputs["stage4"], axis=(1, 2)), rtol=1e-5
    )
    encoder = models.build_encoder("convnet8", width=3, concentration_levels="all")
    # Mean and deviation of all channels.
    assert encoder.get_layer("levels").output.shape == (None, 2 * (3 + 6 + 24 + 48))


@pytest.mark.parametrize("width", [1, 16])
def test_the_number_of_weights(width):
    channels = [3] + [multiple * width for multiple in (1, 2, 2, 8, 8, 16, 16)]
    filters = sum(9 * a * b for a, b in itertools.pairwise(channels))
    backbone = resnet.build_backbone("convnet8", width=width, dropout=0.1)
    # Beside the filters a scale and an offset for each channel.
    weights = sum(int(np.prod(v.shape)) for v in backbone.trainable_variables)
    assert weights == filters + 2 * sum(channels[1:])
    assert models.has_dropout(backbone)


def test_small_views_train_what_large_images_use():
    """The same weights take every size: an image of one color has the same features at each."""
    backbone = resnet.build_backbone("convnet8", width=2)
    for variable in backbone.trainable_variables:
        if len(variable.shape) == 4:  # nothing but the center, so that borders do not matter
            kernel = np.zeros(variable.shape, np.float32)
            kernel[1, 1] = np.random.default_rng(0).uniform(size=kernel.shape[2:])
            variable.assign(kernel)
    small, large = (
        backbone(tf.fill([1, side, side, 3], 0.8))["features"].numpy() for side in (8, 20)
    )
    assert small.any()
    np.testing.assert_allclose(small, large, rtol=1e-5)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"'convnet9' is unknown: use one of .*, convnet8"):
        resnet.build_backbone("convnet9")


def test_two_replicas_train_it_as_one_device_does(tmp_path, two_replicas, monkeypatch):
    changes = {
        "model.backbone": "convnet8", "model.width": 4, "data.image_size": 12,
        "data.view_share": 0.75, "batch_size": 348, "epochs": 1, "optimizer.name": "sgd",
        "monitor.every_epochs": 0.0, "concentration.levels": "all",
    }  # fmt: skip
    training.train(tiny_config(**changes), tmp_path / "one")
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    training.train(tiny_config(**changes), tmp_path / "two")
    one, two = (load_method(tmp_path / name)[1].encoder.get_weights() for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
