"""Arrays cached on disk (decoded images, embedded views), deleted when unused for 30 days."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Iterable
from typing import IO, Any

import numpy as np

from tfvmf.errors import UserError
from tfvmf.files import writing

_GIB = 2**30
_UNUSED = 30 * 24 * 3600  # seconds


def cache_dir() -> pathlib.Path:
    """The cache directory: $TFVMF_CACHE, or `~/.cache/tfvmf`."""
    return pathlib.Path(os.environ.get("TFVMF_CACHE") or "~/.cache/tfvmf").expanduser()


def load_or_build(
    identity: dict[str, Any],
    shape: tuple[int, ...],
    *,
    chunks: Callable[[], Iterable[np.ndarray]],
    columns: Callable[[], dict[str, np.ndarray]],
    dtype: np.typing.DTypeLike = np.uint8,
) -> tuple[np.memmap, dict[str, np.ndarray]]:
    """Returns a read-only memory map and its columns (labels, order); builds them if missing.

    A cache is a folder that gets its name only when it is complete. Processes that need the same
    cache at the same time wait for the first one to build it.

    `identity` are JSON values that distinguish this cache from all others. `chunks` returns an
    iterator of arrays [n, ...] that add up to `shape`, [N, ...]; then `columns` is called and
    returns small arrays [N] to store with them.
    """
    text = json.dumps({**identity, "shape": shape, "type": np.dtype(dtype).str}, sort_keys=True)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", str(identity.get("name", "images"))).strip("-")
    folder = cache_dir() / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    elsewhere = "set TFVMF_CACHE to another folder"
    with writing(folder, advice=elsewhere, then=f", or {elsewhere}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Held by one process at a time; the system releases it when the process ends.
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return _open(folder)
            except (OSError, ValueError, EOFError):  # missing, or damaged
                _make_room(folder.parent, int(np.prod(shape)) * np.dtype(dtype).itemsize)
            partial = folder.with_suffix(".partial")
            for old in (partial, folder):
                shutil.rmtree(old, ignore_errors=True)
            partial.mkdir()
            try:
                with open(partial / "images.npy", "wb") as file:
                    write_npy(file, shape, chunks(), dtype)
                np.savez(partial / "columns.npz", **columns())  # type: ignore[arg-type]
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            return _open(folder)


def write_npy(
    file: IO[bytes],
    shape: tuple[int, ...],
    chunks: Iterable[np.ndarray],
    dtype: np.typing.DTypeLike = np.uint8,
) -> None:
    """Writes an array as .npy in chunks. A memory map would kill the process on a full disk."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for chunk in chunks:
        file.write(np.ascontiguousarray(chunk, dtype).data)


def _open(folder: pathlib.Path) -> tuple[np.memmap, dict[str, np.ndarray]]:
    # This also rejects a file that is shorter than its header says.
    array = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    with np.load(folder / "columns.npz", allow_pickle=False) as stored:
        columns = dict(stored)
    with contextlib.suppress(OSError):
        os.utime(folder)  # marks it as used
    return array, columns


def _make_room(place: pathlib.Path, needed: int) -> None:
    """Deletes unused caches; UserError if the disk has less than `needed` bytes."""
    for array in place.glob("*/images.npy"):  # by file name too: TFVMF_CACHE may be any folder
        if re.fullmatch(r".*-[0-9a-f]{16}(\.partial)?", array.parent.name):
            used = max(array.stat().st_mtime, array.parent.stat().st_mtime)
            if time.time() - used > _UNUSED:
                shutil.rmtree(array.parent, ignore_errors=True)
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UserError(
            f"{place}: the cached images need {needed / _GIB:.1f} GiB, but only {free / _GIB:.1f} "
            "GiB are free; set TFVMF_CACHE to a folder with room"
        )
