"""Vectors of several views of each image, in place of the images: computed once, or elsewhere."""

import math
import os
import pathlib

import numpy as np

from tfvmf.data.base import Request, Source, choose_split
from tfvmf.data.npz import Archive
from tfvmf.errors import UserError

_GIB = 2**30


class VectorSource(Source):
    """A source whose examples are [V, D] instead of images; V views, the ordinary ones first.

    Attributes:
        array: float32 [N, V, D], None until it is filled.
        image_shape: (V, D).
        views: How many of the V are ordinary.
        wide: How many are wide (`WideViews`).
    """

    def __init__(
        self, name: str, split: str, size: int, *, views: int, wide: int, length: int
    ) -> None:
        request = Request(
            spec=name, target="", split=split, data_dir="", image_size=0, memory_limit=0
        )
        super().__init__(request, size=size)
        self.views, self.wide = views, wide
        self.image_shape = (views + wide, length)  # type: ignore[assignment]

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The vectors at `indices`: float32 [n, V, D]."""
        assert self.array is not None
        return self.array[indices]


def check_memory(shape: tuple[int, ...], limit: int, where: str, mend: str) -> None:
    """Refuses vectors (float32, of a shape) that would take more than `limit` bytes."""
    needed = 4 * math.prod(shape)
    if needed > limit:
        raise UserError(
            f"{where} need {needed / _GIB:.1f} GiB of memory, more than "
            f"--config.data.memory_limit_gib={limit / _GIB:g}: raise it, or {mend}"
        )


def vectors_there(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """Length F of cached features, and whether there are wide views, without reading them."""
    archive = Archive(os.fspath(path))
    return _checked(archive, "features", least=2)[2], "wide" in archive.keys


def load_vectors(path: str | os.PathLike[str], *, memory_limit: int) -> dict[str, VectorSource]:
    """Reads cached features from a NumPy archive.

    `features` [N, K, F]: features of K >= 2 ordinary views of each of N images. `wide` [N, W, F],
    if it is there: features of views that are damaged in some way, of the same images.

    Returns:
        {"train": ..., "test": ...}: one image in ten, by a hash of its number, is held out.
    """
    path = pathlib.Path(path)
    archive = Archive(str(path))
    parts = [_read(archive, "features", least=2, limit=memory_limit)]
    if "wide" in archive.keys:
        parts.append(_read(archive, "wide", least=1, limit=memory_limit))
        shapes = [(len(part), part.shape[2]) for part in parts]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{path}: 'features' are {list(parts[0].shape)} but 'wide' {list(parts[1].shape)}: "
                "both need the same images and the same length"
            )
    views, wide = parts[0].shape[1], parts[1].shape[1] if len(parts) > 1 else 0
    sources = {}
    for split in ("train", "test"):
        rows = choose_split([str(row) for row in range(len(parts[0]))], split)
        source = VectorSource(
            path.name, split, len(rows), views=views, wide=wide, length=parts[0].shape[2]
        )
        source.array = np.concatenate([part[rows] for part in parts], axis=1)
        source.array.setflags(write=False)
        sources[split] = source
    return sources


def _checked(archive: Archive, key: str, *, least: int) -> tuple[int, ...]:
    """The shape [N, V, F] of an array that can be used."""
    where = f"{archive.path}: '{key}'"
    if key not in archive.keys:
        raise UserError(
            f"{archive.path} has {archive.keys}: needed is 'features' [images, views, length]"
        )
    shape, dtype = archive.header(key)
    if len(shape) != 3 or shape[0] < 4 or shape[1] < least or shape[2] < 2:
        raise UserError(
            f"{where} has the shape {list(shape)}: needed is [images, views, length], with at "
            f"least 4 images, {least} view(s) and length 2"
        )
    if dtype.kind != "f":
        raise UserError(f"{where} has the type {dtype}: needed are floating-point numbers")
    return shape


def _read(archive: Archive, key: str, *, least: int, limit: int) -> np.ndarray:
    """One array as float32 [N, V, F]; every vector is finite and has a direction."""
    where = f"{archive.path}: '{key}'"
    shape = _checked(archive, key, least=least)
    check_memory(shape, limit, where, "save fewer images or views")
    values = archive.read(key).astype(np.float32)
    bad = ~np.isfinite(values).all(axis=2) | (np.abs(values).max(axis=2) == 0)
    if bad.any():
        image, view = np.argwhere(bad)[0]
        raise UserError(f"{where}: view {view} of image {image} is not finite, or all zeros")
    return values
