"""SimSiam, VI-SimSiam and BYOL against NumPy: losses, stopped targets, the moving average."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import tiny_config
from scipy.special import iv

from tfvmf.methods import StepContext, build_method

WIDE = {"model.hidden": 64, "model.width": 8}  # no image of these has only dead units


@pytest.fixture
def views(rng):
    return [tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32) for _ in range(2)]


def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)  # dead units: 0


def dense(model, name, x):
    layer = model.get_layer(name)
    y = x @ layer.kernel.numpy().astype(np.float64)
    return y + layer.bias.numpy() if layer.use_bias else y


def normed(model, name, x, passes):
    layer = model.get_layer(name)
    y = x.reshape([passes, -1, x.shape[-1]])
    y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + layer.epsilon)
    return y.reshape(x.shape) * layer.gamma.numpy() + layer.beta.numpy()


def perceptron(model, x, passes, *, hidden=("hidden",), norms=("norm",)):
    for linear, norm in zip(hidden, norms, strict=True):
        x = np.maximum(normed(model, norm, dense(model, linear, x), passes), 0.0)
    return dense(model, "output", x)


def in_passes(model, x, passes):
    return [model(part, training=True) for part in tf.split(x, passes)]


def features(encoder, views, passes):
    outputs = in_passes(encoder.get_layer("resnet10"), tf.concat(views, axis=0), passes)
    return np.concatenate([part["features"] for part in outputs])


@pytest.mark.parametrize("passes", [1, 2])
def test_simsiam_in_numpy(views, passes):
    settings = {**WIDE, "model.one_pass": passes == 1}
    method = build_method(tiny_config(method="simsiam_vmf", **settings))
    terms = {name: float(value) for name, value in method.loss(views).items()}
    head, predictor = method.encoder.get_layer("direction_head"), method.models["predictor"]
    levels = features(method.encoder, views, passes)
    layers = {"hidden": ("hidden_1", "hidden"), "norms": ("norm_1", "norm")}
    projection = normed(head, "output_norm", perceptron(head, levels, passes, **layers), passes)
    assert len(head.get_layer("output_norm").trainable_variables) == 0
    predicted = unit(perceptron(predictor, projection, passes))
    assert predictor.get_layer("hidden").units == 8 // 4
    mu = np.roll(unit(projection), 6, axis=0)  # each view's target is the other view
    cosine = (predicted * mu).sum(axis=1)
    assert terms["regression"] == pytest.approx(-cosine.mean(), abs=1e-5)
    assert terms["cosine"] == pytest.approx(cosine.mean(), abs=1e-5)
    kappa = np.concatenate(
        in_passes(method.encoder.get_layer("concentration_head"), levels, passes)
    )
    assert terms["alignment"] == pytest.approx(-0.05 * 2 * (kappa * cosine).mean(), rel=1e-4)
    assert terms["penalty"] == pytest.approx(0.005 * 2 * (kappa**2).mean(), rel=1e-4)


@pytest.mark.parametrize("passes", [1, 2])
def test_vi_simsiam_in_numpy(views, passes):
    settings = {**WIDE, "model.one_pass": passes == 1}
    method = build_method(tiny_config(method="vi_simsiam", **settings))
    terms = {name: float(value) for name, value in method.loss(views).items()}
    assert set(terms) == {"loss", "likelihood", "cosine", "kappa", "kappa_square"}
    head, predictor = method.encoder.get_layer("direction_head"), method.models["predictor"]
    levels = features(method.encoder, views, passes)
    layers = {"hidden": ("hidden_1", "hidden"), "norms": ("norm_1", "norm")}
    projection = normed(head, "output_norm", perceptron(head, levels, passes, **layers), passes)
    cosine = unit(perceptron(predictor, projection, passes)) * np.roll(unit(projection), 6, axis=0)
    kappa = np.concatenate(
        in_passes(method.encoder.get_layer("concentration_head"), levels, passes)
    ).astype(np.float64)
    order = 8 / 2 - 1
    log_normalizer = order * np.log(kappa) - 4 * np.log(2 * np.pi) - np.log(iv(order, kappa))
    likelihood = log_normalizer + kappa * cosine.sum(axis=1)
    assert terms["loss"] == terms["likelihood"]
    assert terms["loss"] == pytest.approx(-likelihood.mean() / 8, rel=1e-5)
    # The loss is smallest where the mean cosine is the one that kappa stands for.
    np.testing.assert_allclose(
        method.predicted_cosine(tf.constant([2.0, 9.0])),
        [iv(order + 1, k) / iv(order, k) for k in (2.0, 9.0)],
        rtol=1e-5,
    )


@pytest.mark.parametrize("passes", [1, 2])
def test_byol_in_numpy(views, passes):
    settings = {**WIDE, "model.one_pass": passes == 1}
    method = build_method(tiny_config(method="byol_vmf", **settings))
    target = method.models["target"]
    for variable in target.variables:
        variable.assign(variable * 1.1 + 0.01)  # else it would be the encoder itself
    terms = {name: float(value) for name, value in method.loss(views).items()}
    head = method.encoder.get_layer("direction_head")
    projection = perceptron(head, features(method.encoder, views, passes), passes)
    predicted = unit(perceptron(method.models["predictor"], projection, passes))
    levels = features(target, views, passes)
    slow = unit(perceptron(target.get_layer("direction_head"), levels, passes))
    distance = ((predicted - np.roll(slow, 6, axis=0)) ** 2).sum(axis=1)
    assert terms["regression"] == pytest.approx(2 * distance.mean(), rel=1e-4)
    assert terms["cosine"] == pytest.approx(1 - distance.mean() / 2, abs=1e-4)


@pytest.mark.parametrize("name", ["simsiam_vmf", "vi_simsiam", "byol_vmf"])
def test_no_gradient_flows_through_the_target(name, views):
    method = build_method(tiny_config(method=name, **WIDE))
    # A predictor that ignores its input leaves only the target to reach the direction head.
    for variable in method.models["predictor"].trainable_variables:
        variable.assign(tf.zeros_like(variable))
    method.models["predictor"].get_layer("output").bias.assign(tf.ones(8))
    head = method.encoder.get_layer("direction_head").trainable_variables
    with tf.GradientTape() as tape:
        loss = method.loss(views)["loss"]
    for gradient in tape.gradient(loss, head):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-9)


def test_the_target_starts_as_the_encoder_and_follows_it():
    config = tiny_config(method="byol", epochs=10, **{"byol.momentum": 0.9})
    method = build_method(config)
    target = method.models["target"]
    learned = {id(variable) for variable in method.trainable_variables}
    assert not learned & {id(variable) for variable in target.variables}
    before = [w.copy() for w in target.get_layer("direction_head").get_weights()]
    for old, new in zip(
        before, method.encoder.get_layer("direction_head").get_weights(), strict=True
    ):
        np.testing.assert_array_equal(old, new)
    head = method.encoder.get_layer("direction_head").get_layer("output")
    head.kernel.assign(head.kernel + 1.0)
    slow = target.get_layer("direction_head").get_layer("output")
    start, online = slow.kernel.numpy(), head.kernel.numpy()
    method.after_step(StepContext(epoch=5.0))
    keep = 1 - 0.1 * (np.cos(np.pi * 0.5) + 1) / 2  # half of the way
    np.testing.assert_allclose(
        slow.kernel, keep * start + (1 - keep) * online, rtol=1e-5, atol=1e-7
    )
    assert float(method.momentum(0.0)) == pytest.approx(0.9)
    assert float(method.momentum(10.0)) == pytest.approx(1.0)
    # In a graph, as the train step does it.
    tf.function(method.after_step)(StepContext(epoch=tf.constant(0.0)))
    again = keep * start + (1 - keep) * online
    np.testing.assert_allclose(slow.kernel, 0.9 * again + 0.1 * online, rtol=1e-5, atol=1e-7)
