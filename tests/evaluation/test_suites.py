import json

import matplotlib.image
import numpy as np
import pytest
from helpers.tfds_sets import image_features, prepare
from helpers.tiny import tiny_config
from helpers.untrained import make_run

from tfvmf import evaluation, training
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, TFDS_NAMES, corrupt
from tfvmf.errors import UserError
from tfvmf.training import run_directory


def trained(workdir, **changes):
    training.train(tiny_config(epochs=1, **changes), workdir)
    return workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def run(workdir):
    return evaluation.subject_from_run(workdir)


def test_cifar10c_writes_tables_and_pictures(run, workdir):
    results = evaluation.cifar10c(run, max_images=30)
    directory = workdir / "eval" / "sample30" / "cifar10c"
    written = json.loads((directory / "results.json").read_text())
    assert written == results
    assert list(written["spearman"]) == list(CORRUPTIONS)
    assert written["mean_spearman"] == pytest.approx(np.mean(list(written["spearman"].values())))
    clean = run.embed(run.sample(30).test)["concentration"].mean()
    assert all(len(v) == 6 and v[0] == pytest.approx(clean) for v in written["mean_score"].values())
    assert (written["images"], written["of_images"]) == (30, 400)
    assert "sample of 30 of 400 images" in (directory / "table.md").read_text()
    assert (directory / "table.csv").read_text().count("\n") == 20
    assert "-0.876" in (directory / "table.md").read_text()  # the mean of the paper's row
    for picture in ("kappa.png", "examples.png"):
        assert matplotlib.image.imread(directory / picture).std() > 0.01


def test_cifar10c_reads_files_in_the_official_layout(run, workdir, tmp_path):
    generated = evaluation.cifar10c(run, max_images=30)
    for name in CORRUPTIONS:
        levels = [corrupt(run.test.native().images(), name, level) for level in SEVERITIES]
        np.save(tmp_path / f"{name}.npy", np.concatenate(levels))
    read = evaluation.cifar10c(run, max_images=30, corrupted_dir=tmp_path)
    assert read["spearman"] == generated["spearman"]
    np.save(tmp_path / "fog.npy", np.zeros((10, 8, 8, 3), np.uint8))
    with pytest.raises(UserError, match=r"fog\.npy"):
        evaluation.cifar10c(run, corrupted_dir=str(tmp_path))


@pytest.fixture
def cifar10_run(tmp_path, rng):
    """A run on a data set that is called cifar10, with cifar10_corrupted beside it."""
    import tensorflow_datasets as tfds

    images = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    features = image_features((8, 8, 3), label=tfds.features.ClassLabel(num_classes=2))

    def examples(pictures):
        return [{"image": image, "label": i % 2} for i, image in enumerate(pictures)]

    clean = {"train": examples(images), "test": examples(images[:8])}
    prepare(tmp_path, clean, features, name="cifar10", version="3.0.2")
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            pictures = corrupt(images[:8], name, severity)
            full = f"cifar10_corrupted/{TFDS_NAMES.get(name, name)}_{severity}"
            prepare(tmp_path, {"test": examples(pictures)}, features, name=full)
    changes = {"data.source": "cifar10", "data.data_dir": str(tmp_path), "batch_size": 10}
    return trained(tmp_path / "run", **changes)


@pytest.mark.slow
def test_cifar10c_reads_tfds(cifar10_run, tmp_path):
    run = evaluation.subject_from_run(cifar10_run)
    generated = evaluation.cifar10c(run)
    from_tfds = evaluation.cifar10c(run, corruptions="tfds")
    assert from_tfds["mean_score"] == generated["mean_score"]
    assert "TFDS" in from_tfds["corruptions"]
    assert "not CIFAR-10's" not in (cifar10_run / "eval" / "cifar10c" / "table.md").read_text()
    moved = tmp_path / "cifar10_corrupted" / "fog_1"
    moved.rename(tmp_path / "fog")
    with pytest.raises(UserError, match="fog_1"):
        evaluation.cifar10c(run, corruptions="tfds")


