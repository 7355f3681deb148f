"""Corrupted images on disk, in the layout of the official CIFAR-10-C archive.

One file for each corruption, `brightness.npy`, uint8 [5 N, H, H, 3]: the N images at severity 1,
then the same images in the same order at severity 2, and so on; and `labels.npy` [5 N]. Reading
works on directories of the official archive and on what `write_cache` writes. The latter also
hold `generated.json`, which says what was made from what and which files are complete.

`open_corrupted` reads corrupted images from wherever they are: such files, TFDS, or nowhere yet.
"""

import functools
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfvmf.data import corruptions
from tfvmf.data.base import Source, Subset
from tfvmf.data.cache import write_npy
from tfvmf.data.corruptions.draws import Images
from tfvmf.errors import UserError
from tfvmf.files import replacing, write_json
from tfvmf.progress import Progress

KINDS = ("generate", "tfds")  # where corrupted images come from that are not in a directory

Part = tuple[str, int, int, int]  # corruption, severity, first image, last image + 1

_LEVELS = len(corruptions.SEVERITIES)
_MANIFEST = "generated.json"
_CHUNK = 1024


def write_cache(
    directory: str | os.PathLike[str],
    images: Images,
    labels: npt.NDArray[np.integer],
    *,
    names: Sequence[str] = corruptions.CORRUPTIONS,
    seed: int = 0,
    progress: Callable[[int], object] = lambda count: None,
) -> None:
    """Corrupts images at all severities and writes them in the official layout.

    A file appears under its name when it is complete. Called again with the same images and seed,
    what is complete is kept: an interrupted run continues. Memory: a thousand images, not 5 N.

    Args:
        directory: is made if missing; official files in it are never overwritten.
        images: uint8 [N, H, H, 3].
        labels: integers [N].
        names: which corruptions.
        seed: seed of the random numbers.
        progress: called with the number of corrupted images since its last call.

    Raises:
        UserError: if images or labels have another form, or the directory cannot be used.
    """
    names = [corruptions.canonical_name(name) for name in names]
    corruptions.check_images(images)
    count = len(images)
    if count == 0:
        raise UserError("there are no images to corrupt: at least one is needed")
    labels = np.asarray(labels)
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"labels are {labels.dtype} {list(labels.shape)}: {count} images need integers"
            f" [{count}]"
        )
    place = pathlib.Path(directory).expanduser()
    old = _read_manifest(place)
    _refuse_foreign(place, generated=old is not None)
    manifest = {
        "source": corruptions.SOURCE,
        "frost": corruptions.frost_source(),
        "seed": seed,
        "images": count,
        "clean_sha256": _digest(images, labels),
    }
    complete = (old or {}).pop("complete", [])
    complete = complete if old == manifest else []
    write_json(place / _MANIFEST, {**manifest, "complete": complete})
    repeated = np.tile(labels, _LEVELS)
    if repeated.min() >= 0 and repeated.max() <= 255:
        repeated = repeated.astype(np.uint8)
    with replacing(place / "labels.npy") as file:
        write_npy(file, repeated.shape, [repeated], repeated.dtype)

    def corrupted(name: str) -> Iterator[Images]:
        for severity in corruptions.SEVERITIES:
            for start in range(0, count, _CHUNK):
                chunk = np.asarray(images[start : start + _CHUNK])
                yield corruptions.corrupt(chunk, name, severity, seed, first_index=start)
                progress(len(chunk))

    for name in names:
        if name in complete and (place / f"{name}.npy").is_file():
            progress(_LEVELS * count)
            continue
        with replacing(place / f"{name}.npy") as file:
            write_npy(file, (_LEVELS * count, *images.shape[1:]), corrupted(name))
        complete = [*complete, name]
        write_json(place / _MANIFEST, {**manifest, "complete": complete})


def open_cache(
    directory: str | os.PathLike[str], name: str, *, expected_images: int
) -> Callable[[int], Images]:
    """Opens one corruption of an official or generated directory, without reading it.

    Args:
        directory: with `<name>.npy` in it.
        name: name of the corruption; TFDS's names are understood.
        expected_images: N.

    Returns:
        A function: severity -> uint8 [N, H, H, 3], read from disk when used.

    Raises:
        UserError: naming the file, what is wrong with it and what would be right.
    """
    name = corruptions.canonical_name(name)
    place = pathlib.Path(directory).expanduser()
    path = place / f"{name}.npy"
    if not place.is_dir():
        raise UserError(f"{place} is not a directory: it should hold {path.name}")
    if not path.is_file():
        raise UserError(f"{path} is missing: the directory needs the .npy files of CIFAR-10-C")
    try:
        # Refuses pickled objects: a map holds plain numbers only.
        rows = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a complete .npy file of numbers ({error})") from error
    manifest = _read_manifest(place)
    if manifest is not None and name not in manifest.get("complete", []):
        raise UserError(f"{path} is left from another or interrupted run: generate it again")
    side = rows.shape[1] if rows.ndim == 4 else 0
    if rows.dtype != np.uint8 or rows.shape[1:] != (side, side, 3):
        raise UserError(
            f"{path} holds {rows.dtype} {list(rows.shape)}: it must be uint8 [5 N, H, H, 3]"
        )
    if len(rows) != _LEVELS * expected_images:
        raise UserError(
            f"{path} has {len(rows):,} rows: 5 severities of {expected_images:,} images need"
            f" {_LEVELS * expected_images:,}"
        )

    def at(severity: int) -> Images:
        corruptions.check_severity(severity)
        return rows[(severity - 1) * expected_images : severity * expected_images]

    return at


