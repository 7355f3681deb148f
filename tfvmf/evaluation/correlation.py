"""How an uncertainty follows the severity of a corruption: six means, and every image."""

import dataclasses

import numpy as np
import scipy.stats


@dataclasses.dataclass(frozen=True)
class Correlation:
    """Correlations of one corruption.

    Attributes:
        means: Mean score [6] of the clean images and at severities 1 to 5.
        spearman: Rank correlation of these six points with 0 ... 5, as in the paper's Table 1.
        pearson: Linear correlation of the same points, as in its appendix.
        per_image: Rank correlation over all (image, severity) pairs: what six means cannot say.
        interval: Its 95 % interval, by a bootstrap over images.
    """

    means: list[float]
    spearman: float
    pearson: float
    per_image: float
    interval: tuple[float, float]


def correlate(scores: np.ndarray, *, rounds: int = 1000, seed: int = 0) -> Correlation:
    """Correlates scores [6, N] (clean, severities 1 to 5) with severity.

    A score that does not change at all has no correlation: NaN.
    """
    levels = np.arange(len(scores))
    means = scores.mean(axis=1)
    moves = np.ptp(means) > 0
    spearman = scipy.stats.spearmanr(levels, means).statistic if moves else np.nan
    pearson = np.corrcoef(levels, means)[0, 1] if moves else np.nan
    per_image, interval = _per_image(scores, rounds, seed)
    return Correlation(means.tolist(), float(spearman), float(pearson), per_image, interval)


def _per_image(scores: np.ndarray, rounds: int, seed: int) -> tuple[float, tuple[float, float]]:
    # Ranks are made once, over all pairs; a bootstrap round only weighs the images anew, which
    # needs three sums an image instead of another sort.
    ranks = scipy.stats.rankdata(scores).reshape(scores.shape)
    ranks -= ranks.mean()
    levels = (np.arange(len(scores)) - (len(scores) - 1) / 2)[:, None]
    sums = np.stack([(ranks * levels).sum(0), (ranks**2).sum(0), ranks.sum(0)])
    level_square = float((levels**2).sum())
    count = scores.shape[1]

    def value(weighted: np.ndarray) -> np.ndarray:
        product, square, total = weighted
        pairs = count * len(scores)
        spread = np.sqrt(np.maximum(square - total**2 / pairs, 0.0) * level_square * count)
        with np.errstate(invalid="ignore", divide="ignore"):
            return product / spread

    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), rounds)
    sampled = value(sums @ weights.T)
    low, high = np.quantile(sampled, [0.025, 0.975])
    return float(value(sums.sum(axis=1))), (float(low), float(high))
