"""The suite `decision`: its tests and bounds by SciPy and simulation, its numbers on digits."""

import dataclasses
import json
import pathlib

import matplotlib.image
import numpy as np
import pytest
import scipy.stats
from helpers.subjects import full_subject
from helpers.untrained import make_run
from sklearn.metrics import roc_auc_score

from tfvmf import evaluation, inference, neighbors, posthoc
from tfvmf.data import load_source
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES
from tfvmf.data.corruptions.corrupted import Corrupted, open_corrupted
from tfvmf.errors import UserError
from tfvmf.evaluation import Options
from tfvmf.evaluation.suites import summarize
from tfvmf.evaluation.suites.cifar10c import auroc
from tfvmf.evaluation.suites.decision import (
    ALPHAS,
    TRIED,
    compare_accepted,
    false_rejections,
    share,
    try_alphas,
)
from tfvmf.evaluation.suites.failure import detect
from tfvmf.evaluation.suites.probe import linear_probe


def confidences(rng, *, ranks, images, shift=0.0):
    """Conformal p-values of images, by the definition."""
    calibration, scores = rng.normal(size=ranks), rng.normal(shift, size=images)
    below = (calibration <= scores[:, None]).sum(axis=1)
    return ((1 + below) / (ranks + 1)).astype(np.float32)


def test_the_interval_is_clopper_and_pearsons():
    found = share(np.arange(200) < 13)
    low, high = found["interval"]
    assert found["share"] == 13 / 200
    assert scipy.stats.binom.sf(12, 200, low) == pytest.approx(0.025)
    assert scipy.stats.binom.cdf(13, 200, high) == pytest.approx(0.025)


def test_in_distribution_the_share_is_where_it_is_expected(rng):
    places, shares = [], []
    for _ in range(250):
        found = false_rejections(confidences(rng, ranks=149, images=300), 0.1, 149)
        places.append(found["place"])
        shares.append(found["share"])
    # The promise is on average over calibrations; here alpha (m + 1) is whole, and it is exact.
    assert np.mean(shares) == pytest.approx(0.1, abs=4 * np.std(shares) / 250**0.5)
    assert 0.91 < np.mean(np.array(places) == "within") < 0.99
    # A binomial range would be too narrow: one calibration scatters more than 300 images do.
    narrow = scipy.stats.binom.interval(0.95, 300, 0.1)
    outside = [not narrow[0] <= 300 * each <= narrow[1] for each in shares]
    assert np.mean(outside) > 0.15


@pytest.mark.parametrize(("shift", "place"), [(-1.0, "above"), (1.0, "below")])
def test_other_images_are_noticed(rng, shift, place):
    found = false_rejections(confidences(rng, ranks=149, images=300, shift=shift), 0.1, 149)
    assert found["place"] == place


def test_accepted_images_are_compared_by_fishers_test(rng):
    correct, accept = rng.random(300) < 0.7, rng.random(300) < 0.8
    found = compare_accepted(correct, accept)
    assert found["accuracy"] == correct.mean()
    assert found["accepted_accuracy"] == correct[accept].mean()
    # Of all tables with these margins, those that are no likelier.
    law = scipy.stats.hypergeom(300, correct.sum(), accept.sum())
    likely = law.pmf(np.arange(301))
    p = likely[likely <= law.pmf((correct & accept).sum()) * (1 + 1e-9)].sum()
    assert found["p"] == pytest.approx(p)
    assert not found["few"]
    none, everything = (
        compare_accepted(correct, np.full(300, accepted)) for accepted in (False, True)
    )
    assert (none["accepted_accuracy"], none["p"], none["few"]) == (None, None, True)
    assert (everything["accepted_accuracy"], everything["p"]) == (correct.mean(), None)


