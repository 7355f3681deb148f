"""The von Mises-Fisher distribution: its law, its derivatives, its manners in graphs."""

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tfvmf import vmf

SEED = (7, 11)


def direction(dim, seed=0):
    vector = np.random.default_rng(seed).normal(size=dim)
    return vector / np.linalg.norm(vector)


def exact_length_and_slope(kappa, dim):
    with mpmath.workdps(40):
        k = mpmath.mpf(kappa)
        ratio = mpmath.besseli(mpmath.mpf(dim) / 2, k) / mpmath.besseli(mpmath.mpf(dim) / 2 - 1, k)
        return float(ratio), float(1 - ratio**2 - (dim - 1) * ratio / k)


def marginal_cdf(cosines, kappa, dim):
    """P(mu.x <= cosine), by Simpson's rule over a million angles."""
    theta = np.linspace(0, np.pi, 1_000_001)
    log_p = kappa * np.cos(theta) + scipy.special.xlogy(dim - 2, np.sin(theta))
    below = scipy.integrate.cumulative_simpson(np.exp(log_p - log_p.max()), x=theta, initial=0)
    return 1 - np.interp(np.arccos(np.clip(cosines, -1, 1)), theta, below / below[-1])


def sample_and_slopes(mu, kappa, n, function, dtype=np.float64):
    """The mean of function(samples) and its derivatives with respect to mu and kappa."""
    mu, kappa = tf.constant(mu, dtype), tf.constant(kappa, dtype)
    with tf.GradientTape() as tape:
        tape.watch((mu, kappa))
        samples = vmf.VonMisesFisher(mu, kappa).sample(n, seed=SEED)
        value = tf.reduce_mean(function(samples), axis=0)
    return value, *tape.gradient(value, (mu, kappa))


def test_it_is_a_tfp_distribution_and_says_it_is_reparameterised():
    distribution = vmf.VonMisesFisher(direction(8), 3.0)
    assert isinstance(distribution, tfp.distributions.VonMisesFisher)
    assert distribution.reparameterization_type == tfp.distributions.FULLY_REPARAMETERIZED
    assert distribution.copy(concentration=5.0).concentration == 5.0
    assert distribution.dtype == tf.float64


@pytest.mark.parametrize("dim", [2, 3, 4, 8, 64, 128, 512, 2048])
def test_the_cosine_follows_its_exact_law(dim):
    kappa = np.array([0.0, 0.5, 5.0, 50.0, 500.0, 1e4])
    mu = direction(dim)
    n = 3000 if dim < 512 else 1000
    samples = vmf.VonMisesFisher(mu, kappa).sample(n, seed=SEED).numpy()
    np.testing.assert_allclose(np.linalg.norm(samples, axis=-1), 1, atol=1e-12)
    for cosines, k in zip((samples @ mu).T, kappa, strict=True):
        test = scipy.stats.kstest(cosines, marginal_cdf, args=(k, dim))
        assert test.pvalue > 1e-3, (k, test)


def test_the_moment_that_the_widely_copied_sampler_misses():
    mu = direction(128)
    samples = vmf.VonMisesFisher(mu, np.float64(11)).sample(10_000, seed=SEED)
    mean, variance = exact_length_and_slope(11, 128)
    assert mean == pytest.approx(0.085, abs=5e-4)
    error = np.mean(samples @ mu[:, None]) - mean
    assert abs(error) < 4 * np.sqrt(variance / 10_000)


@pytest.mark.parametrize("kappa", [0.0, 2.0, 40.0])
def test_samples_have_the_mean_and_covariance_stated(kappa):
    mu = np.array([0.48, -0.6, 0.64, 0.0])
    distribution = vmf.VonMisesFisher(mu, np.float64(kappa))
    samples = distribution.sample(100_000, seed=SEED).numpy()
    np.testing.assert_allclose(samples.mean(0), distribution.mean(), atol=5e-3)
    np.testing.assert_allclose(np.cov(samples.T), distribution.covariance(), atol=5e-3)
    np.testing.assert_allclose(distribution.mode(), mu)


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 128, 512])
def test_the_mean_cosine_has_the_right_slope_in_kappa(dim):
    kappa = (0.5, 5.0, 50.0, 500.0)
    mu = direction(dim)
    n = 150_000 if dim <= 8 else 6000
    _, _, slope = sample_and_slopes(mu, kappa, n, lambda x: tf.linalg.matvec(x, mu))
    expected = [exact_length_and_slope(k, dim)[1] for k in kappa]
    np.testing.assert_allclose(slope, expected, rtol=0.01)


