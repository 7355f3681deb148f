"""Decoded images on disk, for data sets that are too large for memory and cannot be indexed.

They are kept in `~/.cache/tfvmf`, or in the folder that the environment variable TFVMF_CACHE names.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import numpy as np

from tfvmf.errors import UserError
from tfvmf.files import writing

_GIB = 2**30


def cache_dir() -> pathlib.Path:
    """Where decoded images are kept: $TFVMF_CACHE, or `~/.cache/tfvmf`."""
    return pathlib.Path(os.environ.get("TFVMF_CACHE") or "~/.cache/tfvmf").expanduser()


def load_or_build(
    identity: dict[str, Any],
    shape: tuple[int, ...],
    *,
    chunks: Callable[[], Iterable[np.ndarray]],
    columns: Callable[[], dict[str, np.ndarray]],
    dtype: np.typing.DTypeLike = np.uint8,
) -> tuple[np.memmap, dict[str, np.ndarray]]:
    """Images and columns (labels, order) of a data set; builds the cache when there is none.

    A cache is a folder that appears under its name only when it is complete. Processes that want
    the same one at the same time wait for the first to build it.

    Args:
        identity: JSON values that tell this cache from all others.
        shape: [N, H, W, 3] of the images, or [N, ...] of what was computed of them.
        chunks: makes an iterator of arrays [n, ...] that add up to N images.
        columns: called after the last chunk; small arrays to keep beside the images.
        dtype: Type of the array.

    Returns:
        The images as a read-only memory map, and the columns.
    """
    text = json.dumps({**identity, "shape": shape}, sort_keys=True)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", str(identity.get("name", "images"))).strip("-")
    folder = cache_dir() / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    elsewhere = "set TFVMF_CACHE to another folder"
    with writing(folder, advice=elsewhere, then=f", or {elsewhere}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_suffix(".lock")):
            if not _complete(folder, text, shape, dtype):
                _build(folder, text, shape, dtype, chunks=chunks, columns=columns)
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    with np.load(folder / "columns.npz", allow_pickle=False) as stored:
        return images, dict(stored)


def write_npy(
    file: IO[bytes],
    shape: tuple[int, ...],
    chunks: Iterable[np.ndarray],
    dtype: np.typing.DTypeLike = np.uint8,
) -> None:
    """Writes an array chunk by chunk in NumPy's format.

    By plain writes, not through a memory map: when the disk is full a write raises an error, a
    map kills the process.
    """
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for chunk in chunks:
        file.write(np.ascontiguousarray(chunk, dtype).data)


def _complete(
    folder: pathlib.Path, text: str, shape: tuple[int, ...], dtype: np.typing.DTypeLike
) -> bool:
    """Whether the folder holds this data set, whole."""
    try:
        if (folder / "identity.json").read_text(encoding="utf-8") != text:
            return False
        # Also refuses a file that is shorter than its header says.
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        with np.load(folder / "columns.npz", allow_pickle=False) as stored:
            columns = dict(stored)
    except (OSError, ValueError, EOFError):
        return False
    lengths = {len(column) for column in columns.values()}
    return images.shape == shape and images.dtype == dtype and lengths <= {shape[0]}


def _build(
    folder: pathlib.Path,
    text: str,
    shape: tuple[int, ...],
    dtype: np.typing.DTypeLike,
    *,
    chunks: Callable[[], Iterable[np.ndarray]],
    columns: Callable[[], dict[str, np.ndarray]],
) -> None:
    needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise UserError(
            f"{folder.parent}: the cached images need {needed / _GIB:.1f} GiB and "
            f"{free / _GIB:.1f} GiB are free; set TFVMF_CACHE to a folder with room"
        )
    partial = folder.with_suffix(".partial")
    for old in (partial, folder):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir()
    try:
        with open(partial / "images.npy", "wb") as file:
            write_npy(file, shape, chunks(), dtype)
        np.savez(partial / "columns.npz", **columns())  # type: ignore[arg-type]
        (partial / "identity.json").write_text(text, encoding="utf-8")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
    """Held by one process at a time; the system releases it when the process ends."""
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
