"""The contrastive loss of SimCLR (NT-Xent), also of batches too large for one matrix of pairs."""

from typing import Any

import tensorflow as tf

from tfvmf.losses.concentration import check_pairs

# Similarities in one matrix, 64 MiB of float32: those of 2048 images. A few such matrices are in
# memory at a time, so larger batches are cut into parts of a quarter.
_MAX_MATRIX_ELEMENTS = 1 << 24


def nt_xent(
    direction_1: tf.Tensor,
    direction_2: tf.Tensor,
    *,
    temperature: float = 0.5,
    candidates_1: tf.Tensor | None = None,
    candidates_2: tf.Tensor | None = None,
    first_row: tf.Tensor | int = 0,
    max_matrix_elements: int = _MAX_MATRIX_ELEMENTS,
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
        max_matrix_elements: Similarities in one matrix; more are computed in parts.

    Returns:
        The mean loss over the 2B views, a scalar.
    """
    if temperature <= 0.0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    direction_1, direction_2 = map(tf.convert_to_tensor, (direction_1, direction_2))
    check_pairs(direction_1, direction_2)
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
    if None in sizes or sizes[0] * sizes[1] > max_matrix_elements:
        partners = tf.gather(candidates, partner_columns)
        found = tf.reduce_sum(anchors * partners, axis=1) / temperature
        chunk = tf.maximum(max_matrix_elements // (8 * total), 1)
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


def copies(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    """The same tensor several times, for uses whose gradients are added in a fixed order.

    TensorFlow adds the gradients of three uses or more by AddN, which starts with whichever input
    happens to have a buffer of its own at that moment: the sum then differs in its last bit from
    run to run. (Two gradients give the same sum in either order.) Stacked and reduced they are
    added as listed, and no graph optimization turns that into an AddN.
    """

    @tf.custom_gradient
    def copied(x: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.stack(upstream), axis=0)

        return [tf.identity(x) for _ in range(count)], gradient

    return copied(tensor)


def masked_similarities(
    anchors: tf.Tensor, candidates: tf.Tensor, own: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Logits a_i.c_k / t [..., R, N], with the smallest float where k is the anchor itself."""
    dtype = anchors.dtype
    itself = tf.one_hot(
        own, tf.shape(candidates)[-2], on_value=dtype.min, off_value=0.0, dtype=dtype
    )
    return tf.matmul(anchors * (1.0 / temperature), candidates, transpose_b=True) + itself


def log_normalizer(
    anchors: tf.Tensor,
    candidates: tf.Tensor,
    own: tf.Tensor,
    *,
    temperature: float,
    chunk: int | tf.Tensor,
) -> tf.Tensor:
    """The log [R] of sum_{k != own_i} exp(a_i.c_k / t) of anchors [R, d] among candidates [N, d].

    Computed for `chunk` anchors at a time, and again for the gradient: chunk * N floats are in
    memory, whatever the number of anchors, for half as much work again.
    """
    anchors, candidates = tf.convert_to_tensor(anchors), tf.convert_to_tensor(candidates)
    rows = tf.shape(anchors)[0]

    def similarities(start: tf.Tensor, stop: tf.Tensor, a: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        return masked_similarities(a[start:stop], c, own[start:stop], temperature)

    @tf.custom_gradient
    def normalizer(a: tf.Tensor, c: tf.Tensor) -> Any:
        def forward(start: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            stop = tf.minimum(start + chunk, rows)
            part = tf.reduce_logsumexp(similarities(start, stop, a, c), axis=1)
            return stop, _put(sums, start, part)

        log_sums = _loop(forward, rows, tf.zeros(rows, a.dtype))[0]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def backward(
                start: tf.Tensor, to_a: tf.Tensor, to_c: tf.Tensor
            ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                stop = tf.minimum(start + chunk, rows)
                weights = tf.exp(similarities(start, stop, a, c) - log_sums[start:stop, None])
                weights *= upstream[start:stop, None] * (1.0 / temperature)
                to_c += tf.matmul(weights, a[start:stop], transpose_a=True)
                return stop, _put(to_a, start, tf.matmul(weights, c)), to_c

            to_a, to_c = _loop(backward, rows, tf.zeros_like(a), tf.zeros_like(c))
            return to_a, to_c

        return log_sums, gradient

    return normalizer(anchors, candidates)


def _put(whole: tf.Tensor, start: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """The whole with a part of its rows replaced."""
    rows = start + tf.range(tf.shape(part)[0])
    return tf.tensor_scatter_nd_update(whole, rows[:, None], part)


def _loop(step: Any, rows: tf.Tensor, *state: tf.Tensor) -> list[tf.Tensor]:
    """Runs step(start, *state) -> (next start, *state) over all rows, one at a time."""
    results = tf.while_loop(
        lambda start, *_: start < rows,
        step,
        [tf.constant(0), *state],
        parallel_iterations=1,  # several would hold several chunks
    )
    return list(results[1:])
