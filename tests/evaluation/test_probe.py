import json

import numpy as np
import pytest
from helpers.tiny import tiny_config
from helpers.untrained import make_run
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from tfvmf import evaluation, posthoc, training
from tfvmf.errors import UserError
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.posthoc.probe import PENALTIES, Problem, fit_linear


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluation.subject_from_run(make_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    features = (images - images.mean(axis=0)) / np.maximum(images.std(axis=0), 1e-9)
    return features.astype(np.float32), labels


def loss(weights, bias, features, labels, l2):
    logits = features @ weights + bias
    logits = logits - logits.max(axis=1, keepdims=True)
    entropy = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    return entropy.mean() + 0.5 * l2 * (weights**2).sum()


@pytest.mark.parametrize("l2", [1e-1, 1e-4])
def test_the_minimum_is_scikit_learns(digits, l2):
    features, labels = (side[:1200] for side in digits)
    reference = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-8, max_iter=10_000)
    reference.fit(features.astype(float), labels)
    least = loss(reference.coef_.T, reference.intercept_, features, labels, l2)
    weights, bias, value = Problem(features, labels, 10).solve(l2)
    assert value == pytest.approx(least, rel=1e-4)
    assert loss(weights, bias, features, labels, l2) == pytest.approx(value, rel=1e-5)
    held_out = digits[0][1200:]
    predicted = (held_out @ weights + bias).argmax(axis=1)
    assert (predicted == reference.predict(held_out)).mean() > 0.995


def test_a_warm_start_changes_the_way_and_not_the_minimum(digits):
    problem = Problem(*digits, 10)
    weights, bias, _ = problem.solve(1e-2)
    assert problem.solve(1e-3, (weights, bias))[2] == pytest.approx(problem.solve(1e-3)[2], 1e-4)


def test_strongly_correlated_features_converge(rng):
    mixing = rng.normal(size=(20, 20)) * np.logspace(0, -3, 20)
    features = rng.normal(size=(500, 20)) @ mixing.T
    features = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    labels = rng.integers(0, 3, 500)
    weights, bias, value = Problem(features, labels, 3).solve(1e-3)
    for _ in range(20):  # no step away is better
        near = loss(weights + 1e-2 * rng.normal(size=weights.shape), bias, features, labels, 1e-3)
        assert near > value
    reference = LogisticRegression(C=1 / (1e-3 * 500), tol=1e-10, max_iter=100_000)
    reference.fit(features.astype(float), labels)
    least = loss(reference.coef_.T, reference.intercept_, features, labels, 1e-3)
    assert value == pytest.approx(least, rel=1e-5)


def test_the_probe_takes_features_of_any_scale_and_labels_of_any_name(digits):
    features, labels = digits
    scales = np.geomspace(1e-3, 1e3, features.shape[1]).astype(np.float32)
    plain = fit_linear(features[:1200], labels[:1200])
    scaled = fit_linear(7.0 + features[:1200] * scales, 3 * labels[:1200] + 5)
    held_out = features[1200:]
    assert (plain.predict(held_out) == labels[1200:]).mean() > 0.9
    same = scaled.predict(7.0 + held_out * scales) == 3 * plain.predict(held_out) + 5
    assert same.mean() > 0.98


def test_noise_is_penalised_and_signal_is_not(rng):
    labels = rng.integers(0, 2, 400)
    noise = rng.normal(size=(400, 100)).astype(np.float32)
    noise[:, 0] += 0.5 * labels
    clear = rng.normal(size=(400, 2)).astype(np.float32)
    clear[:, 0] += 20 * labels
    fitted = fit_linear(noise, labels)
    assert fitted.l2 >= 1e-2
    assert fitted.path[fitted.l2] == min(fitted.path.values())
    # Three weaker penalties were no better: none below them was tried.
    assert len(fitted.path) == PENALTIES.index(fitted.l2) + 4
    fitted = fit_linear(clear, labels)
    assert fitted.l2 < 1e-4
    assert (fitted.predict(clear) == labels).all()


def test_the_penalty_is_chosen_on_examples_that_are_not_fitted(rng):
    # Labels are random: every penalty fits them better than the one before, and none knows more.
    features = rng.normal(size=(300, 200)).astype(np.float32)
    assert fit_linear(features, rng.integers(0, 3, 300)).l2 == PENALTIES[0]


