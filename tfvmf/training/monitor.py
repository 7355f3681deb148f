"""A look at the encoder while it trains: k-NN accuracy and kappa on held-out images."""

import keras
import ml_collections
import numpy as np

from tfvmf import inference, neighbours
from tfvmf.data.base import Source


class Monitor:
    """Classifies held-out images by their nearest labelled neighbours among the features.

    Args:
        config: The section `monitor` of a run's configuration.
        bank: Labelled images that vote.
        queries: Labelled images that are classified. Without labels on both, only kappa is
            watched.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, encoder: keras.Model, bank: Source, queries: Source
    ) -> None:
        self._config = config
        self._embedder = inference.Embedder(encoder)
        self._bank = bank
        self._queries = queries
        self.labelled = bank.labels is not None and queries.labels is not None
        # A folder lists class after class: spread the sample over the whole bank.
        self._rows = _spread(bank.size, config.bank_images)
        self._columns = _spread(queries.size, config.query_images)

    def __call__(self) -> dict[str, float]:
        """Measures `knn_accuracy` (with labels), and mean and spread of kappa."""
        queries = self._embedder(self._queries.take(self._columns))
        kappa = queries["concentration"]
        results = {"eval_kappa": float(kappa.mean()), "eval_kappa_std": float(kappa.std())}
        if self._bank.labels is not None and self._queries.labels is not None:
            bank = self._embedder(self._bank.take(self._rows))
            predicted = neighbours.classify(
                queries["features"],
                bank["features"],
                self._bank.labels[self._rows],
                k=self._config.neighbours,
            )
            correct = predicted == self._queries.labels[self._columns]
            results["knn_accuracy"] = float(correct.mean())
        return results


def _spread(size: int, count: int) -> np.ndarray:
    """At most `count` rows of `size`, evenly spread."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))
