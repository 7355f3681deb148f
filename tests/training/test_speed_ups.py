"""What makes a step fast changes none of its numbers: 20 steps with it, and written out."""

import numpy as np
import pytest
import tensorflow as tf
from tiny import tiny_config

from tfvmf import training
from tfvmf.models import BatchNorm, convolution
from tfvmf.training import inputs


def losses(workdir):
    changes = {"epochs": 5, "log_every_steps": 1, "monitor.every_epochs": 0.0}
    # Not Adam: it divides by the gradient's size and so makes rounding errors as large as steps.
    changes |= {"optimizer.name": "sgd", "optimizer.learning_rate": 0.01}
    training.train(tiny_config(**changes), workdir)
    return [line["loss"] for line in training.read_metrics(workdir) if "loss" in line]


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("fast"))


def elementary(self, x, training=False):
    """Batch norm without its fused kernel."""
    assert training
    axes = list(range(x.shape.rank - 1))
    mean, variance = tf.nn.moments(x, axes)
    count = tf.cast(tf.size(x) / tf.size(mean), tf.float32)
    unbiased = variance * count / (count - 1.0)
    for moving, value in ((self.moving_mean, mean), (self.moving_variance, unbiased)):
        moving.assign(self.momentum * moving + (1.0 - self.momentum) * value)
    return self.gamma * (x - mean) / tf.sqrt(variance + self.epsilon) + self.beta


def test_the_fused_batch_norm(fast, tmp_path, monkeypatch):
    monkeypatch.setattr(BatchNorm, "call", elementary)
    assert len(fast) == 20
    np.testing.assert_allclose(losses(tmp_path), fast, rtol=1e-5)


def test_both_views_at_once(fast, tmp_path, monkeypatch):
    together = inputs.views_of

    def one_by_one(*arguments):
        return [(make, 1) for make, count in together(*arguments) for _ in range(count)]

    monkeypatch.setattr(inputs, "views_of", one_by_one)
    np.testing.assert_allclose(losses(tmp_path), fast, rtol=1e-5)


def test_winograds_convolutions(fast, tmp_path, monkeypatch):
    monkeypatch.setattr(convolution, "_CHANNELS", 1)
    np.testing.assert_allclose(losses(tmp_path), fast, rtol=1e-5)
