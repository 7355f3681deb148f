"""Sums over all pairs of a large batch, without a matrix of all pairs in memory."""

from typing import Any

import tensorflow as tf


def log_normalizer(
    anchors: tf.Tensor,
    candidates: tf.Tensor,
    own: tf.Tensor,
    *,
    temperature: float,
    chunk: int | tf.Tensor,
) -> tf.Tensor:
    """The log of sum_{k != own_i} exp(a_i.c_k / t) of every anchor i.

    Computed for `chunk` anchors at a time, and again for the gradient: chunk * N floats are in
    memory, whatever the number of anchors, for half as much work again.

    Args:
        anchors: [R, d].
        candidates: [N, d].
        own: [R], the candidate that an anchor leaves out: itself.
        temperature: t > 0.
        chunk: Anchors at a time.

    Returns:
        [R].
    """
    anchors, candidates = tf.convert_to_tensor(anchors), tf.convert_to_tensor(candidates)
    rows = tf.shape(anchors)[0]

    def similarities(start: tf.Tensor, stop: tf.Tensor, a: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        itself = tf.one_hot(
            own[start:stop], tf.shape(c)[0], on_value=a.dtype.min, off_value=0.0, dtype=a.dtype
        )
        return tf.matmul(a[start:stop] * (1.0 / temperature), c, transpose_b=True) + itself

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