def cache_source(directory: str | os.PathLike[str]) -> str:
    """What the files are, for the report: generated by us, or the user's own."""
    manifest = _read_manifest(pathlib.Path(directory).expanduser())
    if manifest is None:
        return ".npy files in the layout of CIFAR-10-C"
    return f"{manifest['source']} (seed {manifest['seed']}; frost: {manifest['frost']})"


class Corrupted(NamedTuple):
    """The corrupted images of a source.

    Attributes:
        described: What they are, in words.
        read: (corruption, severity, first image, last image + 1) -> uint8 [n, H, W, 3].
    """

    described: str
    read: Callable[[str, int, int, int], Images]

    def read_ahead(self, parts: Sequence[Part]) -> Iterator[tuple[Part, Images]]:
        """Yields each part's images; the next part's are made while these are used.

        The encoder leaves some of every core idle, which is most of what generating takes: the
        suite, corruptions generated, goes from 0.90 to 0.93 of the bare forward pass's rate.
        """
        with ThreadPoolExecutor(1) as pool:
            made = (pool.submit(self.read, *part) for part in parts)
            none: Future[Images] = Future()
            in_pairs = itertools.pairwise(itertools.chain(made, [none]))
            for part, (now, _) in zip(parts, in_pairs, strict=True):
                yield part, now.result()


def open_corrupted(
    source: Source,
    *,
    kind: str = "generate",
    directory: str | os.PathLike[str] = "",
    fill: bool = False,
    load: Callable[[str, str], Source] | None = None,
) -> Corrupted:
    """The corrupted images of a source: read from files, from TFDS, or made when they are read.

    All problems with files show here, before anything is read.

    Args:
        source: The clean images, or a subset of them: the pixels are those of the whole set.
        kind: `generate`, or `tfds` for the data set cifar10_corrupted.
        directory: Files in the official layout, used if given.
        fill: Whether to write what is missing there first.
        load: Opens a source by name and split, for `tfds`.
    """
    if kind not in KINDS:
        raise UserError(f"corruptions={kind} is unknown: use one of {', '.join(KINDS)}")
    if fill and not directory:
        raise UserError("cache_corrupted needs corrupted_dir, the directory to write to")
    rows = np.arange(source.size)
    if isinstance(source, Subset):  # files hold the corrupted copies of the whole set
        rows, source = source.indices, source.whole
    if fill:
        labels = np.zeros(source.size, np.int64) if source.labels is None else source.labels
        total = source.size * len(corruptions.CORRUPTIONS) * _LEVELS
        with Progress(total, unit="image", description="corrupting") as progress:
            write_cache(directory, source.images(), labels, progress=progress.update)
    if directory:
        files = {
            name: open_cache(directory, name, expected_images=source.size)
            for name in corruptions.CORRUPTIONS
        }
        return Corrupted(
            cache_source(directory),
            lambda name, severity, start, stop: np.asarray(files[name](severity)[rows[start:stop]]),
        )
    if kind == "tfds":
        return _from_tfds(source, rows, load)
    return Corrupted(
        f"{corruptions.SOURCE} (seed 0; frost: {corruptions.frost_source()})",
        lambda name, severity, start, stop: corruptions.corrupt(
            source.take(rows[start:stop]), name, severity, indices=rows[start:stop]
        ),
    )


def _from_tfds(
    source: Source, rows: npt.NDArray[np.int64], load: Callable[[str, str], Source] | None
) -> Corrupted:
    if source.name != "cifar10" or load is None:
        raise UserError(
            f"corruptions=tfds holds CIFAR-10's test images, and the data are {source.name}: use "
            "corruptions=generate"
        )

    @functools.lru_cache(maxsize=1)
    def opened(name: str, severity: int) -> Source:
        spec = corruptions.tfds_spec(name, severity)
        found = load(spec, "test")
        if found.size != source.size:
            raise UserError(f"{spec} holds {found.size} images: expected {source.size}")
        return found

    for name in corruptions.CORRUPTIONS:  # all there? the cheapest look is the first severity's
        opened(name, corruptions.SEVERITIES[0])
    # TFDS stores them in an order of its own: a part of them is not the same part of the clean.
    part = len(rows) < source.size
    described = "CIFAR-10-C from TFDS" + (", another sample of images" if part else "")
    return Corrupted(
        described,
        lambda name, severity, start, stop: opened(name, severity).take(rows[start:stop]),
    )


def _read_manifest(place: pathlib.Path) -> dict[str, Any] | None:
    path = place / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not {"source", "seed", "frost"} <= manifest.keys():
            raise ValueError("keys are missing")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): choose another directory") from error
    return manifest


def _refuse_foreign(place: pathlib.Path, *, generated: bool) -> None:
    if place.exists() and not place.is_dir():
        raise UserError(f"{place} is a file: the corrupted images need a directory")
    for name in (*corruptions.ALL_CORRUPTIONS, "labels"):
        if not generated and (place / f"{name}.npy").exists():
            raise UserError(
                f"{place} holds a {name}.npy that was not generated here: choose another directory"
            )


def _digest(images: Images, labels: npt.NDArray[np.integer]) -> str:
    digest = hashlib.sha256(repr(images.shape).encode())
    for start in range(0, len(images), _CHUNK):
        digest.update(np.ascontiguousarray(images[start : start + _CHUNK]).data)
    digest.update(labels.astype(np.int64).data)
    return digest.hexdigest()