@pytest.mark.parametrize("dim", [2, 3, 8, 128])
def test_each_sample_moves_with_kappa_as_it_says(dim):
    # The same random numbers at neighboring kappa: the samples themselves can be subtracted.
    mu = tf.constant(direction(dim))
    kappa = tf.constant([0.01, 0.5, 5.0, 50.0, 500.0], tf.float64)
    step = 1e-4 * kappa

    def cosines(kappa):
        return tf.linalg.matvec(vmf.VonMisesFisher(mu, kappa).sample(50, seed=SEED), mu)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(kappa)
        rows = tf.unstack(cosines(kappa))
    found = np.stack([tape.gradient(row, kappa) for row in rows])
    expected = (cosines(kappa + step) - cosines(kappa - step)) / (2 * step)
    # Relative, but for the few samples next to a pole, which hardly move.
    scale = np.abs(expected) + 1e-3 * np.abs(expected).max(axis=0)
    assert np.max(np.abs(found - expected) / scale) < 1e-3


def test_a_turn_of_mu_takes_the_samples_along():
    # E[c.x] = A_d c.mu, so its derivative along the sphere is A_d times c's tangential part.
    mu, c = direction(6), direction(6, seed=1)
    kappa = np.float64(9)
    _, slope, _ = sample_and_slopes(mu, kappa, 50_000, lambda x: tf.linalg.matvec(x, c))
    length, _ = exact_length_and_slope(9, 6)
    np.testing.assert_allclose(slope, length * (c - mu * (c @ mu)), atol=5e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [2, 3, 128])
def test_the_poles_and_extremes_are_finite(dim, dtype):
    axes = np.eye(dim)[[0, 0, dim - 1]] * [[1], [-1], [1]]
    kappa = np.array([0.0, 1e-3, 20.0, 1e7])[:, None]
    value, *slopes = sample_and_slopes(
        axes, kappa, 100, lambda x: tf.reduce_sum(x**3 * np.arange(1, dim + 1), axis=-1), dtype
    )
    assert np.all(np.isfinite(value))
    for slope in slopes:
        assert np.all(np.isfinite(slope))
    samples = vmf.VonMisesFisher(dtype(axes), dtype(kappa)).sample(500, seed=SEED)
    assert samples.dtype == dtype
    np.testing.assert_allclose(np.linalg.norm(samples, axis=-1), 1, atol=2e-6)
    np.testing.assert_allclose(samples[:, -1], np.broadcast_to(axes, (500, 3, dim)), atol=0.02)


def test_second_derivatives_of_samples_are_refused():
    kappa = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(kappa)
        with tf.GradientTape() as inner:
            inner.watch(kappa)
            x = vmf.VonMisesFisher([1.0, 0.0, 0.0], kappa).sample(seed=SEED)
        slope = inner.gradient(x, kappa)
    with pytest.raises(LookupError, match="first derivatives only"):
        outer.gradient(slope, kappa)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (3, 0.2), (10, 25.0), (60, 90.0)])
def test_log_prob_agrees_with_scipy(dim, kappa):
    mu = direction(dim)
    distribution = vmf.VonMisesFisher(mu, np.float64(kappa))
    points = distribution.sample(20, seed=SEED).numpy()
    expected = scipy.stats.vonmises_fisher(mu, kappa).logpdf(points)
    np.testing.assert_allclose(distribution.log_prob(points), expected, rtol=1e-10)
    entropy = scipy.stats.vonmises_fisher(mu, kappa).entropy()
    np.testing.assert_allclose(distribution.entropy(), entropy, rtol=1e-10)


def test_log_prob_keeps_its_digits_in_float32():
    mu = direction(64)
    kappa = np.float64(1e5)
    exact = vmf.VonMisesFisher(mu, kappa)
    points = exact.sample(50, seed=SEED)
    single = vmf.VonMisesFisher(np.float32(mu), np.float32(kappa))
    error = single.log_prob(tf.cast(points, tf.float32)) - tf.cast(
        exact.log_prob(points), tf.float32
    )
    assert np.max(np.abs(error)) < 3e-3


def test_log_prob_is_right_where_tfp_declines():
    mu = direction(2048)
    distribution = vmf.VonMisesFisher(mu, np.float64(700))
    with mpmath.workdps(40):
        log_c = 1023 * mpmath.log(700) - 1024 * mpmath.log(2 * mpmath.pi)
        log_c -= mpmath.log(mpmath.besseli(1023, 700))
    assert float(distribution.log_prob(mu)) == pytest.approx(float(log_c + 700), rel=1e-13)


def test_divergences_are_registered():
    mu1, mu2 = direction(5), direction(5, seed=1)
    a, b = vmf.VonMisesFisher(mu1, np.float64(3)), vmf.VonMisesFisher(mu2, np.float64(8))
    np.testing.assert_allclose(a.kl_divergence(b), vmf.kl_divergence(mu1, 3.0, mu2, 8.0))
    samples = a.sample(100_000, seed=SEED)
    monte_carlo = np.mean(a.log_prob(samples) - b.log_prob(samples))
    assert float(a.kl_divergence(b)) == pytest.approx(monte_carlo, rel=0.01)
    uniform = tfp.distributions.SphericalUniform(5, dtype=tf.float64)
    np.testing.assert_allclose(a.kl_divergence(uniform), vmf.kl_to_uniform(np.float64(3), 5))


