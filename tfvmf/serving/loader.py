"""An exported model without a server: arrays, file names or bytes in, embeddings out."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfvmf.data.images import read_image, resize_image, run_all
from tfvmf.errors import UserError
from tfvmf.progress import Progress
from tfvmf.serving.facts import read_facts
from tfvmf.serving.versions import versions

Image = np.ndarray | str | os.PathLike[str] | bytes
Embeddings = dict[str, np.ndarray]


class ServedModel:
    """One version of an exported model, in this process.

    Args:
        path: Directory of the version.

    Attributes:
        path: The same.
        facts: What `bin/export` noted: `run`, `method`, `step`, `image_size`, `dimension`,
            `features`, `calibration`.
        image_size: Height and width that the encoder was trained with.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.facts = read_facts(path)
        if self.facts["image_size"] is None:
            raise UserError(
                f"{path} takes features, not images: call it as tf.saved_model.load(path)"
                ".signatures['serving_default'](features=...)"
            )
        self.image_size: int = self.facts["image_size"]
        try:
            self._loaded = tf.saved_model.load(str(path))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise UserError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error
        self._serve: Callable[..., dict[str, tf.Tensor]] = self._loaded.signatures[
            "serving_default"
        ]

    def embed(
        self,
        images: np.ndarray | Image | Sequence[Image],
        *,
        batch_size: int = 64,
        progress: bool = True,
    ) -> Embeddings:
        """Embeds any number of images, a batch at a time.

        Args:
            images: uint8 [N, H, W, 3]; or a sequence in which each image is an array (uint8
                [H, W, 3], or [H, W] for gray), a file name or the content of a file; or one image.
                Files may be of any kind that training reads, and are read as training does.
            batch_size: Images a forward pass.
            progress: Show how far it is, when there is more than one batch.

        Returns:
            NumPy arrays `mean_direction` [N, d], `concentration` [N], `features` [N, f] and, when
            the model was calibrated, `confidence` [N] and `accept` [N].

        Raises:
            UserError: An image cannot be read; the message names it.
        """
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: use at least 1")
        read, count = self._reader(images)
        shown = progress and count > batch_size
        parts: list[Embeddings] = []
        with contextlib.ExitStack() as stack:
            bar = None
            if shown:
                bar = stack.enter_context(Progress(count, unit="image", description="embedding"))
            # `max`: no images still give one (empty) batch, so that outputs have their shapes.
            for start in range(0, max(count, 1), batch_size):
                batch = read(start, min(start + batch_size, count))
                outputs = self._serve(images=tf.constant(batch, tf.uint8))
                parts.append({name: value.numpy() for name, value in outputs.items()})
                if bar is not None:
                    bar.update(len(batch))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _reader(self, images: Any) -> tuple[Callable[[int, int], np.ndarray], int]:
        """A function from a range of positions to their pixels, and how many images there are."""
        if isinstance(images, np.ndarray) and images.ndim == 4:
            if images.dtype != np.uint8 or images.shape[3] != 3 or 0 in images.shape[1:3]:
                raise UserError(_wrong("images", images, "[N, H, W, 3]"))
            return lambda start, stop: images[start:stop], len(images)
        if isinstance(images, np.ndarray | str | os.PathLike | bytes):
            images = [images]

        def read(start: int, stop: int) -> np.ndarray:
            pixels = np.empty((stop - start, self.image_size, self.image_size, 3), np.uint8)

            def read_one(index: int) -> None:
                position = start + index
                pixels[index] = _read(images[position], self.image_size, f"images[{position}]")

            run_all(read_one, len(pixels))
            return pixels

        return read, len(images)


def load(directory: str | os.PathLike[str]) -> ServedModel:
    """Loads an exported model.

    Args:
        directory: What `bin/export` was given as `--output_dir`, for its newest version; or the
            directory of one version.
    """
    directory = pathlib.Path(directory)
    if (directory / "saved_model.pb").is_file():
        return ServedModel(directory)
    known = versions(directory)
    if not known:
        raise UserError(f"{directory} holds no exported model: export one with bin/export")
    return ServedModel(directory / str(known[-1]))


def _read(image: Image, size: int, name: str) -> np.ndarray:
    if isinstance(image, bytes):
        return read_image(image, size, name=name)
    if not isinstance(image, np.ndarray):
        return read_image(image, size)
    color = image.ndim == 3 and image.shape[2] == 3
    if image.dtype != np.uint8 or not (color or image.ndim == 2) or 0 in image.shape:
        raise UserError(_wrong(name, image, "[H, W, 3] or [H, W]"))
    return resize_image(image, size)


def _wrong(name: str, image: np.ndarray, shape: str) -> str:
    return f"{name}: an array {image.dtype} {list(image.shape)}; needed is uint8 {shape}, 0 to 255"
