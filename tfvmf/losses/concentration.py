"""The paper's two terms on the concentration: probabilistic alignment and its penalty.

For fixed directions the sum of both is smallest at

    kappa* = l_align / (2 l_reg) * E[mu_1.mu_2],

5 E[cos] with the paper's weights 0.05 and 0.005: kappa learns how well two views of an image will
agree, on a scale that the weights set. With the exact penalty of the von Mises-Fisher distribution
in place of the square, and the weight of the alignment for both, it is smallest at

    kappa* = A_d^{-1}(E[mu_1.mu_2]),

the maximum-likelihood concentration: a scale of the order of d that no weight moves.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfvmf import vmf
from tfvmf.settings import REGULARIZERS


def cosine(direction_1: tf.Tensor, direction_2: tf.Tensor) -> tf.Tensor:
    """Cosines mu_1.mu_2 [B] of unit vectors [B, d], row by row."""
    return tf.reduce_sum(direction_1 * direction_2, axis=-1)


def check_pairs(first: tf.Tensor, second: tf.Tensor) -> None:
    """Refuses views of different shapes: row by row they are views of the same image."""
    if not (first.shape.rank == 2 and first.shape.is_compatible_with(second.shape)):
        raise ValueError(
            f"the views have the shapes {first.shape} and {second.shape}: expected unit vectors "
            "[B, d], row by row of the same image"
        )


def alignment(cosines: Sequence[tf.Tensor], concentrations: Sequence[tf.Tensor]) -> tf.Tensor:
    """Negative log of the unnormalized von Mises-Fisher alignment, summed over views.

        -sum over views v of mean(kappa_v * cos_v)

    Where both views of SimCLR have the same cosine this is the paper's term
    -mean((kappa_1 + kappa_2) mu_1.mu_2), in the linear form: its code takes log(exp(x) + 1e-6),
    which overflows and says the same. A method with stopped targets has one cosine per view, and
    each view answers for its own alignment only.

    Args:
        cosines: For each view the cosine [B] with the direction that it is aligned with.
        concentrations: For each view its kappa [B].

    Returns:
        A scalar, not yet weighted by l_align.
    """
    pairs = zip(concentrations, cosines, strict=True)
    return -tf.add_n([tf.reduce_mean(kappa * cos) for kappa, cos in pairs])


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


def concentration_terms(
    cosines: Sequence[tf.Tensor],
    concentrations: Sequence[tf.Tensor],
    *,
    align_weight: float = 0.05,
    penalty_weight: float = 0.005,
    regularizer: str = "l2",
    dimension: int | None = None,
) -> dict[str, tf.Tensor]:
    """The paper's two terms on the concentration, already weighted.

        alignment = -l_align * sum over views v of mean(kappa_v * cos_v)
        penalty   =  l_reg   * sum over views v of mean(kappa_v^2)

    With the regularizer `vmf` the two are the negative log-likelihood of a von Mises-Fisher
    distribution, weighted by l_align / d, since kappa then grows as d does.

    Args:
        cosines: For each view the cosine [B] with the direction that it is aligned with.
        concentrations: For each view its kappa [B].
        align_weight: l_align.
        penalty_weight: l_reg, of the l2 regularizer.
        regularizer: `l2`, the paper's, or `vmf`, the exact -log C_d(kappa).
        dimension: Length d of the directions, for `vmf`.

    Returns:
        The scalars `alignment` and `penalty`, to be added to a contrastive loss.
    """
    if regularizer not in REGULARIZERS:
        raise ValueError(f"regularizer must be one of {', '.join(REGULARIZERS)}, not {regularizer}")
    if regularizer == "l2":
        penalty = penalty_weight * l2_penalty(*concentrations)
    elif dimension is None:
        raise ValueError("the regularizer vmf needs the dimension of the directions")
    else:
        align_weight = align_weight / dimension
        penalty = align_weight * vmf_penalty(*concentrations, dimension=dimension)
    return {"alignment": align_weight * alignment(cosines, concentrations), "penalty": penalty}