@pytest.mark.parametrize(
    ("mu_batch", "kappa_batch", "batch"),
    [((), (), ()), ((), (3,), (3,)), ((4,), (), (4,)), ((2, 1), (3,), (2, 3)), ((0,), (0,), (0,))],
)
def test_batches_broadcast(mu_batch, kappa_batch, batch):
    mu = np.broadcast_to(direction(7), (*mu_batch, 7)).astype(np.float32)
    distribution = vmf.VonMisesFisher(mu, np.full(kappa_batch, 4, np.float32))
    for shape in ((), (5,), (2, 6)):
        samples = distribution.sample(shape, seed=SEED)
        assert samples.shape == (*shape, *batch, 7)
        assert distribution.log_prob(samples).shape == (*shape, *batch)
    assert distribution.entropy().shape == batch
    assert distribution.mean().shape == (*batch, 7)
    assert distribution.covariance().shape == (*batch, 7, 7)


def test_seeds_and_graphs_repeat_the_samples():
    mu, kappa = direction(16).astype(np.float32), np.float32([1, 30])

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None]),
            tf.TensorSpec([None]),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([2], tf.int32),
        ]
    )
    def draw(mu, kappa, n, seed):
        return vmf.VonMisesFisher(mu, kappa).sample(n, seed=seed)

    eager = vmf.VonMisesFisher([mu, mu], kappa).sample(9, seed=SEED)
    np.testing.assert_allclose(draw([mu, mu], kappa, 9, SEED), eager, atol=1e-6)
    assert np.max(np.abs(draw([mu, mu], kappa, 9, (7, 12)) - eager)) > 0.1
    assert np.max(np.abs(eager[0] - eager[1])) > 0.1


def test_it_passes_into_and_out_of_a_function():
    @tf.function
    def sharpen(distribution):
        return vmf.VonMisesFisher(
            distribution.mean_direction, 2 * distribution.concentration
        ), distribution.sample(3, seed=SEED)

    distribution = vmf.VonMisesFisher([0.6, 0.8], [1.0, 2.0])
    sharper, samples = sharpen(distribution)
    assert isinstance(sharper, vmf.VonMisesFisher)
    np.testing.assert_allclose(sharper.concentration, [2, 4])
    np.testing.assert_allclose(samples, distribution.sample(3, seed=SEED), atol=1e-6)


def test_it_samples_under_a_strategy(two_replicas):
    mu = tf.constant(direction(8), tf.float32)

    def step():
        kappa = tf.constant(5.0)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            tape.watch(kappa)
            samples = vmf.VonMisesFisher(mu, kappa).sample(64, seed=tf.stack([1, replica]))
            value = tf.reduce_mean(tf.linalg.matvec(samples, mu))
        return samples, tape.gradient(value, kappa)

    samples, slopes = tf.function(lambda: two_replicas.run(step))()
    first, second = two_replicas.experimental_local_results(samples)
    assert np.max(np.abs(first - second)) > 0.1
    for slope in two_replicas.experimental_local_results(slopes):
        assert float(slope) == pytest.approx(exact_length_and_slope(5, 8)[1], rel=0.3)


def test_variables_are_followed():
    kappa = tf.Variable(1.0)
    distribution = vmf.VonMisesFisher([1.0, 0.0, 0.0], kappa)
    before = distribution.entropy()
    kappa.assign(10.0)
    assert distribution.entropy() < before
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(distribution.sample(1000, seed=SEED)[:, 0])
    assert tape.gradient(value, kappa) > 0
    kappa.assign(-1.0)
    with pytest.raises(ValueError, match="concentration must be finite and at least 0, got -1"):
        distribution.entropy()


@pytest.mark.parametrize(
    ("mu", "kappa", "message"),
    [
        ([1.0, 0.0], -1.0, "concentration must be finite and at least 0, got -1.0"),
        ([1.0, 0.0], float("nan"), "concentration must be finite and at least 0, got nan"),
        ([1.0, 1.0], 1.0, r"mean_direction must have length 1, got 1\.41"),
        ([float("nan"), 1.0], 1.0, "mean_direction must have length 1, got nan"),
        ([1.0], 1.0, "last axis of mean_direction must be an integer from 2 to 8192, got 1"),
    ],
)
def test_bad_parameters_are_refused(mu, kappa, message):
    with pytest.raises(ValueError, match=message):
        vmf.VonMisesFisher(mu, kappa)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])])
    def symbolic(mu, kappa):
        return vmf.VonMisesFisher(mu, kappa, validate_args=True).entropy()

    with pytest.raises(tf.errors.InvalidArgumentError, match=message.split(", got")[0]):
        symbolic(mu, kappa)


def test_bad_points_are_refused():
    distribution = vmf.VonMisesFisher(direction(2048).astype(np.float32), 5.0, validate_args=True)
    samples = distribution.sample(200, seed=SEED)
    assert np.all(np.isfinite(distribution.log_prob(samples)))
    with pytest.raises(ValueError, match=r"value must have length 1, got 1\.99"):
        distribution.log_prob(2 * samples)
    with pytest.raises(ValueError, match="value must have the last axis 2048"):
        distribution.log_prob([1.0, 0.0])
