"""Vectors of all images of `studies/kappa/study.py`, computed once by an encoder and kept."""

import pathlib
import sys
from collections.abc import Callable
from functools import partial

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import ml_collections
import numpy as np
import tensorflow as tf

from studies.kappa.shifts import SHIFTS
from studies.kappa.views import KINDS, wide_views
from tfvmf.counter_random import example_seeds
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from tfvmf.models import Levels
from tfvmf.training.inputs import augmentation_from_config, load_source

Vectors = dict[str, np.ndarray]  # levels [..., L], features [..., F], mean_direction [..., d]


class Embedding:
    """Vectors of images, computed once and kept."""

    def __init__(self, encoder: keras.Model, backbone: str, directory: pathlib.Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        images = keras.Input((None, None, 3))
        maps = encoder.get_layer(backbone)(images)
        features = maps.pop("features")
        levels = Levels(dtype="float32")(maps)
        direction = encoder.get_layer("direction_head")(features)
        outputs = {"levels": levels, "features": features, "mean_direction": direction}
        net = keras.Model(images, outputs)
        self._forward = tf.function(lambda x: net(x, training=False), reduce_retracing=True)

    def kept(self, name: str, make: Callable[[], Vectors]) -> Vectors:
        """The vectors of that name: read, or made and written."""
        path = self._directory / f"{name}.npz"
        if not path.exists():
            print(name, file=sys.stderr, flush=True)
            np.savez(path, allow_pickle=False, **make())
        with np.load(path, allow_pickle=False) as found:
            return dict(found)

    def __call__(
        self, images: np.ndarray, view: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    ) -> Vectors:
        """Of uint8 images [N, H, W, 3], or of a view of each."""
        parts = []
        for start in range(0, len(images), 500):
            batch = tf.constant(images[start : start + 500])
            positions = tf.range(start, start + len(batch))
            pixels = view(batch, positions) if view else tf.cast(batch, tf.float32) / 255.0
            parts.append({name: x.numpy() for name, x in self._forward(pixels).items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def severities(embedding: Embedding, damage: Callable[[int], np.ndarray]) -> Vectors:
    """Vectors [5, N, ...] of images at every severity of a damage."""
    parts = [embedding(damage(severity)) for severity in SEVERITIES]
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def collect(
    embedding: Embedding, config: ml_collections.ConfigDict, *, train: int, test: int
) -> dict[str, Vectors]:
    """All vectors of the study, of so many training images and so many of each test.

    `train_view0`, `train_view1`: two ordinary views; `train_KIND`: a wide one. `validation_clean`,
    `suite_clean`: the images as they are, `validation_view` an ordinary view of them;
    `validation_SHIFT`, `suite_CORRUPTION` [5, N, ...] the damaged ones; `foreign_NAME` other data.
    """
    augmentation = augmentation_from_config(config)
    seen = load_source(config, config.data.source, "train").images()[:train]
    unseen = load_source(config, config.data.source, "test").images()
    half = len(unseen) // 2
    judged, validated = unseen[:test], unseen[half : half + test]
    made: dict[str, Callable[[], Vectors]] = {}

    def view_of(images: np.ndarray, function: Callable, number: int) -> Callable[[], Vectors]:
        def view(batch: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
            return function(batch, example_seeds(0, 0, positions, number))

        return lambda: embedding(images, view)

    def foreigners(name: str) -> Vectors:
        return embedding(load_source(config, name, "test").images()[:test])

    for number in (0, 1):
        made[f"train_view{number}"] = view_of(seen, augmentation, number)
    for kind in KINDS:
        made[f"train_{kind}"] = view_of(seen, wide_views(augmentation, kind), 2)
    made["validation_clean"] = lambda: embedding(validated)
    made["validation_view"] = view_of(validated, augmentation, 0)
    for name, shift in SHIFTS.items():
        made[f"validation_{name}"] = partial(severities, embedding, partial(shift, validated))
    for foreign in ("cifar100", "mnist"):
        made[f"foreign_{foreign}"] = partial(foreigners, foreign)
    made["suite_clean"] = lambda: embedding(judged)
    for name in CORRUPTIONS:
        made[f"suite_{name}"] = partial(severities, embedding, partial(corrupt, judged, name))
    return {name: embedding.kept(name, make) for name, make in made.items()}
