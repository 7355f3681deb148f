"""Image data sets of tensorflow-datasets: `cifar10`, `mnist`, any other by name.

Records are read by TensorFlow's own reader, which checks both checksums of each, and decoded by
Pillow. Not by tf.data: nothing may run in TensorFlow before a program has set up its devices and
strategy. The 50,000 images of CIFAR-10 take 5.2 s of processor time, 0.1 s of it for the records,
7.4 s in batches of `tfds.as_numpy`, and 8.4 s of `tfds.data_source`, which needs ArrayRecord files.
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

# name, name/config, name:1.0.0, name/config:1.*.*
NAME = re.compile(r"[A-Za-z]\w*(/[\w.\-]+)?(:[\d*]+\.[\d*]+\.[\d*]+)?")

# Records decoded at a time, and records fetched at a time from a file that can be indexed.
_CHUNK, _BLOCK = 512, 256


def load(request: Request) -> Source:
    """A data set of tensorflow-datasets that is prepared in `data_dir`.

    With `download` it is downloaded and prepared there first, if need be; otherwise that is an
    error.

    Where there is an `id` feature the examples come in its order, which for CIFAR is the official
    one; otherwise as they are stored. A split expression (`train[:45000]`) counts records as they
    are stored, before that. The label is the feature `label` (the fine one in CIFAR-100).

    A set larger than `memory_limit` is decoded once into a cache on disk (see `cache`).
    """
    builder = open_builder(request)
    reader = _Reader(request, builder)
    shape = (reader.size, request.image_size, request.image_size, 3)
    images: np.ndarray
    if request.fits(reader.size):
        images = np.empty(shape, np.uint8)
        start = 0
        for chunk in reader.chunks():
            images[start : start + len(chunk)] = chunk
            start += len(chunk)
        columns = reader.columns()
    else:
        images, columns = cache.load_or_build(
            reader.identity(), shape, chunks=reader.chunks, columns=reader.columns
        )
    labels, about = columns.get("labels"), {}
    if labels is not None and (labels >= 0).any():  # secret ones of a test set are -1 everywhere
        feature = builder.info.features[reader.label_key]
        about = {
            "labels": labels,
            "class_names": list(feature.names) if feature.num_classes else None,
            "num_classes": feature.num_classes or int(labels.max()) + 1,
        }
    source = ArraySource(request, images, order=columns.get("order"), **about)
    height, width, _ = builder.info.features[reader.image_key].shape
    source.native_size = min(height, width) if height and width else None
    return source


class _Reader:
    """Decodes the records of one split in the order in which they are stored."""

    def __init__(self, request: Request, builder: Any) -> None:
        import tensorflow as tf

        self._request = request
        self._info = builder.info
        self._split = _split_info(request, builder)
        self._parse_example = tf.train.Example.FromString
        self.image_key = _image_key(request.spec, self._info.features)
        self._has_id = "id" in self._info.features
        self._ids: list[str] = []
        self._labels: list[int] = []
        self.label_key = _label_key(self._info)
        self.size: int = self._split.num_examples

    def identity(self) -> dict[str, Any]:
        """What tells a cache of these records from all others."""
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
        """Images uint8 [n, H, W, 3]; takes down labels and ids on the way."""
        where = f"{self._request.spec} ({self._request.split})"
        file_format = self._info.file_format.value
        records = _read_records(file_format, self._split.file_instructions)
        self._ids, self._labels = [], []
        done = 0
        with Progress(self.size, unit="image", description=f"reading {where}", brief=True) as bar:
            while batch := list(itertools.islice(records, _CHUNK)):
                names = [f"{where}, record {done + index}" for index in range(len(batch))]
                encoded = [self._parse(*pair) for pair in zip(batch, names, strict=True)]
                yield read_images(
                    encoded,
                    self._request.image_size,
                    max_pixels=self._request.max_pixels,
                    names=names,
                )
                done += len(batch)
                bar.update(len(batch))

    def columns(self) -> dict[str, np.ndarray]:
        """Of the records read: `order` int [N] if they have ids, `labels` int [N] in that order.

        Records were shuffled when the set was prepared; an id (`train_00000`) tells the official
        order.
        """
        columns = {}
        if self._has_id:
            keys = [_natural(each) for each in self._ids]
            columns["order"] = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        if self.label_key:
            labels = np.array(self._labels, np.int64)
            columns["labels"] = labels[columns["order"]] if self._has_id else labels
        return columns

    def _parse(self, record: bytes, name: str) -> bytes:
        """The encoded image of a record."""
        try:
            feature = self._parse_example(record).features.feature
            if self.label_key:
                self._labels.append(feature[self.label_key].int64_list.value[0])
            if self._has_id:
                value = feature["id"]
                text = [each.decode() for each in value.bytes_list.value]
                self._ids.append(text[0] if text else str(value.int64_list.value[0]))
            return feature[self.image_key].bytes_list.value[0]
        except Exception as error:
            kind = type(error).__name__
            raise UserError(f"{name}: damaged ({kind}); prepare it again") from error


def _natural(text: str) -> list[str | int]:
    """A key that sorts `a2` before `a10`."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", text)]


