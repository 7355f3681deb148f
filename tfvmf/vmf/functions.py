r"""The von Mises-Fisher distribution on the unit sphere of R^d, as functions of its parameters.

    p(x; mu, kappa) = C_d(kappa) exp(kappa mu.x),    mu, x in R^d with |mu| = |x| = 1,  kappa >= 0.

Every function takes float32 or float64, computes in float64 (kappa is one number per image, and
terms cancel), returns the input type, broadcasts, and is differentiable, also at kappa = 0.
Differences are taken of log F for kappa < d, and of log F - kappa above (see `special`):
at kappa = 1e7 the plain form would lose 7 of its 16 digits.

Common arguments: concentrations `kappa` [...], finite and >= 0; mean directions `mu` [..., d] of
length 1; and the dimension `dim`, integers d from 2 to 8192 that broadcast with kappa. Known values
(eager tensors, constants, NumPy, Python) are checked, and raise ValueError. Logarithms are natural.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfvmf.vmf import special

# From Banerjee's guess (error 6e-2 at worst): 5e-3, 3e-5, rounding error after 1, 2, 3 steps.
_NEWTON_STEPS = 3
# Tolerance for the length of a direction: bfloat16 inputs, normalized before rounding, differ from
# 1 by up to 4e-3.
_UNIT_TOLERANCE = 5e-3
_MOST_DIMENSIONS = 8192


def log_normalizer(kappa: Any, dim: Any) -> tf.Tensor:
    """The log-normalizer log C_d(kappa) = (d/2-1) log kappa - (d/2) log 2pi - log I_{d/2-1}(kappa).

    At kappa = 0 it is minus the log of the sphere's area. The derivative is -A_d(kappa).
    """
    kappa, kappa64, dim = _prepare(kappa, dim)
    return tf.cast(-special.log_area(dim) - special.log_growth(kappa64, dim)[0], kappa.dtype)


def mean_resultant_length(kappa: Any, dim: Any) -> tf.Tensor:
    """A_d(kappa) = I_{d/2} / I_{d/2-1} = E[mu.x] in [0, 1); slope 1 - A_d^2 - (d-1) A_d / kappa."""
    kappa, kappa64, dim = _prepare(kappa, dim)
    return tf.cast(special.resultant(kappa64, dim)[0], kappa.dtype)


def inverse_mean_resultant_length(r: Any, dim: Any) -> tf.Tensor:
    """The kappa with A_d(kappa) = r: the maximum-likelihood estimate for |mean of x| = r in [0, 1).

    In float32, r limits the accuracy: near 1 its spacing is 6e-8, and kappa is about
    (d-1) / (2 (1-r)). The derivative is 1 / A_d'(kappa).
    """
    (r,) = _to_common_float(r)
    _check(r, lambda value: (value >= 0) & (value < 1), "r must be at least 0 and below 1")
    dim = _dimension(dim)

    @tf.custom_gradient
    def invert(r: tf.Tensor) -> Any:
        def gradient(d_kappa: tf.Tensor) -> tf.Tensor:
            return d_kappa / special.resultant_slope(invert(r), dim)

        # Banerjee et al. (2005); then Newton, on 1 - A_d where A_d is close to 1.
        kappa = r * (dim - r * r) / ((1.0 - r) * (1.0 + r))
        for _ in range(_NEWTON_STEPS):
            series = special.evaluate(kappa, dim)
            excess = tf.where(r < 0.5, series.ratio - r, (1.0 - r) - series.gap)
            kappa = tf.maximum(kappa - excess / series.slope, 0.0)
        return kappa, gradient

    r64 = tf.minimum(tf.cast(r, tf.float64), 1.0 - np.finfo(np.float64).epsneg)
    return tf.cast(invert(r64 + tf.zeros_like(dim)), r.dtype)


def kl_to_uniform(kappa: Any, dim: Any) -> tf.Tensor:
    """KL(vMF(mu, kappa) || uniform) = kappa A_d + log C_d(kappa) - log C_d(0) >= 0."""
    kappa, kappa64, dim = _prepare(kappa, dim)
    return tf.cast(special.kl_to_uniform(kappa64, dim), kappa.dtype)


def entropy(kappa: Any, dim: Any) -> tf.Tensor:
    """The entropy -log C_d(kappa) - kappa A_d(kappa), at most the log of the sphere's area."""
    kappa, kappa64, dim = _prepare(kappa, dim)
    return tf.cast(special.log_area(dim) - special.kl_to_uniform(kappa64, dim), kappa.dtype)


