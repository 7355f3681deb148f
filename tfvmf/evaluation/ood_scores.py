"""Scores of out-of-distribution images: high means foreign. Fitted on training images alone."""

from collections.abc import Callable

import numpy as np
import scipy.linalg
import tensorflow as tf
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from tfvmf import neighbors
from tfvmf.evaluation.scores import Score

NEIGHBORS = 5
_CHUNK = 1024

# Of N images: `score` [N], and features [N, F] by the name of their space (f_res, f_ssl).
Sample = dict[str, np.ndarray]
Detector = Callable[[Sample], np.ndarray]


def detectors(train: Sample, labels: np.ndarray | None, score: Score) -> dict[str, Detector]:
    """All detectors that training images (and their labels, if there are any) give.

    The score alone; in each space the neighbor distance, the same joined with the score and,
    with labels, the two Mahalanobis distances.
    """
    found: dict[str, Detector] = {score.name: lambda sample: score.uncertainty(sample["score"])}
    for space in (name for name in train if name != "score"):
        found |= _detectors_of_space(space, train, labels, score)
    return found


def _detectors_of_space(
    space: str, train: Sample, labels: np.ndarray | None, score: Score
) -> dict[str, Detector]:
    joined = Joined(train[space], train["score"])
    found: dict[str, Detector] = {
        space: lambda sample: neighbor_distance(sample[space], train[space]),
        f"{space}+{score.name}": lambda sample: joined.distance(sample[space], sample["score"]),
    }
    if labels is not None:
        gaussians = Gaussians(train[space], labels)
        found[f"{space}_mahalanobis"] = lambda sample: gaussians.to_class(sample[space])
        found[f"{space}_relative_mahalanobis"] = lambda sample: gaussians.relative(sample[space])
    return found


def neighbor_distance(queries: np.ndarray, bank: np.ndarray, *, k: int = NEIGHBORS) -> np.ndarray:
    """Mean cosine distance [Q] of features [Q, F] to their k nearest in a bank [N, F]."""
    cosines, _ = neighbors.nearest(queries, bank, min(k, len(bank)))
    return 1.0 - cosines.mean(axis=1)


class Joined:
    """The score as one more feature.

    Features become unit vectors u, the score s is standardized on the bank and given the spread
    of an average feature:

        x = [u, a (s - mean(s)) / std(s)],    a^2 = mean over f of var(u_f)

    and the distance of two images is |x - x'|^2 / 2: the cosine distance of their features plus
    the score's share. `a` comes from the bank, which is to say from training images: nothing is
    fitted to foreign ones. The result does not depend on the scale of the features, nor on scale,
    offset or sign of the score; a score that is the same for the whole bank changes nothing.

    (The cosine of raw features with a raw kappa appended, as the paper may have done it, weighs
    kappa by how long the features of a network happen to be.)

    Args:
        bank: Features [N, F] of the training images.
        scores: Their scores [N].
    """

    def __init__(self, bank: np.ndarray, scores: np.ndarray) -> None:
        self._bank = _unit(bank)
        self.scale = spread(self._bank)
        self._mean, self._std = (float(f(scores, dtype=np.float64)) for f in (np.mean, np.std))
        self._bank_scores = self._scaled(scores)

    def distance(
        self, queries: np.ndarray, scores: np.ndarray, *, k: int = NEIGHBORS
    ) -> np.ndarray:
        """Mean distance [Q] of features [Q, F] with scores [Q] to their k nearest."""
        columns = tf.transpose(tf.constant(self._bank))
        k = min(k, len(self._bank))
        parts = []
        for start in range(0, len(queries), _CHUNK):
            part = slice(start, start + _CHUNK)
            gaps = self._scaled(scores[part])[:, None] - self._bank_scores
            near = tf.matmul(_unit(queries[part]), columns) - 0.5 * tf.square(gaps)
            parts.append(1.0 - tf.math.top_k(near, k).values.numpy().mean(axis=1))
        return np.concatenate(parts)

    def _scaled(self, scores: np.ndarray) -> np.ndarray:
        if self._std == 0:
            return np.zeros(len(scores), np.float32)
        return (self.scale * (scores - self._mean) / self._std).astype(np.float32)


