"""Losses of methods without negatives: predict the direction of the other view."""

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
