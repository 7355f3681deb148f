"""Where the suite's corrupted images come from: made here, CIFAR-10-C's files, or TFDS."""

import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from tfvmf import data
from tfvmf.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    SOURCE,
    TFDS_NAMES,
    corrupt,
    frost_source,
)
from tfvmf.data.corruptions.cache import cache_source, open_cache, write_cache
from tfvmf.errors import UserError
from tfvmf.evaluation.run import Evaluation
from tfvmf.progress import Progress

KINDS = ("generate", "tfds")

Part = tuple[str, int, int, int]  # corruption, severity, first image, last image + 1
Read = Callable[[str, int, int, int], np.ndarray]  # -> uint8 [n, H, W, 3]


class Corrupted(NamedTuple):
    """What corrupted images are, in words, and the function that reads them."""

    described: str
    read: Read

    def read_ahead(self, parts: Sequence[Part]) -> Iterator[tuple[Part, np.ndarray]]:
        """Yields each part's images; the next part's are made while these are used.

        The encoder leaves some of every core idle, which is most of what generating takes: the
        suite, corruptions generated, goes from 0.90 to 0.93 of the bare forward pass's rate.
        """
        with ThreadPoolExecutor(1) as pool:
            made = (pool.submit(self.read, *part) for part in parts)
            none: Future[np.ndarray] = Future()
            in_pairs = itertools.pairwise(itertools.chain(made, [none]))
            for part, (now, _) in zip(parts, in_pairs, strict=True):
                yield part, now.result()


def open_corrupted(evaluation: Evaluation) -> Corrupted:
    """The corrupted images that an evaluation asks for.

    All problems with files show here, before anything is measured.
    """
    if evaluation.corruptions not in KINDS:
        raise UserError(
            f"--corruptions={evaluation.corruptions} is unknown: use one of {', '.join(KINDS)}"
        )
    if evaluation.corrupted_dir:
        if evaluation.cache_corrupted:
            _fill(evaluation)
        return _from_directory(evaluation)
    if evaluation.cache_corrupted:
        raise UserError("--cache_corrupted needs --corrupted_dir, the directory to write to")
    if evaluation.corruptions == "tfds":
        return _from_tfds(evaluation)
    source = evaluation.test

    def generate(name: str, severity: int, start: int, stop: int) -> np.ndarray:
        return corrupt(source.images(start, stop), name, severity, first_index=start)

    return Corrupted(f"{SOURCE} (seed 0; frost: {frost_source()})", generate)


def _from_directory(evaluation: Evaluation) -> Corrupted:
    place, size = evaluation.corrupted_dir, evaluation.test.size
    files = {name: open_cache(place, name, expected_images=size) for name in CORRUPTIONS}

    def read(name: str, severity: int, start: int, stop: int) -> np.ndarray:
        return np.asarray(files[name](severity)[start:stop])

    return Corrupted(cache_source(place), read)


def _fill(evaluation: Evaluation) -> None:
    """Writes what is missing of a directory in the official layout."""
    source = evaluation.test
    labels = np.zeros(source.size, np.int64) if source.labels is None else source.labels
    total = source.size * len(CORRUPTIONS) * len(SEVERITIES)
    with Progress(total, unit="image", description="corrupting") as progress:
        write_cache(
            pathlib.Path(evaluation.corrupted_dir),
            source.images(),
            labels,
            progress=progress.update,
        )


def _from_tfds(evaluation: Evaluation) -> Corrupted:
    source = evaluation.test
    if source.name != "cifar10":
        raise UserError(
            f"--corruptions=tfds holds CIFAR-10's test images, and this run is judged on "
            f"{source.name}: use --corruptions=generate"
        )

    @functools.lru_cache(maxsize=1)
    def load(name: str, severity: int) -> data.Source:
        spec = f"cifar10_corrupted/{TFDS_NAMES.get(name, name)}_{severity}"
        loaded = data.load_source(
            spec,
            "test",
            data_dir=evaluation.config.data.data_dir,
            image_size=evaluation.config.data.image_size,
        )
        if loaded.size != source.size:
            raise UserError(f"{spec} holds {loaded.size} images: {source.size} are needed")
        return loaded

    for name in CORRUPTIONS:  # all there? the cheapest look is the first severity's
        load(name, SEVERITIES[0])
    # TFDS stores them in an order of its own: a part of them is not the same part of the clean.
    described = "CIFAR-10-C from TFDS" + (", another sample of images" if evaluation.images else "")
    return Corrupted(
        described,
        lambda name, severity, start, stop: load(name, severity).images(start, stop),
    )
