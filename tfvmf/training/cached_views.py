"""Training on vectors of views that were embedded once: an epoch takes seconds.

The forward passes of a frozen encoder are nearly all the work of fitting a head to it. With cached
views they are done once; a step then draws, for each image, among its views. Features that were
cached elsewhere are the same, without the images.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf import counter_random, data
from tfvmf.data import pipeline
from tfvmf.data.vectors import VectorSource, check_memory, load_vectors
from tfvmf.methods import Method
from tfvmf.methods.base import ViewKind
from tfvmf.methods.fit_kappa import FitKappa
from tfvmf.progress import Progress
from tfvmf.training.inputs import (
    Inputs,
    augmentation_from_config,
    image_inputs,
    load_sources,
    memory_limit,
)
from tfvmf.training.monitor import spread

_BATCH = 250

Kind = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # images and seeds -> views


@dataclasses.dataclass(frozen=True)
class Draw:
    """Draws views of an image out of its cached ones, each a different one.

    Attributes:
        first: Column of the first view to draw from.
        views: How many there are.
        count: How many are drawn of each image, 1 or 2.
    """

    first: int
    views: int
    count: int

    def __call__(self, vectors: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """The drawn views, as a step of training asks for them.

        Args:
            vectors: [count * B, V, D], the same images `count` times.
            seeds: int32 [count * B, 2].

        Returns:
            [count * B, D].
        """
        drawn = tf.split(counter_random.uniforms(seeds, 1)[:, 0], self.count)
        columns = [_below(drawn[0], self.views)]
        if self.count == 2:
            columns.append((columns[0] + 1 + _below(drawn[1], self.views - 1)) % self.views)
        return tf.gather(vectors, self.first + tf.concat(columns, axis=0), axis=1, batch_dims=1)


def _below(uniform: tf.Tensor, limit: int) -> tf.Tensor:
    """Integers [B] from 0 to limit - 1 out of numbers [B] in [0, 1)."""
    return tf.minimum(tf.cast(uniform * limit, tf.int32), limit - 1)


def view_inputs(config: ml_collections.ConfigDict, *, length: int) -> Inputs:
    """Views of the run's images, embedded when training starts; watched on images as ever.

    Args:
        config: The run's configuration.
        length: Of a view's vector, `FitKappa.packed`.
    """
    images, known = image_inputs(config), load_sources(config)[0]
    count = config.fit_kappa.cache_views
    wide = count if config.concentration.view_kind == "wide" else 0
    check_memory(
        (known.size, count + wide, length),
        memory_limit(config),
        f"{count + wide} cached views of {known.size:,} images",
        "lower --cache_views",
    )
    source = VectorSource(
        known.name, known.split, known.size, views=count, wide=wide, length=length
    )

    def prepare(method: Method) -> None:
        assert isinstance(method, FitKappa)
        source.array = embed_views(method, known, count, wide)

    return Inputs(
        name=images.name,
        description=f"{source.size:,} images with {count + wide} cached views",
        size=source.size,
        num_classes=images.num_classes,
        reader=lambda: _reader(source),
        views=lambda method: _views(source, method),
        monitor=images.monitor,
        prepare=prepare,
    )


def feature_inputs(config: ml_collections.ConfigDict) -> Inputs:
    """Features that were cached elsewhere; watched on those of images that are held out."""
    sources = load_vectors(config.fit_kappa.model, memory_limit=memory_limit(config))
    source = sources["train"]
    return Inputs(
        name=f"{source.name} (train)",
        description=f"{source.size:,} images with {source.views + source.wide} cached views",
        size=source.size,
        num_classes=0,
        reader=lambda: _reader(source),
        views=lambda method: _views(sources["train"], method),
        monitor=lambda method: FeatureMonitor(method, sources["test"]),
    )


def _reader(source: VectorSource) -> pipeline.Reader:
    """Reads `image` float32 [B, V, D], the cached views of images."""
    with tf.device("/cpu:0"):
        table = tf.constant(source.array)
    return lambda indices: {
        "image": tf.gather(table, indices),
        "label": tf.fill(tf.shape(indices), -1),
    }


def _views(source: VectorSource, method: Method) -> list[ViewKind]:
    views: list[ViewKind] = [(Draw(0, source.views, method.num_views), method.num_views)]
    if method.config.concentration.view_kind == "wide":
        views.append((Draw(source.views, source.wide, 1), 1))
    return views


def embed_views(method: FitKappa, source: data.Source, views: int, wide: int) -> np.ndarray:
    """Vectors float32 [N, views + wide, D] of views of every image (`FitKappa.pack`).

    The views are a function of the run's seed and of the image's number.
    """
    config = method.config
    augmentation = augmentation_from_config(config)
    vectors = np.empty((source.size, views + wide, method.packed), np.float32)

    def embedding(kind: Kind) -> Callable[..., tf.Tensor]:
        @tf.function(reduce_retracing=True)
        def embed(images: tf.Tensor, rows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            seeds = counter_random.example_seeds(config.seed, 0, rows, number)
            return method.pack(kind(images, seeds))

        return embed

    ordinary = embedding(augmentation)
    damaged = embedding(data.WideViews(augmentation=augmentation))
    # In a random order: a folder lists class after class, and wide views mix images of a batch.
    order = np.random.default_rng(config.seed).permutation(source.size).astype(np.int32)
    with Progress(source.size, unit="image", description="embedding views") as progress:
        for rows in np.array_split(order, -(-source.size // _BATCH)):
            images, places = tf.constant(source.take(rows)), tf.constant(rows)
            for number in range(views + wide):
                embed = ordinary if number < views else damaged
                vectors[rows, number] = embed(images, places, tf.constant(number))
            progress.update(len(rows))
    return vectors


class FeatureMonitor:
    """Watches kappa on cached features of images that are held out."""

    def __init__(self, method: Method, source: VectorSource) -> None:
        self._method, self._source = method, source

    def __call__(self) -> dict[str, float]:
        """Mean and spread of kappa, spread of mu, and how far kappa is from what it estimates."""
        assert self._source.array is not None
        vectors = self._source.array[:, : self._source.views]
        count, views, length = vectors.shape
        outputs = self._method.encoder(vectors.reshape(-1, length), training=False)
        kappa = outputs["concentration"].numpy()
        mu = outputs["mean_direction"].numpy().reshape(count, views, -1)
        cosines = np.einsum("nvd,nwd->nvw", mu, mu)
        others = (cosines.sum(axis=2) - 1.0) / (views - 1)  # of each view with the other views
        values = {
            "eval_kappa": float(kappa.mean()),
            "eval_kappa_std": float(kappa.std()),
            "eval_cosine": float(others.mean()),
            **spread(mu.reshape(count * views, -1)),
        }
        with contextlib.suppress(ValueError):  # with weights that give kappa no scale
            predicted = self._method.predicted_cosine(outputs["concentration"]).numpy()
            values["eval_error"] = float(np.abs(predicted - others.ravel()).mean())
        return values
