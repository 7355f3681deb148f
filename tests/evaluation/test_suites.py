import json

import matplotlib.image
import numpy as np
import pytest

from tfvmf import evaluation, training
from tfvmf.config import default_config
from tfvmf.data.corruptions import CORRUPTIONS
from tfvmf.data.corruptions.cache import write_cache
from tfvmf.errors import UserError


def trained(workdir, **changes):
    config = default_config()
    config.epochs = 1
    config.batch_size = 349
    config.data.image_size = 8
    config.model.width = 2
    config.model.dimension = 8
    config.model.hidden = 8
    config.update_from_flattened_dict(changes)
    training.train(config, workdir)
    return workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def run(workdir):
    return evaluation.load(workdir, images=30)


def test_cifar10c_writes_tables_and_pictures(run, workdir):
    results = evaluation.SUITES["cifar10c"](run)
    directory = workdir / "eval" / "cifar10c"
    written = json.loads((directory / "results.json").read_text())
    assert written == results
    assert list(written["spearman"]) == list(CORRUPTIONS)
    assert written["mean_spearman"] == pytest.approx(np.mean(list(written["spearman"].values())))
    clean = run.embedder(run.test.images(0, 30))["concentration"].mean()
    assert all(len(v) == 6 and v[0] == pytest.approx(clean) for v in written["kappa"].values())
    assert (directory / "table.csv").read_text().count("\n") == 19
    assert "-0.876" in (directory / "table.md").read_text()  # the mean of the paper's row
    for picture in ("kappa.png", "examples.png"):
        assert matplotlib.image.imread(directory / picture).std() > 0.01


def test_cifar10c_reads_files_in_the_official_layout(run, workdir, tmp_path):
    generated = evaluation.SUITES["cifar10c"](run)
    write_cache(tmp_path, run.test.images(), run.test.labels)
    read = evaluation.SUITES["cifar10c"](
        evaluation.load(workdir, images=30, corrupted_dir=str(tmp_path))
    )
    assert read["spearman"] == generated["spearman"]
    np.save(tmp_path / "fog.npy", np.zeros((10, 8, 8, 3), np.uint8))
    with pytest.raises(UserError, match=r"fog\.npy"):
        evaluation.SUITES["cifar10c"](evaluation.load(workdir, corrupted_dir=str(tmp_path)))


def test_probe_beats_chance(run):
    results = evaluation.SUITES["probe"](evaluation.load(run.workdir))
    assert 0.2 < results["knn_20_accuracy"] <= 1.0
    assert results["images"] == 400


def test_curves_are_drawn(run, workdir):
    results = evaluation.SUITES["curves"](run)
    last = [line for line in training.read_metrics(workdir) if "loss" in line][-1]
    assert results["final_loss"] == last["loss"]
    assert matplotlib.image.imread(workdir / "eval" / "curves" / "curves.png").std() > 0.01


def test_a_method_without_concentration_is_refused_by_cifar10c(tmp_path):
    run = evaluation.load(trained(tmp_path, method="simclr"))
    with pytest.raises(UserError, match="no concentration"):
        evaluation.SUITES["cifar10c"](run)


@pytest.mark.parametrize(
    ("names", "chosen"), [("all", list(evaluation.SUITES)), ("probe, curves", ["probe", "curves"])]
)
def test_suites_by_name(names, chosen):
    assert evaluation.suites_by_name(names) == chosen


@pytest.mark.parametrize("names", ["imagenetc", "", ","])
def test_unknown_suites_are_named(names):
    with pytest.raises(UserError, match="cifar10c"):
        evaluation.suites_by_name(names)
