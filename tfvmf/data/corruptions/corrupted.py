"""The corrupted images of a source: generated on reading, or from files or TFDS."""

import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfvmf import cores
from tfvmf.data import corruptions
from tfvmf.data.base import Source, Subset
from tfvmf.data.corruptions.filters import Images
from tfvmf.data.images import resize_images
from tfvmf.errors import UserError

KINDS = ("generate", "tfds")  # origin of corrupted images that are not in a directory

Part = tuple[str, int, int, int]  # corruption, severity, first image, last image + 1


class Corrupted(NamedTuple):
    """The corrupted images of a source: a description, and a function that reads a `Part`."""

    described: str
    read: Callable[[str, int, int, int], Images]  # -> uint8 [n, H, W, 3]

    def read_ahead(self, parts: Sequence[Part]) -> Iterator[tuple[Part, Images]]:
        """Yields the images of each part, and makes those of the next part in the meantime."""
        yield from cores.one_ahead(lambda part: (part, self.read(*part)), parts)


def open_corrupted(
    source: Source,
    *,
    kind: str = "generate",
    directory: str | os.PathLike[str] = "",
    load: Callable[[str, str], Source] | None = None,
) -> Corrupted:
    """The corrupted images of a source, at its size; problems with files are raised here.

    Images with one native size (CIFAR-10: 32 x 32) are corrupted at that size and then enlarged
    to the source's, as CIFAR-10-C would be. Photographs of any size are corrupted at the source's
    size. A subset has the pixels of the whole set.

    `kind` is `generate`, or `tfds` for the data set cifar10_corrupted, which `load` opens by name
    and split. If a `directory` is given, its files are used instead, as in CIFAR-10-C: for each
    corruption `NAME.npy`, uint8 [5 N, H, H, 3], severity after severity.
    """
    if kind not in KINDS:
        raise UserError(f"corruptions={kind} is unknown: use one of {', '.join(KINDS)}")
    rows, size = np.arange(source.size), source.image_shape[0]
    if isinstance(source, Subset):  # files hold the corrupted copies of the whole set
        rows, source = source.indices, source.whole
    if directory:
        place = pathlib.Path(directory).expanduser()
        files = {name: _open(place, name, source.size) for name in corruptions.CORRUPTIONS}
        described = ".npy files in the layout of CIFAR-10-C"

        def make(name: str, severity: int, chosen: np.ndarray) -> Images:
            return np.asarray(files[name][(severity - 1) * source.size + chosen])

    elif kind == "tfds":
        opened = _open_tfds(source, load)
        # TFDS has its own order: a part of its images differs from the same part of the clean ones.
        sample = ", another sample of images" if len(rows) < source.size else ""
        described = f"CIFAR-10-C from TFDS{sample}"

        def make(name: str, severity: int, chosen: np.ndarray) -> Images:
            return opened(name, severity).take(chosen)

    else:
        has_size = (source.native_size or 0) >= corruptions.SMALLEST_SIDE
        native = source.native() if has_size else source
        pixels = f"{native.image_shape[0]} x {native.image_shape[0]} pixels"
        frost = corruptions.frost_source()
        described = f"{corruptions.SOURCE} (at {pixels}, seed 0; frost: {frost})"

        def make(name: str, severity: int, chosen: np.ndarray) -> Images:
            return corruptions.corrupt(native.take(chosen), name, severity, indices=chosen)

    def read(name: str, severity: int, start: int, stop: int) -> Images:
        return resize_images(make(name, severity, rows[start:stop]), size)

    return Corrupted(described, read)


def _open(place: pathlib.Path, name: str, count: int) -> np.ndarray:
    """One corruption of `count` images: uint8 [5 count, H, H, 3], read from disk when used."""
    path = place / f"{name}.npy"
    if not path.is_file():
        raise UserError(f"{path} is missing: expected the .npy files of CIFAR-10-C")
    try:
        # Rejects pickled objects: a map holds only plain numbers.
        rows = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a complete .npy file of numbers ({error})") from error
    side = rows.shape[1] if rows.ndim == 4 else 0
    if rows.dtype != np.uint8 or rows.shape != (5 * count, side, side, 3):
        raise UserError(
            f"{path} holds {rows.dtype} {list(rows.shape)}: expected 5 severities of {count:,} "
            f"images, uint8 [{5 * count}, H, H, 3]"
        )
    return rows


def _open_tfds(
    source: Source, load: Callable[[str, str], Source] | None
) -> Callable[[str, int], Source]:
    if source.name != "cifar10" or load is None:
        raise UserError(
            f"corruptions=tfds holds CIFAR-10's test images, but the data are {source.name}: use "
            "corruptions=generate"
        )

    @functools.lru_cache(maxsize=1)
    def opened(name: str, severity: int) -> Source:
        spec = corruptions.tfds_spec(name, severity)
        found = load(spec, "test")
        if found.size != source.size:
            raise UserError(f"{spec} holds {found.size} images: expected {source.size}")
        return found

    for name in corruptions.CORRUPTIONS:  # checks that all exist; one severity is enough
        opened(name, corruptions.SEVERITIES[0])
    return opened
