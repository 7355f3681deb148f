"""How exact `tfvmf.vmf` is: a table against mpmath at 50 digits, and the verdict.

    python benchmarks/vmf_accuracy.py                 about 40 s
    python benchmarks/vmf_accuracy.py --libraries     the same for SciPy and TensorFlow Probability

Rows are dimensions, columns decades of kappa, four values of kappa to a decade; an entry is the
largest error in it. The error of log C_d is relative to max(1, |log C_d|), the others are relative;
the inverse starts from the exact A_d, rounded to float64, and has to return kappa. Exits with 1 if
an entry misses its target.
"""

import argparse
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import mpmath
import numpy as np
import scipy.special
import tensorflow as tf

from tfvmf import vmf

DIMS = (2, 3, 4, 8, 16, 32, 64, 128, 512, 2048, 8192)
DECADES = range(-3, 7)
KAPPA_TO_A_DECADE = 4
Function = Callable[[np.ndarray, int], np.ndarray]
Entry = tuple[str, str, Function, float]  # name, what it is compared with, function, target


class Exact(NamedTuple):
    """The truth at one kappa and d."""

    log_c: mpmath.mpf
    ratio: mpmath.mpf
    slope: mpmath.mpf


@functools.cache
def exact(kappa: float, dim: int) -> Exact:
    """The values of log C_d, A_d and A_d' from their definitions, at 50 digits."""
    with mpmath.workdps(50):
        order, k = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        below, above = (bessel_i(order + i, k) for i in (0, 1))
        log_c = order * mpmath.log(k) - (order + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(below)
        ratio = above / below
        return Exact(log_c, ratio, 1 - ratio**2 - (dim - 1) * ratio / k)


def bessel_i(order: mpmath.mpf, kappa: mpmath.mpf) -> mpmath.mpf:
    """I_order(kappa): mpmath's, or the plain power series where mpmath takes up to a minute."""
    if not 1e4 < kappa < order**2 / 25:
        return mpmath.besseli(order, kappa)
    term = total = mpmath.power(kappa / 2, order) / mpmath.gamma(order + 1)
    k = 0
    while k < kappa / 2 or term > total * mpmath.eps / 1000:
        k += 1
        term *= kappa**2 / (4 * k * (order + k))
        total += term
    return total


def in_type(function: Callable[..., tf.Tensor], dtype: tf.DType) -> Function:
    """A TensorFlow function, on NumPy arrays, computed in the given type."""
    return lambda kappa, dim: function(tf.constant(kappa, dtype), dim).numpy()


def derivative(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """By automatic differentiation with respect to kappa."""

    def compute(kappa: tf.Tensor, dim: int) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(kappa)
            value = function(kappa, dim)
        return tape.gradient(value, kappa)

    return compute


def scipy_log_c(kappa: np.ndarray, dim: int) -> np.ndarray:
    """The log-normalizer with SciPy's exponentially scaled Bessel function."""
    order = dim / 2 - 1
    log_bessel = np.log(scipy.special.ive(order, kappa)) + kappa
    return order * np.log(kappa) - (order + 1) * np.log(2 * np.pi) - log_bessel


def scipy_ratio(kappa: np.ndarray, dim: int) -> np.ndarray:
    """A_d as SciPy users write it."""
    return scipy.special.ive(dim / 2, kappa) / scipy.special.ive(dim / 2 - 1, kappa)


def libraries() -> Iterator[Entry]:
    """What a user would take instead, by the same targets."""
    import tensorflow_probability as tfp

    def log_c(kappa: tf.Tensor, dim: int) -> tf.Tensor:
        mu = tf.one_hot(0, dim, dtype=kappa.dtype)
        return -tfp.distributions.VonMisesFisher(mu, kappa)._log_normalization()

    def ratio(kappa: tf.Tensor, dim: int) -> tf.Tensor:
        return tfp.math.bessel_iv_ratio(tf.constant(dim / 2, kappa.dtype), kappa)

    yield "SciPy log C_d, float64", "log_c", scipy_log_c, 1e-10
    yield "SciPy A_d, float64", "ratio", scipy_ratio, 1e-9
    yield from in_both_types("TFP ", log_c, ratio)


def ours() -> Iterator[Entry]:
    """The functions of `tfvmf.vmf`."""
    yield from in_both_types("", vmf.log_normalizer, vmf.mean_resultant_length)
    inverse = in_type(vmf.inverse_mean_resultant_length, tf.float64)
    yield "inverse of A_d, float64", "inverse", inverse, 1e-4


def in_both_types(
    prefix: str, log_c: Callable[..., tf.Tensor], ratio: Callable[..., tf.Tensor]
) -> Iterator[Entry]:
    """Values, and the derivative of A_d, in float64 and float32."""
    for dtype, log_c_target, ratio_target in ((tf.float64, 1e-10, 1e-9), (tf.float32, 1e-5, 1e-5)):
        yield f"{prefix}log C_d, {dtype.name}", "log_c", in_type(log_c, dtype), log_c_target
        yield f"{prefix}A_d, {dtype.name}", "ratio", in_type(ratio, dtype), ratio_target
        slope = in_type(derivative(ratio), dtype)
        yield f"{prefix}dA_d/dkappa, {dtype.name}", "slope", slope, ratio_target


def errors(kind: str, function: Function, kappa: np.ndarray, dim: int) -> np.ndarray:
    """The error at each kappa; infinity where the answer is not a number."""
    references = [exact(float(k), dim) for k in kappa]
    if kind == "inverse":
        expected = [mpmath.mpf(float(k)) for k in kappa]
        values = function(np.array([float(reference.ratio) for reference in references]), dim)
    else:
        expected = [getattr(reference, kind) for reference in references]
        values = function(kappa, dim)
    scale = [max(1, abs(value)) if kind == "log_c" else abs(value) for value in expected]
    found = [
        float(abs(mpmath.mpf(float(v)) - e) / s)
        for v, e, s in zip(values, expected, scale, strict=True)
    ]
    return np.nan_to_num(np.array(found), nan=np.inf, posinf=np.inf)


def print_table(name: str, kind: str, function: Function, target: float) -> bool:
    """Print one grid; true if every entry reaches the target."""
    print(f"\n{name}: largest error, target {target:.0e}")
    print(f"{'d':>6} | " + " ".join(f"{f'1e{decade}..':>7}" for decade in DECADES))
    worst = 0.0
    for dim in DIMS:
        row = []
        for decade in DECADES:
            # Rounded to float32, so that both types are given the same kappa.
            fractions = np.arange(KAPPA_TO_A_DECADE + (decade == DECADES[-1])) / KAPPA_TO_A_DECADE
            kappa = (10.0 ** (decade + fractions)).astype(np.float32).astype(float)
            row.append(errors(kind, function, kappa, dim).max())
        worst = max(worst, *row)
        print(f"{dim:6d} | " + " ".join(f"{entry:7.0e}" for entry in row), flush=True)
    verdict = "reached" if worst <= target else "MISSED"
    print(f"worst {worst:.1e}: target {target:.0e} {verdict}")
    return worst <= target


def main() -> int:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--libraries", action="store_true", help="SciPy and TFP instead of ours")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    reached = [print_table(*entry) for entry in (libraries() if arguments.libraries else ours())]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