def kl_divergence(mu1: Any, kappa1: Any, mu2: Any, kappa2: Any) -> tf.Tensor:
    """KL(vMF(mu1, kappa1) || vMF(mu2, kappa2)) >= 0.

    Equals log C(kappa1) - log C(kappa2) + A_d(kappa1) (kappa1 - kappa2 mu1.mu2).
    """
    dtype, mu1, kappa1, mu2, kappa2, dim = _prepare_pair(mu1, kappa1, mu2, kappa2)
    log_f1, log_f1_minus = special.log_growth(kappa1, dim)
    log_f2, log_f2_minus = special.log_growth(kappa2, dim)
    ratio, gap = special.resultant(kappa1, dim)
    lengths = tf.where(
        tf.maximum(kappa1, kappa2) < dim,
        log_f2 - log_f1 - ratio * (kappa2 - kappa1),
        log_f2_minus - log_f1_minus + gap * (kappa2 - kappa1),
    )
    turn = kappa2 * ratio * tf.reduce_sum(tf.square(mu1 - mu2), axis=-1) / 2.0  # 1 - mu1.mu2
    return tf.cast(lengths + turn, dtype)


def log_expected_likelihood(mu1: Any, kappa1: Any, mu2: Any, kappa2: Any) -> tf.Tensor:
    """The log of the integral of p(x; mu1, kappa1) p(x; mu2, kappa2) over the sphere.

    Equals log C(kappa1) + log C(kappa2) - log C(|kappa1 mu1 + kappa2 mu2|), the mutual likelihood
    of two embeddings, which gives less weight to uncertain ones.
    """
    dtype, mu1, kappa1, mu2, kappa2, dim = _prepare_pair(mu1, kappa1, mu2, kappa2)
    product = kappa1 * kappa2
    squared = tf.square(kappa1 - kappa2) + product * tf.reduce_sum(tf.square(mu1 + mu2), axis=-1)
    # The root's derivative is infinite at 0, where the kernel's own is 0.
    kappa3 = tf.where(squared > 0.0, tf.sqrt(tf.where(squared > 0.0, squared, 1.0)), 0.0)
    total = kappa1 + kappa2
    apart = tf.reduce_sum(tf.square(mu1 - mu2), axis=-1)
    # kappa3 - kappa1 - kappa2, without cancellation.
    shortfall = -product * apart / tf.maximum(total + kappa3, 1e-300)
    # Twice log F3 - log F2 - log F1: for log F, and for log F - kappa.
    logs = zip(*(special.log_growth(k, dim) for k in (kappa1, kappa2, kappa3)), strict=True)
    small, large = (three - two - one for one, two, three in logs)
    growth = tf.where(total < dim, small, large + shortfall)
    return tf.cast(growth - special.log_area(dim), dtype)


