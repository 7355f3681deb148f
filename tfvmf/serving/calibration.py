"""What a kappa is worth: its rank among the kappas of images like those of training."""

import dataclasses

import numpy as np
import tensorflow as tf

QUANTILES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Turns a concentration into a confidence, and a confidence into a decision.

        confidence = share of in-distribution images with a lower kappa
        accept     = confidence >= reject_below

    so that of in-distribution images a share of `reject_below` is turned away.

    Attributes:
        table: float32 [Q], ascending: every kappa of up to `QUANTILES` images, as many evenly
            spaced quantiles of more.
        reject_below: Share of in-distribution images to turn away.
        split: Where the images came from, for the record.
        images: How many there were.
    """

    table: np.ndarray
    reject_below: float
    split: str
    images: int

    def __call__(self, kappa: tf.Tensor) -> dict[str, tf.Tensor]:
        """`confidence` float32 [N], rising with kappa [N] from 0 to 1, and `accept` bool [N]."""
        table = tf.constant(self.table, tf.float32)
        lower = tf.cast(table[None, :] < kappa[:, None], tf.float32)
        confidence = tf.reduce_sum(lower, axis=1) / len(self.table)
        return {"confidence": confidence, "accept": confidence >= self.reject_below}


def calibrate(kappa: np.ndarray, *, reject_below: float, split: str) -> Calibration:
    """Makes a calibration of the concentrations [n] of in-distribution images."""
    table = np.sort(kappa.astype(np.float32))
    if len(table) > QUANTILES:
        # The middle of each of Q equal parts: no image of the sample decides an end alone.
        places = (np.arange(QUANTILES) + 0.5) / QUANTILES
        table = np.quantile(table, places, method="inverted_cdf").astype(np.float32)
    return Calibration(table=table, reject_below=reject_below, split=split, images=len(kappa))
