"""Images to embed: files, sources without files and, for `engine="ray"`, anything Arrow can open.

| data, for Ray | |
| --- | --- |
| `folder:PLACE` | see `tfvmf.data.folder`; a path, or a URI such as `s3://bucket/photos` |
| `files:PLACE` | a text file with one path or URI per line |
| `parquet:PLACE` | a file or a folder of them; images are bytes, or structs with `bytes` |
| `tfrecord:PLACE` | the same, with one `tf.train.Example` per image |

A record is called `FILE:ROW`; its label is the optional column `label`.
"""

import contextlib
import hashlib
import itertools
import os
import pathlib
import re
import struct
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tfvmf.data import Source
from tfvmf.data.base import Request
from tfvmf.data.folder import EXTENSIONS, arrange_files, files_identity, list_files
from tfvmf.data.images import read_images
from tfvmf.data.sources import parse
from tfvmf.errors import UserError

COLUMNS = ("image", "bytes", "image/encoded")  # default names of the column with the images
_FILES = {"parquet": re.compile(r"\.parquet$"), "tfrecord": re.compile(r"\.tfrecords?\b")}
Units = Mapping[int, range]  # number of an output file -> its rows


class FileImages:
    """Files by path or URI, with class names or None; images over `max_pixels` count as broken."""

    def __init__(
        self,
        paths: Sequence[str],
        labels: Sequence[str] | None,
        max_pixels: int,
        contents: Callable[[range], list[Any]] | None = None,
    ) -> None:
        self.paths, self.labels, self.max_pixels = paths, labels, max_pixels
        self.names = [_text(path) for path in paths]
        self._contents = contents  # positions -> paths, contents of files, or errors

    def read(self, rows: range, size: int) -> tuple[np.ndarray, list[str]]:
        """The pixels of the readable images, and the error of each image, or ""."""
        paths = self.paths[rows.start : rows.stop]
        contents = self._contents(rows) if self._contents else paths
        failed = {i: str(e) for i, e in enumerate(contents) if isinstance(e, Exception)}
        contents = [b"" if i in failed else content for i, content in enumerate(contents)]
        broken: dict[int, str] = {}
        pixels = read_images(contents, size, max_pixels=self.max_pixels, names=paths, broken=broken)
        broken |= failed
        errors = [_text(broken.get(place, "")) for place in range(len(rows))]
        return pixels[[not error for error in errors]], errors

    def identity(self) -> str:
        """A hash of the files' paths, sizes and times."""
        return files_identity(self.paths)

    def by_unit(
        self, units: Units, blocks: Iterator[pa.Table], empty: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        """Assigns embedded rows to their units, in order, and checks their file names."""
        rest = empty
        for unit, rows in units.items():
            done = rows.start
            while done < rows.stop:
                rest = rest if len(rest) else next(blocks)
                block, rest = rest[: rows.stop - done], rest[rows.stop - done :]
                if block["file"].to_pylist() != self.names[done : done + len(block)]:
                    raise RuntimeError(f"{self.names[done]}: Ray returned another row instead")
                yield unit, block
                done += len(block)
        if len(rest) or next(blocks, None) is not None:
            raise RuntimeError("Ray returned more rows than there are images")


class SourceImages:
    """Images of a source without files."""

    def __init__(self, source: Source) -> None:
        self._source, self.identity = source, source.fingerprint
        self.names = [source.file(row) for row in range(source.size)]
        self.labels = label_names(source.labels, source.class_names)

    def read(self, rows: range, size: int) -> tuple[np.ndarray, list[str]]:
        """The pixels, in the size of the source, and no errors."""
        return self._source.images(rows.start, rows.stop), [""] * len(rows)


class Records:
    """Parquet files or TFRecords.

    Attributes:
        files: {path in their file system: name as the user writes it}.
        units: One range per file, with about as many rows as the file.
        labels: None if there is no column `label`.
        columns: Columns to read: the images, and `label` if it exists.
    """

    def __init__(self, kind: str, data: str, column: str) -> None:
        found = _find(data, lambda name: bool(_FILES[kind].search(name)))
        self.kind, self.uris, self._infos = kind, [*found], [*found.values()]
        self.files = {info.path: uri for uri, info in found.items()}
        first = next((i for i, info in enumerate(self._infos) if info.size), 0)
        with readable(self.uris[first]):
            columns, rows = (_parquet if kind == "parquet" else _tfrecord)(self.uris[first])
        known = [name for name in ([column] if column else COLUMNS) if columns.get(name)]
        if not known:
            encoded = ", ".join(name for name, encoded in columns.items() if encoded)
            raise UserError(
                f"column={column}: {self.uris[first]} has no images in "
                f"{column or ' or '.join(COLUMNS)}; its columns of bytes: {encoded or 'none'}"
            )
        self.labels: list[str] | None = [] if "label" in columns else None
        self.columns = [known[0], *(["label"] if "label" in columns else [])]
        share = rows / max(self._infos[first].size, 1)
        self.units = [range(round(share * info.size)) for info in self._infos]

    def identity(self) -> str:
        """A hash of the files' paths, sizes and times, and of the columns."""
        told = [f"{info.path} {info.size} {info.mtime_ns}" for info in self._infos]
        return hashlib.sha256("\0".join([*self.columns, *told]).encode()).hexdigest()[:16]

    def by_unit(
        self, units: Units, blocks: Iterator[pa.Table], empty: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        """Assigns embedded rows to their files, in order, and names them `FILE:ROW`."""
        left, row = iter(units), 0
        unit = next(left)
        for block in blocks:
            for path, group in itertools.groupby(block["file"].to_pylist()):
                while self._infos[unit].path != path:
                    if not row:  # no rows in this file
                        yield unit, empty
                    unit, row = next(left), 0
                count = len([*group])
                part, block = block[:count], block[count:]
                names = [f"{self.uris[unit]}:{row + i}" for i in range(count)]
                yield unit, part.set_column(0, part.schema.field(0), [names])
                row += count
        for unit in left if row else units:
            yield unit, empty


def list_images(data: str | os.PathLike[str], split: str, max_pixels: int) -> FileImages | None:
    """The files of a folder, or one file; None for any other source."""
    spec = os.fspath(data)
    target = spec.removeprefix("folder:")
    path = pathlib.Path(target).expanduser()
    if spec == target and path.is_file() and path.suffix != ".npz":
        return FileImages([str(path)], None, max_pixels)
    if spec != target or path.is_dir():
        request = Request(spec=f"folder:{target}", target=target, split=split)
        paths, labels, classes, _ = list_files(request)
        return FileImages(paths, label_names(labels, classes), max_pixels)
    parse(data)
    return None


def find_images(
    data: str, split: str, max_pixels: int, *, column: str = ""
) -> FileImages | Records:
    """The images of `data`, for Ray."""
    scheme, _, place = data.partition(":")
    if scheme in _FILES:
        if split != "all":
            raise UserError(f"split={split}: {data} has no splits, expected all")
        return Records(scheme, data, column)
    if column:
        raise UserError(f"column={column}: {data} has no columns, only parquet: and tfrecord: do")
    if scheme == "files":
        with readable(data):
            system, path = file_system(place)
            lines = system.open_input_file(path).read().decode("utf-8", "surrogateescape")
        paths = [line.rstrip("\r") for line in lines.split("\n") if line.strip()]
        if not paths:
            raise UserError(f"{data}: no images in this list: expected one path or URI per line")
        return FileImages(paths, None, max_pixels)
    if scheme == "folder" and "://" in place:
        found = _find(data, lambda name: name.lower().endswith(EXTENSIONS))
        root = len(file_system(place)[1].rstrip("/")) + 1
        uris = {info.path[root:]: uri for uri, info in found.items()}
        request = Request(spec=data, target=place, split=split)
        listed = arrange_files(request, [*uris], uris.__getitem__)
        return FileImages(listed.paths, label_names(listed.labels, listed.classes), max_pixels)
    images = list_images(data, split, max_pixels)
    if images is None:
        raise UserError(f"{data}: engine=ray reads folder:, files:, parquet: and tfrecord: only")
    return images


def label_names(labels: np.ndarray | None, classes: list[str] | None) -> list[str] | None:
    """Class numbers as class names, or as text if there are none."""
    if labels is None:
        return None
    return [_text(classes[label] if classes else str(label)) for label in labels]


def _text(name: str) -> str:
    """A name with escapes for bytes that are not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def file_system(place: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" in place:
        return fs.FileSystem.from_uri(place)
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(place))


@contextlib.contextmanager
def readable(name: str, files: Mapping[str, str] = types.MappingProxyType({})) -> Iterator[None]:
    """Turns read errors, including Ray's, into one line that names the damaged file or `name`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException = error
        while inner := getattr(cause, "cause", None) or cause.__cause__:
            cause = inner
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        damaged = next((files[path] for path in files if path in str(error)), "")
        if not damaged and not isinstance(cause, OSError | pa.ArrowException):
            raise
        for uri in () if damaged else files.values():
            with readable(uri):  # Ray does not name the file whose footer is missing
                _parquet(uri)
        reason = " ".join((str(cause).splitlines() or [type(cause).__name__])[0].split())[:200]
        raise UserError(f"{damaged or name} cannot be read: {reason}") from error


def _find(data: str, wanted: Callable[[str], bool]) -> dict[str, fs.FileInfo]:
    """The files of `SCHEME:PLACE`, at any depth, sorted by name: {path or URI: information}."""
    place = data.partition(":")[2]
    with readable(data):
        system, root = file_system(place)
        infos = [system.get_file_info(root)]
        if infos[0].type == fs.FileType.NotFound or not place:
            raise UserError(f"{data}: there is no such file or folder")
        if infos[0].type == fs.FileType.Directory:
            inside = system.get_file_info(fs.FileSelector(root, recursive=True))
            names = ((info, info.path[len(root) :]) for info in inside if info.is_file)
            infos = [i for i, n in names if wanted(n) and not re.search(r"/(\.|__MACOSX/)", n)]
    if not infos:
        raise UserError(f"{data}: no such files in this folder")
    head, mark, query = place.partition("?") if "://" in place else (root, "", "")
    prefix = head.rstrip("/").removesuffix(root.rstrip("/"))
    return {f"{prefix}{i.path}{mark}{query}": i for i in sorted(infos, key=lambda i: i.path)}


def _parquet(uri: str) -> tuple[dict[str, bool], int]:
    """Columns of a file and whether they may hold encoded images; the number of rows."""
    system, path = file_system(uri)
    with system.open_input_file(path) as file:
        found = pq.ParquetFile(file)
        columns = {}
        for field in found.schema_arrow:
            kind = field.type
            if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                kind = kind.field("bytes").type
            columns[field.name] = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        return columns, found.metadata.num_rows


def _tfrecord(uri: str) -> tuple[dict[str, bool], int]:
    """The same for TFRecords; the number of rows is estimated from the length of the first."""
    import tensorflow as tf

    system, path = file_system(uri)
    with system.open_input_stream(path) as file:  # decompressed if it ends in .gz
        try:
            length, _ = struct.unpack("<QI", file.read(12))
            example = tf.train.Example.FromString(file.read(min(length, 2**28)))
        except Exception as error:  # struct's, or protobuf's own
            raise UserError(f"{uri}: its first record is not a tf.train.Example") from error
    columns = {name: bool(f.bytes_list.value) for name, f in example.features.feature.items()}
    return columns, system.get_file_info(path).size // (length + 16)
