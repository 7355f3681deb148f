"""From our images to the pixels that a model from elsewhere was trained on."""

from typing import Any

import keras
import tensorflow as tf

from tfvmf.errors import UserError

RANGES = {"0..1": (0.0, 1.0), "-1..1": (-1.0, 1.0), "0..255": (0.0, 255.0)}


@keras.saving.register_keras_serializable(package="tfvmf")
class Pixels(keras.layers.Layer):
    """Images [B, H, W, 3] in [0, 1] -> what a model's input expects, in size, range and type.

    Args:
        expected: Shape [B, h, w, c] of the input. Images are resized (bilinear) where h and w are
            known; c is 3, or 1 for gray.
        pixel_type: Type of the input; integers are whole gray levels.
        input_range: One of `RANGES`; "" for 0..1, or 0..255 where the type is an integer.
    """

    def __init__(
        self,
        expected: tuple[int | None, ...],
        pixel_type: str = "float32",
        input_range: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **options})
        whole = "int" in pixel_type
        self.expected, self.pixel_type = tuple(expected), pixel_type
        self.input_range = input_range or ("0..255" if whole else "0..1")
        if len(self.expected) != 4 or self.expected[3] not in (1, 3):
            raise UserError(
                f"the model's input has the shape {list(self.expected)}: needed is one of images, "
                "[N, H, W, 3] or [N, H, W, 1]"
            )
        if self.expected[0] is not None:
            raise UserError(
                f"the model takes batches of {self.expected[0]} only: save it with a batch of any "
                "size"
            )
        if (self.expected[1] is None) != (self.expected[2] is None):
            raise UserError(f"the model's input {list(self.expected)} fixes one side only")
        if self.input_range not in RANGES:
            raise UserError(f"--input_range={input_range} is unknown: use {', '.join(RANGES)}")
        if whole and self.input_range != "0..255":
            raise UserError(
                f"--input_range={input_range}: the model's input is {pixel_type}: use 0..255"
            )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Resizes, turns gray, scales and casts, as far as that is needed."""
        _, height, width, channels = self.expected
        if height is not None:
            images = tf.image.resize(images, [height, width])
        if channels == 1:
            images = tf.image.rgb_to_grayscale(images)
        low, high = RANGES[self.input_range]
        pixels = images * (high - low) + low
        if "int" in self.pixel_type:
            pixels = tf.round(pixels)
        return tf.cast(pixels, self.pixel_type)

    def compute_output_spec(self, images: keras.KerasTensor) -> keras.KerasTensor:
        """The model's input, of the images' size where it takes any."""
        sides = [given or side for given, side in zip(self.expected, images.shape, strict=True)]
        sides[3] = self.expected[3]
        return keras.KerasTensor(sides, dtype=self.pixel_type)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the layer again."""
        return {
            **super().get_config(),
            "expected": self.expected,
            "pixel_type": self.pixel_type,
            "input_range": self.input_range,
        }
