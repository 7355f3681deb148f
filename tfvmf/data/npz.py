"""Images in a NumPy archive: `npz:/path`."""

import math
import os
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tfvmf import files
from tfvmf.data import base
from tfvmf.data.base import SPLITS, ArraySource, Request, Source, check_classes
from tfvmf.data.images import memory, raise_all, resize_image, run_all
from tfvmf.errors import UserError

# {} stands for the split. A key without it holds all images, which are split by a hash.
_IMAGE_KEYS = ("x_{}", "{}_images", "images", "x")
_LABEL_KEYS = ("y_{}", "{}_labels", "labels", "y")
_GIB = 2**30


class Archive:
    """The arrays of an npz file, checked as in `files`; errors name the file and the key."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with files.open_npz(path) as archive:
                self.keys = [n.removesuffix(".npy") for n in archive.namelist()]
        except Exception as error:  # a damaged directory can raise anything
            raise UserError(f"{path}: cannot be read as an npz file: {error}") from error

    def find(self, patterns: tuple[str, ...], split: str) -> str | None:
        """The first existing key of `patterns`; keys of a split come before shared ones."""
        return next((p.format(split) for p in patterns if p.format(split) in self.keys), None)

    def header(self, key: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of an array, without reading it."""
        return self._try(files.open_array, key)[:2]

    def read(self, key: str) -> np.ndarray:
        """The array of a key."""
        return self._try(files.read_array, key)

    def _try(self, read: Callable[[zipfile.ZipFile, str], Any], key: str) -> Any:
        try:
            with files.open_npz(self.path) as archive:
                return read(archive, key)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.path}: '{key}' cannot be read: {reason}") from error


def load(request: Request) -> Source:
    """`npz:/path`: images, and labels if there are any, from a NumPy archive, read into memory.

    Keys: `x_train`, `y_train`, `x_test`, `y_test` (or `train_images`, `train_labels`, ...), or
    `images` and `labels` (or `x`, `y`) without splits: then a hash makes one index in ten a test
    image, and `all` is everything. `class_names` may name the classes.

    Images are integers 0 to 255 or floats in [0, 1], of shape [N, H, W], [N, H, W, 1] or
    [N, H, W, 3]. Labels are integers [N] or [N, 1], or class names.
    """
    path = os.path.expanduser(request.target)
    if not request.target or not os.path.isfile(path):
        raise UserError(f"{request.spec}: there is no such file; write npz:/path/of/file.npz")
    archive = Archive(path)
    image_key = archive.find(_IMAGE_KEYS, request.split)
    if image_key is None:
        wanted = ", ".join(f"'{pattern.format(request.split)}'" for pattern in _IMAGE_KEYS)
        raise UserError(
            f"{path}: no images for split '{request.split}': it has {archive.keys[:20]}, expected "
            f"one of {wanted}"
        )
    shared = image_key in _IMAGE_KEYS
    label_key = archive.find(_LABEL_KEYS[2:] if shared else _LABEL_KEYS[:2], request.split)
    if shared:
        base.check_split(request.spec, request.split)
    shape = _check_images(archive, image_key, request)
    about = {} if label_key is None else _read_labels(archive, label_key, request, shape[0])
    raw = archive.read(image_key)
    raw = raw[..., 0] if shape[3:] == (1,) else raw
    chosen = np.arange(len(raw))
    if shared:
        chosen = base.choose_split([str(index) for index in chosen], request.split)
    images = _convert(raw, chosen, request.image_size, f"{path}: '{image_key}'")
    if about:
        about["labels"] = about["labels"][chosen]
    return ArraySource(request, images, divided=shared, native_size=min(shape[1:3]), **about)