def _read_records(file_format: str, parts: list[Any]) -> Iterator[bytes]:
    """Serialized `tf.train.Example`s in the order in which they are stored.

    `parts` are TFDS's file instructions, with `filename`, `skip` and `take` (-1 for the rest).
    """
    readers = {"tfrecord": _read_tfrecord, "array_record": _read_array_record}
    if file_format not in readers:
        raise UserError(
            f"{os.path.dirname(parts[0].filename)}: prepared in the format {file_format}; "
            f"prepare it as {' or '.join(readers)}"
        )
    for part in parts:
        stop = part.examples_in_shard if part.take < 0 else part.skip + part.take
        try:
            os.stat(part.filename)  # a missing file is an OSError here, and a crash in a reader
            yield from readers[file_format](part.filename, part.skip, stop)
        except OSError as error:
            raise UserError(f"{part.filename}: cannot be read: {error.strerror}") from error


def _read_tfrecord(path: str, start: int, stop: int) -> Iterator[bytes]:
    import tensorflow as tf

    def deprecated(record: Any) -> bool:
        # It is, in favor of tf.data, which would run operations.
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
        raise UserError(
            f"{path}: record {index} of {stop} is damaged or cut off ({error.message}); prepare it "
            "again"
        ) from error


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
    """TFDS's builder of a prepared data set; `request.download` prepares what is not there."""
    import tensorflow_datasets as tfds

    if not NAME.fullmatch(request.target):
        raise UserError(f"{request.spec}: not the name of a data set; write name or name/config")
    data_dir = os.path.expanduser(request.data_dir) or None
    if data_dir and not os.path.isdir(data_dir) and not request.download:
        raise UserError(f"data_dir={request.data_dir}: there is no such folder")
    # With a version TFDS prefers the newest that fits among the files to that of its own code.
    name = request.target if ":" in request.target else f"{request.target}:*.*.*"
    doing = "opened"
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if not builder.info.splits:
            if not request.download:
                raise _not_found(request, known=True)
            doing = "downloaded and prepared"
            builder.download_and_prepare()
    except UserError:
        raise
    except tfds.core.DatasetNotFoundError as error:
        raise _not_found(request, known=False) from error
    except Exception as error:  # no network, no room, a download by hand, a changed file, ...
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{request.spec}: cannot be {doing}: {reason}") from error
    return builder


def _not_found(request: Request, *, known: bool) -> UserError:
    """Says what is there, what was meant, or how to prepare what is not there."""
    import tensorflow_datasets as tfds

    where = request.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    name = re.split("[/:]", request.target)[0]
    root = os.path.expanduser(where)
    there = sorted(entry.name for entry in os.scandir(root)) if os.path.isdir(root) else []
    if known:
        return UserError(
            f"{request.spec}: not prepared in {where}: add --download (in Python: download=True) "
            "to download and prepare it, or --data_dir if it is elsewhere"
        )
    if name in there:
        inside = sorted(entry.name for entry in os.scandir(os.path.join(root, name)))
        return UserError(
            f"{request.spec}: not among the versions and configs in {os.path.join(where, name)}: "
            f"{', '.join(inside)}; write '{name}:VERSION' or '{name}/CONFIG'"
        )
    names = {*there, *tfds.list_builders(with_community_datasets=False)}
    close = difflib.get_close_matches(name, ["digits", "folder:", "npz:", *names])
    advice = "known are digits, folder:/path, npz:/path and the names of TFDS data sets"
    if close:
        advice = f"did you mean {' or '.join(close)}?"
    return UserError(f"'{request.spec}': unknown source; {advice}")


def _split_info(request: Request, builder: Any) -> Any:
    splits = builder.info.splits
    try:
        split = splits[request.split]
    except Exception as error:
        raise UserError(
            f"{request.spec}: unknown split '{request.split}'; it has {', '.join(splits)}, and "
            "parts of them like 'train[:90%]'"
        ) from error
    if not split.num_examples:
        raise UserError(f"{request.spec}: split '{request.split}' holds no images")
    return split


def _image_key(spec: str, features: Any) -> str:
    """The feature `image`, or the only one that is an image."""
    import tensorflow_datasets as tfds

    keys = [
        key
        for key, feature in features.items()
        if isinstance(feature, tfds.features.Image)
        and not isinstance(feature, tfds.features.LabeledImage)
    ]
    key = "image" if "image" in keys else keys[0] if len(keys) == 1 else None
    if key is None:
        raise UserError(
            f"{spec}: expected a feature 'image', or a single image; it has {', '.join(features)}"
        )
    if features[key].np_dtype not in (np.uint8, np.uint16):
        raise UserError(f"{spec}: '{key}' has type {features[key].np_dtype}; expected uint8")
    return key


def _label_key(info: Any) -> str | None:
    """The feature `label`, the second supervised key, or the only one that is a class label."""
    import tensorflow_datasets as tfds

    features = info.features
    keys = [k for k, feature in features.items() if isinstance(feature, tfds.features.ClassLabel)]
    supervised = info.supervised_keys[1] if info.supervised_keys else None
    for key in ("label", supervised):
        if key in keys:
            return key
    return keys[0] if len(keys) == 1 else None
