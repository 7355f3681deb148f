r"""The Bessel functions behind the von Mises-Fisher distribution, in float64, at every order.

With nu = d/2 - 1 and F(kappa) = 0F1(; d/2; kappa^2/4) = Gamma(nu + 1) (2/kappa)^nu I_nu(kappa),

    log C_d(kappa) = log C_d(0) - log F(kappa),      A_d(kappa) = d log F / d kappa = I_{nu+1}/I_nu.

log F is smooth and never cancels against another term, also at kappa = 0. It is computed

1. at an order n >= 20, by the uniform (Debye) expansion in its logarithmic form (DLMF 10.41(ii)),
   with z = kappa/n, s = sqrt(1 + z^2), p = 1/s:
       log F_n = n ((s-1) - log((1+s)/2)) - log(s)/2 + sum_k (D_k(p) - D_k(1)) / n^k;
2. from there down to nu, in at most 20 steps in which every term is positive:
       I_j/I_{j-1} = kappa / (2j + kappa I_{j+1}/I_j),
       F_{j-1}/F_j = 1 + kappa I_{j+1}/I_j / (2j).

Largest errors over d = 2..8192 and kappa = 1e-3..1e7 against mpmath at 50 digits, in float64, as
`benchmarks/vmf_accuracy.py` prints them: log C_d 2e-15, A_d 7e-16, dA_d/dkappa 2e-13.

Why not a library (`--libraries` measures them)? The values of tfp.math are as good, but a loss
needs more: the derivative of TFP's A_d is 2 % off at kappa = 1e7 in float64, both gradients are NaN
at kappa = 0, and the KL to the uniform sphere is 90 times too large at d = 128 and kappa = 1e-6.
SciPy's ive, and log C_d with it, underflows below kappa = 13 at d = 512.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.polynomial import polynomial

# At order 20 the first dropped term, D_13(p)/n^13, is below 6e-16 for every kappa.
_LOWEST_ORDER = 20
_TERMS = 12


def _debye_coefficients() -> np.ndarray:
    """Polynomials in p, one per column, exact until they are rounded to float64.

    Inserting I_n = exp(...) into Bessel's equation gives sigma_k = D_k': with q = p^2 - p^4,
    sigma_1 = (1 - 5 p^2)/8 and sigma_{k+1} = ((q sigma_k)' + q sum_i sigma_i sigma_{k-i}) / 2.
    Returns (D_k(p) - D_k(1)) / (1 - p), sigma_k(p) and sigma_k'(p), side by side: [36, 3 * 12].
    """
    q = np.array([Fraction(c) for c in (0, 0, 1, 0, -1)])
    sigma = [np.array([Fraction(1, 8), Fraction(0), Fraction(-5, 8)])]
    while len(sigma) < _TERMS:
        products = [np.convolve(a, b) for a, b in zip(sigma, sigma[-2::-1], strict=False)]
        linear = polynomial.polyder(np.convolve(q, sigma[-1]))
        for product in products:
            linear = polynomial.polyadd(linear, np.convolve(q, product))
        sigma.append(linear / 2)
    found = np.zeros([3 * _TERMS, 3, _TERMS])
    for k, s in enumerate(sigma):
        integral = polynomial.polyint(s)
        integral[0] = -sum(integral)
        # Dividing a polynomial with root 1 by (1 - p) gives the running sums of its coefficients.
        for kind, values in enumerate((np.cumsum(integral)[:-1], s, polynomial.polyder(s))):
            found[: len(values), kind, k] = values.astype(float)
    return found.reshape([3 * _TERMS, 3 * _TERMS])


_DEBYE = _debye_coefficients()


class _Series(NamedTuple):
    """log F and its derivatives, computed without cancellation."""

    log_f: tf.Tensor
    log_f_minus_kappa: tf.Tensor
    ratio: tf.Tensor  # A_d
    gap: tf.Tensor  # 1 - A_d
    slope: tf.Tensor  # dA_d/dkappa


def evaluate(kappa: tf.Tensor, dim: tf.Tensor) -> _Series:
    """All values at once, for float64 kappa >= 0 and dim >= 2; a graph keeps only what is used."""
    # The expansion is used some orders above nu: as few as possible, if dim is known.
    static = tf.get_static_value(dim)
    lowest = 2 if static is None or not np.size(static) else float(np.min(static))
    steps = max(0, int(np.ceil(_LOWEST_ORDER - (lowest / 2 - 1))))
    n = dim / 2.0 - 1.0 + steps
    z = kappa / n
    s = tf.sqrt(1.0 + z * z)
    p = 1.0 / s
    x = z * z / (1.0 + s)  # s - 1
    powers = p[..., tf.newaxis] ** np.arange(float(3 * _TERMS))
    orders = n[..., tf.newaxis] ** -np.tile(np.arange(1.0, _TERMS + 1), 3)
    terms = tf.reshape(
        tf.einsum("...i,ij->...j", powers, _DEBYE) * orders,
        tf.concat([tf.shape(z), [3, _TERMS]], axis=0),
    )
    series, sigma, sigma_slope = tf.unstack(tf.reduce_sum(terms, axis=-1), num=3, axis=-1)

    rest = -n * tf.math.log1p(x / 2.0) - tf.math.log1p(x) / 2.0 + x * p * series
    log_f = kappa * z / (1.0 + s) + rest
    log_f_minus_kappa = -kappa * (1.0 + 1.0 / (s + z)) / (1.0 + s) + rest
    correction = z * p * p / n * (0.5 + p * sigma)
    ratio = z / (1.0 + s) - correction
    gap = (1.0 + 1.0 / (s + z)) / (1.0 + s) + correction
    bend = (3.0 * p * p - 2.0) * sigma - p * (1.0 - p * p) * sigma_slope
    slope = (p / (1.0 + s) - p * p * (p * p - 0.5 + p * bend) / n) / n

    for _ in range(steps):
        denominator = 2.0 * n + kappa * ratio
        growth = tf.math.log1p(kappa * ratio / (2.0 * n))
        log_f, log_f_minus_kappa = log_f + growth, log_f_minus_kappa + growth
        ratio, gap, slope = (
            kappa / denominator,
            (2.0 * n - kappa * gap) / denominator,
            (2.0 * n - kappa * kappa * slope) / (denominator * denominator),
        )
        n -= 1.0
    return _Series(log_f, log_f_minus_kappa, ratio, gap, slope)


def log_growth(kappa: tf.Tensor, dim: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes log F and log F - kappa, for small and large kappa; derivatives A_d and A_d - 1."""

    @tf.custom_gradient
    def compute(kappa: tf.Tensor) -> Any:
        def gradient(d_log_f: tf.Tensor, d_log_f_minus_kappa: tf.Tensor) -> tf.Tensor:
            ratio, gap = resultant(kappa, dim)
            return d_log_f * ratio - d_log_f_minus_kappa * gap

        return evaluate(kappa, dim)[:2], gradient

    return compute(kappa + tf.zeros_like(dim))


def resultant(kappa: tf.Tensor, dim: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A_d and 1 - A_d, with A_d' = 1 - A_d^2 - (d-1) A_d / kappa without cancellation."""

    @tf.custom_gradient
    def compute(kappa: tf.Tensor) -> Any:
        def gradient(d_ratio: tf.Tensor, d_gap: tf.Tensor) -> tf.Tensor:
            return (d_ratio - d_gap) * resultant_slope(kappa, dim)

        series = evaluate(kappa, dim)
        return (series.ratio, series.gap), gradient

    return compute(kappa + tf.zeros_like(dim))


def resultant_slope(kappa: tf.Tensor, dim: tf.Tensor) -> tf.Tensor:
    """dA_d/dkappa, the variance of mu.x; higher derivatives come from differentiating the steps."""
    return evaluate(kappa + tf.zeros_like(dim), dim).slope


def log_area(dim: tf.Tensor) -> tf.Tensor:
    """The log of the area of the unit sphere of R^d, log(2 pi^{d/2} / Gamma(d/2)) = -log C_d(0)."""
    return math.log(2.0) + dim / 2.0 * math.log(math.pi) - tf.math.lgamma(dim / 2.0)


def kl_to_uniform(kappa: tf.Tensor, dim: tf.Tensor) -> tf.Tensor:
    """The KL kappa A_d - log F, computed from 1 - A_d and log F - kappa for kappa >= d."""
    log_f, log_f_minus_kappa = log_growth(kappa, dim)
    ratio, gap = resultant(kappa, dim)
    return tf.where(kappa < dim, kappa * ratio - log_f, -kappa * gap - log_f_minus_kappa)