def _check_images(archive: Archive, key: str, request: Request) -> tuple[int, ...]:
    """The shape of the images as stored: [N, H, W], [N, H, W, 1] or [N, H, W, 3]."""
    shape, dtype = archive.header(key)
    needed = max(math.prod(shape) * dtype.itemsize, request.bytes(shape[0] if shape else 0))
    problem = ""
    if len(shape) not in (3, 4) or shape[3:] not in ((), (1,), (3,)):
        problem = f"has shape {list(shape)}; expected [N, H, W], [N, H, W, 1] or [N, H, W, 3]"
    elif 0 in shape:
        problem = f"has shape {list(shape)}: there are no images in it"
    elif dtype.kind not in "buif":
        problem = f"has type {dtype}; expected uint8, or floats in [0, 1]"
    elif needed > request.memory_limit:
        problem = (
            f"needs {needed / _GIB:.2f} GiB, because an npz file is read into memory whole; raise "
            f"memory_limit ({request.memory_limit / _GIB:.2f} GiB) or use folder:"
        )
    elif shape[1] * shape[2] > request.max_pixels:
        problem = (
            f"holds images of {shape[1]} x {shape[2]} pixels, more than "
            f"max_pixels={request.max_pixels}: scale them down, or raise max_pixels"
        )
    if problem:
        raise UserError(f"{archive.path}: '{key}' {problem}")
    return shape


def _convert(raw: np.ndarray, chosen: np.ndarray, size: int, where: str) -> np.ndarray:
    """The chosen images as uint8 [n, size, size, 3]; one at a time, to avoid a second copy."""
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
        with memory.taking(48 * image.shape[0] * image.shape[1]):  # three floats and the result
            if raw.dtype.kind in "bf":
                image = np.round(image.astype(np.float32) * 255)
            images[row] = resize_image(np.ascontiguousarray(image, np.uint8), size)

    raise_all(run_all(convert, len(chosen), description="reading images"))
    return images


def _read_labels(archive: Archive, key: str, request: Request, count: int) -> dict[str, Any]:
    """Labels int [count], and the names or number of the classes of all splits of the file."""
    pattern = next(p for p in _LABEL_KEYS if p.format(request.split) == key)
    keys = {key, *(pattern.format(other) for other in SPLITS)} & set(archive.keys)
    arrays = {}
    for each in sorted(keys):
        shape, dtype = archive.header(each)
        problem = ""
        if not shape or shape[1:] not in ((), (1,)):
            problem = f"has shape {list(shape)}; expected one label per image, [N]"
        elif dtype.kind not in "uiUS":
            problem = f"has type {dtype}; expected small integers, or names"
        elif each == key and shape[0] != count:
            problem = f"holds {shape[0]} labels for {count} images: expected one label per image"
        elif not request.fits(shape[0]):
            problem = f"holds {shape[0]} labels, for more images than memory_limit allows"
        if problem:
            raise UserError(f"{archive.path}: '{each}' {problem}")
        if dtype.kind in "US":
            arrays[each] = _read_text(archive, each, request)
        else:
            numbers = archive.read(each).reshape(-1)
            check_classes(f"{archive.path}: '{each}'", int(numbers.max(initial=0)) + 1)
            arrays[each] = numbers.astype(np.int64)
    if len({array.dtype.kind for array in arrays.values()}) > 1:
        raise UserError(f"{archive.path}: {sorted(keys)} are partly numbers and partly names")
    everything, labels = np.concatenate(list(arrays.values())), arrays[key]
    if everything.dtype.kind == "U":
        names = np.unique(everything)
        check_classes(f"{archive.path}: '{key}'", len(names))
        return {"labels": np.searchsorted(names, labels), "class_names": names.tolist()}
    classes = int(everything.max(initial=-1)) + 1
    if "class_names" not in archive.keys:
        return {"labels": labels, "num_classes": classes}
    given = _read_text(archive, "class_names", request).tolist()
    if len(given) < classes:
        raise UserError(
            f"{archive.path}: 'class_names' has {len(given)} names: expected {classes} or more"
        )
    return {"labels": labels, "class_names": given}


def _read_text(archive: Archive, key: str, request: Request) -> np.ndarray:
    """Names as str [N]."""
    where = f"{archive.path}: '{key}'"
    shape, dtype = archive.header(key)
    # A byte becomes a four-byte character; sorting and Python strings take more copies.
    if 16 * math.prod(shape) * dtype.itemsize > request.memory_limit:
        raise UserError(f"{where} has shape {list(shape)} and type {dtype}: too long for names")
    try:
        text = archive.read(key).reshape(-1).astype(np.str_)
        "".join(text.tolist()).encode()
    except (ValueError, TypeError, SystemError) as error:
        raise UserError(f"{where} holds bytes that are not text; save names as str") from error
    return text
