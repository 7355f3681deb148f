"""The contrastive loss of SimCLR (NT-Xent)."""

import tensorflow as tf

from tfvmf.losses.normalizer import log_normalizer

# Similarities in one matrix, 64 MiB of float32: those of 2048 images. A few such matrices are in
# memory at a time, so larger batches are cut into parts of a quarter.
_MOST = 1 << 24


def nt_xent(
    direction_1: tf.Tensor,
    direction_2: tf.Tensor,
    *,
    temperature: float = 0.5,
    candidates_1: tf.Tensor | None = None,
    candidates_2: tf.Tensor | None = None,
    first_row: tf.Tensor | int = 0,
    most: int = _MOST,
) -> tf.Tensor:
    """Normalized-temperature cross entropy: each view must find its partner among all views.

        loss_i = -log( exp(z_i.z_j / t) / sum_{k != i} exp(z_i.z_k / t) )

    averaged over the 2B views i, with j the other view of the same image and k running over all
    views but i itself. Computed as a log-softmax: nothing is exponentiated that could overflow.
    The similarities of more than 2048 images with each other are computed in parts, twice: memory
    grows with the batch and not with its square.

    Args:
        direction_1: Unit vectors [B, d] of the first views.
        direction_2: Unit vectors [B, d] of the second views, row by row the partners.
        temperature: t > 0.
        candidates_1: First views of the whole batch [G, d] when the B rows here are only one
            replica's share of it; the rows themselves by default.
        candidates_2: The same of the second views.
        first_row: Row of the candidates at which `direction_1` starts.
        most: Similarities in one matrix; those of larger batches are computed in parts.

    Returns:
        The mean loss over the 2B views, a scalar.
    """
    if temperature <= 0.0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if (candidates_1 is None) != (candidates_2 is None):
        raise ValueError("candidates_1 and candidates_2 must be given together")
    candidates_1 = direction_1 if candidates_1 is None else candidates_1
    candidates_2 = direction_2 if candidates_2 is None else candidates_2
    anchors = tf.concat([direction_1, direction_2], axis=0)
    candidates = tf.concat([candidates_1, candidates_2], axis=0)
    rows, total = tf.shape(direction_1)[0], tf.shape(candidates_1)[0]
    own = first_row + tf.range(rows)
    self_columns = tf.concat([own, own + total], axis=0)
    partner_columns = tf.concat([own + total, own], axis=0)
    sizes = anchors.shape[0], candidates.shape[0]
    if None in sizes or sizes[0] * sizes[1] > most:
        partners = tf.gather(candidates, partner_columns)
        found = tf.reduce_sum(anchors * partners, axis=1) / temperature
        chunk = tf.maximum(most // (8 * total), 1)
        among = log_normalizer(
            anchors, candidates, self_columns, temperature=temperature, chunk=chunk
        )
        return tf.reduce_mean(among - found)
    logits = tf.matmul(anchors, candidates, transpose_b=True) / temperature
    itself = tf.one_hot(self_columns, 2 * total, on_value=True, off_value=False)
    # The smallest float, not -inf: the gradient of a masked entry stays 0 and never NaN.
    logits = tf.where(itself, logits.dtype.min, logits)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partner_columns, logits)
    return tf.reduce_mean(losses)
