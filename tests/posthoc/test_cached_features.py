"""Heads for features that were cached elsewhere: no images, no encoder."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.fitting import fit_head
from helpers.tiny import tiny_config

from tfvmf import evaluation, posthoc, serving, training
from tfvmf.errors import UserError
from tfvmf.methods import build_method
from tfvmf.posthoc import cached
from tfvmf.posthoc.cached import load_features
from tfvmf.posthoc.kappa import fit_config

GIB = 2**30


def features_file(path, *, images=40, views=4, wide=0, seed=0, **others):
    """Vectors around a direction an image, some near it and some far."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(images, 1, 6))
    spread = rng.uniform(0.1, 2.0, size=(images, 1, 1))
    arrays = {"features": centers + spread * rng.normal(size=(images, views, 6))}
    if wide:
        arrays["wide"] = centers + 3 * rng.normal(size=(images, wide, 6))
    np.savez(path, **{k: v.astype(np.float32) for k, v in arrays.items()}, **others)
    return path


def fit_features(path, workdir, **changes):
    config = tiny_config(batch_size=18)
    posthoc.fit_kappa(path, workdir, config=config, changes={"epochs": 2, **changes})
    return workdir


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    place = tmp_path_factory.mktemp("head")
    return fit_features(features_file(place / "mine.npz", wide=2), place / "run")


def test_features_are_split_by_image(tmp_path):
    path = features_file(tmp_path / "mine.npz", images=30, views=3, wide=2)
    train, test = load_features(path, memory_limit=GIB)
    assert (train.ordinary, train.wide, train.array.shape[1:]) == (3, 2, (5, 6))
    assert len(train.array) + len(test.array) == 30
    with np.load(path) as arrays:
        everything = np.concatenate([arrays["features"], arrays["wide"]], axis=1)
    joined = np.concatenate([train.array, test.array])
    np.testing.assert_array_equal(np.sort(joined[:, 0, 0]), np.sort(everything[:, 0, 0]))


def test_kappa_of_features_becomes_five_times_the_cosine(tmp_path, rng):
    path = features_file(tmp_path / "mine.npz")
    keras.utils.set_random_seed(0)  # from some weights 300 steps do not suffice
    method = build_method(fit_config(path, {"model.hidden": 64}, tiny_config()))
    with np.load(path) as arrays:
        views = [tf.constant(arrays["features"][:, view]) for view in range(2)]
    cosines, kappas = fit_head(method, views)
    for cosine, kappa in zip(cosines, kappas, strict=True):
        assert np.abs(kappa - 5 * np.maximum(cosine, 0)).mean() < 0.1
        assert np.std(cosine) > 0.05


def test_the_monitor_measures_the_error_of_held_out_images(head):
    _, method, _ = training.load_method(head)
    _, held_out = load_features(method.config.fit_kappa.model, memory_limit=GIB)
    values = cached.FeatureMonitor(method, held_out)()
    errors = []
    for vectors in held_out.array[:, :4].astype(np.float64):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        kappa = method.encoder(vectors.astype(np.float32))["concentration"].numpy()
        for view in range(4):
            others = [unit[view] @ unit[other] for other in range(4) if other != view]
            errors.append(abs(kappa[view] / 5 - np.mean(others)))
    assert values["eval_error"] == pytest.approx(np.mean(errors), abs=1e-5)
    lines = [line for line in training.read_metrics(head) if "eval_error" in line]
    assert lines[-1]["eval_error"] == pytest.approx(values["eval_error"], rel=1e-4)


def test_a_head_is_exported_and_not_evaluated(head, tmp_path):
    with pytest.raises(UserError, match="no images to measure it on"):
        evaluation.subject_from_run(head)
    with pytest.raises(UserError, match="takes features, not images"):
        serving.export_model(head, tmp_path, calibrate_on="test")
    path = serving.export_model(head, tmp_path, keras_file=True)
    features = np.random.default_rng(5).normal(size=(3, 6)).astype(np.float32)
    served = tf.saved_model.load(str(path)).signatures["serving_default"](features=features)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(served["mean_direction"], unit, rtol=1e-5)
    kappa = training.load_method(head)[1].encoder(features)["concentration"]
    np.testing.assert_allclose(served["concentration"], kappa, rtol=1e-5)
    with pytest.raises(UserError, match="takes features"):
        serving.load(path)
    with pytest.raises(UserError, match="no encoder"):
        posthoc.fit_kappa(head, tmp_path / "again")


def test_wide_features_are_used_where_they_are(head, tmp_path):
    kinds = cached.view_kinds(training.load_method(head)[1], ordinary=4, wide=2)
    assert [count for _, count in kinds] == [2, 2]
    path = features_file(tmp_path / "mine.npz")
    assert fit_config(path, {}, tiny_config()).concentration.view_kind == "augment"
    with pytest.raises(UserError, match="'wide'"):
        fit_config(path, {"concentration.view_kind": "wide"}, tiny_config())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((5, 2, 3))}, "'features'"),
        ({"features": np.ones((5, 3))}, r"\[images, views, length\]"),
        ({"features": np.ones((5, 1, 3))}, r"2 view\(s\)"),
        ({"features": np.ones((5, 2, 3), np.int32)}, "floating-point"),
        ({"features": np.array([[None]])}, "Python objects"),
        ({"features": np.zeros((5, 2, 3))}, "view 0 of image 0"),
        ({"features": np.full((5, 2, 3), np.nan)}, "not finite"),
        ({"features": np.ones((5, 2, 3)), "wide": np.ones((4, 2, 3))}, "same images"),
        ({"features": np.ones((5, 2, 3)), "wide": np.ones((5, 2, 4))}, "same length"),
    ],
)
def test_features_that_cannot_be_used_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(UserError, match=message):
        load_features(tmp_path / "mine.npz", memory_limit=GIB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fit_kappa.cache_views": 2}, "holds features already"),
        ({"model.level_layers": "a"}, "holds features already"),
        ({"concentration.levels": "all"}, "sees nothing else"),
    ],
)
def test_settings_without_effect_on_features_are_refused(tmp_path, changes, message):
    path = features_file(tmp_path / "mine.npz")
    with pytest.raises(UserError, match=message):
        fit_config(path, changes, tiny_config())


def test_a_file_that_needs_too_much_memory_is_refused(tmp_path):
    path = features_file(tmp_path / "mine.npz")
    with pytest.raises(UserError, match="memory_limit_gib"):
        load_features(path, memory_limit=100)
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"junk\.npz"):
        load_features(tmp_path / "junk.npz", memory_limit=GIB)


def test_wide_views_come_after_the_ordinary_ones(tmp_path):
    path = features_file(tmp_path / "mine.npz", wide=2)
    config = fit_config(path, {}, tiny_config())
    inputs, method = cached.feature_inputs(config), build_method(config)
    assert inputs.views(method) == [
        (cached.Draw(0, 4, 2), 2),
        (cached.Draw(4, 2, 2), 2),
    ]
