"""The search of recipes: its losses against NumPy, its optimizers, a line of a tiny recipe."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from studies.recipe import networks, objectives, optimizers, search, teacher
from studies.recipe.recipes import BASE, RECIPES
from tfvmf import losses


def views(rng, count, rows=5, size=6):
    return [tf.constant(rng.normal(size=(rows, size)), tf.float32) for _ in range(count)]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_two_views_give_nt_xent(rng):
    first, second = views(rng, 2)
    expected = losses.nt_xent(unit(first.numpy()), unit(second.numpy()), temperature=0.3)
    got = objectives.multi_positive_nt_xent([first, second], [], temperature=0.3)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("decoupled", [False, True])
def test_every_view_finds_the_global_views_of_its_image(rng, decoupled):
    globals_, locals_ = views(rng, 3), views(rng, 2)
    got = objectives.multi_positive_nt_xent(globals_, locals_, temperature=0.5, decoupled=decoupled)
    every = [unit(v.numpy().astype(np.float64)) for v in [*globals_, *locals_]]
    terms = []
    for a, anchor in enumerate(every):
        for i, z in enumerate(anchor):
            others = [z @ every[g][j] / 0.5 for g in range(3) for j in range(5) if j != i]
            found = [z @ every[g][i] / 0.5 for g in range(3) if g != a]
            wholes = [special.logsumexp(others + ([] if decoupled else [f])) for f in found]
            terms.append(np.mean(np.array(wholes) - found))
    np.testing.assert_allclose(got, np.mean(terms), rtol=1e-5)


def test_a_teacher_says_which_images_are_alike(rng):
    first, second = views(rng, 2)
    vectors = unit(rng.normal(size=(5, 4))).astype(np.float32)
    got = objectives.taught([first, second], [], temperature=0.5, teacher=lambda: vectors)
    hidden = np.diag([-np.inf] * 5)
    wanted = special.softmax(vectors @ vectors.T / 0.1 + hidden, axis=1)
    terms = []
    for a, b in ((first, second), (second, first)):
        scores = unit(a.numpy()) @ unit(b.numpy()).T / 0.5
        logs = special.log_softmax(scores + hidden, axis=1)
        terms.append(-np.sum(wanted * np.where(np.isinf(logs), 0.0, logs), axis=1))
    np.testing.assert_allclose(got, np.mean(terms), rtol=1e-5)


def test_the_closed_form_teacher_tells_textures_apart(rng):
    """Stripes in two directions, at random phases: nearest neighbors have the same direction."""
    phases, turned = rng.integers(0, 8, 60), np.arange(60) % 2
    waves = np.stack([np.tile(np.arange(32) + phase, (32, 1)) for phase in phases])
    pixels = 127 + 80 * np.sin(waves * np.pi / 4) + rng.normal(0, 10, waves.shape)
    pixels = np.where(turned[:, None, None] == 1, pixels.transpose(0, 2, 1), pixels)
    images = np.repeat(np.clip(pixels, 0, 255).astype(np.uint8)[..., None], 3, axis=3)
    vectors = teacher.features(images, words=64, dimension=16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-4)
    alike = vectors @ vectors.T - 2 * np.eye(60)
    assert np.mean(turned[alike.argmax(axis=1)] == turned) > 0.9


def test_neighbors_take_the_place_of_a_view(rng):
    first, second = views(rng, 2)
    past = unit(rng.normal(size=(7, 6))).astype(np.float32)
    queue = tf.Variable(past)
    got = objectives.nearest_neighbor_nt_xent([first, second], [], temperature=0.5, queue=queue)
    z = [unit(v.numpy()) for v in (first, second)]
    terms = []
    for target, anchor in ((0, 1), (1, 0)):
        neighbor = past[np.argmax(z[target] @ past.T, axis=1)]
        scores = neighbor @ z[anchor].T / 0.5
        terms.append(special.logsumexp(scores, axis=1) - np.diag(scores))
    np.testing.assert_allclose(got, np.mean(terms), rtol=1e-5)
    np.testing.assert_allclose(queue[:5], z[0], rtol=1e-5)  # the newest in front
    np.testing.assert_array_equal(queue[5:], past[:2])


def test_vicreg_of_two_views(rng):
    a, b = (v.numpy() for v in views(rng, 2, rows=9))
    spread = np.mean([np.maximum(0, 1 - np.sqrt(v.var(axis=0) + 1e-4)).mean() for v in (a, b)])
    covariances = [np.cov(v, rowvar=False) for v in (a, b)]
    crossed = np.mean([(np.sum(c**2) - np.sum(np.diag(c) ** 2)) / 6 for c in covariances])
    expected = 25 * np.mean((a - b) ** 2) + 25 * spread + crossed
    got = objectives.vicreg([tf.constant(a), tf.constant(b)], [])
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_coding_rate(rng):
    pair = views(rng, 2, rows=9)
    a, b = (unit(v.numpy().astype(np.float64)) for v in pair)
    center = unit(a + b)
    cosine = np.mean([np.sum(v * center, axis=1) for v in (a, b)])
    rates = [np.linalg.slogdet(np.eye(6) + 6 / (9 * 0.04) * v.T @ v)[1] / 2 for v in (a, b)]
    got = objectives.coding_rate(pair, [], weight=3.0)
    np.testing.assert_allclose(got, -3 * cosine - np.mean(rates), rtol=1e-4)


@pytest.mark.parametrize("name", ["adam", "sgd", "lars", "muon"])
def test_every_optimizer_goes_downhill(rng, name):
    weights = [
        tf.Variable(tf.constant(rng.normal(size=shape), tf.float32)) for shape in [(4, 3), (3,)]
    ]
    wrapped = [dataclasses.make_dataclass("Wrapped", ["value"])(value=v) for v in weights]
    optimizer = optimizers.Optimizer(name, wrapped, momentum=0.5, weight_decay=0.0)

    def loss():
        return tf.add_n([tf.reduce_sum(tf.square(v)) for v in weights])

    before = loss()
    for _ in range(20):
        optimizer.apply([2.0 * v for v in weights], tf.constant(0.02))
    assert loss() < before


def test_whitened_patches_have_no_correlations(rng):
    noise = rng.uniform(0, 255, size=(60, 33, 33, 3))
    images = ((noise[:, 1:, 1:] + noise[:, :-1, :-1]) / 2).astype(np.uint8)  # neighbors correlate
    filters = networks.whitening_filters(images, epsilon=0.0)
    assert filters.shape == (3, 3, 3, 54)
    np.testing.assert_array_equal(filters[..., :27], -filters[..., 27:])
    answers = tf.nn.conv2d(images / 255.0 * 4 - 2, filters[..., :27].astype(float), 1, "VALID")
    answers = answers.numpy()[:, ::4, ::4].reshape(-1, 27)
    np.testing.assert_allclose(np.cov(answers, rowvar=False), np.eye(27), atol=1e-3)


def test_a_schedule_rises_and_falls_to_nothing():
    recipe = dataclasses.replace(BASE, rate=1.0, warmup=0.1, sizes=(16, 20, 24))
    assert recipe.rate_at(0.0) < 0.02
    assert recipe.rate_at(0.1) == pytest.approx(1.0)
    assert recipe.rate_at(1.0) == pytest.approx(0.0)
    assert [recipe.size_at(share) for share in (0.0, 0.5, 0.99, 1.0)] == [16, 20, 24, 24]


def test_a_line_is_written_once_and_tabulated(rng, tmp_path):
    images = search.Images(
        rng.integers(0, 256, (40, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, 40),
        rng.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, 20),
    )  # fmt: skip
    tiny = dataclasses.replace(
        RECIPES["muon_local2"], channels=(2, 2, 2), hidden=(8,), dimension=4, batch=16
    )
    line = search.run(tiny, images, minutes=0.001, hopeless={"0.5": 0.0})
    assert not line["stopped"]
    assert line["steps"] > 1  # the first builds the graph and does not count
    assert line["images_per_cpu_second"] > 0
    assert 0 <= line["knn_few"] <= 1
    stopped = search.run(tiny, images, minutes=0.001, hopeless={"0.5": 1.1})
    assert stopped["stopped"]
    for name, content in (("a", line), ("b", stopped)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"recipe": name, **content}))
    shown = search.table(search.read_lines(tmp_path)).splitlines()
    assert len(shown) == 4
    assert f"**{line['knn_few']:.3f}**" in shown[2]
    assert "stopped" in shown[3]
