import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import tiny_config

from tfvmf import losses
from tfvmf.methods import StepContext, build_method


@pytest.fixture
def views(rng):
    return [tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32) for _ in range(2)]


def swav(**changes):
    wide = {"model.hidden": 64, "model.width": 8}  # no image has only dead units
    return build_method(tiny_config(method="swav_vmf", batch_size=6, **wide, **changes))


def prediction(codes, scores):
    return float(losses.swapped_prediction(codes, scores, temperature=0.1))


def test_each_view_predicts_the_codes_of_the_other(views):
    method = swav()
    terms = method.loss(views)
    scores = [
        view["mean_direction"] @ method.prototypes.kernel
        for view in method.encode(views, StepContext())
    ]
    epsilon = method.config.swav.sinkhorn_epsilon
    codes = [losses.sinkhorn(score, epsilon=epsilon) for score in scores]
    expected = (prediction(codes[0], scores[1]) + prediction(codes[1], scores[0])) / 2
    assert float(terms["prediction"]) == pytest.approx(expected, rel=1e-5)


def test_local_views_predict_the_codes_of_both(views, rng):
    method = swav(**{"swav.num_local_views": 1})
    local = tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32)
    terms = method.loss([*views, local])
    outputs = method.encode(views, StepContext()) + method.encode([local], StepContext())
    scores = [view["mean_direction"] @ method.prototypes.kernel for view in outputs]
    epsilon = method.config.swav.sinkhorn_epsilon
    codes = [losses.sinkhorn(score, epsilon=epsilon) for score in scores[:2]]
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2)]
    expected = np.mean([prediction(codes[q], scores[p]) for q, p in pairs])
    assert float(terms["prediction"]) == pytest.approx(expected, rel=1e-5)


def test_prototypes_are_frozen_in_the_first_epoch_and_have_unit_length(views):
    method = swav()
    np.testing.assert_allclose(np.linalg.norm(method.prototypes.kernel, axis=0), 1.0, rtol=1e-5)
    gradients = []
    for epoch in (0.9, 1.0):
        with tf.GradientTape() as tape:
            loss = method.loss(views, context=StepContext(epoch=tf.constant(epoch)))["loss"]
        gradients.append(np.abs(tape.gradient(loss, method.prototypes.kernel)).max())
    assert gradients[0] == 0.0
    assert gradients[1] > 0.0
    method.prototypes.kernel.assign(3.0 * method.prototypes.kernel)
    method.after_step(StepContext())
    np.testing.assert_allclose(np.linalg.norm(method.prototypes.kernel, axis=0), 1.0, rtol=1e-5)


def test_the_queue_keeps_the_newest_and_joins_once_full(views):
    method = swav(**{"swav.queue_length": 12, "swav.queue_start_epochs": 0.5})
    plain = swav()
    for name in ("encoder", "prototypes"):
        own, other = method.models[name].weights, plain.models[name].weights
        for variable, value in zip(own, other, strict=False):
            variable.assign(value)
    after = StepContext(epoch=1.0)

    def directions():
        return [view["mean_direction"].numpy() for view in plain.encode(views, StepContext())]

    without = float(plain.loss(views, context=after)["prediction"])
    assert float(method.loss(views, context=after)["prediction"]) == pytest.approx(
        without, rel=1e-5
    )
    assert not method.prototypes.is_full(0)
    assert float(method.loss(views, context=after)["prediction"]) == pytest.approx(
        without, rel=1e-5
    )
    assert method.prototypes.is_full(0)
    pushed = directions()
    for view in range(2):
        queue = method.prototypes.queue[view].numpy()
        np.testing.assert_allclose(queue, np.concatenate([pushed[view]] * 2), atol=1e-5)
    # Full, but not started yet; then with the past of each view in its assignment.
    early = float(method.loss(views, context=StepContext(epoch=0.4))["prediction"])
    assert early == pytest.approx(without, rel=1e-5)
    kernel, epsilon = plain.prototypes.kernel, plain.config.swav.sinkhorn_epsilon
    scores = [mu @ kernel for mu in pushed]
    codes = [losses.sinkhorn(tf.concat([s] * 3, axis=0), epsilon=epsilon)[:6] for s in scores]
    expected = (prediction(codes[0], scores[1]) + prediction(codes[1], scores[0])) / 2
    joined = float(method.loss(views, context=after)["prediction"])
    assert joined == pytest.approx(expected, rel=1e-4)
