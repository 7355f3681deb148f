"""Image data sets of tensorflow-datasets, by name: `cifar10`, `mnist`, ...

TensorFlow's record reader is used, which verifies checksums. tf.data is not, because nothing may
run in TensorFlow before a program has set up its devices and strategy.
"""

import difflib
import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfvmf.data import cache
from tfvmf.data.base import ArraySource, Request, Source
from tfvmf.data.images import read_images
from tfvmf.errors import UserError
from tfvmf.progress import Progress

KNOWN = "known are digits, folder:/path, npz:/path and the names of TFDS data sets"
# name, name/config, name:1.0.0, name/config:1.*.*
NAME = re.compile(r"[A-Za-z]\w*(/[\w.\-]+)?(:[\d*]+\.[\d*]+\.[\d*]+)?")

# Records decoded at a time, and records fetched at a time from an indexed file.
_CHUNK, _BLOCK = 512, 256


def load(request: Request) -> Source:
    """A TFDS data set prepared in `data_dir`, or by `download`.

    If there is an `id` feature, examples are sorted by it (for CIFAR the official order);
    otherwise they come as stored. A split expression (`train[:45000]`) counts records as stored.
    The label is the feature `label` (the fine label in CIFAR-100). A data set larger than
    `memory_limit` is decoded once into a cache on disk (see `cache`).
    """
    reader = _Reader(request, open_builder(request))
    shape = (reader.size, request.image_size, request.image_size, 3)
    images: np.ndarray
    if request.fits(reader.size):
        images, start = np.empty(shape, np.uint8), 0
        for chunk in reader.chunks():
            images[start : start + len(chunk)] = chunk
            start += len(chunk)
        columns = reader.columns()
    else:
        images, columns = cache.load_or_build(
            reader.identity(), shape, chunks=reader.chunks, columns=reader.columns
        )
    height, width, _ = reader.features[reader.image_key].shape
    about: dict[str, Any] = {"native_size": min(height, width) if height and width else None}
    labels = columns.get("labels")
    if labels is not None and (labels >= 0).any():  # secret labels of a test set are all -1
        feature = reader.features[reader.label_key]
        about["labels"] = labels
        about["class_names"] = list(feature.names) if feature.num_classes else None
        about["num_classes"] = feature.num_classes or int(labels.max()) + 1
    return ArraySource(request, images, order=columns.get("order"), **about)


class _Reader:
    """Decodes the records of one split in stored order."""

    def __init__(self, request: Request, builder: Any) -> None:
        self._request, self._info, self.features = request, builder.info, builder.info.features
        try:
            self._split = self._info.splits[request.split]
        except Exception as error:
            raise UserError(
                f"{request.spec}: unknown split '{request.split}'; it has "
                f"{', '.join(self._info.splits)}, and parts of them like 'train[:90%]'"
            ) from error
        self.size: int = self._split.num_examples
        if not self.size:
            raise UserError(f"{request.spec}: split '{request.split}' holds no images")
        self.image_key, self.label_key = _keys(request.spec, self._info)
        self._ids: list[str] = []
        self._labels: list[int] = []

    def identity(self) -> dict[str, Any]:
        """Values that distinguish a cache of these records from all others."""
        return {
            "name": self._info.full_name,
            "split": self._request.split,
            "parts": [
                [os.path.basename(part.filename), part.skip, part.take, part.examples_in_shard]
                for part in self._split.file_instructions
            ],
            "bytes": {name: split.num_bytes for name, split in self._info.splits.items()},
        }

    def chunks(self) -> Iterator[np.ndarray]:
        """Yields images uint8 [n, H, W, 3] and collects their labels and ids."""
        where, size = f"{self._request.spec} ({self._request.split})", self._request.image_size
        limit = self._request.max_pixels
        records = _read_records(self._info.file_format.value, self._split.file_instructions)
        named = ((f"{where}, record {index}", record) for index, record in enumerate(records))
        self._ids, self._labels = [], []
        with Progress(self.size, unit="image", description=f"reading {where}", brief=True) as bar:
            while batch := list(itertools.islice(named, _CHUNK)):
                encoded = [self._parse(name, record) for name, record in batch]
                names = [name for name, _ in batch]
                yield read_images(encoded, size, max_pixels=limit, names=names)
                bar.update(len(batch))

    def columns(self) -> dict[str, np.ndarray]:
        """The records' `order` int [N], if they have ids, and `labels` int [N] in that order."""
        columns = {}
        order: Any = slice(None)
        if self._ids:
            # `a2` sorts before `a10`: every second part is a number.
            parts = [re.split(r"([0-9]+)", each) for each in self._ids]
            keys = [[int(part) if i % 2 else part for i, part in enumerate(p)] for p in parts]
            columns["order"] = order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        if self.label_key:
            columns["labels"] = np.array(self._labels, np.int64)[order]
        return columns

    def _parse(self, name: str, record: bytes) -> bytes:
        """The encoded image of a record."""
        import tensorflow as tf

        try:
            feature = tf.train.Example.FromString(record).features.feature
            if self.label_key:
                self._labels.append(feature[self.label_key].int64_list.value[0])
            if "id" in self.features:
                value = feature["id"]
                text = [each.decode() for each in value.bytes_list.value]
                self._ids.append(text[0] if text else str(value.int64_list.value[0]))
            return feature[self.image_key].bytes_list.value[0]
        except Exception as error:
            kind = type(error).__name__
            raise UserError(f"{name}: damaged ({kind}); prepare it again") from error


