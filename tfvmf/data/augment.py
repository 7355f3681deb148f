"""Random views of whole batches, in the graph.

A view is: random resized crop, flip, color jitter, gray, blur, noise, in this order. It is a pure
function of the image and its seed (see `counter_random`); with `keras.layers.Random*` it would
depend on earlier calls and on the number of replicas.

Unlike torchvision, jitter has a fixed order (brightness, contrast, saturation, hue), and a single
draw gives a crop that fits: the area is uniform, the ratio log-uniform over the part of its range
that fits the image at this area.
"""

import inspect
import math
from typing import Any

import keras
import tensorflow as tf

from tfvmf import counter_random
from tfvmf.data import image_ops

# Each parameter has its own column of random numbers, so that switching one operation on or off
# does not change the draws of the others. Append only, or every recorded run changes.
_COLUMNS = (
    "area", "ratio", "top", "left", "flip",
    "jitter", "brightness", "contrast", "saturation", "hue",
    "gray", "blur", "blur_sigma", "noise", "noise_sigma",
)  # fmt: skip

_ADJUSTMENTS = {
    "brightness": image_ops.adjust_brightness,
    "contrast": image_ops.adjust_contrast,
    "saturation": image_ops.adjust_saturation,
    "hue": image_ops.adjust_hue,
    "gray": image_ops.to_gray,
}


