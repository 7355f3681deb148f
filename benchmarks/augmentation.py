"""Views per second of the augmentation: at its defaults, and each operation alone.

    .venv/bin/python benchmarks/augmentation.py [--batch=256] [--image_size=32] [--repeats=30]

Two views of a batch of uint8 images are made in one graph, as in training, seeds included. On 2
cores shared with other jobs the defaults made 22,000 views per second at best, 7,000 at worst.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfvmf.counter_random import example_seeds
from tfvmf.data.augment import Augmentation

_BATCH = flags.DEFINE_integer("batch", 256, "images; each is viewed twice", lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 32, "height and width in pixels", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 30, "measurements, interleaved", lower_bound=1)

_OFF: dict[str, float] = {
    "crop_min": 1.0,
    "flip_probability": 0.0,
    "brightness": 0.0,
    "contrast": 0.0,
    "saturation": 0.0,
    "hue": 0.0,
    "gray_probability": 0.0,
}
_SETTINGS: dict[str, dict[str, float]] = {
    "defaults": {},
    "defaults, blur, noise": {"blur_probability": 0.5, "noise_sigma_max": 0.25},
    "none (to float32)": _OFF,
    "crop and flip": {**_OFF, "crop_min": 0.2, "flip_probability": 0.5},
    "brightness": {**_OFF, "brightness": 0.3},
    "contrast": {**_OFF, "contrast": 0.3},
    "saturation": {**_OFF, "saturation": 0.3},
    "hue": {**_OFF, "hue": 0.1},
    "gray": {**_OFF, "gray_probability": 0.2},
    "blur": {**_OFF, "blur_probability": 0.5},
    "noise": {**_OFF, "noise_sigma_max": 0.25},
}


def two_views(settings: dict[str, float], images: tf.Tensor) -> Callable[..., list[tf.Tensor]]:
    """A graph from square images and a step to their two views."""
    augmentation = Augmentation(**{"size": images.shape[1], **settings})

    def views(images: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        positions = tf.range(tf.shape(images)[0])
        return [augmentation(images, example_seeds(0, step, positions, view)) for view in (0, 1)]

    return tf.function(views).get_concrete_function(images, tf.constant(0, tf.int64))


def main(argv: Sequence[str]) -> None:
    """Measures in turn, so that a noisy machine is noisy for all."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    shape = (_BATCH.value, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3)
    images = tf.constant(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))
    graphs = {name: two_views(settings, images) for name, settings in _SETTINGS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    for repeat in range(-2, _REPEATS.value):  # two to warm up
        for name, graph in graphs.items():
            start = time.perf_counter()
            graph(images, tf.constant(max(repeat, 0), tf.int64))
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    print(f"2 x {_BATCH.value} views of {_IMAGE_SIZE.value}x{_IMAGE_SIZE.value}")
    print(f"{'':24}{'ms':>8}{'views/s':>12}")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:24}{1e3 * median:8.1f}{2 * _BATCH.value / median:12,.0f}")


if __name__ == "__main__":
    app.run(main)
