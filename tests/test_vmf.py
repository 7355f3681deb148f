"""The functions of tfvmf.vmf against mpmath, SciPy, quadrature and closed forms."""

import functools

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import tensorflow as tf

from tfvmf import vmf

DIMS = (2, 3, 4, 7, 16, 41, 42, 64, 128, 512, 2048, 8192)
KAPPAS = (1e-6, 1e-3, 0.3, 5.0, 60.0, 1.2e3, 2e4, 1e6, 1e7)
TYPES = (np.float32, np.float64)
OF_KAPPA = (vmf.log_normalizer, vmf.mean_resultant_length, vmf.entropy, vmf.kl_to_uniform)
OF_PAIRS = (vmf.kl_divergence, vmf.log_expected_likelihood)


@functools.cache
def exact(kappa, dim):
    """(log C_d, A_d, A_d', A_d'', KL to uniform) from the definitions at 50 digits."""
    with mpmath.workdps(60):
        order, k = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        below, above = (mpmath.besseli(order + i, k) for i in (0, 1))
        log_c = order * mpmath.log(k) - (order + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(below)
        log_c0 = mpmath.loggamma(order + 1) - mpmath.log(2) - (order + 1) * mpmath.log(mpmath.pi)
        a = above / below
        slope = 1 - a**2 - (dim - 1) * a / k
        bend = -2 * a * slope - (dim - 1) * (slope / k - a / k**2)
        return tuple(map(float, (log_c, a, slope, bend, k * a + log_c - log_c0)))


def exact_row(dim, index):
    return np.array([exact(float(np.float32(kappa)), dim)[index] for kappa in KAPPAS])


def kappas(dtype):
    # Rounded to float32 first, so that both types are given the same numbers.
    return tf.constant(np.float32(KAPPAS), dtype)


def gradient(function, value):
    with tf.GradientTape() as tape:
        tape.watch(value)
        result = function(value)
    return tape.gradient(result, value)


def unit(*vectors):
    return np.array(vectors) / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("dim", DIMS)
def test_values_over_the_whole_range(dim):
    for dtype, log_c, ratio in ((np.float64, 1e-10, 1e-9), (np.float32, 1e-5, 1e-5)):
        expected = exact_row(dim, 0)
        error = np.abs(vmf.log_normalizer(kappas(dtype), dim) - expected)
        assert np.max(error / np.maximum(1, np.abs(expected))) <= log_c
        length = vmf.mean_resultant_length(kappas(dtype), dim)
        np.testing.assert_allclose(length, exact_row(dim, 1), rtol=ratio)
        np.testing.assert_allclose(
            vmf.kl_to_uniform(kappas(dtype), dim), exact_row(dim, 4), rtol=1e-5
        )


@pytest.mark.parametrize("dim", DIMS)
def test_derivatives_over_the_whole_range(dim):
    kappa = kappas(np.float64)
    np.testing.assert_allclose(
        gradient(lambda k: vmf.log_normalizer(k, dim), kappa), -exact_row(dim, 1), rtol=1e-12
    )
    np.testing.assert_allclose(
        gradient(lambda k: vmf.mean_resultant_length(k, dim), kappa), exact_row(dim, 2), rtol=1e-10
    )
    second = gradient(lambda k: gradient(lambda k: vmf.log_normalizer(k, dim), k), kappa)
    np.testing.assert_allclose(second, -exact_row(dim, 2), rtol=1e-10)
    third = gradient(lambda k: gradient(lambda k: vmf.mean_resultant_length(k, dim), k), kappa)
    np.testing.assert_allclose(third, exact_row(dim, 3), rtol=1e-8)


@pytest.mark.parametrize("dim", DIMS)
def test_inverse_over_the_whole_range(dim):
    length = tf.constant(exact_row(dim, 1))
    kappa = kappas(np.float64)
    np.testing.assert_allclose(vmf.inverse_mean_resultant_length(length, dim), kappa, rtol=1e-4)
    slope = gradient(lambda r: vmf.inverse_mean_resultant_length(r, dim), length)
    np.testing.assert_allclose(slope, 1 / exact_row(dim, 2), rtol=1e-6)


def test_inverse_is_twice_differentiable_and_has_float32():
    kappa = np.array([0.0, 0.5, 4.0, 30.0])
    length = vmf.mean_resultant_length(kappa, 8)
    # k(r) inverts r(k): k'' = -r'' / r'^3.
    second = gradient(
        lambda r: gradient(lambda r: vmf.inverse_mean_resultant_length(r, 8), r), length
    )
    for k, found in zip(kappa[1:], second[1:], strict=True):
        _, _, slope, bend, _ = exact(k, 8)
        assert float(found) == pytest.approx(-bend / slope**3, rel=1e-6)
    single = vmf.inverse_mean_resultant_length(tf.cast(length, tf.float32), 8)
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, kappa, rtol=1e-5)


