"""Nearest neighbors on the sphere, in batches of bounded memory."""

import numpy as np
import tensorflow as tf


def nearest(
    queries: np.ndarray, bank: np.ndarray, k: int, *, batch_size: int = 1024
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of `bank` with the largest cosine to each query.

    Args:
        queries: [Q, F].
        bank: [N, F].
        k: How many neighbors, at most N.
        batch_size: Queries compared at a time: batch_size * N cosines are in memory.

    Returns:
        Cosines [Q, k] in falling order and the rows of the bank [Q, k].
    """
    if not 1 <= k <= len(bank):
        raise ValueError(f"k must be between 1 and the {len(bank)} rows of the bank, not {k}")
    columns = tf.transpose(tf.math.l2_normalize(tf.constant(bank, tf.float32), axis=1))
    cosines, rows = [np.zeros((0, k), np.float32)], [np.zeros((0, k), np.int32)]
    for start in range(0, len(queries), batch_size):
        block = tf.math.l2_normalize(
            tf.constant(queries[start : start + batch_size], tf.float32), axis=1
        )
        values, indices = tf.math.top_k(tf.matmul(block, columns), k)
        cosines.append(values.numpy())
        rows.append(indices.numpy())
    return np.concatenate(cosines), np.concatenate(rows)


def classify(
    queries: np.ndarray,
    bank: np.ndarray,
    labels: np.ndarray,
    *,
    k: int = 200,
    temperature: float = 0.5,
) -> np.ndarray:
    """Classes [Q] by a vote of the k nearest, each with weight exp(cosine / temperature).

    Args:
        queries: Features [Q, F].
        bank: Features [N, F] whose classes are known.
        labels: Classes [N] of the bank.
        k: How many vote; no more than N do.
        temperature: Small values let the nearest decide alone.
    """
    cosines, rows = nearest(queries, bank, min(k, len(bank)))
    weights = np.exp((cosines - 1.0) / temperature)
    votes = np.zeros((len(queries), int(labels.max()) + 1))
    np.add.at(votes, (np.arange(len(queries))[:, None], labels[rows]), weights)
    return votes.argmax(axis=1)
