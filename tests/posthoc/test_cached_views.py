"""Heads that are trained on views which were embedded once."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers.states import assert_equal_weights, weights
from helpers.subjects import embeddings
from helpers.tiny import tiny_config
from helpers.untrained import make_run

from tfvmf import evaluation, posthoc, training
from tfvmf.counter_random import example_seeds
from tfvmf.methods import build_method
from tfvmf.posthoc import cached
from tfvmf.posthoc.kappa import fit_config
from tfvmf.training import loop

QUICK = {
    "monitor.every_epochs": 0.0,
    "concentration.view_kind": "wide",
    "concentration.levels": "all",
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    small = {"data.image_size": 8, "model.width": 2}
    return make_run(tmp_path_factory.mktemp("runs") / "encoder", **small)


@pytest.fixture(scope="module")
def cached_run(tmp_path_factory, encoder):
    workdir = tmp_path_factory.mktemp("cached")
    changes = {"fit_kappa.cache_views": 3, "epochs": 3, **QUICK}
    posthoc.fit_kappa(encoder, workdir, changes=changes)
    return workdir


@pytest.mark.parametrize("views", [2, 3, 5])
def test_two_drawn_views_are_never_the_same(views):
    count = 600
    vectors = np.tile(np.arange(7, dtype=np.float32)[None, :, None], (2 * count, 1, 1))
    positions = tf.range(count)
    seeds = tf.concat([example_seeds(0, 1, positions, view) for view in range(2)], axis=0)
    drawn = cached.Draw(1, views, 2)(vectors, seeds).numpy()[:, 0].reshape(2, count)
    assert (drawn[0] != drawn[1]).all()
    for row in drawn:  # each as often
        found, times = np.unique(row, return_counts=True)
        np.testing.assert_array_equal(found, 1 + np.arange(views))
        assert np.abs(times / count - 1 / views).max() < 0.08
    assert len({tuple(pair) for pair in drawn.T}) == views * (views - 1)


def test_a_drawn_view_is_one_of_its_own_image(rng):
    vectors = rng.normal(size=(9, 4, 5)).astype(np.float32)
    drawn = cached.Draw(2, 2, 1)(vectors, example_seeds(0, 0, tf.range(9), 0)).numpy()
    for image, vector in zip(vectors, drawn, strict=True):
        assert any((vector == view).all() for view in image[2:])


def test_cached_vectors_are_what_the_encoder_says_of_the_views(encoder):
    config = fit_config(encoder, {"fit_kappa.cache_views": 2, **QUICK})
    method, source = build_method(config), training.load_source(config, "digits", "test")
    vectors = cached.embed_views(method, source, 2, 1).array
    assert vectors.shape == (400, 4, method.cached_size)
    rows = np.array([0, 7, 399])
    augmentation = training.augmentation_from_config(config)
    views = augmentation(source.take(rows), example_seeds(config.seed, 0, rows, 1))
    expected = method.encoder(views, training=False)
    parts = method.frozen_outputs(tf.constant(vectors[rows, 1]))
    np.testing.assert_allclose(
        parts["mean_direction"], expected["mean_direction"], rtol=1e-3, atol=1e-4
    )
    kappa = method.encoder.get_layer("concentration_head")(parts["head_inputs"], training=False)
    np.testing.assert_allclose(kappa, expected["concentration"], rtol=1e-3)
    # Wide views are other views: damaged.
    assert np.abs(vectors[:, 3] - vectors[:, 1]).max() > 0.1
    # The first column is the image itself.
    whole = method.encoder(source.take(rows) / np.float32(255), training=False)["mean_direction"]
    direction = method.frozen_outputs(tf.constant(vectors[rows, 0]))["mean_direction"]
    np.testing.assert_allclose(direction, whole, rtol=1e-3, atol=1e-4)


def test_the_loss_on_vectors_is_that_on_images(encoder, rng):
    method, cached_method = (
        build_method(fit_config(encoder, {"fit_kappa.cache_views": count, **QUICK}))
        for count in (0, 2)
    )
    cached_method.encoder.set_weights(method.encoder.get_weights())
    views = [tf.constant(rng.uniform(size=(6, 8, 8, 3)), tf.float32) for _ in range(5)]
    on_images = method.loss(views)
    on_vectors = cached_method.loss([cached_method.to_cache(view) for view in views])
    for name, value in on_images.items():
        np.testing.assert_allclose(on_vectors[name], value, rtol=1e-4, atol=1e-6)


def test_only_kappa_changes(encoder, cached_run):
    run = evaluation.subject_from_run(cached_run)
    before, after = embeddings(encoder, 20), embeddings(cached_run, 20)
    for name in ("features", "mean_direction"):
        np.testing.assert_array_equal(after[name], before[name])
    assert np.abs(after["concentration"] - before["concentration"]).max() > 1e-3
    assert run.settings["fit_kappa.cache_views"] == 3


@pytest.mark.slow
def test_a_stopped_fit_continues_bit_for_bit(encoder, cached_run, tmp_path, monkeypatch):
    changes = {"fit_kappa.cache_views": 3, "epochs": 3, **QUICK}
    make, steps = loop.make_train_step, []

    def stopping(*arguments, **options):
        step = make(*arguments, **options)

        def counted(iterator):
            steps.append(1)
            if len(steps) == 6:  # in the middle of an epoch
                os.kill(os.getpid(), signal.SIGTERM)
            return step(iterator)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(loop, "make_train_step", stopping)
        with pytest.raises(training.Interrupted, match="after step 6"):
            posthoc.fit_kappa(encoder, tmp_path, changes=changes)
    posthoc.fit_kappa(encoder, tmp_path, changes=changes)
    assert_equal_weights(weights(tmp_path), weights(cached_run), rtol=0, atol=0)


TWO_DEVICES = """
import json, sys
from helpers.tiny import tiny_config
from tfvmf import posthoc