def test_the_suite_agrees_with_scikit_learn(run):
    results = evaluation.probe(run)
    train, test = (run.embed(source)["features"] for source in (run.train, run.test))
    unit = train / np.linalg.norm(train, axis=1, keepdims=True)
    reference = KNeighborsClassifier(
        20, weights=lambda squares: np.exp(-(squares**2) / 2 / 0.5)
    ).fit(unit, run.train.labels)  # exp(cos / 0.5) up to a factor, as |u - v|^2 / 2 = 1 - cos
    unit = test / np.linalg.norm(test, axis=1, keepdims=True)
    assert results["knn_20_accuracy"] == pytest.approx(
        reference.score(unit, run.test.labels), abs=0.005
    )
    mean, std = train.mean(axis=0), train.std(axis=0) + 1e-9
    model = LogisticRegression(C=1 / (results["linear_l2"] * len(train)), max_iter=20_000)
    model.fit((train - mean) / std, run.train.labels)
    expected = model.score((test - mean) / std, run.test.labels)
    assert results["linear_accuracy"] == pytest.approx(expected, abs=0.011)
    assert results["linear_accuracy"] > 0.3
    assert "classifier_accuracy" not in results
    directory = run.directory_for("probe")
    assert json.loads((directory / "results.json").read_text()) == results
    assert (
        f"| linear probe | {results['linear_accuracy']:.4f} |"
        in (directory / "table.md").read_text()
    )


def test_features_are_computed_once_and_images_limit_the_test(run):
    assert run.embed(run.train) is run.embed(run.train)
    assert linear_probe(run) is linear_probe(run)
    assert run.embed(run.train)["features"].shape[0] == 1397
    expected = run.embedder(run.test.images(0, 30))
    for name, values in run.embed(run.test).items():
        np.testing.assert_allclose(values[:30], expected[name], rtol=1e-4, atol=1e-5)
    assert evaluation.probe(run, max_images=30)["images"] == 30


def test_a_supervised_run_is_judged_by_its_own_classifier_too(tmp_path):
    training.train(tiny_config(epochs=1, method="supervised"), tmp_path)
    run = evaluation.subject_from_run(tmp_path)
    results = evaluation.probe(run)
    logits = run.classifier(run.embed(run.test)["features"]).numpy()
    assert results["classifier_accuracy"] == (logits.argmax(axis=1) == run.test.labels).mean()
    assert "its own classifier" in (run.directory_for("probe") / "table.md").read_text()


@pytest.mark.parametrize("suite", ["probe", "failure"])
def test_data_without_labels_are_refused_in_one_line(suite, tmp_path, rng):
    images = rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    make_run(tmp_path / "run", **{"data.source": f"npz:{tmp_path / 'images.npz'}"})
    run = evaluation.subject_from_run(tmp_path / "run")
    with pytest.raises(UserError, match=f"no labels, which the suite {suite} needs") as error:
        evaluation.SUITES[suite](run)
    command = str(error.value).split("`")[1]
    assert command == f"tfvmf evaluate {tmp_path / 'run'} folder:/labeled/images"
    # `--suite=all` goes on.
    assert isinstance(error.value, evaluation.NotApplicable)


def test_the_probe_stays_in_the_run_and_is_calibrated_on_its_reserve(tmp_path):
    workdir = make_run(tmp_path / "run", **{"data.reserve": 300.0})
    run = evaluation.subject_from_run(workdir)
    results = evaluation.probe(run)
    kept = posthoc.load_probe(workdir, step=7)
    features = run.embed(run.test)["features"]
    assert (kept.predict(features) == run.test.labels).mean() == results["linear_accuracy"]
    assert kept.names == tuple("0123456789")
    assert kept.calibration == "300 images of digits (train)"
    assert kept.source == "1,097 images of digits (train)"
    assert results["linear_temperature"] == kept.temperature != 1.0
    # By accident only is a probe of an untrained network more certain than it is right.
    assert results["linear_probability"] == pytest.approx(results["linear_accuracy"], abs=0.08)
    assert "calibrated on 300 images" in (workdir / "eval/probe/table.md").read_text()


def test_results_elsewhere_and_a_run_without_a_reserve(tmp_path):
    workdir = make_run(tmp_path / "run")
    subject = evaluation.subject_from_run(workdir, directory=tmp_path / "elsewhere")
    evaluation.probe(subject, max_images=20)
    assert posthoc.load_probe(workdir) is None  # the run was not to be written to
    evaluation.probe(evaluation.subject_from_run(workdir), max_images=20)
    kept = posthoc.load_probe(workdir)
    assert (kept.calibration, kept.temperature) == ("", 1.0)
