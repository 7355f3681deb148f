"""Training on vectors of views that were embedded once: an epoch takes seconds.

The forward passes of the frozen encoder are nearly all the work of fitting a head. With cached
views, they are done once. Features cached elsewhere work the same way.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Iterator

import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf import cores, counter_random, data, models
from tfvmf.data import cache, pipeline
from tfvmf.data.base import choose_split
from tfvmf.data.npz import Archive
from tfvmf.errors import UserError
from tfvmf.methods import Method
from tfvmf.methods.base import ViewKind
from tfvmf.models.backbones import resources
from tfvmf.posthoc.method import FitKappa, damaged_views, whole_images
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
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class CachedViews:
    """Vectors of several views of each image.

    Attributes:
        array: float32 [N, V, D], in memory or on disk; the image itself comes first, if present.
        ordinary: Number of ordinary views per image.
        wide: Number of damaged views (`damaged_views`), after the ordinary ones.
        places: Row of each image in `array` [N], if it is on disk in another order.
    """

    array: np.ndarray
    ordinary: int
    wide: int
    places: np.ndarray | None = None

    def take(self, indices: np.ndarray) -> np.ndarray:
        """All views of the images at `indices`: float32 [n, V, D]."""
        return self.array[indices if self.places is None else self.places[indices]]

    def reader(self) -> pipeline.Reader:
        """Indices [B] -> `image` float32 [B, V, D], all cached views of these images."""
        if self.places is None:
            with tf.device("/cpu:0"):
                table = tf.constant(self.array)

        def read(indices: tf.Tensor) -> pipeline.Batch:
            if self.places is None:
                views = tf.gather(table, indices)
            else:
                views = tf.numpy_function(self.take, [indices], tf.float32, stateful=False)
                views = tf.ensure_shape(views, [None, *self.array.shape[1:]])
            return {"image": views, "label": tf.fill(tf.shape(indices), -1)}

        return read


def view_kinds(method: Method, *, ordinary: int, wide: int, whole: int = 0) -> list[ViewKind]:
    """The draws of a step from cached views, in the order that the method expects.

    If the image itself is in the first column (`whole` is 1), half of the damaged views are crops.
    """
    kinds: list[ViewKind] = [(Draw(0, 1, 1), 1)] * whole
    kinds.append((Draw(whole, ordinary, 2), 2))
    if method.config.concentration.view_kind == "wide":
        first, small = whole + ordinary, wide // 2
        if whole:
            kinds += [(Draw(first, wide - small, 1), 1), (Draw(first + wide - small, small, 1), 1)]
        else:
            kinds.append((Draw(first, wide, min(2, wide)), min(2, wide)))
    return kinds


@dataclasses.dataclass(frozen=True)
class Draw:
    """Draws `count` (1 or 2) different views of an image from the `views` columns at `first`."""

    first: int
    views: int
    count: int

    def __call__(self, vectors: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Vectors [count * B, V, D], `count` copies of a batch -> views drawn [count * B, D]."""
        drawn = tf.split(counter_random.uniforms(seeds, 1)[:, 0], self.count)
        columns = [_below(drawn[0], self.views)]
        if self.count == 2:
            columns.append((columns[0] + 1 + _below(drawn[1], self.views - 1)) % self.views)
        return tf.gather(vectors, self.first + tf.concat(columns, axis=0), axis=1, batch_dims=1)


def _below(uniform: tf.Tensor, limit: int) -> tf.Tensor:
    """Maps numbers [B] in [0, 1) to integers [B] from 0 to limit - 1."""
    return tf.minimum(tf.cast(uniform * limit, tf.int32), limit - 1)


# ---- Views of a run's images, embedded when training starts.


def view_inputs(config: ml_collections.ConfigDict) -> Inputs:
    """Views of the run's images, embedded once; the run is monitored on images."""
    sources = load_sources(config)
    images, source = image_inputs(config, sources), sources[0]
    if source.size > (most := config.fit_kappa.max_images):
        rows = np.random.default_rng(config.seed).permutation(source.size)[:most]
        source = source.subset(np.sort(rows))
    ordinary = config.fit_kappa.cache_views
    wide = ordinary if config.concentration.view_kind == "wide" else 0
    # Replaced by `prepare`, which is not called for a finished run.
    embedded = [CachedViews(np.zeros((1, 1, 1), np.float32), 1, 0)]

    def prepare(method: Method) -> None:
        assert isinstance(method, FitKappa)
        embedded[0] = embed_views(method, source, ordinary, wide)

    return images._replace(
        description=f"{source.size:,} images with {1 + ordinary + wide} cached views",
        size=source.size,
        reader=lambda: embedded[0].reader(),
        views=lambda method: view_kinds(method, ordinary=ordinary, wide=wide, whole=1),
        prepare=prepare,
    )


