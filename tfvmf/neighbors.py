"""Nearest neighbors on the sphere, in batches of bounded memory."""

import numpy as np
import tensorflow as tf

_CHUNK = 1024


def nearest(
    queries: np.ndarray, bank: np.ndarray, k: int, *, batch_size: int = _CHUNK
) -> tuple[np.ndarray, np.ndarray]:
    """Descending cosines [Q, k] and rows [Q, k] of each query's k nearest in `bank` [N, F]."""
    if not 1 <= k <= len(bank):
        raise ValueError(f"k must be between 1 and the {len(bank)} rows of the bank, not {k}")
    columns = tf.transpose(tf.math.l2_normalize(tf.constant(bank, tf.float32), axis=1))
    cosines, rows = [np.zeros((0, k), np.float32)], [np.zeros((0, k), np.int32)]
    for start in range(0, len(queries), batch_size):
        block = tf.constant(queries[start : start + batch_size], tf.float32)
        near = tf.matmul(tf.math.l2_normalize(block, axis=1), columns)
        values, indices = tf.math.top_k(near, k)
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
    """Classes [Q] by a vote of the k nearest in a bank, weighted by exp(cosine / temperature)."""
    cosines, rows = nearest(queries, bank, min(k, len(bank)))
    weights = np.exp((cosines - 1.0) / temperature)
    votes = np.zeros((len(queries), int(labels.max()) + 1))
    np.add.at(votes, (np.arange(len(queries))[:, None], labels[rows]), weights)
    return votes.argmax(axis=1)


def distance(queries: np.ndarray, bank: np.ndarray, *, k: int) -> np.ndarray:
    """Mean cosine distance [Q] of features [Q, F] to their k nearest in a bank [N, F]."""
    cosines, _ = nearest(queries, bank, min(k, len(bank)))
    return 1.0 - cosines.mean(axis=1)


class Joined:
    """Nearest neighbors with a score as an additional feature.

    Features become unit vectors u. The score s is standardized on the bank and given the spread
    of an average feature:

        x = [u, a (s - mean(s)) / std(s)],    a^2 = mean over f of var(u_f)

    The distance of two images is |x - x'|^2 / 2: the cosine distance of their features plus the
    score's share. The bank [N, F] and its scores [N] are from training images only. The result
    does not depend on the scale of the features, nor on scale, offset or sign of the score; a
    constant score changes nothing. (With a raw kappa appended to raw features, the cosine would
    weight kappa by the length of the features.)
    """

    def __init__(self, bank: np.ndarray, scores: np.ndarray) -> None:
        self._bank = unit(bank)
        self.scale = spread(self._bank)
        self._mean, self._std = (float(f(scores, dtype=np.float64)) for f in (np.mean, np.std))
        self._bank_scores = self._scaled(scores)

    def distance(self, queries: np.ndarray, scores: np.ndarray, *, k: int) -> np.ndarray:
        """Mean distance [Q] of features [Q, F] with scores [Q] to their k nearest."""
        columns = tf.transpose(tf.constant(self._bank))
        k = min(k, len(self._bank))
        parts = []
        for start in range(0, len(queries), _CHUNK):
            part = slice(start, start + _CHUNK)
            gaps = self._scaled(scores[part])[:, None] - self._bank_scores
            near = tf.matmul(unit(queries[part]), columns) - 0.5 * tf.square(gaps)
            parts.append(1.0 - tf.math.top_k(near, k).values.numpy().mean(axis=1))
        return np.concatenate(parts)

    def _scaled(self, scores: np.ndarray) -> np.ndarray:
        if self._std == 0:
            return np.zeros(len(scores), np.float32)
        return (self.scale * (scores - self._mean) / self._std).astype(np.float32)


def spread(features: np.ndarray) -> float:
    """The root of the mean variance over the unit-normalized features [N, F]."""
    return float(np.sqrt(unit(features).var(axis=0, dtype=np.float64).mean()))


def unit(features: np.ndarray) -> np.ndarray:
    """Features [N, F] scaled to unit length."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.maximum(lengths, 1e-12)).astype(np.float32)