def _prepare(kappa: Any, dim: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Kappa as given, kappa in float64, and the dimension in float64."""
    (kappa,) = _to_common_float(kappa)
    check_concentration(kappa, "kappa")
    return kappa, tf.cast(kappa, tf.float64), _dimension(dim)


def _dimension(dim: Any) -> tf.Tensor:
    _check_dimension(tf.convert_to_tensor(dim), "dim")
    return tf.cast(dim, tf.float64)


def _prepare_pair(mu1: Any, kappa1: Any, mu2: Any, kappa2: Any) -> tuple[Any, ...]:
    """The result's type, the four arguments in float64 and the dimension."""
    mu1, kappa1, mu2, kappa2 = _to_common_float(mu1, kappa1, mu2, kappa2)
    for number, mu, kappa in ((1, mu1, kappa1), (2, mu2, kappa2)):
        check_direction(mu, f"mu{number}")
        check_concentration(kappa, f"kappa{number}")
    if not mu1.shape[-1:].is_compatible_with(mu2.shape[-1:]):
        raise ValueError(f"mu1 and mu2 must have one last axis, got {mu1.shape} and {mu2.shape}")
    dim = last_axis(mu1 if mu2.shape[-1] is None else mu2)
    return mu1.dtype, *(tf.cast(t, tf.float64) for t in (mu1, kappa1, mu2, kappa2, dim))


def _to_common_float(*values: Any) -> list[tf.Tensor]:
    """Tensors of the widest floating type among the values; Python numbers adapt."""
    known = [tf.as_dtype(value.dtype) for value in values if hasattr(value, "dtype")]
    floats = [dtype for dtype in known if dtype.is_floating]
    dtype = max(floats, key=lambda dtype: dtype.size, default=tf.float32)
    return [
        tf.cast(value, dtype) if hasattr(value, "dtype") else tf.convert_to_tensor(value, dtype)
        for value in values
    ]


# ---- Checks. They raise ValueError for known values; with `in_graph` they return assertions for
# symbolic ones.


def check_concentration(kappa: tf.Tensor, name: str, in_graph: bool = False) -> list[tf.Operation]:
    """Raises ValueError for a concentration that is negative, infinite or NaN."""
    requirement = f"{name} must be finite and at least 0"
    return _check(kappa, lambda value: (value >= 0) & (value < np.inf), requirement, in_graph)


def _check_dimension(dim: tf.Tensor, name: str, in_graph: bool = False) -> list[tf.Operation]:
    """Raises ValueError for a dimension that is not whole, or outside of the tested range."""
    valid = lambda value: (value >= 2) & (value <= _MOST_DIMENSIONS) & (value % 1 == 0)  # noqa: E731
    return _check(dim, valid, f"{name} must be an integer from 2 to {_MOST_DIMENSIONS}", in_graph)


def check_direction(mu: tf.Tensor, name: str, in_graph: bool = False) -> list[tf.Operation]:
    """Raises ValueError for directions [..., d] with d < 2 or a length other than 1."""
    if mu.shape.rank == 0:
        raise ValueError(f"{name} must be a vector or a batch of vectors, got a scalar")
    assertions = _check_dimension(last_axis(mu), f"the last axis of {name}", in_graph)
    value = tf.get_static_value(mu)
    if value is not None:
        length = np.linalg.norm(value.astype(float), axis=-1)
    elif in_graph:
        length = tf.norm(tf.cast(mu, tf.float32), axis=-1)
    else:
        return assertions
    unit = lambda length: abs(length - 1) <= _UNIT_TOLERANCE  # noqa: E731
    return assertions + _check(length, unit, f"{name} must have length 1", in_graph)


def last_axis(mu: tf.Tensor) -> tf.Tensor:
    """The size of the last axis, constant if known."""
    static = mu.shape[-1] if mu.shape.rank else None
    return tf.shape(mu)[-1] if static is None else tf.constant(static)


def _check(
    given: Any, is_valid: Callable[[Any], Any], requirement: str, in_graph: bool = False
) -> list[tf.Operation]:
    value = tf.get_static_value(given) if tf.is_tensor(given) else given
    if value is not None:
        value = np.asarray(value)
        valid = is_valid(value)
        if not np.all(valid):
            raise ValueError(f"{requirement}, got {value[np.logical_not(valid)][0]}")
    if value is not None or not in_graph:
        return []
    return [tf.debugging.Assert(tf.reduce_all(is_valid(given)), [f"{requirement}, got", given], 8)]