def embed_views(method: FitKappa, source: data.Source, ordinary: int, wide: int) -> CachedViews:
    """Embeds all images and their views (`FitKappa.to_cache`), or loads those of an earlier fit.

    Views depend on the run's seed and the index. Above `data.memory_limit_gib`, they stay on disk.
    """
    config = method.config
    augmentation = augmentation_from_config(config)
    shape = (source.size, 1 + ordinary + wide, method.cached_size)

    to_cache = tf.function(method.to_cache)
    signature = [
        tf.TensorSpec([None, *source.image_shape], tf.uint8),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([], tf.int32),
    ]

    def embedding(kind: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        @tf.function(input_signature=signature)
        def embed(images: tf.Tensor, rows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            seeds = counter_random.example_seeds(config.seed, 0, rows, number)
            return to_cache(kind(images, seeds))

        return embed

    wide_views, crops = damaged_views(augmentation, source.native_size)
    embeds = [embedding(whole_images), *[embedding(augmentation)] * ordinary]
    embeds += [embedding(wide_views)] * (wide - wide // 2) + [embedding(crops)] * (wide // 2)
    # In random order: a folder lists class after class, and wide views mix images of a batch.
    order = np.random.default_rng(config.seed).permutation(source.size).astype(np.int32)

    def embedded(rows: np.ndarray) -> np.ndarray:
        images, places = tf.constant(source.take(rows)), tf.constant(rows)
        views = [embed(images, places, tf.constant(i)) for i, embed in enumerate(embeds)]
        return np.stack(views, axis=1)

    def chunks() -> Iterator[np.ndarray]:
        parts = np.array_split(order, -(-source.size // _BATCH))
        with Progress(source.size, unit="image", description="embedding views") as progress:
            # Two batches at a time: a core that has done its part of one works on the other.
            for values in cores.one_ahead(embedded, parts, threads=2):
                yield values
                progress.update(len(values))

    array, _ = cache.load_or_build(
        {"name": f"views of {source.name}", "views": _identity(method, source, ordinary, wide)},
        shape,
        chunks=chunks,
        columns=lambda: {"order": order},
        dtype=np.float32,
    )
    places = np.argsort(order)
    if array.nbytes > memory_limit(config):
        return CachedViews(array, ordinary, wide, places)
    return CachedViews(np.asarray(array)[places], ordinary, wide)


def _identity(method: FitKappa, source: data.Source, ordinary: int, wide: int) -> str:
    """A hash of all that the vectors depend on: images, settings, weights, choice of layers."""
    config = method.config
    frozen = models.frozen_outputs(method.encoder)
    chosen = ["0.2 with crops", config.seed, config.data.image_size, config.concentration.levels]
    chosen += [ordinary, wide, source.native_size]
    chosen += [config.model[key] for key in ("feature_layer", "input_range", "level_layers")]
    chosen += [source.fingerprint(), source.size, *sorted(config.augment.to_dict().items())]
    digest = hashlib.sha256(repr(chosen).encode())
    for variable in [*frozen.variables, *resources(frozen)]:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()


# ---- Features that were cached elsewhere.


def feature_inputs(config: ml_collections.ConfigDict) -> Inputs:
    """Features cached elsewhere; the run is monitored on held-out ones."""
    path = config.fit_kappa.model
    train, held_out = load_features(path, memory_limit=memory_limit(config))
    count = train.ordinary + train.wide
    return Inputs(
        name=f"{os.path.basename(path)} (train)",
        description=f"{len(train.array):,} images with {count} cached views",
        size=len(train.array),
        num_classes=0,
        reader=train.reader,
        views=lambda method: view_kinds(method, ordinary=train.ordinary, wide=train.wide),
        monitor=lambda method: FeatureMonitor(method, held_out),
    )


class FeatureMonitor:
    """Measures kappa on cached features of held-out images."""

    def __init__(self, method: Method, features: CachedViews) -> None:
        self._method, self._vectors = method, features.array[:, : features.ordinary]

    def __call__(self) -> dict[str, float]:
        """Mean and spread of kappa, spread of mu, and the error of kappa's prediction."""
        count, views, length = self._vectors.shape
        outputs = self._method.encoder(self._vectors.reshape(-1, length), training=False)
        kappa = outputs["concentration"].numpy()
        mu = outputs["mean_direction"].numpy().reshape(count, views, -1)
        cosines = np.einsum("nvd,nwd->nvw", mu, mu)
        others = (cosines.sum(axis=2) - 1.0) / (views - 1)  # mean cosine of a view with the others
        values = {
            "eval_kappa": float(kappa.mean()),
            "eval_kappa_std": float(kappa.std()),
            "eval_cosine": float(others.mean()),
            **spread(mu.reshape(count * views, -1)),
        }
        with contextlib.suppress(ValueError):  # for weights with which kappa predicts no cosine
            predicted = self._method.predicted_cosine(outputs["concentration"]).numpy()
            values["eval_error"] = float(np.abs(predicted - others.ravel()).mean())
        return values


def inspect_cached_features(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """Length F of cached features, and whether there are wide views, without reading them."""
    archive = Archive(os.fspath(path))
    return _checked(archive, "features", least=2)[2], "wide" in archive.keys


def load_features(
    path: str | os.PathLike[str], *, memory_limit: int
) -> tuple[CachedViews, CachedViews]:
    """Reads cached features from a NumPy archive: those for training, and those for monitoring.

    `features` [N, K, F] has K >= 2 ordinary views of each of N images, the optional `wide`
    [N, W, F] damaged views of the same images. A hash of the index holds out one image in ten.
    """
    archive = Archive(os.fspath(path))
    parts = [_read(archive, "features", least=2, limit=memory_limit)]
    if "wide" in archive.keys:
        parts.append(_read(archive, "wide", least=1, limit=memory_limit))
        shapes = [(len(part), part.shape[2]) for part in parts]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{path}: 'features' are {list(parts[0].shape)} but 'wide' {list(parts[1].shape)}: "
                "both need the same images and the same length"
            )
    ordinary, wide = parts[0].shape[1], parts[1].shape[1] if len(parts) > 1 else 0

    def chosen(split: str) -> CachedViews:
        rows = choose_split([str(row) for row in range(len(parts[0]))], split)
        return CachedViews(np.concatenate([part[rows] for part in parts], axis=1), ordinary, wide)

    return chosen("train"), chosen("test")


def _checked(archive: Archive, key: str, *, least: int) -> tuple[int, ...]:
    """The shape [N, V, F] of an array, if it is valid."""
    where = f"{archive.path}: '{key}'"
    if key not in archive.keys:
        raise UserError(
            f"{archive.path} has {archive.keys}: expected 'features' [images, views, length]"
        )
    shape, dtype = archive.header(key)
    if len(shape) != 3 or shape[0] < 4 or shape[1] < least or shape[2] < 2:
        raise UserError(
            f"{where} has the shape {list(shape)}: expected [images, views, length], with at "
            f"least 4 images, {least} view(s) and length 2"
        )
    if dtype.kind != "f":
        raise UserError(f"{where} has the type {dtype}: expected floating-point numbers")
    return shape


def _read(archive: Archive, key: str, *, least: int, limit: int) -> np.ndarray:
    """One array as float32 [N, V, F]; every vector is finite and has a direction."""
    where = f"{archive.path}: '{key}'"
    shape = _checked(archive, key, least=least)
    if (size := 4 * math.prod(shape)) > limit:
        raise UserError(
            f"{where} needs {size / _GIB:.1f} GiB of memory, more than "
            f"--config.data.memory_limit_gib={limit / _GIB:g}: raise it, or save fewer images or "
            "views"
        )
    values = archive.read(key).astype(np.float32)
    bad = ~np.isfinite(values).all(axis=2) | (np.abs(values).max(axis=2) == 0)
    if bad.any():
        image, view = np.argwhere(bad)[0]
        raise UserError(f"{where}: view {view} of image {image} is not finite, or all zeros")
    return values
