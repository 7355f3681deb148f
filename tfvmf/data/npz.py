"""Images in a NumPy archive of the user's: `npz:/path`."""

import math
import os
import zipfile
from typing import Any

import numpy as np

from tfvmf.data.base import SPLITS, ArraySource, Request, Source, check_split, choose_split
from tfvmf.data.images import resize_image, run_all
from tfvmf.errors import UserError

# {} stands for the split; a key without it holds everything, and is split by the index.
_IMAGE_KEYS = ("x_{}", "{}_images", "images", "x")
_LABEL_KEYS = ("y_{}", "{}_labels", "labels", "y")
_GIB = 2**30


class Archive:
    """The arrays of an npz file; every failure to read one names the file and the key."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self.keys = [n.removesuffix(".npy") for n in archive.namelist()]
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: cannot be read as an npz file: {error}") from error

    def find(self, patterns: tuple[str, ...], split: str) -> str | None:
        """The first key of `patterns` that is there; keys of a split come before shared ones."""
        return next((p.format(split) for p in patterns if p.format(split) in self.keys), None)

    def header(self, key: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of an array, without reading it."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{key}.npy") as file:
                version = np.lib.format.read_magic(file)
                read: Any = np.lib.format.read_array_header_2_0
                if version == (1, 0):
                    read = np.lib.format.read_array_header_1_0
                shape, _, dtype = read(file)
        except Exception as error:
            raise self._broken(key, error) from error
        if dtype.hasobject:
            raise UserError(f"{self.path}: '{key}' holds Python objects; save numbers instead")
        return shape, dtype

    def read(self, key: str) -> np.ndarray:
        """The array of a key."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return archive[key]
        except Exception as error:
            raise self._broken(key, error) from error

    def _broken(self, key: str, error: Exception) -> UserError:
        return UserError(f"{self.path}: '{key}' cannot be read: {' '.join(str(error).split())}")


def load(request: Request) -> Source:
    """`npz:/path`: images, and labels if there are any, from a NumPy archive.

    Keys: `x_train`, `y_train`, `x_test`, `y_test` (or `train_images`, `train_labels`, ...), or
    `images` and `labels` (or `x`, `y`) without a split: then one index in ten, by a hash, is for
    testing, and `all` is everything. `class_names` may name the classes.

    Images are uint8 or other integers 0 to 255, or floats in [0, 1], of shape [N, H, W],
    [N, H, W, 1] or [N, H, W, 3]. Labels are integers [N] or [N, 1], or class names.

    A zip archive gives no random access: it is always read into memory whole, and refused when
    that would take more than `memory_limit`.
    """
    path = os.path.expanduser(request.target)
    if not request.target or not os.path.isfile(path):
        raise UserError(f"{request.spec}: there is no such file; write npz:/path/of/file.npz")
    archive = Archive(path)
    image_key = archive.find(_IMAGE_KEYS, request.split)
    if image_key is None:
        wanted = ", ".join(f"'{pattern.format(request.split)}'" for pattern in _IMAGE_KEYS)
        raise UserError(
            f"{path}: no images for split '{request.split}': it has {archive.keys}, expected "
            f"one of {wanted}"
        )
    shared = image_key in _IMAGE_KEYS
    label_key = archive.find(_LABEL_KEYS[2:] if shared else _LABEL_KEYS[:2], request.split)
    if shared:
        check_split(request.spec, request.split)
    raw = _read_images(archive, image_key, request)
    labels, names, classes = _read_labels(archive, label_key, request.split)
    if labels is not None and len(labels) != len(raw):
        raise UserError(
            f"{path}: '{image_key}' holds {len(raw)} images but '{label_key}' {len(labels)} "
            "labels: expected one label per image"
        )
    chosen = np.arange(len(raw))
    if shared:
        chosen = choose_split([str(index) for index in chosen], request.split)
    images = _convert(raw, chosen, request.image_size, f"{path}: '{image_key}'")
    labels = None if labels is None else labels[chosen]
    return ArraySource(request, images, labels=labels, class_names=names, num_classes=classes)


