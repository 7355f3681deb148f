"""Random numbers that belong to an image, not to a batch.

Each image has a generator of its own, keyed by (seed, corruption, severity, index of the image in
its data set): how images are split into batches, chunks and threads cannot change a pixel.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Draws:
    """The random draws for a batch of images: every method returns one row per image.

    Successive calls continue each image's own stream. Generators are made on the first draw, so
    that corruptions without randomness do not pay for them.
    """

    def __init__(
        self,
        *,
        seed: int,
        name: str,
        severity: int,
        indices: Sequence[int] | npt.NDArray[np.integer],
    ) -> None:
        self._key = f"{seed}/{name}/{severity}"
        self._indices = indices
        self._made: list[np.random.Generator] | None = None

    def __len__(self) -> int:
        return len(self._indices)

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """Standard normal numbers, float32 [N, *shape]."""
        return self._fill(shape, lambda rng, out: rng.standard_normal(dtype=np.float32, out=out))

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> Floats:
        """Uniform numbers in [low, high), float32 [N, *shape]."""
        unit = self._fill((*shape, 1), lambda rng, out: rng.random(dtype=np.float32, out=out))
        unit *= high - low
        unit += low
        return unit[..., 0]

    def integers(self, high: int) -> npt.NDArray[np.int64]:
        """One integer in [0, high) for each image, int64 [N]."""
        return np.array([rng.integers(high) for rng in self._generators()], dtype=np.int64)

    def poisson(self, rate: npt.NDArray[np.floating]) -> Floats:
        """Poisson counts of the rates [N, ...], float32 of the same shape."""
        counts = np.empty(rate.shape, np.float32)
        for rng, row, out in zip(self._generators(), rate, counts, strict=True):
            out[...] = rng.poisson(row)
        return counts

    def _generators(self) -> list[np.random.Generator]:
        if self._made is None:
            self._made = [_generator(f"{self._key}/{index}") for index in self._indices]
        return self._made

    def _fill(
        self, shape: tuple[int, ...], fill: Callable[[np.random.Generator, Floats], object]
    ) -> Floats:
        rows = np.empty((len(self), *shape), np.float32)
        for rng, row in zip(self._generators(), rows, strict=True):
            fill(rng, row)
        return rows


def _generator(key: str) -> np.random.Generator:
    """A counter-based generator: different keys give independent streams, without warm-up."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
