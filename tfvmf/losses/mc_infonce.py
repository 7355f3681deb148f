"""MC-InfoNCE: a contrastive loss on samples of each view's von Mises-Fisher distribution."""

from typing import Any

import tensorflow as tf

from tfvmf import vmf
from tfvmf.losses.concentration import check_pairs
from tfvmf.losses.contrastive import copies, masked_similarities
from tfvmf.settings import AGGREGATIONS


def mc_infonce(
    direction_1: tf.Tensor,
    concentration_1: tf.Tensor,
    direction_2: tf.Tensor,
    concentration_2: tf.Tensor,
    *,
    seed: Any,
    temperature: float = 0.5,
    num_samples: int = 64,
    aggregation: str = "mean_log",
    rows: int | None = None,
    first_row: tf.Tensor | int = 0,
    chunk: int = 4,
) -> tf.Tensor:
    """NT-Xent between samples z ~ vMF(mu, kappa) of all views, over many draws.

        p_is = exp(z_is.z_js / t) / sum_{k != i} exp(z_is.z_ks / t),   s = 1 ... num_samples

    with j the partner of view i. `mean_log` is the paper's adaptation, -mean_s log p_is;
    `logmeanexp` the original method's, -log mean_s p_is.

    Memory is chunk * (2B)^2 floats, whatever `num_samples`: a chunk of samples keeps only its
    normalizers, and its similarities are computed again for the gradient.

    Args:
        direction_1: Unit vectors [G, d] of the first views of the whole batch.
        concentration_1: Their concentrations [G].
        direction_2: The same of the second views.
        concentration_2: The same of the second views.
        seed: Two integers (stateless): the same seed draws the same samples.
        temperature: t > 0.
        num_samples: Draws from each distribution.
        aggregation: `mean_log` or `logmeanexp`.
        rows: How many images of the batch are averaged here (a replica's share); all by default.
        first_row: The first of them.
        chunk: Draws compared at a time.

    Returns:
        The mean loss over 2 * rows views, a scalar.
    """
    if temperature <= 0.0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, not {num_samples}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation}")
    direction_1, direction_2 = map(tf.convert_to_tensor, (direction_1, direction_2))
    check_pairs(direction_1, direction_2)
    directions = tf.concat([direction_1, direction_2], axis=0)
    concentrations = tf.concat([concentration_1, concentration_2], axis=0)
    samples = vmf.VonMisesFisher(directions, concentrations).sample(num_samples, seed=seed)

    total = tf.shape(direction_1)[0]
    own = first_row + tf.range(total if rows is None else rows)
    anchors, partners = tf.concat([own, own + total], 0), tf.concat([own + total, own], 0)
    sizes = [min(chunk, num_samples - start) for start in range(0, num_samples, chunk)]
    log_p = [
        _log_probability(part, anchors, partners, temperature)
        for part in tf.split(samples, sizes, axis=0)
    ]
    log_p = tf.concat(log_p, axis=0)  # [num_samples, 2 * rows]
    if aggregation == "mean_log":
        return -tf.reduce_mean(log_p)
    over_samples = tf.reduce_logsumexp(log_p, axis=0) - tf.math.log(float(num_samples))
    return -tf.reduce_mean(over_samples)


def _log_probability(
    samples: tf.Tensor, anchors: tf.Tensor, partners: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Log-probabilities [S, R] that the anchors [R] of samples [S, N, d] find their partners."""
    samples_1, samples_2, samples_3 = copies(samples, 3)
    views = tf.gather(samples_1, anchors, axis=1)
    found = tf.reduce_sum(views * tf.gather(samples_2, partners, axis=1), axis=-1) / temperature
    return found - _log_normalizer(views, samples_3, anchors, temperature)


def _log_normalizer(
    views: tf.Tensor, samples: tf.Tensor, anchors: tf.Tensor, temperature: float
) -> tf.Tensor:
    """The log of sum_{k != i} exp(z_i.z_k / t), [S, R]; its gradient computes the terms again."""

    def similarities() -> tf.Tensor:
        return masked_similarities(views, samples, anchors, temperature)

    @tf.custom_gradient
    def normalizer(views: tf.Tensor, samples: tf.Tensor) -> Any:
        log_sums = tf.reduce_logsumexp(similarities(), axis=-1)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            weights = tf.exp(similarities() - log_sums[..., None])
            weights *= upstream[..., None] * (1.0 / temperature)
            return tf.matmul(weights, samples), tf.matmul(weights, views, transpose_a=True)

        return log_sums, gradient

    return normalizer(views, samples)
