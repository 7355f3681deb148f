"""Accept or reject, with a guarantee: conformal p-values of kappa and familiarity, combined."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfvmf.errors import UserError

_LEAST = 20
# One in this many calibration images gives the p-values, the others the rank. With one in two,
# false rejections varied by 0.9 instead of 0.3 % over five splits, for no gain.
_SHARE = 4
# Scores that differ by less, in standard deviations of the calibration scores, count as equal:
# despite rounding, all runtimes give an image the same rank.
_TIE = 1e-4
_WEIGHTS = (1.0, 2.0)  # of kappa and familiarity, chosen on validation shifts; studies/familiarity


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """Combines concentration and familiarity into one confidence, and decides by it.

    A quarter of the calibration images turns each score into a p-value,

        p(x) = (1 + #{calibration images with a score <= x}) / (n + 1),

    combined as t = log p_kappa + 2 log p_familiarity. Below all calibration images, log p falls by
    one per standard deviation; otherwise images just below this quarter would tie with the most
    unusual image. The rank of t among the other images is again a conformal p-value, for any t:

        confidence = (1 + #{calibration images with t <= t(x)}) / (m + 1)
        accept     = confidence > alpha

    If x and the calibration images are exchangeable, confidence <= alpha has a probability of at
    most alpha, for every m and any scores. The probability is over x *and* the calibration images;
    for one calibration the share of rejected images varies around alpha by about sqrt(alpha / m).

    Attributes:
        concentration: float32 [n], ascending: kappas of the quarter.
        familiarity: float32 [n], ascending: familiarities of the quarter; [0] if there are none.
        joined: float32 [m], ascending: t of the other images.
        weights: float32 [2]: weights of both logarithms in t.
        alpha: Share of in-distribution images that may be rejected.
    """

    concentration: np.ndarray
    familiarity: np.ndarray
    joined: np.ndarray
    weights: np.ndarray
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise UserError(f"alpha={self.alpha}: expected a share between 0 and 1, like 0.05")
        if self.alpha < (least := 1.0 / (len(self.joined) + 1)):
            raise UserError(
                f"alpha={self.alpha}: with {len(self.joined)} calibration images for the rank no "
                f"image could be rejected: use at least {least:.2g}, or more images"
            )

    @classmethod
    def fit(
        cls,
        concentration: np.ndarray,
        familiarity: np.ndarray | None = None,
        *,
        alpha: float = 0.05,
        seed: int = 0,
    ) -> "Decision":
        """Calibrates on scores [N] of images that neither train nor evaluate the encoder."""
        size = len(concentration)
        if size < _LEAST:
            raise UserError(f"{size} calibration images: at least {_LEAST} are needed")
        scores = [concentration] + ([] if familiarity is None else [familiarity])
        if not all(np.isfinite(score).all() for score in scores):
            raise UserError("a calibration image has a score that is not a finite number")
        order = np.random.default_rng(seed).permutation(size)
        first, others = np.split(order, [size // _SHARE])
        tables = [np.sort(score[first].astype(np.float32)) for score in scores]
        weights = np.array(_WEIGHTS, np.float32)
        joined = _joined(tables, [score[others] for score in scores], weights).numpy()
        return cls(
            concentration=tables[0],
            familiarity=tables[1] if len(tables) > 1 else np.zeros(0, np.float32),
            joined=np.sort(joined),
            weights=weights,
            alpha=alpha,
        )

    def __call__(
        self, concentration: tf.Tensor, familiarity: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Scores [B] -> `confidence` float32 [B] in (0, 1] and `accept` bool [B]."""
        tables, scores = [self.concentration], [concentration]
        if len(self.familiarity):
            if familiarity is None:
                raise ValueError("familiarity is missing: this decision was calibrated with it")
            tables, scores = [*tables, self.familiarity], [concentration, familiarity]
        confidence = _p_value(self.joined, _joined(tables, scores, self.weights))
        return {"confidence": confidence, "accept": confidence > self.alpha}


def _joined(tables: list[np.ndarray], scores: list[tf.Tensor], weights: np.ndarray) -> tf.Tensor:
    """The weighted sum [B] of the log p-values of the scores, with tails."""
    parts = []
    for table, score, weight in zip(tables, scores, weights, strict=False):
        score = tf.cast(score, tf.float32)
        score = tf.where(tf.math.is_nan(score), -np.inf, score)
        below = tf.nn.relu(table[0] - score) / max(float(table.std()), 1e-6)
        parts.append(float(weight) * (tf.math.log(_p_value(table, score)) - below))
    return tf.add_n(parts)


def _p_value(table: np.ndarray, score: tf.Tensor) -> tf.Tensor:
    """(1 + #{table <= score}) / (n + 1) of scores [B]."""
    # Plain comparisons: other loaders of an export do not support searching in sorted values.
    equal = tf.constant(table - _TIE * table.std(), tf.float32)
    lower = tf.cast(equal <= score[:, None], tf.float32)
    return (1.0 + tf.reduce_sum(lower, axis=1)) / (len(table) + 1.0)
