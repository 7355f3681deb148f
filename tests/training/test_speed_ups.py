"""What makes a step fast changes none of its numbers: 20 steps with it, and written out."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import tiny_config

from tfvmf import cores, training
from tfvmf.models import BatchNorm, layers
from tfvmf.training import inputs


def losses(workdir, **changes):
    given = {"epochs": 5, "log_every_steps": 1, "monitor.every_epochs": 0.0}
    # Not Adam: it divides by the gradient's size and so makes rounding errors as large as steps.
    given |= {"optimizer.name": "sgd", "optimizer.learning_rate": 0.01}
    training.train(tiny_config(**{**given, **changes}), workdir)
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


def test_views_made_one_by_one(fast, tmp_path, monkeypatch):
    apart = inputs.views_of

    def at_once(*arguments):
        (make, _), *others = apart(*arguments)
        assert all(other == (make, 1) for other in others)
        return [(make, 1 + len(others))]

    monkeypatch.setattr(inputs, "views_of", at_once)
    np.testing.assert_allclose(losses(tmp_path), fast, rtol=1e-5)


def test_a_share_of_the_cores_for_each_pass(fast):
    """Thread counts are settled when TensorFlow starts: another process has other ones."""
    code = """
import pathlib, tempfile
import tensorflow as tf
from helpers.tiny import tiny_config
from tfvmf.training import share_cores
from training.test_speed_ups import losses

share_cores(tiny_config())
values = losses(pathlib.Path(tempfile.mkdtemp()))
print(tf.config.threading.get_intra_op_parallelism_threads(), *values)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=pathlib.Path(__file__).parents[1],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": "2"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    threads, *values = (float(value) for value in done.stdout.splitlines()[-1].split())
    assert threads == 1
    np.testing.assert_allclose(values, fast, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "granted", "threads"),
    [
        ({}, "", 3),
        ({"method": "byol"}, "4", 2),
        ({}, "1", 1),
        ({}, "all", 3),
        ({"model.one_pass": True}, "", None),
        ({"method": "supervised"}, "", None),
        ({"strategy": "multi_worker"}, "", None),
    ],
)
def test_one_pass_has_all_cores(changes, granted, threads, monkeypatch):
    settled = []
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", settled.append)
    monkeypatch.setattr(cores, "available", lambda: 7)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", granted)
    training.share_cores(tiny_config(**changes))
    assert settled == ([] if threads is None else [threads])


def test_passes_on_a_gpu_leave_the_cores_alone(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", pytest.fail)
    training.share_cores(tiny_config())


def test_winograds_convolutions(fast, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "_CHANNELS", 1)
    np.testing.assert_allclose(losses(tmp_path), fast, rtol=1e-5)
