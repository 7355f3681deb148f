"""Runs and exports of version 0.1 keep loading, with the same numbers.

`data_of_0_1` holds what 0.1 wrote: `run` (simclr_vmf on digits, 3 epochs), `kappa` (a head fitted
to it) and `export` (its SavedModel, compressed, without the warm-up requests). `expected.npz` was
computed by 0.1 itself: `images` uint8 [8, 16, 16, 3], and their outputs.
"""

import dataclasses
import gzip
import json
import pathlib
import shutil

import numpy as np
import pytest

import tfvmf
from tfvmf import evaluation, serving, training

DATA = pathlib.Path(__file__).parent / "data_of_0_1"
OUTPUTS = ("features", "mean_direction", "concentration")


@pytest.fixture(scope="module")
def expected():
    with np.load(DATA / "expected.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A copy that tests may write to."""
    copied = tmp_path_factory.mktemp("old") / "data"
    shutil.copytree(DATA, copied)
    graph = copied / "export" / "1" / "saved_model.pb"
    graph.write_bytes(gzip.decompress(graph.with_suffix(".pb.gz").read_bytes()))
    return copied


def assert_same(outputs, expected, kind):
    for name in OUTPUTS:
        np.testing.assert_allclose(
            outputs[name], expected[f"{kind}_{name}"], rtol=1e-5, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("kind", ["run", "kappa", "export"])
def test_it_embeds_as_0_1_did(old, expected, kind):
    model = tfvmf.load(old / kind)
    outputs = model.embed(expected["images"])
    assert_same(outputs, expected, kind)
    assert model.card["image_size"] == 16
    assert model.card["dimension"] == 16
    assert model.card["step"] == {"run": 33, "kappa": 11, "export": 33}[kind]
    if kind == "export":
        np.testing.assert_allclose(outputs["confidence"], expected["export_confidence"], atol=3e-3)
        np.testing.assert_array_equal(outputs["accept"], expected["export_accept"])


def test_settings_of_a_run_are_read_by_their_new_names(old):
    config, method, step = training.load_method(str(old / "run"))
    assert step == 33
    assert method.probabilistic
    stored = json.loads((old / "run" / "config.json").read_text())["config"]
    assert config.augment.gray_probability == stored["augment"]["grey_probability"] == 0.2
    assert config.augment.flip_probability == stored["augment"]["flip"] == 0.0
    assert config.monitor.neighbors == stored["monitor"]["neighbours"]
    assert config.mc_infonce.num_samples == stored["mc_infonce"]["n_samples"]
    assert [line["step"] for line in training.read_metrics(str(old / "run"))][-1] == 33


def test_it_evaluates_as_0_1_did(old):
    subject = evaluation.subject_from_run(old / "run")
    subject = dataclasses.replace(subject, test=subject.test.subset(np.arange(100)))
    results = evaluation.probe(subject)
    # What 0.1 wrote to eval/probe/results.json for its first 100 images.
    assert results["knn_20_accuracy"] == pytest.approx(0.69, abs=0.011)
    assert results["knn_200_accuracy"] == pytest.approx(0.58, abs=0.011)
    assert results["linear_accuracy"] == pytest.approx(0.73, abs=0.021)


@pytest.mark.parametrize("kind", ["run", "kappa"])
def test_it_exports(old, expected, tmp_path, kind):
    serving.export_model(str(old / kind), str(tmp_path))
    model = tfvmf.load(str(tmp_path))
    assert model.card["tfvmf"] == tfvmf.__version__
    assert_same(model.embed(expected["images"]), expected, kind)
