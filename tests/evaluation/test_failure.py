import itertools
import json

import matplotlib.image
import numpy as np
import pytest
import scipy.stats
from helpers.untrained import make_run
from sklearn.metrics import roc_auc_score

from tfvmf import evaluation
from tfvmf.evaluation import Options, paper
from tfvmf.evaluation.scores import SCORES
from tfvmf.evaluation.suites.failure import (
    AREAS,
    augrc,
    compare,
    crop,
    crop_test,
    detect,
    risk_coverage,
    verdict,
)
from tfvmf.evaluation.suites.probe import linear_probe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluation.subject_from_run(make_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def results(run):
    return evaluation.failure(run)


def area_by_hand(uncertainty, wrong):
    """The mean over i of the error rate of the i most certain, ties in the given order."""
    kept = wrong[np.argsort(uncertainty, kind="stable")]
    return np.mean([kept[:i].mean() for i in range(1, len(kept) + 1)])


def test_aurc_is_the_mean_of_the_selective_risks(rng):
    uncertainty, wrong = rng.normal(size=50), rng.random(50) < 0.3
    curve = risk_coverage(uncertainty, wrong)
    assert (
        detect(uncertainty, wrong)["aurc"]
        == curve.mean()
        == pytest.approx(area_by_hand(uncertainty, wrong))
    )
    assert curve[-1] == pytest.approx(wrong.mean())


def test_aurc_with_ties_is_the_mean_over_their_orders():
    uncertainty = np.array([1.0, 2.0, 2.0, 2.0, 3.0])
    wrong = np.array([False, True, False, False, True])
    areas = []
    for order in itertools.permutations([1, 2, 3]):
        rows = [0, *order, 4]
        areas.append(area_by_hand(uncertainty[rows], wrong[rows]))
    assert detect(uncertainty, wrong)["aurc"] == pytest.approx(np.mean(areas))
    constant = risk_coverage(np.ones(5), wrong)
    np.testing.assert_allclose(constant, 0.4)


def test_no_order_beats_the_oracle():
    wrong = np.array([True, False, True, False, False, True])
    areas = [
        area_by_hand(np.array(order), wrong) for order in itertools.permutations(range(len(wrong)))
    ]
    detected = detect(np.arange(6.0), wrong)
    assert detected["oracle_aurc"] == pytest.approx(min(areas))
    assert detected["excess_aurc"] == pytest.approx(area_by_hand(np.arange(6), wrong) - min(areas))
    assert detect(wrong.astype(float), wrong)["excess_aurc"] == 0.0


def test_augrc_has_a_closed_form(rng):
    """(1 - AUROC) accuracy error + error^2 / 2, of which AUROC is scikit-learn's."""
    for uncertainty in (rng.normal(size=200), rng.integers(0, 4, 200)):  # without ties, and with
        wrong = rng.random(200) < 0.3
        error = wrong.mean()
        expected = (1 - roc_auc_score(wrong, uncertainty)) * error * (1 - error) + error**2 / 2
        assert detect(uncertainty, wrong)["augrc"] == pytest.approx(expected)
    # By hand, as the area of trapezoids: of four images the surest one is wrong.
    assert augrc(risk_coverage(np.arange(4.0), np.arange(4) < 1)) == pytest.approx(0.25 * 3.5 / 4)
    assert detect(wrong.astype(float), wrong)["augrc"] == pytest.approx(wrong.mean() ** 2 / 2)


def test_the_verdict_says_what_was_found(results):
    def said(**changes):
        return verdict(results | {"wrong": 50, "correct": 350} | changes)

    assert "kappa is lower where the probe errs" in said(p=1e-9, auroc=0.8)
    assert "kappa misleads" in said(p=1 - 1e-9, auroc=0.2)
    assert "does not tell errors" in said(p=0.4, auroc=0.51)
    assert "only 6 errors: too few" in said(wrong=6, p=1e-9, auroc=0.9)
    variance = said(score="ensemble variance", expected_sign=1, p=1e-9, auroc=0.8)
    assert "ensemble variance is higher where the probe errs" in variance


def test_every_round_is_scipys_test_of_two_draws(rng):
    values, wrong = rng.normal(size=600), rng.random(600) < 0.4
    values[wrong] -= 0.5
    compared = compare(values, wrong, seed=3)
    assert "note" not in compared
    assert (compared["correct"], compared["wrong"]) == ((~wrong).sum(), wrong.sum())
    again = np.random.default_rng(3)
    correct_draws = again.choice(values[~wrong], (50, 100))
    wrong_draws = again.choice(values[wrong], (50, 100))
    p = [
        scipy.stats.mannwhitneyu(a, b, alternative="greater").pvalue
        for a, b in zip(correct_draws, wrong_draws, strict=True)
    ]
    assert compared["smallest_p"] == pytest.approx(min(p))
    assert compared["median_p"] == pytest.approx(np.median(p))
    assert compared["largest_p"] == pytest.approx(max(p))
    every = scipy.stats.mannwhitneyu(values[~wrong], values[wrong], alternative="greater").pvalue
    assert compared["p"] == pytest.approx(every)


def test_p_knows_a_difference_from_none(rng):
    values, wrong = rng.normal(size=5000), np.arange(5000) < 1500
    assert compare(values, wrong)["largest_p"] > 0.5
    assert compare(values - 2.0 * wrong, wrong)["largest_p"] < 1e-6
    # The other way round is no success, and plus is right for an uncertainty.
    assert compare(values + 2.0 * wrong, wrong)["smallest_p"] > 0.999
    assert compare(values + 2.0 * wrong, wrong, sign=1)["largest_p"] < 1e-6
    assert compare(np.ones(5000), wrong)["smallest_p"] == 1.0  # a score without an opinion


def test_few_errors_and_none_are_said_in_one_line(rng):
    values = rng.normal(size=300)
    few = compare(values, np.arange(300) < 7)
    assert "7 wrong" in few["note"]
    assert 0.0 <= few["smallest_p"] <= few["largest_p"] <= 1.0
    none = compare(values, np.zeros(300, bool))
    assert none["note"] == "no prediction is wrong: there is nothing to compare"
    assert none["smallest_p"] is none["mean_wrong"] is None
    detected = detect(values, np.zeros(300, bool))
    assert (detected["auroc"], detected["aurc"]) == (None, 0.0)


def test_the_suite_measures_what_it_says(run, results):
    embeddings, labels = run.embed(run.test), run.test.labels
    features, kappa = embeddings["features"], embeddings["concentration"]
    wrong = linear_probe(run).predict(features) != labels
    assert (results["score"], results["images"]) == ("kappa", 400)
    assert results["wrong"] == wrong.sum() > 0
    assert results["auroc"] == pytest.approx(roc_auc_score(wrong, -kappa))
    surest = linear_probe(run).probabilities(features).max(axis=1)
    assert results["softmax"]["auroc"] == pytest.approx(roc_auc_score(wrong, -surest))
    assert results["mean_wrong"] == pytest.approx(kappa[wrong].mean(), rel=1e-5)
    bank = run.embed(run.train)["features"]
    cosines = (features / np.linalg.norm(features, axis=1, keepdims=True)) @ (
        bank / np.linalg.norm(bank, axis=1, keepdims=True)
    ).T
    same = run.train.labels[cosines.argmax(axis=1)] == labels
    assert results["nearest_accuracy"] == pytest.approx(same.mean(), abs=0.005)
    assert results["r_auroc"] == pytest.approx(roc_auc_score(same, kappa), abs=0.01)


def test_the_suite_writes_a_table_and_a_picture(run, results):
    directory = run.directory_for("failure")
    assert json.loads((directory / "results.json").read_text()) == results
    table = (directory / "table.md").read_text()
    assert "6.42e-20" in table
    assert "1.15e-06" in table
    assert f"| {results['smallest_p']:.2e} |" in table
    few = [line for line in table.splitlines() if "p is too small" in line]
    assert len(few) == (3 if results["wrong"] < 100 else 0)  # at every p of these draws
    assert matplotlib.image.imread(directory / "failure.png").std() > 0.01
    assert results["paper"] == paper.FAILURE


def test_a_run_without_errors_goes_on(run, monkeypatch):
    truth = np.eye(10)[run.sample(20).test.labels]
    monkeypatch.setattr(type(linear_probe(run)), "probabilities", lambda self, features: truth)
    results = evaluation.failure(run, max_images=20)
    assert (results["wrong"], results["smallest_p"], results["auroc"]) == (0, None, None)
    table = run.sample(20).directory_for("failure") / "table.md"
    assert "nothing to compare" in table.read_text()
    assert len(results["crops"]) == len(AREAS)


@pytest.mark.parametrize(("name", "sign"), [("feature_norm", -1), ("agreement", -1)])
def test_any_score_is_turned_the_right_way(run, name, sign):
    options = Options(max_images=60, scores=(name,), num_views=3)
    results = evaluation.failure(run, options)
    sample = run.sample(60).test
    values = run.uncertainty(options)(sample.images())[name]
    wrong = linear_probe(run).predict(run.embed(sample)["features"]) != sample.labels
    assert (results["score"], results["wrong"]) == (SCORES[name].title, wrong.sum())
    assert results["auroc"] == pytest.approx(roc_auc_score(wrong, sign * values), abs=1e-3)


def test_a_crop_is_the_part_of_the_image_that_it_says():
    images = np.zeros((2, 16, 16, 3), np.uint8)
    images[:, :8, :8] = 200  # a quarter of the area, at the top left
    corners = np.array([[0.0, 0.0], [1.0, 1.0]])
    cut = crop(images, corners, 0.25)
    assert cut.shape == images.shape
    assert cut[0, :12, :12].min() == 200
    assert cut[1, 4:, 4:].max() == 0
    np.testing.assert_array_equal(crop(images, corners, 1.0), images)


class Images:
    """As much of a source as the crop test needs."""

    def __init__(self, images):
        self._images = images

    def images(self, start, stop):
        return self._images[start:stop]


def darkness(images):
    return 1.0 - images.mean(axis=(1, 2, 3)) / 255.0


def scored(images):
    return dict.fromkeys(("ensemble", "kappa"), darkness(images))


UNCERTAIN = SCORES["ensemble"]  # high is uncertain


def test_the_crop_test_counts_who_becomes_less_certain():
    images = np.full((300, 16, 16, 3), 255, np.uint8)
    images[:, 4:12, 4:12] = 0  # the more black, the less certain
    dark = darkness(images)
    entries = crop_test(Images(images), scored, dark, UNCERTAIN)
    assert [entry["area"] for entry in entries] == list(AREAS)
    # Of three quarters every crop holds the whole square, which is larger in it.
    assert entries[0]["share"] == 1.0
    assert entries[0]["mean"] == pytest.approx(dark.mean() / 0.75, rel=0.03)
    turned = crop_test(Images(images), lambda cut: {"ensemble": -darkness(cut)}, -dark, UNCERTAIN)
    assert turned[0]["share"] == 0.0
    assert crop_test(Images(images), scored, dark, SCORES["kappa"])[0]["share"] == 0.0
    blank = np.full((300, 16, 16, 3), 255, np.uint8)
    drawn = crop_test(Images(blank), scored, np.zeros(300), UNCERTAIN)
    assert drawn[2]["share"] == 0.5  # all are draws


def test_the_crop_of_an_image_depends_on_its_index_alone(rng):
    images = rng.integers(0, 2, (270, 8, 8, 3), dtype=np.uint8)  # more than a batch
    seen = []

    def watch(cut):
        seen.append(cut)
        return scored(cut)

    crop_test(Images(images), watch, np.zeros(270), UNCERTAIN)
    first = np.concatenate([seen[1], seen[1 + len(AREAS)]])
    seen.clear()
    crop_test(Images(images[:40]), watch, np.zeros(40), UNCERTAIN)
    np.testing.assert_array_equal(first[:40], seen[1])