def test_auroc_is_scikit_learns_and_takes_infinity(rng):
    inside, outside = rng.integers(0, 9, 50), rng.integers(-3, 6, 70)
    truth = np.repeat([1, 0], [50, 70])
    assert auroc(inside, outside) == pytest.approx(
        roc_auc_score(truth, np.concatenate([inside, outside]))
    )
    assert auroc(inside, np.full(3, -np.inf)) == 1.0


def test_coverage_is_the_largest_share_with_few_errors(rng):
    uncertainty, wrong = rng.normal(size=400), rng.random(400) < 0.2
    wrong[np.argsort(uncertainty)[:150]] = False
    kept = wrong[np.argsort(uncertainty)]
    by_hand = max(n for n in range(1, 401) if kept[:n].mean() <= 0.05)
    assert detect(uncertainty, wrong)["coverage"] == by_hand / 400
    assert detect(uncertainty, np.ones(400, bool))["coverage"] == 0.0


def test_what_each_alpha_does_and_bounds_that_hold_together(rng):
    confidence = confidences(rng, ranks=500, images=2000)
    correct = rng.random(2000) < 1.0 - 0.1 * (confidence < 0.4)
    found = try_alphas(confidence, 500, correct)
    assert [each["alpha"] for each in found] == list(TRIED)
    for each in found:
        accepted = confidence > np.float32(each["alpha"])
        assert each["rejected"] == pytest.approx(1 - accepted.mean())
        assert (each["accepted"], each["accuracy"]) == (accepted.sum(), correct[accepted].mean())
        assert each["errors"] == (accepted & ~correct).sum()
        tail = scipy.stats.binom.cdf(each["errors"], each["accepted"], each["bound"])
        assert tail == pytest.approx(0.05 / len(TRIED))
    assert {each["bound"] for each in try_alphas(confidence, 500, np.zeros(2000, bool))} == {1.0}
    # Less than 1 / 21 rejects nothing.
    assert [each["alpha"] for each in try_alphas(confidence, 20)] == list(TRIED[2:])
    assert all(each.keys() == {"alpha", "rejected"} for each in try_alphas(confidence, 20))


def test_an_error_that_is_too_high_is_rarely_called_low():
    """All alphas have the error rate max_error exactly: a bound below it is wrong."""
    rng, tries = np.random.default_rng(3), []
    for _ in range(400):
        tries.append(try_alphas(rng.random(400), 500, rng.random(400) < 0.9))
    assert np.mean([min(each["bound"] for each in found) < 0.1 for found in tries]) <= 0.05
    # Bounds of 95 % for one alpha each would err more often.
    errors, accepted = (np.array([[x[key] for x in each] for each in tries]) for key in
                        ("errors", "accepted"))  # fmt: skip
    naive = scipy.stats.beta.ppf(0.95, errors + 1, accepted - errors) < 0.1
    assert naive.any(axis=1).mean() > 0.08


# ---- The suite on digits.

OPTIONS = Options(max_images=120)


@pytest.fixture(scope="module")
def negatives(tmp_path_factory):
    path = tmp_path_factory.mktemp("foreign") / "negatives.npz"
    images = 255 - load_source("digits", "test", image_size=12).images(0, 100)
    np.savez(path, x_train=images, x_test=images)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return full_subject(tmp_path_factory.mktemp("eval"))


@pytest.fixture(scope="module")
def results(subject, negatives):
    return evaluation.decision(subject, OPTIONS, ood_sources=(negatives,), max_error=0.5)


def judged(subject, images):
    """What the encoder and the judge say of images, without any of the suite."""
    outputs = inference.Embedder(subject.encoder)(images)
    return outputs | {name: value.numpy() for name, value in subject.judge(outputs).items()}


