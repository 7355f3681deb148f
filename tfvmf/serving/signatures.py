"""The served functions: their inputs and outputs."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tfvmf.models import OUTPUTS, with_levels
from tfvmf.posthoc import Judge, LinearProbe
from tfvmf.serving.decode import decode, fit

Outputs = dict[str, tf.Tensor]


def build_signatures(
    encoder: keras.Model,
    *,
    image_size: int | None,
    judge: Judge | None = None,
    probe: LinearProbe | None = None,
    levels: bool = False,
) -> dict[str, Callable[..., Outputs]]:
    """Builds the served functions of an encoder, with tensors as their only arguments.

    Args:
        encoder: From float images in [0, 1], or from features, to features, mean direction and
            concentration.
        image_size: Height and width of the training images. If None, images are not resized, and
            there is no `serving_bytes`.
        judge: Adds `familiarity` and `confidence` float32 [N] and `accept` bool [N] to the outputs.
        probe: Adds `class`, a string, and `class_probability` float32, both [N].
        levels: Adds `levels` [N, l] (`tfvmf.models.with_levels`), if the encoder has them.

    Returns:
        `serving_default`, of uint8 `images` [N, H, W, 3], and `serving_bytes`, of strings
        `image_bytes` [N], JPEG or PNG. Both return float32 `features` [N, f], `mean_direction`
        [N, d] and `concentration` [N]. For a head alone, `serving_default` takes float32
        `features` [N, f].
    """
    if len(encoder.input.shape) == 2:
        spec = tf.TensorSpec([None, encoder.input.shape[1]], tf.float32, name="features")

        @tf.function(input_signature=[spec])
        def of_features(features: tf.Tensor) -> Outputs:
            encoded = encoder(features, training=False)
            return {name: tf.identity(encoded[name]) for name in OUTPUTS}

        return {"serving_default": of_features}
    outputs = _outputs(encoder, judge, probe, levels=levels)

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


def build_portable(
    encoder: keras.Model, *, image_size: int, judge: Judge | None, probe: LinearProbe | None
) -> Callable[..., Outputs]:
    """The function for other runtimes: uint8 `images` [N, S, S, 3], N at least 1.

    It has no branches and does not resize. Outputs are those of `build_signatures`, except that
    `class` is an index of a name, int32, because not every runtime has strings.
    """
    spec = tf.TensorSpec([None, image_size, image_size, 3], tf.uint8, name="images")
    outputs = _outputs(encoder, judge, probe, portable=True)

    @tf.function(input_signature=[spec])
    def serving_default(images: tf.Tensor) -> Outputs:
        return outputs(tf.cast(images, tf.float32))

    return serving_default


def _outputs(
    encoder: keras.Model,
    judge: Judge | None,
    probe: LinearProbe | None,
    *,
    portable: bool = False,
    levels: bool = False,
) -> Callable[[tf.Tensor], Outputs]:
    """A function of pixel values 0 to 255, float32 [N, S, S, 3]; N may be 0 unless `portable`."""
    network = with_levels(encoder) if judge or levels else encoder
    names = [*OUTPUTS, *(["levels"] if levels and "levels" in network.output else [])]
    # One function, so that a graph holds its arrays once.
    judge_outputs = tf.function(judge, reduce_retracing=True) if judge else None

    def outputs(gray: tf.Tensor) -> Outputs:
        count, pixels = tf.shape(gray)[0], gray / 255.0
        if not portable:  # TensorFlow's fused convolution fails without images: add a black one
            pixels = tf.pad(pixels, [[0, tf.maximum(1 - count, 0)], [0, 0], [0, 0], [0, 0]])
        encoded = {
            name: tf.cast(value if portable else value[:count], tf.float32)
            for name, value in network(pixels, training=False).items()
        }
        served = {name: encoded[name] for name in names}
        served |= judge_outputs(encoded) if judge_outputs else {}
        return served | (probe(encoded["features"], index=portable) if probe else {})

    return outputs