def test_inverse_in_a_graph_stays_finite_at_one():
    invert = tf.function(vmf.inverse_mean_resultant_length)
    assert np.all(np.isfinite(invert(tf.constant([0.0, 1.0 - 2**-24, 1.0]), 128)))


def test_closed_forms_in_three_dimensions():
    kappa = np.geomspace(0.1, 300, 40)
    log_c = np.log(kappa / (4 * np.pi * np.sinh(kappa)))
    np.testing.assert_allclose(vmf.log_normalizer(kappa, 3), log_c, rtol=1e-13)
    ratio = 1 / np.tanh(kappa) - 1 / kappa
    np.testing.assert_allclose(vmf.mean_resultant_length(kappa, 3), ratio, rtol=1e-12)


@pytest.mark.parametrize("dim", [2, 5, 64, 128])
def test_scipy_where_it_does_not_underflow(dim):
    kappa = np.geomspace(1, 1e4, 30)
    order = dim / 2 - 1
    scaled = scipy.special.ive(order, kappa)
    log_c = order * np.log(kappa) - dim / 2 * np.log(2 * np.pi) - np.log(scaled) - kappa
    np.testing.assert_allclose(vmf.log_normalizer(kappa, dim), log_c, rtol=1e-11)
    ratio = scipy.special.ive(order + 1, kappa) / scaled
    np.testing.assert_allclose(vmf.mean_resultant_length(kappa, dim), ratio, rtol=1e-11)


@pytest.mark.parametrize("dim", DIMS)
def test_at_kappa_zero(dim):
    area = np.log(2) + dim / 2 * np.log(np.pi) - scipy.special.gammaln(dim / 2)
    zero = tf.constant(0.0, tf.float64)
    assert float(vmf.log_normalizer(zero, dim)) == pytest.approx(-area, rel=1e-13)
    assert float(vmf.entropy(zero, dim)) == pytest.approx(area, rel=1e-13)
    assert vmf.mean_resultant_length(zero, dim) == 0
    assert vmf.kl_to_uniform(zero, dim) == 0
    assert vmf.inverse_mean_resultant_length(zero, dim) == 0
    assert gradient(lambda k: vmf.log_normalizer(k, dim), zero) == 0
    slope = gradient(lambda k: vmf.mean_resultant_length(k, dim), zero)
    assert float(slope) == pytest.approx(1 / dim, rel=1e-14)
    second = gradient(lambda k: gradient(lambda k: vmf.log_normalizer(k, dim), k), zero)
    assert float(second) == pytest.approx(-1 / dim, rel=1e-14)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [2, 3, 128, 8192])
