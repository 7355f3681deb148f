"""Neighbors, duplicates and diversity against plain NumPy."""

import numpy as np
import pytest

from tfvmf.errors import UserError
from tfvmf.selection import strategies


def directions(count, dimension=6, seed=0):
    values = np.random.default_rng(seed).normal(size=(count, dimension))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=[1 << 24, 3000], ids=["one block", "blocks"])
def cells(request, monkeypatch):
    monkeypatch.setattr(strategies, "_CELLS", request.param)


@pytest.mark.parametrize(("count", "k"), [(2, 1), (70, 3), (70, 69), (1000, 5), (1003, 40)])
def test_nearest(count, k, cells):
    points = directions(count)
    cosines, rows = strategies.nearest(points, k)
    exact = points.astype(float) @ points.T.astype(float)
    np.fill_diagonal(exact, -np.inf)
    np.testing.assert_allclose(cosines, -np.sort(-exact, axis=1)[:, :k], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(exact, rows, axis=1), cosines, atol=1e-6)
    assert all(len(set(near)) == k for near in rows)
    for k in (0, count):
        with pytest.raises(ValueError, match="k must be"):
            strategies.nearest(points, k)


def test_nearest_more_certain(cells):
    points, certainty = directions(500), np.random.default_rng(1).integers(0, 50, 500) * 1.0
    cosines, rows = strategies.nearest_more_certain(points, certainty)
    for row in range(500):
        before = [
            other for other in range(500) if (certainty[other], -other) > (certainty[row], -row)
        ]
        if not before:
            assert (cosines[row], rows[row]) == (-np.inf, row)
            continue
        exact = points[before] @ points[row]
        assert rows[row] == before[int(exact.argmax())]
        assert cosines[row] == pytest.approx(exact.max(), abs=1e-6)


@pytest.mark.parametrize("threshold", [0.6, 0.9, 0.97])
def test_each_duplicate_resembles_the_most_certain_of_its_group(threshold, cells):
    points, certainty = directions(600), np.random.default_rng(1).permutation(600) * 1.0
    kept = strategies.duplicate_groups(points, threshold, certainty=certainty)
    assert (kept[kept] == kept).all()
    assert 0 < (kept != np.arange(600)).sum() < 600
    for row in np.flatnonzero(kept != np.arange(600)):
        assert points[row] @ points[kept[row]] >= threshold - 1e-6
        assert certainty[kept[row]] > certainty[row]
    # A row that is kept has no duplicate before it that is kept for a group of its own.
    nearest, rows = strategies.nearest_more_certain(points, certainty)
    alone = np.flatnonzero((kept == np.arange(600)) & (nearest >= threshold))
    assert all(kept[rows[row]] != rows[row] for row in alone)


def test_a_chain_is_not_one_group():
    angles = np.radians([0.0, 20.0, 40.0, 60.0, 180.0])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    threshold = float(np.cos(np.radians(25)))
    assert strategies.duplicate_groups(points, threshold).tolist() == [0, 0, 2, 2, 4]
    backwards = strategies.duplicate_groups(points, threshold, certainty=np.arange(5.0))
    assert backwards.tolist() == [1, 1, 3, 3, 4]


def test_many_copies_are_one_group(cells):
    points = np.repeat(directions(3), 400, axis=0)
    kept = strategies.duplicate_groups(points, 0.999)
    assert kept.tolist() == [0] * 400 + [400] * 400 + [800] * 400


def test_whitened(cells, tmp_path):
    rng = np.random.default_rng(0)
    points = (
        rng.normal(size=(900, 7)) @ rng.normal(size=(7, 7)) * [9, 1, 1, 1, 1, 0, 0.01] + 5
    ).astype(np.float32)
    found = strategies.whiten(points, tmp_path / "w")
    z = (points - points.mean(0)) / np.where(points.std(0) > 0, points.std(0), 1)
    values, axes = np.linalg.eigh(z.T @ z / 900)
    exact = z @ axes / np.sqrt(values + 0.1) @ axes.T
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(found @ found.T, exact @ exact.T, atol=1e-3)


