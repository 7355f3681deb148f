import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import tensorflow as tf

from tfvmf import losses, models, vmf


def unit(rng, rows, dimension):
    x = rng.normal(size=(rows, dimension))
    return tf.constant(x / np.linalg.norm(x, axis=1, keepdims=True), tf.float32)


@pytest.fixture
def pair(rng):
    mu_1, mu_2 = unit(rng, 5, 8), unit(rng, 5, 8)
    kappa_1, kappa_2 = (tf.constant(rng.uniform(0, 5, 5), tf.float32) for _ in range(2))
    return mu_1, mu_2, kappa_1, kappa_2


def paper_alignment(mu_1, mu_2, kappa_1, kappa_2):
    cosine = losses.cosine(mu_1, mu_2)
    return losses.concentration_terms([cosine, cosine], [kappa_1, kappa_2])["alignment"]


def test_alignment_is_the_papers_code_where_that_does_not_overflow(pair):
    mu_1, mu_2, kappa_1, kappa_2 = (np.asarray(x, np.float64) for x in pair)
    cosine = (mu_1 * mu_2).sum(axis=1)
    printed = 0.05 * -np.log(np.exp(kappa_1 * cosine + kappa_2 * cosine) + 1e-6).mean()
    assert float(paper_alignment(*pair)) == pytest.approx(printed, abs=1e-5)


def test_alignment_does_not_overflow():
    mu = tf.constant([[1.0, 0.0]])
    terms = losses.concentration_terms([losses.cosine(mu, mu)], [tf.constant([1e6])])
    assert float(terms["alignment"]) == pytest.approx(-5e4, rel=1e-6)


def test_gradient_with_respect_to_the_direction(pair):
    mu_1, mu_2, kappa_1, kappa_2 = pair
    with tf.GradientTape() as tape:
        tape.watch(mu_1)
        loss = paper_alignment(mu_1, mu_2, kappa_1, kappa_2)
    # d align / d mu_1 = -l_align (kappa_1 + kappa_2) mu_2, over the mean of the batch.
    expected = -0.05 * (kappa_1 + kappa_2)[:, None] * mu_2 / 5
    np.testing.assert_allclose(tape.gradient(loss, mu_1), expected, rtol=1e-5)


def test_gradient_with_respect_to_the_concentration(pair):
    mu_1, mu_2, kappa_1, kappa_2 = pair
    with tf.GradientTape() as tape:
        tape.watch(kappa_1)
        loss = paper_alignment(mu_1, mu_2, kappa_1, kappa_2)
    # d align / d kappa_1 = -l_align mu_1.mu_2, over the mean of the batch.
    expected = -0.05 * losses.cosine(mu_1, mu_2) / 5
    np.testing.assert_allclose(tape.gradient(loss, kappa_1), expected, rtol=1e-5)


def test_penalty_equals_numpy(pair):
    kappa_1, kappa_2 = pair[2].numpy(), pair[3].numpy()
    expected = 0.005 * ((kappa_1**2).mean() + (kappa_2**2).mean())
    terms = losses.concentration_terms([losses.cosine(*pair[:2])] * 2, pair[2:])
    assert float(terms["penalty"]) == pytest.approx(expected, rel=1e-6)


def test_the_exact_penalty_is_zero_at_zero_and_has_slope_a_d():
    def penalty(kappa):
        options = {"align_weight": 128.0, "regularizer": "vmf", "dimension": 128}
        return losses.concentration_terms([tf.zeros_like(kappa)], [kappa], **options)["penalty"]

    kappa = tf.constant([0.0, 10.0, 300.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(kappa)
        total = penalty(kappa)
    ratio = scipy.special.ive(64, [10.0, 300.0]) / scipy.special.ive(63, [10.0, 300.0])
    np.testing.assert_allclose(tape.gradient(total, kappa) * 3, [0.0, *ratio], rtol=1e-9)
    assert float(penalty(kappa[:1])) == 0.0


@pytest.mark.parametrize("agreement", [0.2, 0.6, 0.9])
def test_with_the_exact_penalty_the_optimum_is_the_likeliest_kappa(agreement):
    cosine = tf.constant([agreement - 0.05, agreement + 0.05], tf.float64)

    def loss(kappa):
        kappas = [tf.fill([2], tf.constant(kappa, tf.float64))]
        terms = losses.concentration_terms([cosine], kappas, regularizer="vmf", dimension=64)
        return float(terms["alignment"] + terms["penalty"])

    found = scipy.optimize.minimize_scalar(loss, bounds=(0, 2000), method="bounded").x
    expected = float(vmf.inverse_mean_resultant_length(agreement, 64))
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_head_on_frozen_directions_learns_five_times_the_expected_cosine(rng):
    """Three kinds of image, whose two views agree to 0.9, 0.5 and 0.2 on average."""
    agreement = np.array([0.9, 0.5, 0.2])
    features = rng.normal(size=(3, 16)).astype(np.float32)
    keras.utils.set_random_seed(0)
    head = models.build_concentration_head(16, hidden=32)
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(head.trainable_variables)

    @tf.function
    def step(inputs, cosine):
        with tf.GradientTape() as tape:
            kappa = head(inputs, training=True)
            terms = losses.concentration_terms([cosine], [kappa])
            loss = tf.add_n(list(terms.values()))
        variables = head.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for _ in range(600):
        kinds = np.repeat(np.arange(3), 32)
        noise = rng.uniform(-0.1, 0.1, len(kinds))  # cosines scatter; their mean is learned
        step(features[kinds], tf.constant(agreement[kinds] + noise, tf.float32))
    kappa = head(np.repeat(features, 32, axis=0), training=True)[::32]
    np.testing.assert_allclose(kappa, 5.0 * agreement, atol=0.15)


@pytest.mark.parametrize("options", [{"regularizer": "l1"}, {"regularizer": "vmf"}])
def test_an_unknown_regularizer_or_a_missing_dimension_is_refused(pair, options):
    with pytest.raises(ValueError, match="regularizer"):
        losses.concentration_terms([losses.cosine(*pair[:2])], [pair[2]], **options)