def test_tfds_holds_cifar10_only(run):
    with pytest.raises(UserError, match="corruptions=generate"):
        evaluation.cifar10c(run, corruptions="tfds")
    with pytest.raises(UserError, match="corruptions=real"):
        evaluation.cifar10c(run, corruptions="real")


def test_other_data_say_so(run, workdir):
    evaluation.cifar10c(run, max_images=30)
    table = workdir / "eval" / "sample30" / "cifar10c" / "table.md"
    assert "not CIFAR-10's" in table.read_text()


@pytest.mark.slow
def test_along_training_measures_every_checkpoint(tmp_path):
    training.train(tiny_config(), trained(tmp_path), force_config=True)
    run = evaluation.subject_from_run(tmp_path)
    results = evaluation.along_training(run, max_images=10)
    rows = results["checkpoints"]
    directory = tmp_path / "eval" / "sample10" / "along_training"
    assert [row["step"] for row in rows] == [4, 8]
    newest = evaluation.cifar10c(run, max_images=10)
    assert rows[-1]["mean_spearman"] == pytest.approx(newest["mean_spearman"])
    assert rows[0]["mean_per_image"] != rows[1]["mean_per_image"]
    assert (directory / "table.csv").read_text().count("\n") == 3


def test_probe_beats_chance(run):
    results = evaluation.probe(run)
    assert 0.2 < results["knn_20_accuracy"] <= 1.0
    assert results["images"] == 400


def test_curves_are_drawn(run, workdir):
    results = evaluation.curves(run)
    last = [line for line in training.read_metrics(workdir) if "loss" in line][-1]
    assert results["final_loss"] == last["loss"]
    assert matplotlib.image.imread(workdir / "eval" / "curves" / "curves.png").std() > 0.01
    assert "images" not in results


def test_an_ensemble_of_seeds_is_evaluated(tmp_path, capsys):
    line = {"step": 4, "epoch": 1.0, "loss": 2.5}
    for number in range(2):
        member = make_run(run_directory.member(tmp_path, number), method="simclr")
        (member / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    config = tiny_config(method="simclr", **{"ensemble.num_members": 2, "data.image_size": 16})
    run_directory.write_or_check_config(tmp_path, config, {})
    run = evaluation.subject_from_run(tmp_path)
    found = evaluation.evaluate(run, "curves,images", max_images=10)
    assert found["curves"]["members"] == 2
    assert found["images"]["score"] == "ensemble variance"
    assert "curves: 2 members, 1 epochs" in capsys.readouterr().out
    assert "2 members, 1 epochs" in (tmp_path / "eval" / "sample10" / "report.html").read_text()
    assert (tmp_path / "eval" / "sample10" / "curves" / "curves.png").exists()


@pytest.mark.slow
def test_a_method_without_concentration_is_followed_by_its_feature_norm(tmp_path):
    run = evaluation.subject_from_run(trained(tmp_path, method="simclr"))
    results = evaluation.cifar10c(run, max_images=10)
    assert (results["score"], results["expected_sign"]) == ("feature norm", -1)
    features = run.embed(run.sample(10).test)["features"]
    assert results["mean_score"]["fog"][0] == pytest.approx(np.linalg.norm(features, axis=1).mean())
    table = (tmp_path / "eval" / "sample10" / "cifar10c" / "table.md").read_text()
    assert table.startswith("# Corruptions: simclr on digits\n\nfeature norm ")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("all", ["all"]),
        ("probe, curves", ["probe", "curves"]),
    ],
)
def test_suites_by_name(names, chosen):
    assert evaluation.check_names(names) == chosen


@pytest.mark.parametrize("names", ["imagenetc", "", ","])
def test_unknown_suites_are_named(names):
    with pytest.raises(UserError, match="cifar10c"):
        evaluation.check_names(names)


def test_a_damaged_checkpoint_is_named(tmp_path):
    trained(tmp_path)
    (data,) = (tmp_path / "checkpoints").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        evaluation.subject_from_run(tmp_path)
