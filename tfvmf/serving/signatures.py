"""The served functions: what a client may send, and what it gets."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tfvmf.models import OUTPUTS
from tfvmf.serving.calibration import Calibration
from tfvmf.serving.decode import decode
from tfvmf.serving.resize import fit

Outputs = dict[str, tf.Tensor]


def build_signatures(
    encoder: keras.Model, *, image_size: int, calibration: Calibration | None = None
) -> dict[str, Callable[..., Outputs]]:
    """Builds the two ways into an encoder as functions of tensors alone.

    Args:
        encoder: From float images in [0, 1] to features, mean direction and concentration.
        image_size: Height and width that it was trained with.
        calibration: Adds `confidence` and `accept` to the outputs.

    Returns:
        serving_default: uint8 `images` [N, H, W, 3] -> outputs.
        serving_bytes: string `image_bytes` [N], JPEG or PNG -> outputs.

        The outputs are float32 `features` [N, f], `mean_direction` [N, d] and `concentration` [N],
        with a calibration also `confidence` [N] and bool `accept` [N].
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
            return outputs(fit(images, image_size))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serving_bytes(image_bytes: tf.Tensor) -> Outputs:
        return outputs(decode(image_bytes, image_size))

    return {"serving_default": serving_default, "serving_bytes": serving_bytes}


def feature_signatures(encoder: keras.Model) -> dict[str, Callable[..., Outputs]]:
    """The way into a head without an encoder.

    Returns:
        serving_default: float32 `features` [N, f] -> the outputs of `build_signatures`.
    """
    spec = tf.TensorSpec([None, encoder.input.shape[1]], tf.float32, name="features")

    @tf.function(input_signature=[spec])
    def serving_default(features: tf.Tensor) -> Outputs:
        encoded = encoder(features, training=False)
        return {name: tf.identity(encoded[name]) for name in OUTPUTS}

    return {"serving_default": serving_default}
