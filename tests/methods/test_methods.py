import keras
import numpy as np
import pytest
import tensorflow as tf

from tfvmf import losses, models
from tfvmf.config import default_config
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, StepContext, build_method


def tiny(method):
    keras.utils.set_random_seed(0)  # some weights leave an image with dead units only
    config = default_config()
    config.method = method
    config.model.backbone = "resnet10"
    config.model.width = 2
    config.model.dimension = 8
    config.model.hidden = 8
    return config


@pytest.fixture
def views(rng):
    return [tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32) for _ in range(2)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_adds_its_terms_and_reaches_every_weight(name, views):
    method = build_method(tiny(name), num_classes=3)
    labels = tf.constant([0, 1, 2, 0, 1, 2])
    with tf.GradientTape() as tape:
        terms = method.loss(views[: method.num_views], labels)
    watched = {"loss", "cosine", "kappa", "kappa_square"}
    parts = [float(value) for key, value in terms.items() if key not in watched]
    assert float(terms["loss"]) == pytest.approx(sum(parts), rel=1e-5)
    gradients = tape.gradient(terms["loss"], method.trainable_variables)
    assert all(gradient is not None for gradient in gradients)
    assert set(method.encoder.output) == {"features", "mean_direction", "concentration"}


def test_simclr_vmf_is_the_papers_total(views):
    method = build_method(tiny("simclr_vmf"))
    terms = method.loss(views)
    first, second = method.encode(views, StepContext())
    mu = [first["mean_direction"], second["mean_direction"]]
    kappa = [first["concentration"].numpy(), second["concentration"].numpy()]
    cosine = (mu[0].numpy() * mu[1].numpy()).sum(axis=1)
    expected = (
        float(losses.nt_xent(*mu, temperature=0.5))
        - 0.05 * ((kappa[0] + kappa[1]) * cosine).mean()
        + 0.005 * (kappa[0] ** 2 + kappa[1] ** 2).mean()
    )
    assert float(terms["loss"]) == pytest.approx(expected, rel=1e-4)
    assert float(terms["kappa"]) == pytest.approx(np.mean(kappa), rel=1e-4)


def test_the_direction_loss_of_simclr_is_that_of_simclr_vmf(views):
    keras.utils.set_random_seed(0)
    plain = build_method(tiny("simclr"))
    vmf = build_method(tiny("simclr_vmf"))
    for name in ("resnet10", "direction_head"):
        vmf.encoder.get_layer(name).set_weights(plain.encoder.get_layer(name).get_weights())
    contrastive = [float(method.loss(views)["contrastive"]) for method in (plain, vmf)]
    assert contrastive[0] == pytest.approx(contrastive[1], rel=1e-5)


def test_each_view_has_a_pass_and_statistics_of_its_own(views):
    """As if the network saw one view after the other; in one pass, all views as one batch."""
    for one_pass in (False, True):
        config = tiny("simclr_vmf")
        config.model.one_pass = one_pass
        method, alike = build_method(config), build_method(config)
        alike.encoder.set_weights(method.encoder.get_weights())
        batches = [tf.concat(views, axis=0)] if one_pass else views
        expected = [alike.encoder(batch, training=True)["features"] for batch in batches]
        seen = [outputs["features"] for outputs in method.encode(views, StepContext())]
        np.testing.assert_allclose(np.concatenate(seen), np.concatenate(expected), rtol=1e-5)
        moving = [v.numpy() for v in method.encoder.non_trainable_variables]
        others = [v.numpy() for v in alike.encoder.non_trainable_variables]
        for ours, theirs in zip(moving, others, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_supervised_is_cross_entropy(views):
    method = build_method(tiny("supervised"), num_classes=4)
    labels = np.array([0, 1, 2, 3, 0, 1])
    (outputs,) = method.encode(views[:1], StepContext())
    logits = method.models["classifier"](outputs["features"]).numpy().astype(np.float64)
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(probability[np.arange(6), labels]).mean()
    assert float(method.loss(views[:1], labels)["loss"]) == pytest.approx(expected, rel=1e-4)


def test_supervised_needs_labels():
    with pytest.raises(UserError, match="labeled source"):
        build_method(tiny("supervised"), num_classes=0)


def test_an_unknown_method_lists_the_known():
    with pytest.raises(UserError, match="simclr, simclr_vmf, simsiam, simsiam_vmf, supervised"):
        build_method(tiny("simclr3"))


@pytest.mark.parametrize("name", ["simclr_vmf", "byol_vmf"])
def test_with_wide_views_the_head_runs_once_a_step(name, views, rng):
    """Its batch statistics are those of all views together, in inference mode, and no others."""
    wide = tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32)
    config = tiny(name)
    config.concentration.view_kind = "wide"
    config.concentration.levels = "all"
    method, other = build_method(config), build_method(config)
    other.encoder.set_weights(method.encoder.get_weights())
    terms = method.loss([*views, wide])
    assert float(terms["kappa"]) > 0
    for view in views:  # what the ordinary passes do to the encoder's own statistics
        models.without_concentration(other.encoder)(view, training=True)
    before = other.encoder.get_layer("concentration_head").get_weights()
    other.head_objective([*views, wide])
    head, expected = (m.encoder.get_layer("concentration_head") for m in (method, other))
    assert any((a != b).any() for a, b in zip(before, expected.get_weights(), strict=True))
    for ours, theirs in zip(head.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