def spread(features: np.ndarray) -> float:
    """The root of the mean variance of a feature of unit-normalized features [N, F]."""
    return float(np.sqrt(_unit(features).var(axis=0, dtype=np.float64).mean()))


class Gaussians:
    """A Gaussian a class with a covariance that all share, and one for all images together.

    S = 1/N sum over n of (x_n - m_c(n)) (x_n - m_c(n))', S_0 the covariance around the mean of
    all. A millionth of the mean variance is added to the diagonals: networks have dead features.

    Args:
        features: [N, F] of the training images.
        labels: int [N].
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray) -> None:
        _, members = np.unique(labels, return_inverse=True)
        counts = np.bincount(members)
        means = np.stack(
            [features[members == c].mean(axis=0, dtype=np.float64) for c in range(len(counts))]
        )
        mean = counts @ means / len(features)
        within = np.zeros((features.shape[1],) * 2)
        for start in range(0, len(features), _CHUNK):
            part = slice(start, start + _CHUNK)
            centered = features[part] - means[members[part]]
            within += centered.T @ centered
        within /= len(features)
        between = ((means - mean).T * counts) @ (means - mean) / len(features)
        self._of_classes = _factor(within), means
        self._of_all = _factor(within + between), mean[None]

    def to_class(self, features: np.ndarray) -> np.ndarray:
        """Squared distance [N] of features [N, F] to the nearest class."""
        return _nearest_mean(features, *self._of_classes)

    def to_all(self, features: np.ndarray) -> np.ndarray:
        """Squared distance [N] of features [N, F] to all images together."""
        return _nearest_mean(features, *self._of_all)

    def relative(self, features: np.ndarray) -> np.ndarray:
        """`to_class` - `to_all` [N]: what is strange to the classes, but not to all images."""
        return self.to_class(features) - self.to_all(features)


def detection(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """How well a score [N] of familiar and [M] of foreign images tells them apart.

    `auroc`, `aupr_out` and `fpr95` have the foreign images as positives, `aupr_in` the familiar
    ones. `fpr95`: share of familiar images flagged where 95 % of the foreign ones are.
    """
    foreign = np.repeat([False, True], [len(inside), len(outside)])
    values = np.concatenate([inside, outside])
    false_rate, true_rate, _ = roc_curve(foreign, values, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(foreign, values)),
        "aupr_out": float(average_precision_score(foreign, values)),
        "aupr_in": float(average_precision_score(~foreign, -values)),
        "fpr95": float(false_rate[np.searchsorted(true_rate, 0.95)]),
    }


def _unit(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.maximum(lengths, 1e-12)).astype(np.float32)


def _factor(covariance: np.ndarray) -> np.ndarray:
    """The Cholesky factor of a covariance, its diagonal a little raised."""
    ridge = max(1e-6 * float(np.diag(covariance).mean()), 1e-30)
    return np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))


def _nearest_mean(features: np.ndarray, factor: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The smallest over c of (x - m_c)' (L L')^-1 (x - m_c), [N]."""

    def whiten(points: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_triangular(factor, (points - center).T, lower=True).T

    # |L^-1 x - L^-1 m|^2 multiplied out needs [N, K], not [N, K, F]; around the mean of the means
    # little cancels.
    center = means.mean(axis=0)
    white_means = whiten(means)
    parts = []
    for start in range(0, len(features), _CHUNK):
        white = whiten(features[start : start + _CHUNK])
        squares = (white**2).sum(axis=1)[:, None] + (white_means**2).sum(axis=1)
        parts.append((squares - 2.0 * white @ white_means.T).min(axis=1))
    return np.concatenate(parts)
