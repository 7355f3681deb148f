"""The paper's two terms on the concentration: probabilistic alignment and its penalty.

For fixed directions the sum of both is smallest at

    kappa* = l_align / (2 l_reg) * E[mu_1.mu_2],

5 E[cos] with the paper's weights 0.05 and 0.005: kappa learns how well two views of an image will
agree, on a scale that the weights set. With the exact penalty of the von Mises-Fisher distribution
in place of the square, and the weight of the alignment for both, it is smallest at

    kappa* = A_d^{-1}(E[mu_1.mu_2]),

the maximum-likelihood concentration: a scale of the order of d that no weight moves.
"""

import tensorflow as tf

from tfvmf import vmf


def cosine(direction_1: tf.Tensor, direction_2: tf.Tensor) -> tf.Tensor:
    """Cosines mu_1.mu_2 [B] of unit vectors [B, d], row by row."""
    return tf.reduce_sum(direction_1 * direction_2, axis=-1)


def alignment(
    direction_1: tf.Tensor, direction_2: tf.Tensor, concentration: tf.Tensor
) -> tf.Tensor:
    """Negative log of the unnormalized von Mises-Fisher alignment, -mean(kappa * mu_1.mu_2).

    The paper's term is `alignment(mu_1, mu_2, kappa_1 + kappa_2)`, in the linear form: its code
    takes log(exp(x) + 1e-6), which overflows and says the same.

    Args:
        direction_1: Unit vectors [B, d].
        direction_2: Unit vectors [B, d].
        concentration: [B], kappa_1 + kappa_2 when both views bear on both, or the kappa of the
            view whose direction is learned when the other is a fixed target.

    Returns:
        A scalar, not yet weighted by l_align.
    """
    return -tf.reduce_mean(concentration * cosine(direction_1, direction_2))


def l2_penalty(*concentrations: tf.Tensor) -> tf.Tensor:
    """Penalty that keeps kappa finite: mean(kappa_1^2 + kappa_2^2 + ...), each kappa [B]."""
    if not concentrations:
        raise ValueError("l2_penalty needs at least one concentration")
    return tf.add_n([tf.reduce_mean(tf.square(kappa)) for kappa in concentrations])


def predicted_cosine(
    concentration: tf.Tensor, *, align_weight: float, penalty_weight: float
) -> tf.Tensor:
    """The E[cos] that a kappa [...] stands for: kappa / 5 with the paper's weights.

    Args:
        concentration: kappa, learned under the l2 penalty.
        align_weight: l_align.
        penalty_weight: l_reg, above 0: without a penalty kappa has no scale.
    """
    if align_weight <= 0.0 or penalty_weight <= 0.0:
        raise ValueError("without alignment or penalty kappa predicts no cosine")
    return concentration * (2.0 * penalty_weight / align_weight)


def vmf_penalty(*concentrations: tf.Tensor, dimension: int) -> tf.Tensor:
    """The distribution's own penalty: mean(-log C_d(kappa)) of each kappa [B], 0 at kappa = 0.

    What the paper replaces by a square. Its slope is A_d(kappa), below 1: it never outgrows the
    alignment of two equal directions, so that kappa is bounded by how well views agree.

    Args:
        *concentrations: kappa [B] of each view.
        dimension: Length d of the directions.
    """
    if not concentrations:
        raise ValueError("vmf_penalty needs at least one concentration")
    at_zero = vmf.log_normalizer(tf.zeros([], concentrations[0].dtype), dimension)
    return tf.add_n(
        [tf.reduce_mean(at_zero - vmf.log_normalizer(kappa, dimension)) for kappa in concentrations]
    )
