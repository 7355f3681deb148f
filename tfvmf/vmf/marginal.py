r"""The angle between a von Mises-Fisher sample and its mean direction, drawn by inversion.

The angle theta in [0, pi] has the density f(theta) ~ exp(kappa cos theta) sin(theta)^(d-2). Its
distribution function F is tabulated once per kappa and inverted at uniform numbers u, so a draw is
a smooth function of kappa, without rejections. For fixed u,

    d theta / d kappa = -(dF/dkappa) / f,     dF/dkappa (theta) = int_0^theta (cos s - A_d) f(s) ds,

and w = (d cos theta / d kappa) / sin(theta)^2 is positive, bounded and smooth up to both poles.

The table has 40 panels over the 20 standard deviations that carry mass, with 6 Gauss-Legendre nodes
in each: 17 kB per kappa while in use. Measured for d = 2..8192 and kappa = 0..1e7: F(theta) is
u to 2e-9, and w is right to 5e-6 relative for u in [1e-4, 1 - 1e-4].
"""

import math

import numpy as np
import tensorflow as tf

_PANELS = 40
_NODES = 6
_NEWTON_STEPS = 3

# Reach of the table in standard deviations at the mode. Toward theta = 0 the density falls faster
# than a Gaussian; on the other side more slowly, like exp(-x^2/4) in these units at d = 3.
_REACH_LEFT, _REACH_RIGHT = 8.5, 12.0

# Gauss-Legendre nodes and weights on [0, 1], and nodal values -> coefficients of x^0..x^5.
_X, _WEIGHTS = (np.polynomial.legendre.leggauss(_NODES) + np.array([[1.0], [0.0]])) / 2.0
_TO_INTEGRAL = np.linalg.inv(np.vander(_X, increasing=True)).T / np.arange(1, _NODES + 1)


