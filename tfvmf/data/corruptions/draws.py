"""Random numbers that belong to an image, not to a batch.

Each image has a generator of its own, keyed by (seed, corruption, severity, index of the image in
its data set): how images are split into batches, chunks and threads cannot change a pixel.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Draws:
    """The random draws for a batch of images: every method returns one row per image.

    Successive calls continue each image's own stream. Generators are made on the first draw, so
    that corruptions without randomness do not pay for them.
    """

    def __init__(self, key: str, indices: Sequence[int] | npt.NDArray[np.integer]) -> None:
        self._keys = [f"{key}/{index}" for index in indices]

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """Standard normal numbers, float32 [N, *shape]."""
        rows = np.empty((len(self._keys), *shape), np.float32)
        for rng, row in zip(self._generators, rows, strict=True):
            rng.standard_normal(dtype=np.float32, out=row)
        return rows

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> Floats:
        """Uniform numbers in [low, high), float32 [N, *shape]."""
        rows = np.empty((len(self._keys), *shape, 1), np.float32)
        for rng, row in zip(self._generators, rows, strict=True):
            rng.random(dtype=np.float32, out=row)
        rows *= high - low
        rows += low
        return rows[..., 0]

    def integers(self, high: int) -> npt.NDArray[np.int64]:
        """One integer in [0, high) for each image, int64 [N]."""
        return np.array([rng.integers(high) for rng in self._generators], dtype=np.int64)

    def poisson(self, rate: npt.NDArray[np.floating]) -> Floats:
        """Poisson counts of the rates [N, ...], float32 of the same shape."""
        counts = np.empty(rate.shape, np.float32)
        for rng, row, out in zip(self._generators, rate, counts, strict=True):
            out[...] = rng.poisson(row)
        return counts

    @functools.cached_property
    def _generators(self) -> list[np.random.Generator]:
        """Counter-based: different keys give independent streams, without warm-up."""
        digests = [hashlib.blake2b(key.encode(), digest_size=16).digest() for key in self._keys]
        return [
            np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
            for digest in digests
        ]
