import numpy as np
import pytest

from tfvmf import neighbors


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