def test_everything_is_finite_from_end_to_end(dim, dtype):
    kappa = tf.constant([0, 1e-30, 1e-7, 1, 1e4, 1e7], dtype)
    for function in OF_KAPPA:
        value = function(kappa, dim)
        assert value.dtype == dtype
        assert np.all(np.isfinite(value))
        assert np.all(np.isfinite(gradient(lambda k, f=function: f(k, dim), kappa)))
    first, other = (tf.one_hot(i, dim, dtype=dtype) for i in (0, dim - 1))
    for mu in (first, other, -first):
        for function in OF_PAIRS:
            arguments = [first, kappa[:, None], mu, kappa]
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                value = function(*arguments)
            assert value.dtype == dtype
            assert value.shape == (6, 6)
            assert np.all(np.isfinite(value))
            for slope in tape.gradient(value, arguments):
                assert np.all(np.isfinite(slope))


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.7), (3, 4.0), (16, 30.0), (128, 11.0)])
def test_entropy_by_quadrature(dim, kappa):
    log_c = float(vmf.log_normalizer(np.float64(kappa), dim))
    # The angle to the mean, times the area of the sphere of points at that angle.
    area = np.log(2) + (dim - 1) / 2 * np.log(np.pi) - scipy.special.gammaln((dim - 1) / 2)

    def integrand(theta):
        log_p = log_c + kappa * np.cos(theta)
        return -log_p * np.exp(log_p + area + (dim - 2) * np.log(np.sin(theta)))

    expected, _ = scipy.integrate.quad(integrand, 1e-12, np.pi - 1e-12, epsabs=1e-11, limit=200)
    assert float(vmf.entropy(np.float64(kappa), dim)) == pytest.approx(expected, rel=1e-8)


def test_kl_divergence_equals_its_definition():
    for dim in (2, 8, 128, 2048):
        rng = np.random.default_rng(dim)
        mu1, mu2 = unit(*rng.normal(size=(2, dim)))
        for kappa1, kappa2 in ((0.3, 5.0), (60.0, 0.3), (1.2e3, 2e4), (1e6, 1e7)):
            log_c1, ratio, *_ = exact(kappa1, dim)
            log_c2 = exact(kappa2, dim)[0]
            with mpmath.workdps(50):
                cosine = sum(mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(mu1, mu2, strict=True))
                expected = log_c1 - log_c2 + ratio * (kappa1 - kappa2 * cosine)
            found = vmf.kl_divergence(mu1, kappa1, mu2, kappa2)
            assert float(found) == pytest.approx(float(expected), rel=1e-9, abs=1e-8)


def test_kl_divergence_vanishes_only_at_equality():
    mu, other = unit([1.0, 2.0, -1.0, 0.5], [1.0, 2.0, -1.0, 0.6])
    for kappa in (0.0, 1e-5, 3.0, 1e3, 1e7):
        assert abs(vmf.kl_divergence(mu, kappa, mu, kappa)) <= 1e-15
        assert vmf.kl_divergence(mu, kappa, mu, kappa * 1.01 + 1e-3) > 0
        if kappa:
            assert vmf.kl_divergence(mu, kappa, other, kappa) > 0
    uniform = vmf.kl_divergence(mu, np.array([0.1, 7.0]), other, 0.0)
    np.testing.assert_allclose(uniform, vmf.kl_to_uniform(np.array([0.1, 7.0]), 4), rtol=1e-12)


def test_expected_likelihood_by_quadrature_on_the_circle():
    angle1, angle2, kappa1, kappa2 = 0.4, 1.9, 3.0, 7.5

    def density(angle, mode, kappa):
        return np.exp(kappa * np.cos(angle - mode)) / (2 * np.pi * scipy.special.i0(kappa))

    expected, _ = scipy.integrate.quad(
        lambda x: density(x, angle1, kappa1) * density(x, angle2, kappa2), 0, 2 * np.pi
    )
    mu1, mu2 = (np.array([np.cos(a), np.sin(a)]) for a in (angle1, angle2))
    found = vmf.log_expected_likelihood(mu1, kappa1, mu2, kappa2)
    assert float(found) == pytest.approx(np.log(expected), rel=1e-10)


@pytest.mark.parametrize("dim", [3, 128, 2048])
def test_expected_likelihood_equals_its_definition(dim):
    rng = np.random.default_rng(dim)
    mu1, mu2 = unit(*rng.normal(size=(2, dim)))
    for kappa1, kappa2 in ((0.3, 5.0), (1.2e3, 60.0), (2e4, 2e4)):
        length = float(np.linalg.norm(kappa1 * mu1 + kappa2 * mu2))
        expected = exact(kappa1, dim)[0] + exact(kappa2, dim)[0] - exact(length, dim)[0]
        found = vmf.log_expected_likelihood(mu1, kappa1, mu2, kappa2)
        assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-8)
    # Opposite and equally sure: the product is flat, and so is the kernel's slope in kappa3.
    opposite = vmf.log_expected_likelihood(mu1, 9.0, -mu1, 9.0)
    log_c = vmf.log_normalizer(np.array([9.0, 0.0]), dim)
    assert float(opposite) == pytest.approx(float(2 * log_c[0] - log_c[1]), rel=1e-12)


