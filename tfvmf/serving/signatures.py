"""The served functions: what a client may send, and what it gets."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfvmf.models import OUTPUTS
from tfvmf.serving.decode import decode, fit

Outputs = dict[str, tf.Tensor]
QUANTILES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Turns a concentration into a confidence, and a confidence into a decision.

        confidence = share of in-distribution images with a lower kappa
        accept     = confidence >= reject_below

    so that of in-distribution images a share of `reject_below` is turned away.
    """

    table: (
        np.ndarray
    )  # float32 [Q], ascending: the kappas of up to `QUANTILES` images, or quantiles
    reject_below: float
    split: str  # where the images came from, for the record
    images: int  # how many there were

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


def build_signatures(
    encoder: keras.Model, *, image_size: int | None, calibration: Calibration | None = None
) -> dict[str, Callable[..., Outputs]]:
    """Builds the two ways into an encoder as functions of tensors alone.

    Args:
        encoder: From float images in [0, 1] to features, mean direction and concentration.
        image_size: Height and width that it was trained with. None: images go in at the size that
            they have, and there is no `serving_bytes`.
        calibration: Adds `confidence` float32 [N] and `accept` bool [N] to the outputs.

    Returns:
        `serving_default`, of uint8 `images` [N, H, W, 3], and `serving_bytes`, of strings
        `image_bytes` [N], JPEG or PNG. Both give float32 `features` [N, f], `mean_direction` [N, d]
        and `concentration` [N].
    """

    def outputs(levels: tf.Tensor) -> Outputs:
        count = tf.shape(levels)[0]
        # TensorFlow's fused convolution fails on an empty batch: it gets one black image.
        padding = [[0, tf.maximum(1 - count, 0)], [0, 0], [0, 0], [0, 0]]
        encoded = encoder(tf.pad(levels / 255.0, padding), training=False)
        served = {name: tf.cast(encoded[name][:count], tf.float32) for name in OUTPUTS}
        if calibration is not None:
            served |= calibration(served["concentration"])
        return served

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")])
    def serving_default(images: tf.Tensor) -> Outputs:
        shape = tf.shape(images)
        seen = tf.reduce_all(shape[1:3] > 0) | (shape[0] == 0)
        check = tf.debugging.Assert(seen, ["images without pixels: shape", shape])
        with tf.control_dependencies([check]):
            return outputs(fit(images, image_size) if image_size else tf.cast(images, tf.float32))

    if image_size is None:
        return {"serving_default": serving_default}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serving_bytes(image_bytes: tf.Tensor) -> Outputs:
        return outputs(decode(image_bytes, image_size))

    return {"serving_default": serving_default, "serving_bytes": serving_bytes}


def feature_signatures(encoder: keras.Model) -> dict[str, Callable[..., Outputs]]:
    """The way into a head alone: float32 `features` [N, f] -> outputs as of `build_signatures`."""
    spec = tf.TensorSpec([None, encoder.input.shape[1]], tf.float32, name="features")

    @tf.function(input_signature=[spec])
    def serving_default(features: tf.Tensor) -> Outputs:
        encoded = encoder(features, training=False)
        return {name: tf.identity(encoded[name]) for name in OUTPUTS}

    return {"serving_default": serving_default}