config = tiny_config(strategy="mirrored")
posthoc.fit_kappa(*sys.argv[1:3], config=config, changes=json.loads(sys.argv[3]), logical_devices=2)
"""


def test_two_logical_devices_fit_what_one_does(keras_file, tmp_path):
    # In a process of its own: TensorFlow splits the processor before its first operation only.
    changes = {
        "model.feature_layer": "avg",
        "model.input_range": "0..255",
        "fit_kappa.cache_views": 2,
        "concentration.view_kind": "augment",
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 0.1,
        "batch_size": 348,
        "epochs": 1,
        "monitor.every_epochs": 0.0,
    }
    arguments = [keras_file, tmp_path / "two", json.dumps(changes)]
    result = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "2 replica(s)" in result.stdout
    posthoc.fit_kappa(keras_file, tmp_path / "one", config=tiny_config(), changes=changes)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert_equal_weights(one, two, rtol=1e-5, atol=1e-5)


def test_views_on_disk_train_what_those_in_memory_do(encoder, cached_run, tmp_path, monkeypatch):
    changes = {"fit_kappa.cache_views": 3, "epochs": 3, "data.memory_limit_gib": 0.001, **QUICK}
    kinds = []
    reader = cached.CachedViews.reader
    monkeypatch.setattr(
        cached.CachedViews, "reader", lambda self: kinds.append(type(self.array)) or reader(self)
    )
    # A second fit embeds nothing.
    monkeypatch.setattr(cached.FitKappa, "to_cache", lambda *_: pytest.fail("embedded again"))
    posthoc.fit_kappa(encoder, tmp_path / "run", changes=changes)
    assert kinds == [np.memmap]
    assert_equal_weights(weights(tmp_path / "run"), weights(cached_run), rtol=0, atol=0)


def test_other_views_are_embedded_anew(encoder, tmp_path, monkeypatch):
    counts = []
    to_cache = cached.FitKappa.to_cache
    monkeypatch.setattr(cached.FitKappa, "to_cache", lambda *_: counts.append(1) or to_cache(*_))
    for number, changes in enumerate(
        [{}, {"optimizer.learning_rate": 2e-3}, {"augment.hue": 0.05}]
    ):
        counts.clear()
        given = {"epochs": 1, "fit_kappa.cache_views": 2, "seed": 5, **QUICK, **changes}
        posthoc.fit_kappa(encoder, tmp_path / str(number), changes=given)
        assert bool(counts) == (number != 1)
