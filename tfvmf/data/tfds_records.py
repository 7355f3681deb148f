"""The records of a prepared TFDS data set, straight from its files.

Read without tf.data: that is several times as fast for small images, and leaves TensorFlow
untouched, which must not have run anything when a program sets up its devices and strategy.
"""

import os
import struct
from collections.abc import Iterator
from typing import Any

from tfvmf.errors import UserError

# A TFRecord is its length (8 bytes), a checksum of that (4), the data, a checksum of that (4).
_HEADER, _FOOTER = struct.Struct("<QI"), 4
# Records fetched at a time from an ArrayRecord file, which can be indexed.
_BLOCK = 256


def read_records(file_format: str, parts: list[Any]) -> Iterator[bytes]:
    """Serialized `tf.train.Example`s in the order in which they are stored.

    Args:
        file_format: `tfrecord` or `array_record`.
        parts: TFDS's file instructions, with `filename`, `skip` and `take` (-1 for the rest).

    Raises:
        UserError: a file is missing, damaged, cut off, or of another format.
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
            yield from readers[file_format](part.filename, part.skip, stop)
        except OSError as error:
            raise UserError(f"{part.filename}: cannot be read: {error.strerror}") from error


def _read_tfrecord(path: str, start: int, stop: int) -> Iterator[bytes]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for index in range(stop):
            header = file.read(_HEADER.size)
            length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else size
            if file.tell() + length + _FOOTER > size:
                raise UserError(
                    f"{path}: damaged or cut off at record {index} of {stop}; prepare it anew"
                )
            if index < start:
                file.seek(length, os.SEEK_CUR)
            else:
                yield file.read(length)
            file.seek(_FOOTER, os.SEEK_CUR)


def _read_array_record(path: str, start: int, stop: int) -> Iterator[bytes]:
    from array_record.python import array_record_module  # type: ignore[import-untyped]

    os.stat(path)  # a missing file is an OSError here, and a crash in the reader
    try:
        reader = array_record_module.ArrayRecordReader(path)
        for first in range(start, stop, _BLOCK):
            yield from reader.read(list(range(first, min(first + _BLOCK, stop))))
        reader.close()
    except (ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: damaged or cut off: {reason}; prepare it anew") from error
