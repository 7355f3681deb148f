import json
import pathlib

import keras
import matplotlib.image
import numpy as np
import pytest
from helpers.subjects import make_subject
from helpers.tiny import tiny_config
from helpers.untrained import make_run
from PIL import Image
from sklearn.metrics import roc_auc_score

from tfvmf import evaluation, neighbors
from tfvmf.data import load_source
from tfvmf.errors import UserError
from tfvmf.evaluation import paper
from tfvmf.evaluation.scores import SCORES
from tfvmf.evaluation.suites.ood import (
    detection,
    detectors,
    file_name,
    foreign_sources,
    mahalanobis,
    short_name,
    table,
    title,
)
from tfvmf.methods import build_method
from tfvmf.training import run_directory
from tfvmf.training.checkpoints import Checkpoints

KAPPA = SCORES["kappa"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluation.subject_from_run(make_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Noise, in a file with a test split of 50 images."""
    path = tmp_path_factory.mktemp("foreign") / "noise.npz"
    rng = np.random.default_rng(7)
    images = rng.integers(0, 256, (50, 12, 12), dtype=np.uint8)
    np.savez(path, x_train=images[:2], x_test=images)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def results(run, foreign):
    return evaluation.ood(run, ood_sources=(foreign,), max_images=100)


def make_classifier(workdir):
    """An untrained run of method supervised."""
    config = tiny_config(method="supervised")
    method = build_method(config, num_classes=10)
    run_directory.write_or_check_config(workdir, config, {"num_classes": 10, "train_images": 1397})
    optimizer = keras.optimizers.SGD()
    optimizer.build(method.trainable_variables)
    Checkpoints(workdir, method, optimizer, keep=1).save()


def test_mahalanobis_by_hand(rng):
    labels = rng.integers(0, 3, 200)
    features = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) + 3.0 * labels[:, None]
    queries = 4.0 * rng.normal(size=(8, 5))
    means = [features[labels == c].mean(axis=0) for c in range(3)]
    within = np.zeros((5, 5))
    for row, label in zip(features, labels, strict=True):
        within += np.outer(row - means[label], row - means[label]) / 200
    total = np.cov(features.T, bias=True)

    def distance(x, mean, covariance):
        return (x - mean) @ np.linalg.inv(covariance) @ (x - mean)

    nearest = [min(distance(x, mean, within) for mean in means) for x in queries]
    background = [distance(x, features.mean(axis=0), total) for x in queries]
    to_all = mahalanobis(features, np.zeros(200, int))
    np.testing.assert_allclose(mahalanobis(features, labels + 4)(queries), nearest, rtol=1e-3)
    np.testing.assert_allclose(to_all(queries), background, rtol=1e-3)
    train = {"kappa": np.zeros(200), "f_ssl": features}
    found = detectors(train, labels, KAPPA)({"kappa": np.zeros(8), "f_ssl": queries})
    relative = found["f_ssl_relative_mahalanobis"]
    np.testing.assert_allclose(relative, np.subtract(nearest, background), rtol=1e-2, atol=1e-2)


def test_dead_features_do_no_harm(rng):
    labels = rng.integers(0, 2, 100)
    features = np.column_stack([rng.normal(size=(100, 3)), np.zeros(100)]).astype(np.float32)
    to_class = mahalanobis(features, labels)
    assert np.isfinite(to_class(features)).all()
    awake = features + np.array([0, 0, 0, 1], np.float32)
    assert to_class(awake).min() > to_class(features).max()


def test_metrics_of_a_case_that_can_be_counted():
    outside = np.arange(20.0)  # 19 of 20 are at 1 or above: there lies the threshold
    inside = np.array([-1.0, 0.5, 1.5, 2.5])  # and two of four above it
    measured = detection(inside, outside)
    assert measured["fpr95"] == 0.5
    pairs = np.mean([[out > own for out in outside] for own in inside])
    assert measured["auroc"] == pytest.approx(pairs)
    # Familiar images as positives, from the most familiar down: 1st, 3rd (after 0), 5th, 7th.
    assert measured["aupr_in"] == pytest.approx(np.mean([1 / 1, 2 / 3, 3 / 5, 4 / 7]))
    # Foreign ones, from the most foreign down: 17 before the first mistake, then one after each.
    precisions = [*[1.0] * 17, 18 / 19, 19 / 21, 20 / 23]
    assert measured["aupr_out"] == pytest.approx(np.mean(precisions))


def test_detectors_need_labels_only_for_gaussians(rng):
    train = {"kappa": rng.normal(size=30), "f_ssl": rng.normal(size=(30, 4))}
    train["f_res"] = rng.normal(size=(30, 2))
    sample = {name: values[:7] for name, values in train.items()}
    labeled = detectors(train, np.arange(30) % 3, KAPPA)(sample)
    assert len(labeled) == 9
    np.testing.assert_array_equal(labeled["kappa"], -sample["kappa"])
    np.testing.assert_allclose(
        labeled["f_ssl"], neighbors.distance(sample["f_ssl"], train["f_ssl"], k=5)
    )
    del train["f_res"]
    unlabeled = detectors(train, None, KAPPA)(sample)
    assert list(unlabeled) == ["kappa", "f_ssl", "f_ssl+kappa"]


def test_the_suite_measures_what_it_says(run, foreign, results):
    assert (results["in"], results["images"], results["train_images"]) == ("digits", 100, 1397)
    entry = results["out"][foreign]
    assert entry["images"] == 50
    assert list(entry["scores"]) == [
        "kappa", "f_ssl", "f_ssl+kappa", "f_ssl_mahalanobis", "f_ssl_relative_mahalanobis",
    ]  # fmt: skip
    noise = run.open(foreign)
    outside = run.embedder(noise.images())
    inside = run.embed(run.sample(100).test)
    kappa = np.concatenate([inside["concentration"], outside["concentration"]])
    is_foreign = np.repeat([0, 1], [100, 50])
    assert entry["scores"]["kappa"]["auroc"] == pytest.approx(roc_auc_score(is_foreign, -kappa))
    bank = run.embed(run.train)
    values = neighbors.Joined(bank["features"], bank["concentration"]).distance(
        np.concatenate([inside["features"], outside["features"]]), kappa, k=5
    )
    assert entry["scores"]["f_ssl+kappa"]["auroc"] == pytest.approx(
        roc_auc_score(is_foreign, values), abs=1e-3
    )
    assert results["joined_scale"]["f_ssl"] == pytest.approx(neighbors.spread(bank["features"]))
    assert entry["scores"]["f_ssl"]["auroc"] > 0.9  # noise is far from digits


def test_each_score_that_is_asked_for_is_a_detector(foreign, tmp_path):
    run = evaluation.subject_from_run(make_run(tmp_path))
    asked = {"ood_sources": (foreign,), "max_images": 100, "scores": ("feature_norm", "kappa")}
    found = evaluation.ood(run, **asked)["out"][foreign]["scores"]
    assert list(found)[:4] == ["feature_norm", "kappa", "f_ssl", "f_ssl+feature_norm"]
    inside, outside = run.embed(run.sample(100).test), run.embedder(run.open(foreign).images())
    norms = [np.linalg.norm(each["features"], axis=1) for each in (inside, outside)]
    assert found["feature_norm"]["auroc"] == pytest.approx(
        roc_auc_score(np.repeat([0, 1], [100, 50]), -np.concatenate(norms))
    )


def test_the_suite_writes_tables_and_pictures(run, foreign, results):
    directory = run.sample(100).directory_for("ood")
    assert json.loads((directory / "results.json").read_text()) == results
    text = (directory / "table.md").read_text()
    assert "| F_ssl + kappa |" in text
    assert "--supervised_workdir" in text  # how to get F_res
    assert "sample of 100 of 400 images" in text
    assert (directory / "table.csv").read_text().count("\n") == 6
    picture = directory / f"{file_name(foreign)}.png"
    assert matplotlib.image.imread(picture).std() > 0.01


def test_features_of_a_supervised_run_at_another_size(run, foreign, tmp_path):
    make_classifier(tmp_path)  # of images of 8x8, not 16x16
    supervised = evaluation.subject_from_run(tmp_path)
    measured = evaluation.ood(run, ood_sources=(foreign,), max_images=60, supervised=supervised)
    noise = supervised.open(foreign)
    parts = [supervised.sample(60).test.images(), noise.images()]
    values = neighbors.distance(
        np.concatenate([supervised.embedder(part)["features"] for part in parts]),
        supervised.embed(supervised.train)["features"],
        k=5,
    )
    scores = measured["out"][foreign]["scores"]
    assert list(scores)[:3] == ["kappa", "f_res", "f_res+kappa"]
    assert len(scores) == 9
    assert scores["f_res"]["auroc"] == pytest.approx(
        roc_auc_score(np.repeat([0, 1], [60, 50]), values), abs=1e-3
    )
    assert "f_res" not in measured
    # The other way round the supervised run is the main one: its features are F_res.
    alone = evaluation.ood(supervised, ood_sources=(foreign,), max_images=60)
    assert list(alone["out"][foreign]["scores"])[:3] == [
        "feature_norm", "f_res", "f_res+feature_norm",
    ]  # fmt: skip
    assert alone["out"][foreign]["scores"]["f_res"]["auroc"] == pytest.approx(
        scores["f_res"]["auroc"], abs=1e-3
    )


def test_other_familiar_data_say_so(run, foreign, tmp_path):
    images = np.random.default_rng(0).integers(0, 99, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, x_test=images[:20])
    own = f"npz:{tmp_path / 'own.npz'}"
    measured = evaluation.ood(run, in_source=own, ood_sources=("digits", foreign), max_images=30)
    assert "was trained on digits" in measured["note"]
    assert (measured["train_images"], measured["images"]) == (40, 20)
    assert measured["out"]["digits"]["images"] == 30
    # No labels, no classes. The familiar test images are training images, too.
    assert list(measured["out"]["digits"]["scores"]) == ["kappa", "f_ssl", "f_ssl+kappa"]
    assert measured["out"]["digits"]["scores"]["f_ssl"]["auroc"] > 0.95


def test_mistakes_are_said_in_one_line(run, foreign, tmp_path):
    with pytest.raises(evaluation.NotApplicable, match="ood_sources"):
        evaluation.ood(run)
    for same in ("digits", "tfds:digits:1.0.0"):
        with pytest.raises(UserError, match=f"ood_sources={same}"):
            evaluation.ood(run, ood_sources=(foreign, same))
    folder = pathlib.Path(foreign.removeprefix("npz:"))
    around = f"npz:{folder.parent}/../{folder.parent.name}/noise.npz"
    with pytest.raises(UserError, match="familiar set itself"):
        evaluation.ood(run, in_source=foreign, ood_sources=(around,))
    with pytest.raises(UserError, match=r"simclr_vmf.*--method=supervised"):
        evaluation.ood(run, ood_sources=(foreign,), supervised=run)
    np.savez(tmp_path / "train.npz", x_train=np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(UserError, match="no images for split 'test'"):
        evaluation.ood(run, ood_sources=(f"npz:{tmp_path / 'train.npz'}",))


def test_the_papers_table_stands_beside(results):
    assert len(paper.TABLE_2) == 6
    for row in paper.TABLE_2.values():  # joined is best everywhere, as printed
        assert row["f_res+kappa"] == max(row.values())
    entry = next(iter(results["out"].values()))
    assert entry["paper"] == {}
    beside = table({"mnist": entry | {"paper": paper.TABLE_2["cifar10", "mnist"]}}).markdown()
    row = next(line for line in beside.splitlines() if "| kappa |" in line)
    assert row.endswith("| 0.6783 |")


def test_names_for_people():
    assert title("f_res+kappa") == "F_res + kappa"
    assert title("f_ssl_relative_mahalanobis") == "F_ssl, relative Mahalanobis"
    assert title("feature_norm") == "feature norm"
    assert file_name("folder:/my/images") == "folder_my_images"


def test_a_foreign_folder_without_splits_is_taken_whole(tmp_path):
    for number in range(30):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    subject = make_subject(load=load_source)
    options = evaluation.Options(ood_sources=(f"folder:{tmp_path}", "digits"))
    found = foreign_sources(subject, options)
    assert [source.size for source in found.values()] == [30, 400]


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("cifar100", "cifar100"),
        ("npz:examples/cifar10_test_300.npz", ".../cifar10_test_300.npz"),
        ("folder:/a_name_that_alone_is_too_long/", "...e_that_alone_is_too_long/"),
    ],
)
def test_a_long_path_is_cut_between_names(spec, shown):
    assert short_name(spec) == shown
