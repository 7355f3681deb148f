import numpy as np
import pytest

from tfvmf import neighbors
from tfvmf.neighbors import Joined, distance, spread


def test_nearest_equals_a_sort_of_all_cosines(rng):
    queries, bank = rng.normal(size=(7, 4)), rng.normal(size=(30, 4))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, bank)]
    cosines = unit[0] @ unit[1].T
    values, rows = neighbors.nearest(queries, bank, 5, batch_size=3)
    np.testing.assert_array_equal(rows, np.argsort(-cosines, axis=1)[:, :5])
    np.testing.assert_allclose(values, -np.sort(-cosines, axis=1)[:, :5], atol=1e-5)


def test_votes_are_weighted_by_similarity():
    bank = np.array([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    labels = np.array([0, 1, 1])
    query = np.array([[1.0, 0.1]])
    # Three neighbors: one very near of class 0, two far ones of class 1.
    assert neighbors.classify(query, bank, labels, k=3, temperature=0.1) == [0]
    assert neighbors.classify(query, bank, labels, k=3, temperature=100.0) == [1]
    assert neighbors.classify(query, bank, labels, k=1) == [0]


def test_no_more_vote_than_there_are(rng):
    bank, labels = rng.normal(size=(5, 3)), np.zeros(5, int)
    assert neighbors.classify(rng.normal(size=(2, 3)), bank, labels, k=200).tolist() == [0, 0]


def test_no_queries_give_no_rows(rng):
    values, rows = neighbors.nearest(np.zeros((0, 3)), rng.normal(size=(4, 3)), 2)
    assert values.shape == rows.shape == (0, 2)


@pytest.mark.parametrize("k", [0, 5])
def test_refuses_a_k_that_the_bank_cannot_serve(rng, k):
    with pytest.raises(ValueError, match="k must be"):
        neighbors.nearest(rng.normal(size=(1, 3)), rng.normal(size=(4, 3)), k)


def cosine_distance(a, b):
    return 1.0 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_the_distance_is_the_mean_to_the_five_nearest(rng):
    bank, queries = rng.normal(size=(40, 6)), rng.normal(size=(9, 6))
    expected = [
        np.mean(sorted(cosine_distance(query, row) for row in bank)[:5]) for query in queries
    ]
    np.testing.assert_allclose(distance(queries, bank, k=5), expected, rtol=1e-4)


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
    joined = Joined(bank, bank_kappa)
    np.testing.assert_allclose(joined.distance(queries, kappa, k=5), expected, rtol=1e-4)
    # One more feature among the others: it spreads as they do on average.
    assert rows[:, -1].std() == pytest.approx(np.sqrt((rows[:, :-1].std(axis=0) ** 2).mean()))
    assert joined.scale == pytest.approx(scale) == pytest.approx(spread(bank))


def test_the_joined_distance_knows_no_units(joined_case):
    bank, bank_kappa, queries, kappa = joined_case
    expected = Joined(bank, bank_kappa).distance(queries, kappa, k=5)
    changed = Joined(300 * bank, 7 - 50 * bank_kappa)
    np.testing.assert_allclose(
        changed.distance(0.01 * queries, 7 - 50 * kappa, k=5), expected, rtol=1e-3
    )


def test_a_score_without_an_opinion_adds_nothing(joined_case):
    bank, _, queries, kappa = joined_case
    np.testing.assert_allclose(
        Joined(bank, np.ones(60)).distance(queries, kappa, k=5),
        distance(queries, bank, k=5),
        rtol=1e-5,
    )


def test_a_strange_score_makes_a_familiar_image_strange(joined_case):
    bank, bank_kappa, _, _ = joined_case
    joined = Joined(bank, bank_kappa)
    assert (
        joined.distance(bank, bank_kappa - 20, k=5) > joined.distance(bank, bank_kappa, k=5) + 1
    ).all()
