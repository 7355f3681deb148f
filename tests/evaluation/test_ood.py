import dataclasses
import json
import pathlib

import keras
import matplotlib.image
import numpy as np
import pytest
from helpers.tiny import tiny_config
from helpers.untrained import make_run
from sklearn.metrics import roc_auc_score

from tfvmf import evaluation, training
from tfvmf.errors import UserError
from tfvmf.evaluation import ood_output, ood_scores, paper
from tfvmf.evaluation.scores import SCORES
from tfvmf.methods import build_method
from tfvmf.training import run_directory
from tfvmf.training.checkpoints import Checkpoints

KAPPA = SCORES["kappa"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluation.load(make_run(tmp_path_factory.mktemp("run")))


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
    return ood(run, out_sources=(foreign,), images=100)


def ood(run, **options):
    """The suite with other options, and all that is known of the run already."""
    other = dataclasses.replace(run, **options)
    for name in ("embedder", "train", "test", "train_embeddings"):
        other.__dict__[name] = getattr(run, name)
    return evaluation.SUITES["ood"](other)


def make_classifier(workdir):
    """An untrained run of method supervised."""
    config = tiny_config(method="supervised")
    method = build_method(config, num_classes=10)
    run_directory.claim(workdir, config, {"num_classes": 10, "train_images": 1397})
    optimizer = keras.optimizers.SGD()
    optimizer.build(method.trainable_variables)
    Checkpoints(workdir, method, optimizer, keep=1).save()


def cosine_distance(a, b):
    return 1.0 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_the_distance_is_the_mean_to_the_five_nearest(rng):
    bank, queries = rng.normal(size=(40, 6)), rng.normal(size=(9, 6))
    expected = [
        np.mean(sorted(cosine_distance(query, row) for row in bank)[:5]) for query in queries
    ]
    np.testing.assert_allclose(ood_scores.neighbor_distance(queries, bank), expected, rtol=1e-4)


@pytest.fixture
def joined_case(rng):
    return (
        rng.normal(size=(60, 6)),
        rng.normal(size=60),
        rng.normal(size=(9, 6)),
        rng.normal(size=9),
    )


def test_the_joined_distance_by_hand(joined_case):
    bank, bank_kappa, queries, kappa = joined_case
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    scale = np.sqrt(unit.var(axis=0).mean())
    rows = np.column_stack([unit, scale * (bank_kappa - bank_kappa.mean()) / bank_kappa.std()])
    expected = []
    for query, value in zip(queries, kappa, strict=True):
        extra = scale * (value - bank_kappa.mean()) / bank_kappa.std()
        point = np.append(query / np.linalg.norm(query), extra)
        expected.append(np.sort(0.5 * ((rows - point) ** 2).sum(axis=1))[:5].mean())
    joined = ood_scores.Joined(bank, bank_kappa)
    np.testing.assert_allclose(joined.distance(queries, kappa), expected, rtol=1e-4)
    # One more feature among the others: it spreads as they do on average.
    assert rows[:, -1].std() == pytest.approx(np.sqrt((rows[:, :-1].std(axis=0) ** 2).mean()))
    assert joined.scale == pytest.approx(scale) == pytest.approx(ood_scores.spread(bank))


def test_the_joined_distance_knows_no_units(joined_case):
    bank, bank_kappa, queries, kappa = joined_case
    expected = ood_scores.Joined(bank, bank_kappa).distance(queries, kappa)
    changed = ood_scores.Joined(300 * bank, 7 - 50 * bank_kappa)
    np.testing.assert_allclose(
        changed.distance(0.01 * queries, 7 - 50 * kappa), expected, rtol=1e-3
    )


def test_a_score_without_an_opinion_adds_nothing(joined_case):
    bank, _, queries, kappa = joined_case
    np.testing.assert_allclose(
        ood_scores.Joined(bank, np.ones(60)).distance(queries, kappa),
        ood_scores.neighbor_distance(queries, bank),
        rtol=1e-5,
    )


def test_a_strange_score_makes_a_familiar_image_strange(joined_case):
    bank, bank_kappa, _, _ = joined_case
    joined = ood_scores.Joined(bank, bank_kappa)
    assert (joined.distance(bank, bank_kappa - 20) > joined.distance(bank, bank_kappa) + 1).all()


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
    gaussians = ood_scores.Gaussians(features, labels + 4)
    np.testing.assert_allclose(gaussians.to_class(queries), nearest, rtol=1e-3)
    np.testing.assert_allclose(gaussians.to_all(queries), background, rtol=1e-3)
    np.testing.assert_allclose(
        gaussians.relative(queries), np.subtract(nearest, background), rtol=1e-2, atol=1e-2
    )


def test_dead_features_do_no_harm(rng):
    labels = rng.integers(0, 2, 100)
    features = np.column_stack([rng.normal(size=(100, 3)), np.zeros(100)]).astype(np.float32)
    gaussians = ood_scores.Gaussians(features, labels)
    assert np.isfinite(gaussians.to_class(features)).all()
    awake = features + np.array([0, 0, 0, 1], np.float32)
    assert gaussians.to_class(awake).min() > gaussians.to_class(features).max()


def test_metrics_of_a_case_that_can_be_counted():
    outside = np.arange(20.0)  # 19 of 20 are at 1 or above: there lies the threshold
    inside = np.array([-1.0, 0.5, 1.5, 2.5])  # and two of four above it
    measured = ood_scores.detection(inside, outside)
    assert measured["fpr95"] == 0.5
    pairs = np.mean([[out > own for out in outside] for own in inside])
    assert measured["auroc"] == pytest.approx(pairs)
    # Familiar images as positives, from the most familiar down: 1st, 3rd (after 0), 5th, 7th.
    assert measured["aupr_in"] == pytest.approx(np.mean([1 / 1, 2 / 3, 3 / 5, 4 / 7]))
    # Foreign ones, from the most foreign down: 17 before the first mistake, then one after each.
    precisions = [*[1.0] * 17, 18 / 19, 19 / 21, 20 / 23]
    assert measured["aupr_out"] == pytest.approx(np.mean(precisions))


def test_detectors_need_labels_only_for_gaussians(rng):
    train = {"score": rng.normal(size=30), "f_ssl": rng.normal(size=(30, 4))}
    unlabeled = ood_scores.detectors(train, None, KAPPA)
    assert list(unlabeled) == ["kappa", "f_ssl", "f_ssl+kappa"]
    labeled = ood_scores.detectors(
        train | {"f_res": rng.normal(size=(30, 2))}, np.arange(30) % 3, KAPPA
    )
    assert len(labeled) == 9
    sample = {name: values[:7] for name, values in train.items()}
    np.testing.assert_array_equal(labeled["kappa"](sample), -sample["score"])
    np.testing.assert_allclose(
        labeled["f_ssl"](sample), ood_scores.neighbor_distance(sample["f_ssl"], train["f_ssl"])
    )


def test_the_suite_measures_what_it_says(run, foreign, results):
    assert (results["in"], results["images"], results["train_images"]) == ("digits", 100, 1397)
    entry = results["out"][foreign]
    assert entry["images"] == 50
    assert list(entry["scores"]) == [
        "kappa", "f_ssl", "f_ssl+kappa", "f_ssl_mahalanobis", "f_ssl_relative_mahalanobis",
    ]  # fmt: skip
    noise = training.load_source(run.config, foreign, "test")
    outside = run.embedder(noise.images())
    inside = run.embedder(run.test.images(0, 100))
    kappa = np.concatenate([inside["concentration"], outside["concentration"]])
    is_foreign = np.repeat([0, 1], [100, 50])
    assert entry["scores"]["kappa"]["auroc"] == pytest.approx(roc_auc_score(is_foreign, -kappa))
    bank = run.train_embeddings
    values = ood_scores.Joined(bank["features"], bank["concentration"]).distance(
        np.concatenate([inside["features"], outside["features"]]), kappa
    )
    assert entry["scores"]["f_ssl+kappa"]["auroc"] == pytest.approx(
        roc_auc_score(is_foreign, values), abs=1e-3
    )
    assert results["joined_scale"]["f_ssl"] == pytest.approx(ood_scores.spread(bank["features"]))
    assert entry["scores"]["f_ssl"]["auroc"] > 0.9  # noise is far from digits


def test_the_suite_writes_tables_and_pictures(run, foreign, results):
    directory = run.directory("ood")
    assert json.loads((directory / "results.json").read_text()) == results
    table = (directory / "table.md").read_text()
    assert "| F_ssl + kappa |" in table
    assert "--supervised_workdir" in table  # how to get F_res
    assert (directory / "table.csv").read_text().count("\n") == 6
    picture = directory / f"{ood_output.file_name(foreign)}.png"
    assert matplotlib.image.imread(picture).std() > 0.01


def test_features_of_a_supervised_run_at_another_size(run, foreign, tmp_path):
    make_classifier(tmp_path)  # of images of 8x8, not 16x16
    measured = ood(run, out_sources=(foreign,), images=60, supervised_workdir=str(tmp_path))
    supervised = evaluation.load(tmp_path)
    noise = training.load_source(supervised.config, foreign, "test")
    parts = [supervised.test.images(0, 60), noise.images()]
    values = ood_scores.neighbor_distance(
        np.concatenate([supervised.embedder(part)["features"] for part in parts]),
        supervised.train_embeddings["features"],
    )
    scores = measured["out"][foreign]["scores"]
    assert list(scores)[:3] == ["kappa", "f_res", "f_res+kappa"]
    assert len(scores) == 9
    assert scores["f_res"]["auroc"] == pytest.approx(
        roc_auc_score(np.repeat([0, 1], [60, 50]), values), abs=1e-3
    )
    assert "f_res" not in measured
    # The other way round the supervised run is the main one: its features are F_res.
    alone = ood(supervised, out_sources=(foreign,), images=60)
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
    measured = ood(run, in_source=own, out_sources=("digits", foreign), images=30)
    assert "was trained on digits" in measured["note"]
    assert (measured["train_images"], measured["images"]) == (40, 20)
    assert measured["out"]["digits"]["images"] == 30
    # No labels, no classes. The familiar test images are training images, too.
    assert list(measured["out"]["digits"]["scores"]) == ["kappa", "f_ssl", "f_ssl+kappa"]
    assert measured["out"]["digits"]["scores"]["f_ssl"]["auroc"] > 0.95


def test_mistakes_are_said_in_one_line(run, foreign, tmp_path):
    with pytest.raises(evaluation.NotApplicable, match="--out"):
        ood(run)
    for same in ("digits", "tfds:digits:1.0.0"):
        with pytest.raises(UserError, match=f"--out={same}"):
            ood(run, out_sources=(foreign, same))
    folder = pathlib.Path(foreign.removeprefix("npz:"))
    around = f"npz:{folder.parent}/../{folder.parent.name}/noise.npz"
    with pytest.raises(UserError, match="familiar set itself"):
        ood(run, in_source=foreign, out_sources=(around,))
    with pytest.raises(UserError, match=r"--supervised_workdir=.*nosuch"):
        ood(run, out_sources=(foreign,), supervised_workdir=str(tmp_path / "nosuch"))
    with pytest.raises(UserError, match=r"simclr_vmf.*--method=supervised"):
        ood(run, out_sources=(foreign,), supervised_workdir=str(run.workdir))
    np.savez(tmp_path / "train.npz", x_train=np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(UserError, match="no images for split 'test'"):
        ood(run, out_sources=(f"npz:{tmp_path / 'train.npz'}",))


def test_the_papers_table_stands_beside(results):
    assert len(paper.TABLE_2) == 6
    for row in paper.TABLE_2.values():  # joined is best everywhere, as printed
        assert row["f_res+kappa"] == max(row.values())
    entry = next(iter(results["out"].values()))
    assert entry["paper"] == {}
    beside = results | {"out": {"mnist": entry | {"paper": paper.TABLE_2["cifar10", "mnist"]}}}
    table = ood_output.table_markdown(beside)
    row = next(line for line in table.splitlines() if line.startswith("| kappa |"))
    assert row.endswith("| 0.6783 |")


def test_names_for_people():
    assert ood_output.title("f_res+kappa") == "F_res + kappa"
    assert ood_output.title("f_ssl_relative_mahalanobis") == "F_ssl, relative Mahalanobis"
    assert ood_output.title("feature_norm") == "feature norm"
    assert ood_output.file_name("folder:/my/images") == "folder_my_images"
