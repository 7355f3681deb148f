"""Callbacks that measure an encoder's directions and kappa during any Keras training."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfvmf.data.base import ArraySource, Request, Source
from tfvmf.data.corruptions import canonical_name, corrupt
from tfvmf.errors import UserError
from tfvmf.inference import Embedder
from tfvmf.pixels import check_pixels
from tfvmf.training.monitor import Monitor, evenly

__all__ = ["KNNMonitor", "KappaMonitor"]

Labeled = Source | tuple[Any, Any]
Measure = Callable[[], dict[str, float]]


class _EncoderMonitor(keras.callbacks.Callback):
    """Measures an encoder every `every` epochs, and adds the values to the logs."""

    def __init__(self, encoder: keras.Model | None, every: int) -> None:
        super().__init__()
        if every < 1:
            raise UserError(f"every={every}: expected a number of epochs, at least 1")
        self.every = every
        self._encoder = encoder

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds the encoder: the one given, the model's attribute `encoder`, or the model."""
        encoder: Any = self._encoder or getattr(self.model, "encoder", self.model)
        outputs = getattr(encoder, "output", None)
        if not isinstance(outputs, dict) or "concentration" not in outputs:
            raise UserError(
                f"{type(self).__name__}: {encoder.name} has no output concentration; pass "
                "encoder=, a model like those of tfvmf.models.build_encoder"
            )
        self._measure = self._watch(encoder)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the measured values to the logs of the epoch."""
        if logs is not None and (epoch + 1) % self.every == 0:
            logs.update(self._measure())

    def _watch(self, encoder: keras.Model) -> Measure:
        """The function that measures the encoder."""
        raise NotImplementedError


class KappaMonitor(_EncoderMonitor):
    """Logs mean kappa on clean (`kappa_clean`) and corrupted images (`kappa_NAME`): it should fall.

    Args:
        images: [N, H, W, 3], uint8 or floating point in [0, 1], or a `tfvmf.data.Source`.
        corruptions: Names in `tfvmf.data.corruptions.ALL_CORRUPTIONS`.
        severity: Severity of the corruptions, 1 to 5.
        max_images: Maximum number of images, evenly spaced.
        every: Epochs between two measurements.
        encoder: The encoder; by default the model's `encoder`, or the model itself.
    """

    def __init__(
        self,
        images: Any,
        *,
        corruptions: Sequence[str] = ("gaussian_noise", "gaussian_blur", "contrast"),
        severity: int = 5,
        max_images: int = 500,
        every: int = 1,
        encoder: keras.Model | None = None,
    ) -> None:
        super().__init__(encoder, every)
        if not isinstance(images, Source):
            images = ArraySource(Request(spec="images", target=""), _pixels(images, "images"))
        clean = images.take(evenly(images.size, max_images))
        names = map(canonical_name, corruptions)
        self._images = {"clean": clean, **{name: corrupt(clean, name, severity) for name in names}}

    def _watch(self, encoder: keras.Model) -> Measure:
        embed = Embedder(encoder)
        return lambda: {
            f"kappa_{name}": float(embed(images)["concentration"].mean())
            for name, images in self._images.items()
        }


class KNNMonitor(_EncoderMonitor):
    """Logs `knn_accuracy`, the accuracy of k-NN on the features of held-out images.

    Also logs `direction_std` and `effective_rank`, which fall to 0 and 1 if directions collapse.

    Args:
        bank: Labeled images that vote: (images, labels), or a `tfvmf.data.Source`.
        queries: Labeled images to classify, likewise.
        neighbors: k.
        max_bank: Maximum number of images of the bank, evenly spaced.
        max_queries: Maximum number of queries, evenly spaced.
        every: Epochs between two measurements.
        encoder: See `KappaMonitor`.
    """

    def __init__(
        self,
        bank: Labeled,
        queries: Labeled,
        *,
        neighbors: int = 20,
        max_bank: int = 10_000,
        max_queries: int = 2_000,
        every: int = 1,
        encoder: keras.Model | None = None,
    ) -> None:
        super().__init__(encoder, every)
        self._sources = _labeled(bank, "bank"), _labeled(queries, "queries")
        self._options: dict[str, Any] = {"neighbors": neighbors, "bank_images": max_bank}
        self._options["query_images"] = max_queries

    def _watch(self, encoder: keras.Model) -> Measure:
        monitor = Monitor(encoder, *self._sources, **self._options)
        logged = ("knn_accuracy", "direction_std", "effective_rank")
        return lambda: {name: value for name, value in monitor().items() if name in logged}


def _pixels(images: Any, name: str) -> np.ndarray:
    """The images as uint8."""
    pixels = check_pixels(images, name=name)
    return pixels if pixels.dtype == np.uint8 else np.rint(255.0 * pixels).astype(np.uint8)


def _labeled(given: Labeled, name: str) -> Source:
    """A labeled source, made from arrays if needed."""
    if not isinstance(given, Source):
        images, labels = _pixels(given[0], name), np.asarray(given[1])
        request = Request(spec=name, target="", image_size=images.shape[1])
        classes = int(labels.max(initial=0)) + 1
        return ArraySource(request, images, labels=labels, num_classes=classes)
    if given.labels is None:
        raise UserError(f"{name} has no labels: expected a labeled source, or (images, labels)")
    return given
