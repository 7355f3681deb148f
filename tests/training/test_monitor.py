import numpy as np
import pytest

from tfvmf.training.monitor import collapse_warning, spread


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_directions_all_over_the_sphere_have_spread_one_and_full_rank(rng):
    values = spread(unit(rng.normal(size=(5000, 16))))
    assert values["direction_std"] == pytest.approx(1.0, abs=0.01)
    assert values["effective_rank"] == pytest.approx(16, abs=0.2)
    assert not collapse_warning(values)


def test_one_direction_is_a_collapse(rng):
    values = spread(unit(np.ones((100, 16)) + 1e-3 * rng.normal(size=(100, 16))))
    assert values["direction_std"] < 0.01
    assert "collapsed" in collapse_warning(values)
    same = spread(unit(np.ones((100, 16))))
    assert same["direction_std"] == pytest.approx(0.0, abs=1e-6)
    assert np.isfinite(same["effective_rank"])


def test_a_line_is_a_collapse_of_dimensions(rng):
    ends = np.sign(rng.normal(size=(100, 1))) * unit(rng.normal(size=(1, 16)))
    values = spread(ends)
    assert values["direction_std"] > 0.5
    assert values["effective_rank"] == pytest.approx(1.0, abs=1e-3)
    assert "collapsed" in collapse_warning(values)


def test_effective_rank_is_the_exponential_of_the_entropy(rng):
    vectors = unit(rng.normal(size=(50, 6)) * [4, 2, 1, 1, 0.5, 0.1])
    values = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)
    shares = values / values.sum()
    expected = np.exp(-(shares * np.log(shares)).sum())
    assert spread(vectors)["effective_rank"] == pytest.approx(expected, rel=1e-6)
