import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfvmf import counter_random
from tfvmf.counter_random import example_seeds, normals, uniforms

MANY = 20_000
ALPHA = 1e-4  # of a false alarm; the numbers are fixed, so a test that passes keeps passing


def murmur3_finalizer(word):
    """In Python's integers, from the published C."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % 2**32
    word ^= word >> 13
    word = word * 0xC2B2AE35 % 2**32
    return word ^ word >> 16


@pytest.fixture(scope="module")
def seeds():
    return example_seeds(0, 7, tf.range(MANY), 1)


@pytest.mark.parametrize(
    ("word", "hashed"),
    # published test vectors of MurmurHash3_x86_32 for the empty string, which is its finalizer
    [(0, 0), (1, 0x514E28B7), (0xFFFFFFFF, 0x81F16F39)],
)
def test_mixer_is_murmur3s(word, hashed):
    assert counter_random._mix(tf.constant([word], tf.uint32)).numpy()[0] == hashed


def test_uniforms_in_pythons_integers():
    pair = (123456789, -987654321)
    got = uniforms(tf.constant([pair]), 5).numpy()[0]
    first, second = (word % 2**32 for word in pair)
    for column in range(5):
        word = murmur3_finalizer(first ^ murmur3_finalizer(column + 1))
        word = murmur3_finalizer(word ^ second)
        assert got[column] == (word >> 9) / 2**23


def test_normals_are_box_mullers_of_uniform_numbers():
    first, second = normals(tf.constant([[3, 4]]), 32).numpy()[0].reshape(2, 16)
    radius = first.astype(np.float64) ** 2 + second.astype(np.float64) ** 2
    scaled = np.exp(-radius / 2) * 2**23  # a whole number again
    np.testing.assert_allclose(scaled, np.rint(scaled), rtol=3e-6)


def test_uniforms_are_uniform_and_columns_independent(seeds):
    drawn = uniforms(seeds, 16).numpy()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:
        assert scipy.stats.kstest(column, "uniform").pvalue > ALPHA
    correlations = np.corrcoef(drawn.T)[np.triu_indices(16, 1)]
    assert np.abs(correlations).max() < 4.5 / math.sqrt(MANY)
    # pairs of columns fill the unit square evenly
    for left, right in ((0, 1), (3, 4), (0, 15)):
        cells, _, _ = np.histogram2d(drawn[:, left], drawn[:, right], bins=16)
        assert scipy.stats.chisquare(cells.ravel()).pvalue > ALPHA


@pytest.mark.parametrize("other", [(1, 7, 0, 1), (0, 8, 0, 1), (0, 7, 1, 1), (0, 7, 0, 0)])
def test_neighboring_seeds_are_independent(seeds, other):
    seed, step, offset, view = other
    here = uniforms(seeds, 4).numpy()
    there = uniforms(example_seeds(seed, step, tf.range(MANY) + offset, view), 4).numpy()
    for left in here.T:
        for right in there.T:
            assert abs(np.corrcoef(left, right)[0, 1]) < 4.5 / math.sqrt(MANY)


def test_bits_flip_with_odds_of_one_half():
    flips = 1 << np.arange(31)
    words = np.random.default_rng(0).integers(2**31, size=(200, 1, 2))
    changed = words + np.zeros([200, 31, 2], np.int64)
    changed[:, :, 1] ^= flips
    before = uniforms(tf.constant(words.reshape(-1, 2), tf.int32), 1).numpy() * 2**23
    after = uniforms(tf.constant(changed.reshape(-1, 2), tf.int32), 1).numpy() * 2**23
    difference = before.astype(int) ^ after.astype(int).reshape(200, 31)
    odds = np.mean([(difference >> bit) & 1 for bit in range(23)])
    assert abs(odds - 0.5) < 4.5 * 0.5 / math.sqrt(200 * 31 * 23)


def test_normals_are_normal_and_independent(seeds):
    drawn = normals(seeds[:300], 331).numpy()
    assert drawn.shape == (300, 331)
    assert scipy.stats.kstest(drawn.ravel(), "norm").pvalue > ALPHA
    assert scipy.stats.kstest(np.mean(drawn, axis=1) * math.sqrt(331), "norm").pvalue > ALPHA
    assert scipy.stats.kstest(np.mean(drawn, axis=0) * math.sqrt(300), "norm").pvalue > ALPHA
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 4.5 / drawn.size**0.5
    assert abs(np.corrcoef(drawn[:, :160].ravel(), drawn[:, 160:320].ravel())[0, 1]) < 0.02


def test_a_column_depends_on_its_index_only(seeds):
    np.testing.assert_array_equal(uniforms(seeds[:9], 3), uniforms(seeds[:9], 7)[:, :3])


@pytest.mark.parametrize("draw", [uniforms, normals])
def test_an_example_depends_on_its_seed_only(seeds, draw):
    whole = draw(seeds[:37], 11).numpy()
    for start, stop in ((0, 1), (3, 20), (36, 37)):
        np.testing.assert_array_equal(draw(seeds[start:stop], 11), whole[start:stop])


def test_seeds_of_a_batch_differ_and_python_and_tensor_arguments_agree():
    seeds = example_seeds(5, 6, tf.range(4096), 1)
    assert seeds.dtype == tf.int32
    assert seeds.shape == [4096, 2]
    assert len(np.unique(seeds.numpy()[:, 0])) == 4096
    tensors = (tf.constant(5, tf.int64), tf.constant(6, tf.int64), tf.range(4096, dtype=tf.int64))
    np.testing.assert_array_equal(tf.function(example_seeds)(*tensors, tf.constant(1)), seeds)
    np.testing.assert_array_equal(example_seeds(5 - 2**32, 6, np.arange(4096), 1), seeds)
    steps = [example_seeds(5, step, [0], view).numpy() for step in range(50) for view in (0, 1)]
    assert len(np.unique(np.concatenate(steps), axis=0)) == 100
