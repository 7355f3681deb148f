import numpy as np
import pytest
import scipy.stats

from tfvmf.evaluation.suites.cifar10c import correlate


def test_six_points_are_correlated_as_scipy_does(rng):
    scores = rng.normal(size=(6, 50)) - 0.3 * np.arange(6)[:, None]
    result = correlate(scores)
    means = scores.mean(axis=1)
    assert result.means == pytest.approx(means)
    assert result.spearman == pytest.approx(scipy.stats.spearmanr(range(6), means).statistic)
    assert result.pearson == pytest.approx(scipy.stats.pearsonr(range(6), means).statistic)


def test_per_image_is_spearman_over_all_pairs(rng):
    scores = rng.normal(size=(6, 80)) - 0.2 * np.arange(6)[:, None]
    levels = np.repeat(np.arange(6), 80)
    expected = scipy.stats.spearmanr(levels, scores.ravel()).statistic
    result = correlate(scores)
    # Severity has ties, and so its ranks are its values up to a linear map.
    assert result.per_image == pytest.approx(expected, abs=1e-12)
    assert result.interval[0] < result.per_image < result.interval[1]


def test_the_interval_holds_what_a_plain_bootstrap_finds(rng):
    scores = rng.normal(size=(6, 60)) - 0.2 * np.arange(6)[:, None]
    levels = np.repeat(np.arange(6), 60)
    values = []
    for _ in range(400):
        rows = rng.integers(0, 60, 60)
        values.append(scipy.stats.spearmanr(levels, scores[:, rows].ravel()).statistic)
    assert correlate(scores).interval == pytest.approx(
        np.quantile(values, [0.025, 0.975]), abs=0.02
    )


def test_strictly_falling_scores_give_minus_one():
    scores = -np.arange(6.0)[:, None] + np.zeros((6, 10))
    result = correlate(scores)
    assert result.spearman == pytest.approx(-1.0)
    assert result.per_image == pytest.approx(-1.0)


def test_a_constant_score_has_no_correlation():
    assert np.isnan(correlate(np.ones((6, 10))).spearman)
