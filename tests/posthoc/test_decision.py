"""Familiarity against NumPy and SciPy, and the guarantee of the decision by simulation."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from tfvmf import posthoc
from tfvmf.errors import UserError
from tfvmf.posthoc.decision import Decision
from tfvmf.posthoc.familiarity import Familiarity


def embeddings(size, *, seed=0, center=1.0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 12)) * np.r_[np.ones(4), 0.1 * np.ones(8)]
    features[:, 0] += 3.0 * center
    mixing = 3.0 * np.eye(6) + np.random.default_rng(1).normal(size=(6, 6))
    return features.astype(np.float32), (rng.normal(size=(size, 6)) @ mixing).astype(np.float32)


@pytest.fixture(scope="module")
def familiarity():
    return Familiarity.fit(*embeddings(2000), bank_size=500)


def unit(values):
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_familiarity_is_the_sum_of_two_standardized_log_densities_the_second_at_most_0(familiarity):
    features, levels = embeddings(50, seed=3)
    bank = familiarity.bank.astype(np.float64)
    kernels = special.logsumexp(familiarity.bandwidth * unit(features) @ bank.T, axis=1)
    white = (
        (np.arcsinh(levels / familiarity.softness) - familiarity.center)
        / familiarity.scale
        @ familiarity.whitening.astype(float)
    )
    parts = np.stack([kernels, -0.5 * (white**2).sum(axis=1)])
    mean, deviation = familiarity.reference.T[..., None]
    first, second = (parts - mean) / deviation
    assert (second > 0).any()
    expected = first + np.minimum(second, 0)
    np.testing.assert_allclose(familiarity(features, levels), expected, rtol=1e-4, atol=1e-4)


def test_the_levels_are_whitened(familiarity):
    _, levels = embeddings(5000, seed=4)
    white = (
        (np.arcsinh(levels / familiarity.softness) - familiarity.center)
        / familiarity.scale
        @ familiarity.whitening.astype(float)
    )
    np.testing.assert_allclose(np.cov(white.T), np.eye(6), atol=0.12)


def test_the_bandwidth_lets_ten_images_decide(familiarity):
    features, _ = embeddings(500, seed=5)
    shares = special.softmax(
        familiarity.bandwidth * unit(features) @ familiarity.bank.astype(float).T, axis=1
    )
    neighbors = np.exp(stats.entropy(shares, axis=1))
    assert 8.0 < np.median(neighbors) < 12.5


def test_training_images_are_around_zero_and_others_below(familiarity):
    known = familiarity(*embeddings(1000, seed=6)).numpy()
    assert abs(np.median(known)) < 0.3
    elsewhere = familiarity(*embeddings(200, seed=7, center=-1.0)).numpy()
    features, levels = embeddings(200, seed=8)
    odd_levels = familiarity(features, 5.0 * levels).numpy()
    for unknown in (elsewhere, odd_levels):
        assert stats.mannwhitneyu(known, unknown).statistic / (len(known) * 200) > 0.95


def test_a_model_without_levels_has_the_kernels_alone():
    features, _ = embeddings(300)
    alone = Familiarity.fit(features)
    kernels, levels = alone.log_densities(features)
    expected = (kernels.numpy() - alone.reference[0, 0]) / alone.reference[0, 1]
    np.testing.assert_allclose(alone(features), expected, atol=1e-5)
    assert not levels.numpy().any()


def test_a_bank_fits_ten_megabytes():
    rng = np.random.default_rng(0)
    fitted = Familiarity.fit(rng.normal(size=(6000, 1280)).astype(np.float32))
    arrays = dataclasses.asdict(fitted).values()
    assert 9e6 < sum(value.nbytes for value in arrays if isinstance(value, np.ndarray)) <= 1e7


def test_of_many_levels_some_are_looked_at():
    rng = np.random.default_rng(0)
    features, levels = rng.normal(size=(200, 8)), rng.normal(size=(200, 4000))
    fitted = Familiarity.fit(features, levels)
    assert fitted.whitening.shape == (1536, 1536)
    assert (np.diff(fitted.columns) > 0).all()
    assert (fitted.columns[0], fitted.columns[-1]) == (0, 3999)
    known, odd = fitted(features, levels), fitted(features, 3.0 * levels)
    assert known.numpy().min() > odd.numpy().max()


def test_what_is_not_finite_is_not_familiar(familiarity):
    features, levels = embeddings(3)
    features[1] = np.nan
    assert np.isneginf(familiarity(features, levels).numpy()).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("size", "bank", "broken", "message"),
    [
        (10, 0, False, "10 training images: familiarity needs at least 20"),
        (100, 95, False, "bank_size=95: 100 training images make a bank of at most 90"),
        (100, 0, True, "1 of 100 training images have features that are not finite"),
    ],
)
def test_familiarity_says_what_is_wrong(size, bank, broken, message):
    features, levels = embeddings(size)
    if broken:
        features[3, 2] = np.inf
    with pytest.raises(UserError, match=message):
        Familiarity.fit(features, levels, bank_size=bank)


# ---- The decision.


def test_confidence_is_the_rank_of_the_joined_p_values():
    rng = np.random.default_rng(0)
    calibration, scores = rng.normal(size=(2, 200)), rng.normal(size=(2, 30))
    decision = Decision.fit(*calibration, alpha=0.1, seed=5)
    first, others = np.split(np.random.default_rng(5).permutation(200), [50])

    def joined(pair):
        parts = [
            np.log((1 + (table[first] <= value + 1e-4 * table[first].std()).sum()) / 51)
            - max(table[first].min() - value, 0.0) / table[first].std()
            for table, value in zip(calibration, pair, strict=True)
        ]
        return parts[0] + 2 * parts[1]

    ranked = np.array([joined(pair) for pair in calibration[:, others].T])
    found = np.array([joined(pair) for pair in scores.T])[:, None]
    expected = (1 + (ranked <= found + 1e-4 * ranked.std()).sum(axis=1)) / 151
    outputs = decision(*scores)
    np.testing.assert_allclose(outputs["confidence"], expected, rtol=1e-6)
    assert (outputs["accept"].numpy() == (expected > 0.1)).all()


@pytest.mark.parametrize("dependence", [0.9, -0.9])
def test_at_most_alpha_of_in_distribution_images_are_rejected(dependence):
    # Over many calibrations, whatever the scores have to do with each other.
    rng, rejected = np.random.default_rng(1), []
    covariance = [[1.0, dependence], [dependence, 1.0]]
    for seed in range(100):
        draws = rng.multivariate_normal([0.0, 0.0], covariance, size=160).T ** 3
        decision = Decision.fit(*draws[:, :100], alpha=0.1, seed=seed)
        rejected.append(1.0 - decision(*draws[:, 100:])["accept"].numpy().mean())
    error = np.std(rejected) / np.sqrt(len(rejected))
    assert np.mean(rejected) < 0.1 + 3 * error
    assert np.mean(rejected) > 0.1 - 1 / 51 - 3 * error  # and little is given away


def test_a_small_calibration_rejects_what_is_far_below_it():
    # The sum of two p-values of 30 images alone could not: their logarithms end at -log(31).
    for seed in range(20):
        decision = Decision.fit(*np.random.default_rng(seed).normal(size=(2, 60)))
        assert not decision(np.array([1.0]), np.array([-50.0]))["accept"].numpy()[0]


def test_either_score_alone_rejects():
    rng = np.random.default_rng(2)
    decision = Decision.fit(*rng.normal(size=(2, 1000)))
    outputs = decision(np.array([-9.0, 0.5, 0.5, np.nan]), np.array([0.5, -np.inf, 0.5, 0.5]))
    assert outputs["accept"].numpy().tolist() == [False, False, True, False]


def test_a_model_without_familiarity_decides_by_kappa():
    kappa = np.random.default_rng(3).gamma(4.0, size=400)
    decision = Decision.fit(kappa, alpha=0.05)
    assert not decision(np.array([0.0]))["accept"].numpy()[0]
    assert decision(np.array([4.0]))["accept"].numpy()[0]


def judged(familiarity, **facts):
    scores = np.arange(100.0)
    decision = Decision.fit(scores, scores[::-1].copy(), alpha=0.2)
    return posthoc.Judge(familiarity=familiarity, decision=decision, **facts)


def test_a_judge_survives_a_file_and_a_graph(tmp_path, familiarity):
    features, levels = embeddings(100)
    outputs = {"features": features, "levels": levels, "concentration": np.arange(100.0)}
    judge = judged(familiarity, step=7, source="digits", images=100)
    judge.save(tmp_path / "one")
    judge.save(tmp_path / "two")
    files = [(tmp_path / place / "judge.npz").read_bytes() for place in ("one", "two")]
    assert files[0] == files[1]
    again = posthoc.load(tmp_path / "one", step=7)
    assert (again.step, again.source, again.images) == (7, "digits", 100)
    assert (again.decision.alpha, again.at(0.3).decision.alpha) == (0.2, 0.3)
    expected = judge(outputs)
    np.testing.assert_array_equal(expected["familiarity"], familiarity(features, levels))
    decided = judge.decision(outputs["concentration"], expected["familiarity"])
    np.testing.assert_array_equal(expected["confidence"], decided["confidence"])
    for name, value in tf.function(again)(outputs).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_a_judge_belongs_to_a_step(tmp_path, familiarity):
    assert posthoc.load(tmp_path) is None
    judged(familiarity, step=7).save(tmp_path)
    assert posthoc.load(tmp_path, step=8) is None
    assert posthoc.load(tmp_path) is not None


def test_a_damaged_judge_is_one_line(tmp_path):
    (tmp_path / "judge.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(UserError, match=r"judge.npz.* cannot be read as an npz file"):
        posthoc.load(tmp_path)
    np.savez(tmp_path / "judge.npz", step=np.array(["a"]))
    with pytest.raises(UserError, match=r"judge.npz was not written by tfvmf, or is damaged"):
        posthoc.load(tmp_path)


@pytest.mark.parametrize(
    ("size", "alpha", "message"),
    [
        (19, 0.05, "19 calibration images: at least 20"),
        (100, 0.0, "alpha=0.0: expected a share between 0 and 1"),
        (100, 1.0, "alpha=1.0: expected a share"),
        (100, 0.01, "alpha=0.01: with 75 calibration images for the rank no image"),
    ],
)
def test_the_decision_says_what_is_wrong(size, alpha, message):
    with pytest.raises(UserError, match=message):
        Decision.fit(np.arange(size, dtype=float), alpha=alpha)