def test_the_numbers_are_those_of_the_judge_and_the_probe(subject, results, negatives):
    test, probe = subject.sample(120).test, linear_probe(subject)
    read = open_corrupted(test).read
    clean = judged(subject, test.images())
    found = [judged(subject, read("contrast", level, 0, 120)) for level in SEVERITIES]
    assert results["clean"]["share"] == pytest.approx((~clean["accept"]).mean())
    expected = [(~each["accept"]).mean() for each in (clean, *found)]
    assert results["rejected"]["contrast"] == pytest.approx(expected, abs=1e-6)
    worst, entry = found[-1], results["accuracy"]["contrast"]
    correct, accepted = probe.predict(worst["features"]) == test.labels, worst["accept"]
    assert entry == compare_accepted(correct, accepted)
    aurocs = results["auroc"]["contrast"]
    for key, name in (("kappa", "concentration"), ("confidence", "confidence")):
        assert aurocs[key] == pytest.approx(auroc(clean[name], worst[name]), abs=1e-3)
    bank = subject.embed(subject.train)["features"]
    near = [-neighbors.distance(each["features"], bank, k=5) for each in (clean, worst)]
    assert aurocs["neighbors"] == pytest.approx(auroc(*near), abs=1e-3)
    softmax = [probe.probabilities(each["features"]).max(axis=1) for each in (clean, worst)]
    assert aurocs["softmax"] == pytest.approx(auroc(*softmax), abs=1e-3)
    outside = judged(subject, np.load(negatives.removeprefix("npz:"))["x_test"])
    entry = results["foreign"][negatives]
    assert (entry["images"], entry["share"]) == (100, (~outside["accept"]).mean())
    means = {key: np.mean([results["auroc"][n][key] for n in CORRUPTIONS]) for key in aurocs}
    assert results["mean_auroc"] == pytest.approx(means)


def test_errors_are_detected_as_the_suite_failure_does(subject, results):
    failure = evaluation.failure(subject, OPTIONS)
    errors = results["errors"]["clean"]
    for key, expected in (("kappa", failure), ("softmax", failure["softmax"])):
        for number in ("augrc", "aurc", "auroc", "coverage"):
            assert errors[key][number] == pytest.approx(expected[number], abs=1e-3)
    assert list(results["errors"]["severity 5"]) == [
        "kappa", "familiarity", "confidence", "softmax"
    ]  # fmt: skip


def test_people_read_what_each_alpha_does_and_see_one_figure(subject, results):
    text = "\n".join(summarize("decision", results))
    assert max(map(len, text.split("\n"))) <= 100
    for each in results["alphas"][: len(ALPHAS)]:
        assert f"alpha={each['alpha']:<4g} rejects {each['rejected']:6.1%} of clean" in text
    fine = [each["alpha"] for each in results["alphas"] if each["bound"] < 0.5]
    assert results["max_error"] == {"asked": 0.5, "alpha": min(fine, default=None)}
    assert "max_error=0.5: alpha=" in text
    assert "false rejections (promised: 5.0%)" in text
    directory = pathlib.Path(subject.directory) / "sample120" / "decision"
    assert matplotlib.image.imread(directory / "decision.png").std() > 0.01
    assert json.loads((directory / "results.json").read_text()) == results
    page = (directory / "table.md").read_text()
    for title in ("Rejected share", "AUROC", "Accuracy on accepted", "Errors of the probe"):
        assert f"## {title}" in page
    assert (directory / "table.csv").read_text().count("\n") == 20  # 18, a head and a mean


def test_another_alpha_is_judged_by_the_same_pass(subject, results, monkeypatch):
    monkeypatch.setattr(Corrupted, "read_ahead", lambda *_: pytest.fail("measured again"))
    subject = dataclasses.replace(subject, directory=None)  # no figures
    other = evaluation.decision(subject, OPTIONS, alpha=0.2)
    assert other["clean"]["share"] == results["alphas"][ALPHAS.index(0.2)]["rejected"]
    assert other["mean_rejected"] > results["mean_rejected"]
    assert evaluation.cifar10c(subject, OPTIONS, scores=("confidence",))["auroc"] == pytest.approx(
        {name: results["auroc"][name]["confidence"] for name in CORRUPTIONS}
    )


