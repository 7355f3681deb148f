"""The probe that a run keeps: its temperature, its outputs in a graph, its file."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tfvmf import posthoc
from tfvmf.errors import UserError
from tfvmf.posthoc.probe import fit_linear

NAMES = ("bird", "cat", "frog")


def draw(rng, count):
    """Features [N, 5] of three classes that overlap, and labels 2, 5 and 7."""
    places = rng.integers(0, 3, count)
    features = rng.normal(size=(count, 5)).astype(np.float32)
    features[np.arange(count), places] += 1.5
    return features, np.array([2, 5, 7])[places]


@pytest.fixture
def probe(rng):
    return dataclasses.replace(
        fit_linear(*draw(rng, 500)), names=NAMES, step=7, source="500 images of animals (train)"
    )


def test_the_temperature_is_that_of_least_cross_entropy_and_mends_what_is_too_sure(probe, rng):
    loud = dataclasses.replace(probe, weights=4 * probe.weights, bias=4 * probe.bias)
    features, labels = draw(rng, 2000)
    found = loud.calibrate(features, labels, "animals (train)")
    assert found.calibration == "2,000 images of animals (train)"

    def entropy(temperature):
        chosen = dataclasses.replace(loud, temperature=temperature).probabilities(features)
        return -np.log(chosen[np.arange(2000), np.searchsorted(loud.classes, labels)]).mean()

    grid = np.linspace(2, 7, 51)
    best = grid[np.argmin([entropy(value) for value in grid])]
    assert found.temperature == pytest.approx(best, abs=0.11)
    fresh, truth = draw(rng, 5000)
    sure = found.probabilities(fresh).max(axis=1).mean()
    right = (found.predict(fresh) == truth).mean()
    assert sure == pytest.approx(right, abs=0.03)
    assert loud.probabilities(fresh).max(axis=1).mean() > right + 0.05


def test_classes_that_it_does_not_know_do_not_count_and_a_few_images_are_none(probe, rng):
    features, labels = draw(rng, 100)
    stranger = np.full(50, 9)
    mixed = probe.calibrate(np.r_[features, features[:50]], np.r_[labels, stranger], "x")
    assert mixed.temperature == pytest.approx(probe.calibrate(features, labels, "x").temperature)
    assert probe.calibrate(features[:19], labels[:19], "x") is probe
    assert probe.calibration == ""


def test_a_graph_gives_names_and_probabilities(probe, rng):
    probe = dataclasses.replace(probe, temperature=1.7)
    features, _ = draw(rng, 50)
    outputs = tf.function(probe)(tf.constant(features))
    names = dict(zip(probe.classes, NAMES, strict=True))
    expected = [names[label].encode() for label in probe.predict(features)]
    assert outputs["class"].numpy().tolist() == expected
    np.testing.assert_allclose(
        outputs["class_probability"], probe.probabilities(features).max(axis=1), rtol=1e-5
    )
    assert len(probe(tf.zeros([0, 5]))["class"]) == 0


def test_a_run_directory_keeps_it(probe, tmp_path):
    assert posthoc.load_probe(tmp_path) is None
    probe.save(tmp_path)
    again = posthoc.load_probe(tmp_path, step=7)
    for name in ("weights", "bias", "classes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(probe, name))
    assert again.describe() == probe.describe()
    assert again.describe()["names"] == list(NAMES)
    assert posthoc.load_probe(tmp_path, step=8) is None
    assert [path.name for path in tmp_path.iterdir()] == ["probe.npz"]


def test_what_is_missing_is_said_with_the_command(probe, tmp_path):
    with pytest.raises(UserError, match=r"has no probe: run `tfvmf evaluate .* --suite=probe`"):
        posthoc.require_probe(tmp_path, step=7)
    probe.save(tmp_path)
    assert posthoc.require_probe(tmp_path, step=7).step == 7
    with pytest.raises(UserError, match=r"is of step 7, not of step 9.*--checkpoint=step-9"):
        posthoc.require_probe(tmp_path, step=9)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": np.full((5, 3), np.nan, np.float32)},
        {"weights": np.zeros((5, 4), np.float32)},
        {"bias": np.array([1, 2], np.float32)},
        {"classes": np.array(["a", "b", "c"])},
        {"names": ["one"]},
        {"temperature": 0.0},
        {"temperature": np.array([1.0, 2.0])},
        {"step": "seven"},
    ],
)
def test_a_damaged_file_is_one_line(probe, tmp_path, change):
    dataclasses.replace(probe, **change).save(tmp_path)
    with pytest.raises(UserError, match=r"probe\.npz was not written by tfvmf, or is damaged") as e:
        posthoc.load_probe(tmp_path)
    assert "\n" not in str(e.value)


def test_a_cut_or_pickled_file_is_one_line(probe, tmp_path):
    probe.save(tmp_path)
    path = tmp_path / "probe.npz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PK\3\4" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            posthoc.load_probe(tmp_path)
    np.savez(path, weights=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match="damaged"):
        posthoc.load_probe(tmp_path)