def draw_angles(
    uniform: tf.Tensor, kappa: tf.Tensor, dim: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Angles theta [K, S] with F(theta; kappa [K]) = uniform [K, S], all float64.

    Returns sin(theta/2)^2 = (1 - cos theta)/2, which is also exact for small theta, and w.
    """
    low, high, below, rows = _tabulate(kappa[:, tf.newaxis], dim)
    panel = tf.searchsorted(below[:, 1:], uniform, side="right")
    row = tf.unstack(tf.gather(rows, panel, batch_dims=1), axis=-1)
    coefficients, (start, mass, left, right), cubic = row[:_NODES], row[_NODES:-4], row[-4:]
    target = uniform - start
    share = tf.clip_by_value(tf.math.divide_no_nan(target, mass), 0.0, 1.0)

    # Invert F in the panel. The guess takes the density as linear there, or as a power of the
    # distance next to a pole. After 1, 2, 3 steps F is off by 8e-6, 2e-8, 2e-9 (the table's error).
    left = tf.math.divide_no_nan(left, left + right)
    root = tf.sqrt(tf.maximum(left * left + share * (1.0 - 2.0 * left), 0.0))
    x = tf.math.divide_no_nan(share, left + root)
    at_zero = (panel == 0) & (low == 0.0)
    at_pi = (panel == _PANELS - 1) & (high == math.pi)
    x = tf.where(at_zero, share ** (1.0 / (dim - 1.0)), x)
    x = tf.where(at_pi, 1.0 - (1.0 - share) ** (1.0 / (dim - 1.0)), x)
    for _ in range(_NEWTON_STEPS):
        value, slope = coefficients[-1], tf.zeros_like(x)
        for coefficient in coefficients[-2::-1]:
            value, slope = value * x + coefficient, slope * x + value
        value, slope = value * x, slope * x + value
        x = tf.clip_by_value(x - tf.math.divide_no_nan(value - target, slope), 0.0, 1.0)
    width = (high - low) / _PANELS
    theta = low + width * (tf.cast(panel, tf.float64) + x)
    # The cubic on [0, 1] with the values and slopes of w at the ends of the panel.
    w_left, w_right, left_slope, right_slope = cubic
    rise = w_right - w_left
    bend = (left_slope - rise) * (1.0 - x) + (rise - right_slope) * x
    return tf.square(tf.sin(theta / 2.0)), w_left + x * (rise + (1.0 - x) * bend)


def _tabulate(kappa: tf.Tensor, dim: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The table for kappa, [K, 1]. Throughout, y is sin(theta/2)^2.

    Returns the left edge of the first panel and the right edge of the last, [K, 1], F at the left
    edges, [K, panels], and the numbers that a draw needs from a panel, [K, panels, 14].
    """
    m = dim - 2.0
    # The mode solves kappa sin^2 = m cos.
    root = tf.sqrt(m * m + 4.0 * kappa * kappa)
    y_mode = tf.math.divide_no_nan(
        m + tf.math.divide_no_nan(m * m, root + 2.0 * kappa), 2.0 * (m + root)
    )
    sine_squared = 4.0 * y_mode * (1.0 - y_mode)
    precision = kappa * (1.0 - 2.0 * y_mode) + tf.math.divide_no_nan(m, sine_squared)
    # The floor only matters where the table spans the whole of [0, pi] anyway.
    deviation = tf.math.rsqrt(tf.maximum(precision, 0.1))
    mode = 2.0 * tf.asin(tf.sqrt(y_mode))
    low = tf.maximum(mode - _REACH_LEFT * deviation, 0.0)
    high = tf.minimum(mode + _REACH_RIGHT * deviation, math.pi)
    width = (high - low) / _PANELS
    reference = tf.where(m > 0.0, y_mode * (1.0 - y_mode), 1.0)

    def y_and_density(positions: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        """At positions in units of a panel: y, and the density relative to the mode's."""
        y = tf.square(tf.sin((low + width * positions) / 2.0))
        power = tf.math.xlogy(m / 2.0, y * (1.0 - y) / reference)
        return y, tf.exp(power - 2.0 * kappa * (y - y_mode))

    # Inside the panels: the density per panel, masses, and the mean of y.
    y, density = y_and_density((np.arange(_PANELS)[:, None] + _X).ravel())
    weights = np.tile(_WEIGHTS, _PANELS)
    scale = 1.0 / tf.reduce_sum(density * weights, axis=-1, keepdims=True)
    density *= scale
    y_mean = tf.reduce_sum(y * density * weights, axis=-1, keepdims=True)
    nodal = tf.reshape(density, [-1, _PANELS, _NODES])
    mass = tf.linalg.matvec(nodal, _WEIGHTS)
    below = tf.cumsum(mass, axis=-1, exclusive=True)

    # On the edges: dF/dkappa, integrated from the nearer pole so that all terms have one sign, and
    # from it w, whose slope follows from (1-t^2) dw/dt + w (kappa (1-t^2) - (d-1) t) = A_d - t.
    tilt = tf.linalg.matvec(nodal * tf.reshape(2.0 * (y_mean - y), tf.shape(nodal)), _WEIGHTS)
    y_edge, density_edge = y_and_density(np.arange(_PANELS + 1.0))
    density_edge *= scale
    df_dkappa = tf.where(
        y_edge < y_mean,
        tf.pad(tf.cumsum(tilt, axis=-1), [[0, 0], [1, 0]]),
        -tf.pad(tf.cumsum(tilt, axis=-1, reverse=True), [[0, 0], [0, 1]]),
    )
    sine = 2.0 * tf.sqrt(y_edge * (1.0 - y_edge))
    flux = density_edge * sine
    at_pole = 2.0 * tf.where(y_edge < 0.5, y_mean, 1.0 - y_mean) / (dim - 1.0)
    w = tf.where(flux > 0.0, tf.math.divide_no_nan(df_dkappa * width, flux), at_pole)
    pull = kappa * sine * sine - (dim - 1.0) * (1.0 - 2.0 * y_edge)
    w_slope = width * tf.math.divide_no_nan(w * pull - 2.0 * (y_edge - y_mean), sine)

    edges = (density_edge[:, :-1], density_edge[:, 1:], w[:, :-1], w[:, 1:])
    columns = (below, mass, *edges, w_slope[:, :-1], w_slope[:, 1:])
    polynomial = tf.einsum("kpn,nc->kpc", nodal, _TO_INTEGRAL)
    return low, high, below, tf.concat([polynomial, tf.stack(columns, axis=-1)], axis=-1)
