"""Measures the encoder during training: accuracy, kappa and collapse on held-out images."""

import keras
import numpy as np

from tfvmf import inference, neighbors
from tfvmf.data.base import Source

_COLLAPSED_STD, _COLLAPSED_RANK = 0.25, 2.0  # evenly spread directions have 1 and d, see `spread`


class Monitor:
    """Classifies held-out images by labeled neighbors; without labels, measures only kappa."""

    def __init__(
        self,
        encoder: keras.Model,
        bank: Source,
        queries: Source,
        *,
        neighbors: int = 20,
        bank_images: int = 10_000,
        query_images: int = 2_000,
    ) -> None:
        self._embedder = inference.Embedder(encoder)
        self._bank, self._queries, self._neighbors = bank, queries, neighbors
        self._rows = evenly(bank.size, bank_images)
        self._columns = evenly(queries.size, query_images)

    def __call__(self) -> dict[str, float]:
        """Measures `knn_accuracy` (with labels), mean and spread of kappa, and spread of mu."""
        queries = self._embedder(self._queries.take(self._columns))
        kappa = queries["concentration"]
        results = {"eval_kappa": float(kappa.mean()), "eval_kappa_std": float(kappa.std())}
        results |= spread(queries["mean_direction"])
        if self._bank.labels is not None and self._queries.labels is not None:
            bank = self._embedder(self._bank.take(self._rows))["features"]
            labels = self._bank.labels[self._rows]
            predicted = neighbors.classify(queries["features"], bank, labels, k=self._neighbors)
            correct = predicted == self._queries.labels[self._columns]
            results["knn_accuracy"] = float(correct.mean())
        return results


def spread(directions: np.ndarray) -> dict[str, float]:
    """How far unit vectors [N, d] are from collapse.

    `direction_std` is the mean standard deviation over dimensions, times sqrt(d): 1 if they are
    evenly spread, 0 if they are equal. `effective_rank`, the number of dimensions in use, is
    exp(entropy) of the shares p_i = s_i / sum(s) of the singular values s of the centered vectors.
    """
    deviation = directions.std(axis=0).mean() * np.sqrt(directions.shape[1])
    values = np.linalg.svd(directions - directions.mean(axis=0), compute_uv=False)
    shares = values[values > 0] / max(values.sum(), np.finfo(np.float32).tiny)
    rank = np.exp(-(shares * np.log(shares)).sum())
    return {"direction_std": float(deviation), "effective_rank": float(rank)}


def collapse_warning(values: dict[str, float]) -> str:
    """A warning if the directions have collapsed, else ""."""
    deviation, rank = values["direction_std"], values["effective_rank"]
    if deviation >= _COLLAPSED_STD and rank >= _COLLAPSED_RANK:
        return ""
    return (
        f"warning: the directions have collapsed (spread {deviation:.2f} of 1, effective rank "
        f"{rank:.1f}): the encoder can no longer tell images apart. Lower "
        "--config.optimizer.learning_rate or --config.concentration.align_weight"
    )


def evenly(size: int, count: int) -> np.ndarray:
    """At most `count` rows out of `size`, evenly spaced."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))