def test_what_stands_out(cells):
    points, certainty = directions(300), np.random.default_rng(1).permutation(300) * 1.0
    scores, rows, crowd = strategies.stand_out(points, certainty)
    cosines = points @ points.T
    np.fill_diagonal(cosines, -2)
    tenth = np.sort(cosines, axis=1)[:, -10]
    tenth = np.minimum(tenth, np.quantile(tenth, 0.75))
    np.testing.assert_allclose(crowd, tenth / 2, atol=1e-6)
    best, near = strategies.nearest_more_certain(points, certainty)
    assert rows.tolist() == near.tolist()
    np.testing.assert_allclose(scores, best - (tenth + tenth[near]) / 2, atol=1e-6)


def greedy(points, count, bonus, chosen, allowed):
    """k-center as a textbook has it."""
    points, picked, found = points.astype(float), list(chosen), []
    for _ in range(count):
        if picked:
            near = (points @ points[picked].T).max(axis=1)
            value = np.where(allowed, bonus - near, -np.inf)
        else:
            center = points.sum(axis=0)
            near = np.full(len(points), -1.0)
            value = np.where(allowed, bonus + points @ center / np.linalg.norm(center), -np.inf)
        value[picked] = -np.inf
        picked.append(int(value.argmax()))
        found.append(near[picked[-1]])
    return picked[len(chosen) :], found


@pytest.mark.parametrize("chosen", [(), (5, 17)])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_diverse(weight, chosen, cells):
    rng = np.random.default_rng(2)
    points, bonus = directions(2500), weight * rng.uniform(size=2500)
    allowed = rng.uniform(size=2500) < 0.8
    allowed[list(chosen)] = False
    rows, cosines = strategies.diverse(points, 60, bonus=bonus, chosen=chosen, allowed=allowed)
    expected, near = greedy(points, 60, bonus, chosen, allowed)
    assert rows.tolist() == expected
    np.testing.assert_allclose(cosines, near, atol=1e-6)


def test_diverse_stops_when_all_are_near():
    points = directions(2500)
    rows, cosines = strategies.diverse(points, 2500, threshold=0.8)
    assert 5 < len(rows) < 1000
    near = (points @ points[rows].T).max(axis=1)
    assert near.min() >= 0.8 - 1e-6
    assert cosines.max() < 0.8
    everything, _ = strategies.diverse(points, 2500)
    assert sorted(everything) == list(range(2500))
    copies, _ = strategies.diverse(np.repeat(points[:2], 50, axis=0), 100, threshold=0.999)
    assert len(copies) == 2


def test_approximate_answers_are_measured(monkeypatch):
    rng = np.random.default_rng(3)
    points = directions(3000, 16)
    points[2000:] = points[:1000] + 0.01 * rng.normal(size=(1000, 16))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    certainty = rng.permutation(3000) * 1.0
    exact = strategies.nearest(points, 3)
    groups = strategies.duplicate_groups(points, 0.99, certainty=certainty)
    monkeypatch.setattr(strategies, "EXACT", 100)
    monkeypatch.setattr(strategies, "_BLOCK", 512)
    notes = []
    found = strategies.nearest(points, 3, note=notes.append)
    recall = np.mean(found[0] >= exact[0][:, -1:] - 1e-5)
    assert float(notes[0].split()[4]) == pytest.approx(recall, abs=0.02)
    assert recall > 0.9
    close = strategies.duplicate_groups(points, 0.99, certainty=certainty, note=notes.append)
    assert np.mean(close == groups) > 0.98
    assert float(notes[1].split()[4]) > 0.98


def test_faiss_is_asked_for_by_name(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(strategies, "EXACT", 10)
    for call in (lambda x: strategies.nearest(x, 2), lambda x: strategies.duplicate_groups(x, 0.9)):
        with pytest.raises(UserError, match=r"11 rows.*pip install 'tfvmf\[select\]'"):
            call(directions(11))