def _read_images(archive: Archive, key: str, request: Request) -> np.ndarray:
    """The array of the images as it is stored: [N, H, W] or [N, H, W, 3]."""
    shape, dtype = archive.header(key)
    where = f"{archive.path}: '{key}'"
    if len(shape) not in (3, 4) or shape[3:] not in ((), (1,), (3,)):
        raise UserError(
            f"{where} has shape {list(shape)}; expected [N, H, W], [N, H, W, 1] or [N, H, W, 3]"
        )
    if 0 in shape:
        raise UserError(f"{where} has shape {list(shape)}: there are no images in it")
    if dtype.kind not in "buif":
        raise UserError(f"{where} has type {dtype}; expected uint8, or floats in [0, 1]")
    needed = max(math.prod(shape) * dtype.itemsize, shape[0] * request.image_size**2 * 3)
    if needed > request.memory_limit:
        raise UserError(
            f"{where} needs {needed / _GIB:.2f} GiB and an npz file is read into memory whole; "
            f"raise memory_limit ({request.memory_limit / _GIB:.2f} GiB) or use folder:"
        )
    array = archive.read(key)
    return array[..., 0] if shape[3:] == (1,) else array


def _convert(raw: np.ndarray, chosen: np.ndarray, size: int, where: str) -> np.ndarray:
    """The chosen images as uint8 [n, size, size, 3]; one at a time, to need no second copy."""
    images = np.empty((len(chosen), size, size, 3), np.uint8)
    limit = 1 if raw.dtype.kind in "bf" else 255

    def convert(row: int) -> None:
        image = raw[chosen[row]]
        # Negated, because every comparison with NaN is false.
        if not (image.min() >= 0 and image.max() <= limit):
            raise UserError(
                f"{where} has type {raw.dtype} and values from {image.min()} to {image.max()} in "
                f"image {chosen[row]}; expected finite values from 0 to {limit}"
            )
        if raw.dtype.kind in "bf":
            image = np.round(image.astype(np.float32) * 255)
        images[row] = resize_image(np.ascontiguousarray(image, np.uint8), size)

    run_all(convert, len(chosen), description="reading images")
    return images


def _read_labels(
    archive: Archive, key: str | None, split: str
) -> tuple[np.ndarray | None, list[str] | None, int]:
    """Labels int [N], class names and number of classes, which all splits of the file share."""
    if key is None:
        return None, None, 0
    pattern = next(p for p in _LABEL_KEYS if p.format(split) == key)
    keys = {key, *(pattern.format(other) for other in SPLITS)} & set(archive.keys)
    arrays = {each: _read_label_array(archive, each) for each in sorted(keys)}
    everything = np.concatenate(list(arrays.values()))
    labels = arrays[key]
    if everything.dtype.kind == "U":
        names = np.unique(everything)
        return np.searchsorted(names, labels), names.tolist(), len(names)
    classes = int(everything.max(initial=-1)) + 1
    if "class_names" not in archive.keys:
        return labels, None, classes
    archive.header("class_names")
    given = [str(name) for name in archive.read("class_names").ravel()]
    if len(given) < classes:
        raise UserError(
            f"{archive.path}: 'class_names' has {len(given)} names but labels go up to "
            f"{classes - 1}: expected {classes}"
        )
    return labels, given, len(given)


def _read_label_array(archive: Archive, key: str) -> np.ndarray:
    """Labels as int64 [N] or str [N]."""
    archive.header(key)
    labels = archive.read(key)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    where = f"{archive.path}: '{key}'"
    if labels.ndim != 1:
        raise UserError(
            f"{where} has shape {list(labels.shape)}; expected one label per image, [N]"
        )
    if labels.dtype.kind in "US":
        return labels.astype(np.str_)
    if labels.dtype.kind not in "ui" or (labels.size and labels.max() > np.iinfo(np.int32).max):
        raise UserError(f"{where} has type {labels.dtype}; expected small integers, or names")
    return labels.astype(np.int64)
