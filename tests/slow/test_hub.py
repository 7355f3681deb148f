"""Backbones of KerasHub, an extra of many packages: `pip install -e '.[hub]'` to run these."""

import numpy as np
import pytest
from helpers.tiny import tiny_config

from tfvmf import models, posthoc, serving, training
from tfvmf.errors import UserError
from tfvmf.training import augmentation_from_config

pytestmark = pytest.mark.slow
keras_hub = pytest.importorskip("keras_hub", reason="KerasHub: pip install -e '.[hub]'")


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """A tiny DINOv2, untrained: 4 layers, 4 patches and a class token."""
    path = tmp_path_factory.mktemp("presets") / "dino"
    keras_hub.models.DINOV2Backbone(
        patch_size=14,
        num_layers=4,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
        num_register_tokens=0,
        image_shape=(28, 28, 3),
    ).save_to_preset(str(path))
    return path


def test_a_preset_is_a_backbone(preset, rng):
    backbone = models.load_backbone(f"hub:{preset}")
    assert backbone.level_layers == ("stage1", "stage2", "stage3", "stage4")
    assert backbone.image_size == 28
    images = rng.uniform(size=(2, 28, 28, 3)).astype(np.float32)
    tokens = keras_hub.models.Backbone.from_preset(str(preset))(images)
    outputs = backbone.model(images)
    np.testing.assert_allclose(outputs["features"], tokens[:, 0], rtol=1e-4, atol=1e-5)
    assert outputs["level:stage2"].shape == (2, 4, 16)


def test_a_preset_gets_a_kappa_and_is_exported(preset, tmp_path):
    changes = {"epochs": 1, "batch_size": 348}
    posthoc.fit_kappa(f"hub:{preset}", tmp_path / "run", config=tiny_config(), changes=changes)
    config, method, _ = training.load_method(tmp_path / "run")
    assert config.data.image_size == augmentation_from_config(config).size == 28
    assert method.encoder.get_layer("concentration_head").input.shape == (None, 2 * 4 * 16)
    served = serving.load(serving.export_model(tmp_path / "run", tmp_path / "out"))
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 28, 3), dtype=np.uint8)
    for name, value in method.encoder(images).items():
        np.testing.assert_allclose(served.embed(images)[name], value, rtol=1e-3, atol=1e-4)


def test_what_is_no_image_backbone_is_one_line(tmp_path):
    keras_hub.models.BertBackbone(
        vocabulary_size=10, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ).save_to_preset(str(tmp_path / "bert"))
    with pytest.raises(UserError, match=r"is not an image backbone: it takes .*token_ids"):
        models.load_backbone(f"hub:{tmp_path / 'bert'}")
    with pytest.raises(UserError, match=r"hub:nosuch cannot be loaded .*KerasHub preset"):
        models.load_backbone("hub:nosuch")