def test_suites_that_are_named_in_any_order_share_a_pass(subject, monkeypatch):
    passes, once = [], Corrupted.read_ahead
    monkeypatch.setattr(
        Corrupted, "read_ahead", lambda self, parts: passes.append(1) or once(self, parts)
    )
    subject = dataclasses.replace(subject, directory=None)
    found = evaluation.evaluate(subject, "cifar10c,decision", max_images=9)
    assert (list(found), len(passes)) == (["decision", "cifar10c"], 1)


def test_without_labels_the_rest_is_measured(subject, monkeypatch):
    train, test = (load_source("digits", split, image_size=12) for split in ("train", "test"))
    test.labels = None
    unlabeled = dataclasses.replace(subject, train=train, test=test, directory=None)
    results = evaluation.decision(unlabeled, max_images=60)
    assert "accuracy" not in results
    assert "softmax" not in results["mean_auroc"]
    assert all("accuracy" not in each for each in results["alphas"])
    assert not any("accuracy" in line for line in summarize("decision", results))
    with pytest.raises(UserError, match=r"max_error=0\.1: digits has no labels"):
        evaluation.decision(unlabeled, max_images=60, max_error=0.1)


@pytest.mark.parametrize("name", ["familiarity", "confidence"])
def test_the_judge_gives_scores_like_any_other(name, subject, negatives):
    sample = subject.sample(30).test
    expected = judged(subject, sample.images())[name]
    options = Options(max_images=30, scores=(name,), ood_sources=(negatives,))
    np.testing.assert_allclose(
        subject.uncertainty(options)(sample.images())[name], expected, atol=1e-2
    )
    images = evaluation.images(subject, options)
    assert images["groups"]["least"][0]["value"] == pytest.approx(expected.min(), abs=1e-2)
    assert images["groups"]["least"][0]["confidence"] == pytest.approx(
        judged(subject, sample.images())["confidence"][expected.argmin()], abs=1e-2
    )
    assert evaluation.failure(subject, options)["mean_whole"] == pytest.approx(
        expected.mean(), abs=1e-2
    )
    outside = judged(subject, subject.open(negatives, sample=30).images())[name]
    scores = evaluation.ood(subject, options)["out"][negatives]["scores"]
    assert scores[name]["auroc"] == pytest.approx(auroc(expected, outside), abs=1e-3)
    evaluation.projector(subject, options)
    metadata = pathlib.Path(subject.directory) / "sample30" / "projector" / "metadata.tsv"
    head = metadata.read_text().split("\n")[0].split("\t")
    assert sorted(head) == ["accept", "confidence", "familiarity", "image", "label"]


def test_a_run_has_the_judge_of_its_checkpoint(tmp_path):
    run = make_run(tmp_path, **{"data.reserve": 100.0})
    assert evaluation.subject_from_run(run).judge is None
    posthoc.fit_judge(run)
    subject = evaluation.subject_from_run(run)
    assert (subject.judge.step, subject.at("step-7").judge.images) == (7, 100)
    assert {"familiarity", "confidence", "accept"} <= subject.embed(subject.sample(9).test).keys()
    (tmp_path / "judge.npz").unlink()
    dataclasses.replace(subject.judge, step=6).save(run)
    assert evaluation.subject_from_run(run).judge is None


@pytest.mark.parametrize("wrong", [{"alpha": 1.0}, {"alpha": 0.0}, {"max_error": -0.1}])
def test_shares_are_between_0_and_1(wrong):
    with pytest.raises(UserError, match="expected a share between 0 and 1"):
        Options(**wrong)


def test_an_alpha_that_rejects_nothing_is_refused(subject):
    with pytest.raises(UserError, match=r"alpha=0\.001: with 524 calibration images"):
        evaluation.decision(subject, OPTIONS, alpha=0.001)
    with pytest.raises(UserError, match="decision needs a calibrated run"):
        evaluation.decision(dataclasses.replace(subject, judge=None), max_error=0.1)
