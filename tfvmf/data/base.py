"""The interface of every image source."""

import abc
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfvmf.errors import UserError
from tfvmf.settings import MAX_PIXELS

if TYPE_CHECKING:
    import tensorflow as tf

SPLITS = ("train", "test", "all")
MAX_CLASSES = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `sources.load`, which documents them; each loader reads some."""

    spec: str  # as the user wrote it: `folder:/data/birds`
    target: str  # what follows the scheme (`/data/birds`), or the TFDS name
    split: str = "train"
    data_dir: str = ""
    download: bool = False
    image_size: int = 32
    memory_limit: int = 0
    max_pixels: int = MAX_PIXELS
    skip_broken: bool = False

    def bytes(self, count: int) -> int:
        """Memory for `count` images at the requested size."""
        return count * self.image_size**2 * 3

    def fits(self, count: int) -> bool:
        """Whether `count` images may be kept in memory."""
        return self.bytes(count) <= self.memory_limit


class Source(abc.ABC):
    """Images with random access by index, in a fixed order.

    Attributes:
        name: the spec it was loaded from: `digits`, `cifar10`, `folder:/data/birds`.
        split: the split of the data set.
        size: number of examples N. `whole_size` is the size of the source this is a subset of.
        image_shape: (H, W, 3).
        labels: int32 [N], or None when unlabeled.
        class_names: one name per class, or None.
        num_classes: 0 when unlabeled.
        files: path of each image's file, or None when images are not separate files.
        broken: {file: reason} for files that were skipped because they cannot be read.
        divided: whether a hash chose the images of the split because the data has no splits.
        native_size: shorter side of the images as stored, or None when sizes differ.
    """

    def __init__(
        self,
        request: Request,
        *,
        size: int,
        labels: np.ndarray | None = None,
        class_names: list[str] | None = None,
        num_classes: int = 0,
        files: Sequence[str] | None = None,
        broken: Mapping[str, str] | None = None,
        divided: bool = False,
        native_size: int | None = None,
    ) -> None:
        self._request = request
        self.name, self.split = request.spec, request.split
        self.size = self.whole_size = size
        self.image_shape = (request.image_size, request.image_size, 3)
        self.files, self.labels, self.broken = files, labels, broken or {}
        self.divided, self.native_size = divided and request.split != "all", native_size
        self.class_names = None if labels is None else class_names
        self.num_classes = 0 if labels is None else len(class_names or ()) or num_classes
        check_classes(self.name, self.num_classes)
        if size < 1:
            raise UserError(f"{self.name}: split '{self.split}' holds no images")
        if labels is None:
            return
        if labels.shape != (size,):
            found = f"{size} images but labels of shape {list(labels.shape)} in '{self.split}'"
            raise UserError(f"{self.name}: {found}: expected one label per image")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.num_classes:
            raise UserError(
                f"{self.name}: labels go from {low} to {high} in split '{self.split}', but "
                f"{self.num_classes} classes allow 0 to {self.num_classes - 1}"
            )
        self.labels = labels.astype(np.int32)
        self.labels.setflags(write=False)

    @property
    def array(self) -> np.ndarray | None:
        """All images, uint8 [N, H, W, 3], when they are in memory; else None."""
        return None

    @abc.abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at `indices` ([n], any order, repeats allowed): uint8 [n, H, W, 3]."""

    def images(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The images `start` ... `stop - 1` (clipped like a slice): uint8 [n, H, W, 3]."""
        return self.take(np.arange(*slice(start, stop).indices(self.size)))

    def file(self, index: int) -> str:
        """The path of the image's file, or `NAME/SPLIT:INDEX` if it has none."""
        return self.files[index] if self.files else f"{self.name}/{self.split}:{index}"

    def class_name(self, label: int) -> str:
        """The name of a class, or its number if it has no name."""
        return self.class_names[label] if self.class_names else str(label)

    def subset(self, indices: np.ndarray) -> "Source":
        """A view of the images at `indices` ([n], distinct), in that order."""
        return Subset(self, indices)

    def native(self) -> "Source":
        """The same images at `native_size`; this source if that is None or already its size."""
        from tfvmf.data import sources

        if self.native_size in (None, self.image_shape[0]):
            return self
        request = dataclasses.replace(self._request, image_size=self.native_size)
        return sources.SOURCES[sources.parse(request.spec)[1]](request)

    def as_dataset(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        labels: bool = False,
        drop_remainder: bool = False,
    ) -> "tf.data.Dataset":
        """Batches uint8 [B, H, W, 3], shuffled each epoch by `seed`, with `labels` [B] if true."""
        import tensorflow as tf

        from tfvmf.data.pipeline import image_reader

        if labels and self.labels is None:
            raise UserError(f"{self.name} ({self.split}) has no labels: use labels=False")
        read = image_reader(self)
        rows = tf.data.Dataset.range(self.size, output_type=tf.int32)
        if seed is not None:
            rows = rows.shuffle(self.size, seed=seed, reshuffle_each_iteration=True)
        batches = rows.batch(batch_size, drop_remainder=drop_remainder)
        batches = batches.map(read, num_parallel_calls=2, deterministic=True)
        return batches.map(lambda b: (b["image"], b["label"]) if labels else b["image"]).prefetch(2)

    def fingerprint(self) -> str:
        """A hash of all labels and 64 images, which is quick and distinguishes data sets."""
        sample = np.unique(np.linspace(0, self.size - 1, 64).astype(np.int64))
        digest = hashlib.blake2b(self.take(sample).tobytes(), digest_size=8)
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        classes = f"{self.num_classes} classes" if self.num_classes else "unlabeled"
        return f"<{self.name} ({self.split}): {self.size} images, {classes}>"


class ArraySource(Source):
    """A source whose images are one uint8 array [N, H, W, 3], in memory or mapped from a file.

    Example i is `images[order[i]]`, or `images[i]` without `order`. `about` are attributes of
    `Source`; labels follow the order of the examples and need `class_names` or `num_classes`.
    """

    def __init__(
        self, request: Request, images: np.ndarray, *, order: np.ndarray | None = None, **about: Any
    ) -> None:
        super().__init__(request, size=len(images), **about)
        if order is not None and not isinstance(images, np.memmap):
            images, order = images[order], None
        self._images, self._order = images, order
        self._images.setflags(write=False)

    @property
    def array(self) -> np.ndarray | None:
        """All images, read-only; None when they are mapped from a file."""
        return None if isinstance(self._images, np.memmap) else self._images

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at `indices`: uint8 [n, H, W, 3]."""
        if self._order is not None:
            indices = self._order[indices]
        return np.asarray(np.take(self._images, indices, axis=0))

    def images(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The images `start` ... `stop - 1`; a read-only view if they are in memory."""
        return self.array[start:stop] if self.array is not None else super().images(start, stop)


class Subset(Source):
    """Some images of another source: example i is `whole`'s example `indices[i]`."""

    def __init__(self, whole: Source, indices: np.ndarray) -> None:
        indices = np.array(indices, np.int64)
        if indices.ndim != 1 or not 0 < len(np.unique(indices)) == len(indices):
            raise ValueError("a subset needs at least one index, and each only once")
        if indices.min() < 0 or indices.max() >= whole.size:
            raise IndexError(f"{whole!r} has no images {indices.min()} to {indices.max()}")
        indices.setflags(write=False)
        vars(self).update(vars(whole))
        self.whole, self.indices, self.size = whole, indices, len(indices)
        self.files = [whole.files[index] for index in indices] if whole.files else None
        if whole.labels is not None:
            self.labels = whole.labels[indices]
            self.labels.setflags(write=False)

    @property
    def array(self) -> np.ndarray | None:
        """A copy of the chosen images when the whole source is in memory; else None."""
        return None if self.whole.array is None else self.whole.array[self.indices]

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at `indices`: uint8 [n, H, W, 3]."""
        return self.whole.take(self.indices[indices])

    def native(self) -> Source:
        """The same images at `native_size`."""
        native = self.whole.native()
        return self if native is self.whole else native.subset(self.indices)

    def file(self, index: int) -> str:
        """The name that the whole source gives the image."""
        return self.whole.file(int(self.indices[index]))


def sample_indices(source: Source, count: int, *, seed: int = 0) -> np.ndarray:
    """Draws `count` indices, or all if there are fewer, without replacement: int64, sorted.

    With labels the sample is stratified, with at least one image per class if `count` allows.
    """
    if count < 1:
        raise ValueError(f"a sample of {count} images: expected at least 1")
    if count >= source.size:
        return np.arange(source.size)
    rng = np.random.default_rng(seed)
    labels = np.zeros(source.size, np.int32) if source.labels is None else source.labels
    classes, sizes = np.unique(labels, return_counts=True)
    shares, remainders = np.divmod(count * sizes, source.size)
    # Ties are broken at random, not always in favor of the first classes.
    order = np.lexsort([rng.random(len(classes)), -remainders])
    shares[order[: count - shares.sum()]] += 1
    if count >= len(classes):
        for missing in np.flatnonzero(shares == 0):
            shares[shares.argmax()] -= 1
            shares[missing] = 1
    members = (np.flatnonzero(labels == name) for name in classes)
    drawn = [rng.permutation(rows)[:n] for rows, n in zip(members, shares, strict=True)]
    return np.sort(np.concatenate(drawn))


def check_classes(where: str, count: int) -> None:
    """Raises UserError when there are implausibly many classes."""
    if count > MAX_CLASSES:
        raise UserError(
            f"{where}: labels for {count:,} classes: at most {MAX_CLASSES:,} are allowed; "
            "number the classes 0, 1, 2, ..."
        )


def check_split(spec: str, split: str) -> None:
    """Raises UserError unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise UserError(f"{spec}: unknown split '{split}'; it has {', '.join(SPLITS)}")


def choose_split(keys: Sequence[str], split: str) -> np.ndarray:
    """Indices [n] of the keys in `split`: a hash of the key makes one in ten a test key.

    Adding examples never moves earlier ones. With two or more keys, no split is empty.
    """
    check_split("split", split)
    if split == "all":
        return np.arange(len(keys))
    encoded = (key.encode("utf-8", "surrogateescape") for key in keys)
    digests = [hashlib.blake2b(key, digest_size=6).digest() for key in encoded]
    position = np.array([int.from_bytes(digest, "big") / 2**48 for digest in digests])
    test = position < 0.1
    if len(keys) > 1 and not test.any():
        test[position.argmin()] = True
    if len(keys) > 1 and test.all():
        test[position.argmax()] = False
    return np.flatnonzero(test if split == "test" else ~test)