@keras.saving.register_keras_serializable(package="tfvmf")
class Augmentation(keras.layers.Layer):
    """Makes a random view of each image. The defaults are the paper's.

        views = Augmentation(size=32)(images)  # also in dataset.map(Augmentation(size=32))

    An operation whose strength or probability is 0 is not in the graph.

    Args:
        size: Height and width of a view.
        crop_min: Minimum area of the crop, as a share of the image.
        crop_max: Maximum area of the crop. No crop if both are 1.
        ratio_min: Minimum width / height of the crop.
        ratio_max: Maximum width / height of the crop.
        flip_probability: Probability of a horizontal flip. Use 0 where a flip changes the
            meaning, as for digits.
        brightness: b of a factor uniform in [max(0, 1 - b), 1 + b].
        contrast: Like `brightness`.
        saturation: Like `brightness`.
        hue: h of a shift uniform in [-h, h], in turns of the color circle, at most 1/2.
        jitter_probability: Probability of applying these four together.
        gray_probability: Probability of a gray view.
        blur_probability: Probability of a Gaussian blur.
        blur_sigma_min: Minimum sigma of the blur, in pixels.
        blur_sigma_max: Maximum sigma of the blur, in pixels.
        noise_sigma_max: Maximum sigma of Gaussian noise, drawn uniformly from 0. The paper's study
            of further augmentations uses 0.25.
        noise_probability: Probability of noise.
        seed: Seed for calls without `seeds`; None draws one.
        **kwargs: Arguments of every Keras layer (`name`).
    """

    def __init__(
        self,
        *,
        size: int = 32,
        crop_min: float = 0.2,
        crop_max: float = 1.0,
        ratio_min: float = 3 / 4,
        ratio_max: float = 4 / 3,
        flip_probability: float = 0.5,
        brightness: float = 0.3,
        contrast: float = 0.3,
        saturation: float = 0.3,
        hue: float = 0.1,
        jitter_probability: float = 0.8,
        gray_probability: float = 0.2,
        blur_probability: float = 0.0,
        blur_sigma_min: float = 0.1,
        blur_sigma_max: float = 2.0,
        noise_sigma_max: float = 0.0,
        noise_probability: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        self.size = _between("size", size, 1, math.inf)
        self.crop_max = _between("crop_max", crop_max, 0, 1, above=True)
        self.crop_min = _between("crop_min", crop_min, 0, crop_max, above=True)
        self.ratio_min = _between("ratio_min", ratio_min, 0, math.inf, above=True)
        self.ratio_max = _between("ratio_max", ratio_max, ratio_min, math.inf)
        self.flip_probability = _between("flip_probability", flip_probability, 0, 1)
        self.brightness = _between("brightness", brightness, 0, math.inf)
        self.contrast = _between("contrast", contrast, 0, math.inf)
        self.saturation = _between("saturation", saturation, 0, math.inf)
        self.hue = _between("hue", hue, 0, 0.5)
        self.jitter_probability = _between("jitter_probability", jitter_probability, 0, 1)
        self.gray_probability = _between("gray_probability", gray_probability, 0, 1)
        self.blur_probability = _between("blur_probability", blur_probability, 0, 1)
        self.blur_sigma_min = _between("blur_sigma_min", blur_sigma_min, 0, math.inf, above=True)
        self.blur_sigma_max = _between("blur_sigma_max", blur_sigma_max, blur_sigma_min, math.inf)
        self.noise_sigma_max = _between("noise_sigma_max", noise_sigma_max, 0, math.inf)
        self.noise_probability = _between("noise_probability", noise_probability, 0, 1)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {**super().get_config(), **settings}

    def changed(self, **settings: Any) -> "Augmentation":
        """A copy of this augmentation with other settings."""
        return type(self).from_config({**self.get_config(), **settings})

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape of the views."""
        return (input_shape[0], self.size, self.size, 3)

    def call(
        self, images: tf.Tensor, seeds: tf.Tensor | None = None, training: bool = True
    ) -> tf.Tensor:
        """One view of each image: float32 [B, size, size, 3] in [0, 1].

        Args:
            images: [B, H, W, 3], uint8, or floating point in [0, 1].
            seeds: int32 [B, 2] (`counter_random.example_seeds`). By default they are made from the
                layer's `seed` and its number of calls.
            training: If false, images are only resized.
        """
        images = tf.convert_to_tensor(images)
        if images.shape.rank != 4 or images.shape[3] != 3:
            raise ValueError(f"images must be [B, H, W, 3], got {images.shape}")
        if seeds is None:
            key = tf.cast(self.seed_generator.next(), tf.uint32)
            seeds = counter_random.example_seeds(key[0], key[1], tf.range(tf.shape(images)[0]), 0)
        seeds = tf.convert_to_tensor(seeds)
        if seeds.shape.rank != 2 or seeds.shape[1] != 2:
            raise ValueError(f"seeds must be [B, 2], got {seeds.shape}")
        height, width = tf.shape(images)[1], tf.shape(images)[2]
        drawn = self.draw(seeds, height, width) if training else {}
        views = tf.image.convert_image_dtype(images, tf.float32)
        if "boxes" in drawn or images.shape[1:3] != (self.size, self.size):
            whole = tf.cast([[0, 0, height, width]], tf.float32)
            boxes = drawn.get("boxes", tf.tile(whole, [tf.shape(images)[0], 1]))
            views = image_ops.resized_crop(views, boxes, self.size)
        for name, adjust in _ADJUSTMENTS.items():
            if name in drawn:
                views = adjust(views, drawn[name])
        if "blur" in drawn:
            views = image_ops.gaussian_blur(views, drawn["blur"], self.blur_sigma_max)
        if "noise" in drawn:
            noise = counter_random.normals(seeds, self.size * self.size * 3)
            views = image_ops.add_noise(views, drawn["noise"], tf.reshape(noise, tf.shape(views)))
        # Sums of weights can be an ulp above 1.
        return image_ops.clip(views)

    def draw(self, seeds: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parameters of the enabled operations: `boxes` [B, 4] (see `_boxes`), all others [B]."""
        columns = tf.unstack(counter_random.uniforms(seeds, len(_COLUMNS)), axis=1)
        uniform = dict(zip(_COLUMNS, columns, strict=True))
        drawn = {}
        if self.crop_min < 1 or self.flip_probability > 0:
            drawn["boxes"] = self._boxes(uniform, height, width)
        # 1 for the images that an operation changes, else 0.
        changed = {
            name: tf.cast(uniform[name] < getattr(self, f"{name}_probability"), tf.float32)
            for name in ("jitter", "gray", "blur", "noise")
        }
        if self.jitter_probability > 0:
            for name in ("brightness", "contrast", "saturation"):
                strength = getattr(self, name)
                if strength > 0:
                    low, high = max(-1.0, -strength), strength
                    drawn[name] = 1.0 + changed["jitter"] * (low + (high - low) * uniform[name])
            if self.hue > 0:
                drawn["hue"] = changed["jitter"] * self.hue * (2.0 * uniform["hue"] - 1.0)
        if self.gray_probability > 0:
            drawn["gray"] = changed["gray"]
        if self.blur_probability > 0:
            spread = self.blur_sigma_max - self.blur_sigma_min
            drawn["blur"] = changed["blur"] * (self.blur_sigma_min + spread * uniform["blur_sigma"])
        if self.noise_sigma_max > 0 and self.noise_probability > 0:
            drawn["noise"] = changed["noise"] * self.noise_sigma_max * uniform["noise_sigma"]
        return drawn

    def _boxes(
        self, uniform: dict[str, tf.Tensor], height: tf.Tensor, width: tf.Tensor
    ) -> tf.Tensor:
        """[B, 4]: top, left, bottom, right; left and right are swapped in mirrored views."""
        # In float64: the last bit of exp and log depends on an example's position in the batch
        # (see `counter_random.normals`), and rounding to float32 removes it.
        u = {name: tf.cast(column, tf.float64) for name, column in uniform.items()}
        height, width = tf.cast(height, tf.float64), tf.cast(width, tf.float64)
        area = self.crop_min + (self.crop_max - self.crop_min) * u["area"]
        narrowest, widest = area * width / height, width / height / area
        low, high = (
            tf.maximum(tf.minimum(tf.cast(ratio, tf.float64), widest), narrowest)
            for ratio in (self.ratio_min, self.ratio_max)
        )
        ratio = low * tf.exp(u["ratio"] * tf.math.log(high / low))
        box_height = tf.minimum(tf.sqrt(area * height * width / ratio), height)
        box_width = tf.minimum(tf.sqrt(area * height * width * ratio), width)
        top, left = u["top"] * (height - box_height), u["left"] * (width - box_width)
        mirrored = uniform["flip"] < self.flip_probability
        first = tf.where(mirrored, left + box_width, left)
        last = tf.where(mirrored, left, left + box_width)
        return tf.cast(tf.stack([top, first, top + box_height, last], axis=1), tf.float32)


_SETTINGS = tuple(inspect.signature(Augmentation.__init__).parameters)[1:-1]


def _between(name: str, value: Any, least: float, most: float, *, above: bool = False) -> Any:
    """The value, if it is finite and in [least, most], or in (least, most] with `above`."""
    if not least <= value <= most or (above and value == least) or math.isinf(value):
        span = f"{'>' if above else '>='} {least}" + ("" if math.isinf(most) else f", <= {most}")
        raise ValueError(f"augmentation: {name} must be {span}, got {value}")
    return value