def test_broadcasting_over_kappa_and_dim():
    kappa = tf.constant([[0.5], [50.0]], tf.float64)
    dims = [2, 9, 128]
    for function in (*OF_KAPPA, lambda k, d: vmf.inverse_mean_resultant_length(k / 100, d)):
        together = function(kappa, dims)
        assert together.shape == (2, 3)
        for column, dim in enumerate(dims):
            np.testing.assert_allclose(together[:, column], function(kappa, dim)[:, 0], rtol=1e-13)


@pytest.mark.parametrize("dtype", TYPES)
def test_graphs_with_unknown_shapes_and_dimension(dtype):
    @tf.function(
        input_signature=[tf.TensorSpec(None, dtype), tf.TensorSpec([], tf.int32)], autograph=False
    )
    def compute(kappa, dim):
        with tf.GradientTape() as tape:
            tape.watch(kappa)
            value = vmf.log_normalizer(kappa, dim)
        return value, tape.gradient(value, kappa)

    kappa = tf.constant([[0.0, 1.0, 1e5]], dtype)
    for dim in (3, 128):
        value, slope = compute(kappa, dim)
        assert value.dtype == dtype
        np.testing.assert_allclose(value, vmf.log_normalizer(kappa, dim), rtol=1e-6)
        np.testing.assert_allclose(slope, -vmf.mean_resultant_length(kappa, dim), rtol=1e-6)


def test_python_numbers_follow_the_tensors():
    assert vmf.log_normalizer(2, 3).dtype == tf.float32
    assert vmf.log_normalizer(0.1, 3).dtype == tf.float32
    mu = np.eye(3)[0]
    exact_tenth = vmf.kl_divergence(mu, 0.1, mu, np.float64(0.2))
    assert exact_tenth.dtype == tf.float64
    assert exact_tenth == vmf.kl_divergence(mu, np.float64(0.1), mu, np.float64(0.2))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), [1.0, -1e-3]])
def test_bad_concentrations_are_refused(bad):
    for function in OF_KAPPA:
        with pytest.raises(ValueError, match="kappa must be finite and at least 0, got"):
            function(bad, 8)
    mu = [1.0, 0.0]
    for function in OF_PAIRS:
        with pytest.raises(ValueError, match="kappa2 must be finite and at least 0"):
            function(mu, 1.0, mu, bad)


@pytest.mark.parametrize("bad", [1, 0, -3, 2.5, 10_000, [2, 1]])
def test_bad_dimensions_are_refused(bad):
    for function in (*OF_KAPPA, vmf.inverse_mean_resultant_length):
        with pytest.raises(ValueError, match="dim must be an integer from 2 to 8192, got"):
            function(0.5, bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_lengths_are_refused(bad):
    with pytest.raises(ValueError, match="r must be at least 0 and below 1, got"):
        vmf.inverse_mean_resultant_length(bad, 8)


def test_bad_directions_are_refused():
    good = [0.6, 0.8]
    for function in OF_PAIRS:
        with pytest.raises(ValueError, match=r"mu1 must have length 1, got 1\.2"):
            function([1.2, 0.0], 1.0, good, 1.0)
        with pytest.raises(ValueError, match="mu2 must have length 1, got nan"):
            function(good, 1.0, [float("nan"), 0.0], 1.0)
        with pytest.raises(ValueError, match="mu1 must be a vector"):
            function(1.0, 1.0, good, 1.0)
        with pytest.raises(ValueError, match="last axis of mu2 must be an integer from 2 to 8192"):
            function(good, 1.0, [1.0], 1.0)
        with pytest.raises(ValueError, match="mu1 and mu2 must have one last axis"):
            function(good, 1.0, [1.0, 0.0, 0.0], 1.0)
