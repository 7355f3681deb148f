import json

import numpy as np
import pytest
import scipy.special
import scipy.stats
from helpers.tiny import tiny_config
from helpers.untrained import make_run
from sklearn.metrics import roc_auc_score

from tfvmf import evaluation
from tfvmf.data.corruptions import CORRUPTIONS
from tfvmf.data.corruptions.corrupted import open_corrupted
from tfvmf.evaluation import Options
from tfvmf.evaluation.suites.agreement import compare, scale_words
from tfvmf.methods import build_method

IMAGES = 12


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Noise, in a file with a test split of 20 images."""
    path = tmp_path_factory.mktemp("foreign") / "noise.npz"
    images = np.random.default_rng(7).integers(0, 256, (20, 12, 12), dtype=np.uint8)
    np.savez(path, x_train=images[:2], x_test=images)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # Another scale than the paper's: kappa / 2.
    workdir = make_run(tmp_path_factory.mktemp("run"), **{"concentration.penalty_weight": 0.0125})
    return evaluation.subject_from_run(workdir)


@pytest.fixture(scope="module")
def options(foreign):
    return Options(max_images=IMAGES, num_views=3, ood_sources=(foreign,))


@pytest.fixture(scope="module")
def results(run, options):
    return evaluation.agreement(run, options)


@pytest.fixture(scope="module")
def pair(run):
    """A function from images to kappa and E[cos]: NumPy on what the encoder says."""
    uncertainty = evaluation.Uncertainty(
        run.encoder,
        ("kappa", "agreement"),
        augmentation=run.augmentation,
        num_views=3,
    )

    def measure(images):
        values = uncertainty(images)
        return values["kappa"].astype(np.float64), values["agreement"].astype(np.float64)

    return measure


def test_the_error_is_that_of_numpy(run, results, pair):
    sample = run.sample(IMAGES).test
    clean = sample.images()
    damaged = open_corrupted(sample).read("fog", 3, 0, IMAGES)
    for images, entry in ((clean, results["clean"]), (damaged, results["calibration"]["fog"][2])):
        kappa, cosine = pair(images)
        assert entry["error"] == pytest.approx(np.abs(kappa / 2 - cosine).mean(), abs=1e-6)
        assert entry["predicted"] == pytest.approx(kappa.mean() / 2, abs=1e-6)
        assert entry["agreement"] == pytest.approx(cosine.mean(), abs=1e-6)
        expected = scipy.stats.spearmanr(kappa, cosine).statistic
        assert entry["rank"] == pytest.approx(expected, abs=1e-6)
    assert results["scale"] == "kappa / 2"
    assert results["clean_error"] == results["clean"]["error"]


def test_all_corruptions_count_alike(results):
    errors = [[entry["error"] for entry in results["calibration"][name]] for name in CORRUPTIONS]
    assert np.shape(errors) == (len(CORRUPTIONS), 5)
    assert results["corrupted_error"] == pytest.approx(np.mean(errors), abs=1e-6)
    assert results["corrupted"]["images"] == IMAGES * 5 * len(CORRUPTIONS)


def test_both_scores_are_followed_over_severities(run, options, results):
    beside = evaluation.cifar10c(run, options, scores=("kappa", "agreement"))["scores"]
    for name in ("kappa", "agreement"):
        assert results[f"{name}_spearman"] == pytest.approx(beside[name]["mean_spearman"])
        assert results["spearman"][name] == pytest.approx(beside[name]["spearman"])


def test_foreign_sets_are_compared_too(run, results, foreign, pair):
    clean = pair(run.sample(IMAGES).test.images())
    images = run.open(foreign, sample=IMAGES).images()
    kappa, cosine = pair(images)
    entry = results["out"][foreign]
    assert results[f"{foreign}_error"] == entry["error"]
    assert entry["error"] == pytest.approx(np.abs(kappa / 2 - cosine).mean(), abs=1e-6)
    positive = np.repeat([0, 1], IMAGES)
    for name, inside, outside in zip(("kappa", "agreement"), clean, (kappa, cosine), strict=True):
        expected = roc_auc_score(positive, -np.concatenate([inside, outside]))
        assert entry[f"{name}_auroc"] == pytest.approx(expected)


def test_it_writes_what_it_returns(run, results, foreign):
    directory = run.sample(IMAGES).directory_for("agreement")
    assert json.loads((directory / "results.json").read_text()) == results
    lines = (directory / "table.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 + 1
    named = next(line for line in lines if line.startswith("clean,")).split(",")
    assert float(named[5]) == pytest.approx(results["clean_error"], rel=1e-5)
    table = (directory / "table.md").read_text()
    assert f"| {results['clean']['predicted']:.3f} |" in table
    assert foreign in table


def test_the_exact_penalty_has_a_scale_of_its_own(rng):
    method = build_method(tiny_config(**{"concentration.regularizer": "vmf"}))
    kappa = np.array([1.0, 30.0])
    found = compare(method.predicted_cosine, kappa, np.array([0.0, 0.5]))
    # A_8(k) = I_4(k) / I_3(k)
    predicted = scipy.special.ive(4, kappa) / scipy.special.ive(3, kappa)
    assert found["predicted"] == pytest.approx(predicted.mean(), rel=1e-5)
    assert found["error"] == pytest.approx(np.abs(predicted - [0.0, 0.5]).mean(), rel=1e-5)
    assert scale_words(method.predicted_cosine, dimension=8) == "A_d(kappa)"


def test_a_kappa_that_is_the_same_for_all_has_no_rank():
    found = compare(build_method(tiny_config()).predicted_cosine, np.ones(3), np.arange(3.0))
    assert found["rank"] is None
    assert found["error"] == pytest.approx(np.abs(0.2 - np.arange(3.0)).mean())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "simclr"}, "does not learn kappa"),
        ({"method": "mc_infonce"}, "does not learn kappa"),
        ({"concentration.penalty_weight": 0.0}, "without alignment or penalty"),
    ],
)
def test_a_kappa_without_that_meaning_is_left_out(changes, message):
    with pytest.raises(evaluation.NotApplicable, match=message):
        scale_words(build_method(tiny_config(**changes)).predicted_cosine, dimension=8)
