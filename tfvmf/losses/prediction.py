"""Losses that predict the other view: its direction (SimSiam, BYOL) or its prototypes (SwAV)."""

import tensorflow as tf

from tfvmf.losses.concentration import cosine


def negative_cosine(predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """SimSiam's loss -mean(p.z), in [-1, 1].

    Args:
        predicted: Unit vectors [B, d].
        target: Unit vectors [B, d]; no gradient flows into them.

    Returns:
        A scalar.
    """
    return -tf.reduce_mean(cosine(predicted, tf.stop_gradient(target)))


def squared_distance(predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """BYOL's loss mean(|p - z|^2) = 2 - 2 mean(p.z), in [0, 4].

    Arguments and result as of `negative_cosine`.
    """
    return 2.0 + 2.0 * negative_cosine(predicted, target)


def sinkhorn(scores: tf.Tensor, *, epsilon: float = 0.05, iterations: int = 3) -> tf.Tensor:
    """Assigns samples to prototypes so that all prototypes get the same share.

    Solves max over Q of <Q, scores> + epsilon H(Q), Q >= 0, where every row of Q sums to 1 (a
    sample is assigned once) and every column to B / K. Each iteration scales the columns, then
    the rows: rows sum to 1 exactly, columns in the limit. Computed in logarithms and float32:
    scores / epsilon = 20 overflows in half precision.

    Args:
        scores: Cosines [B, K] of the whole batch, over all replicas.
        epsilon: Small values assign hard.
        iterations: Of scaling columns and rows.

    Returns:
        Codes [B, K], without a gradient.
    """
    log_q = tf.stop_gradient(tf.cast(scores, tf.float32)) / epsilon
    share = tf.math.log(
        tf.cast(tf.shape(log_q)[0], tf.float32) / tf.cast(log_q.shape[1], tf.float32)
    )
    for _ in range(iterations):
        log_q += share - tf.reduce_logsumexp(log_q, axis=0, keepdims=True)
        log_q -= tf.reduce_logsumexp(log_q, axis=1, keepdims=True)
    return tf.exp(log_q)


def swapped_prediction(
    codes: tf.Tensor, scores: tf.Tensor, *, temperature: float = 0.1
) -> tf.Tensor:
    """Cross entropy -mean over samples of sum over prototypes of q log softmax(scores / T).

    Args:
        codes: Assignments q [B, K] of one view.
        scores: Cosines [B, K] of another view with the prototypes.
        temperature: T.

    Returns:
        A scalar, log K for scores that know nothing.
    """
    entropy = tf.nn.softmax_cross_entropy_with_logits(codes, scores / temperature)
    return tf.reduce_mean(entropy)