def _read_records(file_format: str, parts: list[Any]) -> Iterator[bytes]:
    """Serialized `tf.train.Example`s in stored order; `parts` are TFDS's file instructions."""
    readers = {"tfrecord": _read_tfrecord, "array_record": _read_array_record}
    if file_format not in readers:
        raise UserError(
            f"{os.path.dirname(parts[0].filename)}: prepared in the format {file_format}; "
            f"prepare it as {' or '.join(readers)}"
        )
    for part in parts:
        stop = part.examples_in_shard if part.take < 0 else part.skip + part.take
        try:
            os.stat(part.filename)  # a missing file is an OSError here, but a crash in a reader
            yield from readers[file_format](part.filename, part.skip, stop)
        except OSError as error:
            raise UserError(f"{part.filename}: cannot be read: {error.strerror}") from error


def _read_tfrecord(path: str, start: int, stop: int) -> Iterator[bytes]:
    import tensorflow as tf

    def deprecated(record: Any) -> bool:
        # The reader is deprecated in favor of tf.data, which would run operations.
        return "tf_record_iterator" not in record.getMessage()

    index = 0
    tf.get_logger().addFilter(deprecated)
    try:
        records = tf.compat.v1.io.tf_record_iterator(path)
    finally:
        tf.get_logger().removeFilter(deprecated)
    try:
        for index in range(stop):
            record = next(records, None)
            if record is None:
                raise UserError(f"{path}: cut off after record {index} of {stop}; prepare it again")
            if index >= start:
                yield record
    except tf.errors.OpError as error:
        found = f"record {index} of {stop} is damaged or cut off ({error.message})"
        raise UserError(f"{path}: {found}; prepare it again") from error


def _read_array_record(path: str, start: int, stop: int) -> Iterator[bytes]:
    from array_record.python import array_record_module  # type: ignore[import-untyped]

    try:
        reader = array_record_module.ArrayRecordReader(path)
        for first in range(start, stop, _BLOCK):
            yield from reader.read(list(range(first, min(first + _BLOCK, stop))))
        reader.close()
    except (ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: damaged or cut off: {reason}; prepare it again") from error


def open_builder(request: Request) -> Any:
    """TFDS's builder of a prepared data set; `request.download` prepares a missing one."""
    import tensorflow_datasets as tfds

    if not NAME.fullmatch(request.target):
        raise UserError(f"{request.spec}: not the name of a data set; write name or name/config")
    data_dir = os.path.expanduser(request.data_dir) or None
    if data_dir and not os.path.isdir(data_dir) and not request.download:
        raise UserError(f"data_dir={request.data_dir}: there is no such folder")
    # Given a version, TFDS prefers the newest matching files to the version in its own code.
    name = request.target if ":" in request.target else f"{request.target}:*.*.*"
    doing = "opened"
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if not builder.info.splits:
            if not request.download:
                raise UserError(
                    f"{request.spec}: not prepared in {_place(request)}: add --download (in Python:"
                    " download=True) to download and prepare it, or --data_dir if it is elsewhere"
                )
            doing = "downloaded and prepared"
            builder.download_and_prepare()
    except UserError:
        raise
    except tfds.core.DatasetNotFoundError as error:
        raise _not_found(request) from error
    except Exception as error:  # no network, disk full, manual download required, changed file, ...
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{request.spec}: cannot be {doing}: {reason}") from error
    return builder


def _place(request: Request) -> str:
    return request.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"


def _not_found(request: Request) -> UserError:
    """An error that lists what exists, or suggests similar names."""
    import tensorflow_datasets as tfds

    name = re.split("[/:]", request.target)[0]
    root = os.path.expanduser(_place(request))
    there = os.listdir(root) if os.path.isdir(root) else []
    if name in there:
        inside = ", ".join(sorted(os.listdir(os.path.join(root, name))))
        return UserError(
            f"{request.spec}: not among the versions and configs in {_place(request)}/{name}: "
            f"{inside}; write '{name}:VERSION' or '{name}/CONFIG'"
        )
    names = {*there, *tfds.list_builders(with_community_datasets=False)}
    close = difflib.get_close_matches(name, ["digits", "folder:", "npz:", *names])
    advice = f"did you mean {' or '.join(close)}?" if close else KNOWN
    return UserError(f"'{request.spec}': unknown source; {advice}")


def _keys(spec: str, info: Any) -> tuple[str, str | None]:
    """Keys of the image (`image`, or the only one) and of the label (`label`, or the only one)."""
    import tensorflow_datasets as tfds

    def only(kind: Any, *preferred: str, other_than: Any = ()) -> str | None:
        found = [key for key, each in info.features.items() if isinstance(each, kind)]
        found = [key for key in found if not isinstance(info.features[key], other_than)]
        known = [key for key in preferred if key in found] or (found if len(found) == 1 else [])
        return known[0] if known else None

    kinds = tfds.features
    image = only(kinds.Image, "image", other_than=kinds.LabeledImage)
    if image is None:
        raise UserError(
            f"{spec}: expected a feature 'image', or a single image; it has "
            f"{', '.join(info.features)}"
        )
    if (dtype := info.features[image].np_dtype) not in (np.uint8, np.uint16):
        raise UserError(f"{spec}: '{image}' has type {dtype}; expected uint8")
    return image, only(kinds.ClassLabel, "label", *(info.supervised_keys or ())[1:2])
