"""A new method is a file and a registry entry: everything else reads what it declares."""

import sys
import textwrap

import numpy as np
import pytest
from helpers.tiny import tiny_config

from tfvmf import evaluation, serving, training
from tfvmf.config import default_config, validate
from tfvmf.errors import UserError
from tfvmf.methods import METHODS

TOY = '''
from __future__ import annotations

import tensorflow as tf

from tfvmf import losses
from tfvmf.methods.base import Method, Objective
from tfvmf.settings import Setting


class Toy(Method):
    """Pulls views together and pushes the mean direction of a batch to zero."""

    section = "toy"
    settings = {"strength": Setting(1.0, "of the push", above=0)}
    term_names = ("pull", "push")
    kappa_note = "kappa of a toy"

    @classmethod
    def head_options(cls, config):
        return {**super().head_options(config), "hidden_layers": 2}

    def objective(self, views, labels, context):
        outputs = self.encode(views, context)
        first, second = (view["mean_direction"] for view in outputs)
        cosine = losses.cosine(first, second)
        center = tf.reduce_sum(tf.square(tf.reduce_mean(first, axis=0)))
        terms = {"pull": -tf.reduce_mean(cosine), "push": self.config.toy.strength * center}
        return Objective(terms, [cosine, cosine], outputs)
'''


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run of the new method, which lives in a file outside of the package."""
    place = tmp_path_factory.mktemp("toy")
    (place / "toy_method.py").write_text(textwrap.dedent(TOY))
    sys.path.insert(0, str(place))
    METHODS["toy_vmf"] = "toy_method:Toy"
    try:
        changes = {"method": "toy_vmf", "toy.strength": 2.0, "data.image_size": 16}
        training.train(tiny_config(**changes), place / "run")
        yield place / "run"
    finally:
        del METHODS["toy_vmf"]
        sys.path.remove(str(place))
        del sys.modules["toy_method"]


def test_its_settings_are_settings(workdir):
    config = default_config()
    assert config.toy.strength == 1.0
    config.toy.strength = 0.0
    with pytest.raises(UserError, match=r"--config.toy.strength=0.0 must be above 0"):
        validate(config)
    loaded, method, step = training.load_method(workdir)
    assert (loaded.toy.strength, step) == (2.0, 8)
    head = method.encoder.get_layer("direction_head")
    assert head.get_layer("hidden_1") is not None  # the head that it asked for


def test_every_suite_measures_it(workdir, tmp_path, rng):
    subject = evaluation.subject_from_run(workdir)
    np.savez(tmp_path / "noise.npz", images=rng.integers(256, size=(60, 16, 16, 3), dtype=np.uint8))
    options = evaluation.Options(
        max_images=20, num_views=2, ood_sources=(f"npz:{tmp_path / 'noise.npz'}",)
    )
    for name, suite in evaluation.SUITES.items():
        if name != "decision":  # the toy run keeps no images for a calibration
            assert suite(subject, options), name
    with pytest.raises(evaluation.NotApplicable, match="reserve"):
        evaluation.decision(subject, options)
    assert (workdir / "eval" / "sample20" / "curves" / "curves.png").is_file()
    assert {"pull", "push", "alignment", "penalty"} <= subject.metrics[0].keys()
    note = evaluation.agreement(subject, options)["note"]
    assert "kappa of a toy" in note


def test_it_is_exported(workdir, tmp_path):
    path = serving.export_model(workdir, tmp_path / "models")
    images = np.zeros((2, 16, 16, 3), np.uint8)
    outputs = serving.load(path).embed(images)
    np.testing.assert_allclose(np.linalg.norm(outputs["mean_direction"], axis=1), 1.0, rtol=1e-5)
