"""The table of results per image: one schema, as Parquet, NumPy or CSV. No TensorFlow here.

| column | |
| --- | --- |
| `file` | the path, or `SOURCE/SPLIT:INDEX` if the source has no files |
| `error` | why the file could not be read, or ""; with an error, the outputs below are null |
| `label` | name of the class, or its number if classes have no names |
| `features` | float32 [f] |
| `mean_direction` | float32 [d], unit length |
| `levels` | float32 [l], if requested: means and deviations of the maps of all levels |
| `concentration`, `familiarity`, `confidence` | float32 |
| `accept` | bool |
| `class`, `class_probability` | the name of the predicted class, and float32 |

Columns that a model cannot fill are absent. A broken file has a label too. CSV has no vectors.
Parquet or npz files of other programs need only `features` or `mean_direction`: `file` is then the
row number, and `error` is "".
"""

import contextlib
import csv
import io
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfvmf.data.cache import write_npy
from tfvmf.errors import UserError
from tfvmf.files import csv_text, csv_text_back, open_array, open_npz

TEXTS = ("file", "error", "label", "class")
VECTORS = ("features", "mean_direction", "levels")
DIRECTIONS = VECTORS[:2]  # tables of other programs need one of these
COLUMNS = (
    *("file", "error", "label", *VECTORS, "concentration"),
    *("familiarity", "confidence", "accept", "class", "class_probability"),
)
ENGINES = ("local", "ray")
ROWS = 8192  # rows of a group in a Parquet file, and rows in memory when reading or writing

Columns = dict[str, np.ndarray]
# Column names -> tables of some rows each, in order. May be called several times.
Blocks = Callable[[Sequence[str]], Iterator[pa.Table]]


class Table:
    """A table in a file, or in a directory of Parquet files, read on demand.

    `table["concentration"]` is one whole column; `parts` streams. Text is an object array of str,
    "" for null; vectors are [N, width]; for a broken file numbers are NaN and `accept` is False.
    """

    def __init__(
        self, path: pathlib.Path, columns: Sequence[str], rows: int, blocks: Blocks
    ) -> None:
        self.path = path
        self.columns = tuple(name for name in COLUMNS if name in ("file", "error", *columns))
        self._stored, self._rows, self._blocks = tuple(columns), rows, blocks

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, name: str) -> np.ndarray:
        parts = [part[name] for part in self.parts(name)]
        return np.concatenate(parts) if parts else np.empty(0, object if name in TEXTS else float)

    def parts(self, *columns: str) -> Iterator[Columns]:
        """The rows in order, at most `ROWS` at a time; all columns by default."""
        if missing := [name for name in columns if name not in self.columns]:
            raise UserError(
                f"{self.path} has no column {', '.join(missing)}: it has {', '.join(self.columns)}"
            )
        names, row = columns or self.columns, 0
        stored = [name for name in names if name in self._stored]
        with _damaged(self.path):
            for block in self._blocks(stored or [n for n in self.columns if n in self._stored][:1]):
                part = {name: to_numpy(block, name) for name in stored}
                made = {"file": range(row, row := row + len(block)), "error": [""] * len(block)}
                for name in (name for name in names if name not in part):
                    part[name] = np.array([str(text) for text in made[name]], object)
                yield part


def read_table(path: str | os.PathLike[str]) -> Table:
    """Opens a table of `tfvmf embed` or another program; UserError if it is damaged or not one.

    `path` is a `.parquet`, `.npz` or `.csv` file, or a directory of `.parquet` files by name.
    """
    path = pathlib.Path(path).expanduser()
    opener = {".npz": _open_npz, ".csv": _open_csv}.get(path.suffix, _open_parquet)
    with _damaged(path):
        columns, rows, blocks = opener(path)
    table = Table(path, columns, rows, blocks)
    if not {"file", "error"} <= {*columns} and not {*DIRECTIONS} & {*columns}:
        raise UserError(
            f"{path} is not a table of tfvmf embed: it has no columns file and error, and neither "
            f"{' nor '.join(DIRECTIONS)}"
        )
    return table


def check_output(
    output: str | os.PathLike[str], *, shard: str = "", engine: str = "local"
) -> tuple[int, int, pathlib.Path]:
    """The output of `embed`: (3, 16, path) for part 3 of 16, (0, 0, path) for a file."""
    if engine not in ENGINES:
        raise UserError(f"engine={engine}: expected one of {', '.join(ENGINES)}")
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", shard or "0/1", re.ASCII)
    if not found or not int(found[1]) < int(found[2]):
        raise UserError(f"shard={shard}: expected K/N with K from 0 to N - 1, such as 3/16")
    path, endings = pathlib.Path(output).expanduser(), ", ".join(_WRITERS)
    if shard or engine == "ray":
        known = path.is_dir() if path.exists() else path.parent.is_dir()
        if not known or path.suffix in _WRITERS:
            raise UserError(
                f"output={path}: expected a directory of shards, or a new name without {endings} "
                "in an existing folder"
            )
        return int(found[1]), int(found[2]), path
    if path.suffix not in _WRITERS or not path.parent.is_dir() or path.is_dir():
        raise UserError(
            f"output={path}: expected a name that ends in {endings}, in an existing folder"
        )
    return 0, 0, path


def table_schema(outputs: Mapping[str, np.ndarray], *, labels: bool) -> pa.Schema:
    """The columns of a table with these model outputs, and labels."""
    fields = []
    for name in COLUMNS:
        if name in VECTORS and name in outputs:
            fields.append(pa.field(name, pa.list_(pa.float32(), outputs[name].shape[1])))
        elif name in ("file", "error") or name in outputs or (name == "label" and labels):
            kind = pa.string() if name in TEXTS else pa.float32()
            fields.append(pa.field(name, pa.bool_() if name == "accept" else kind))
    return pa.schema(fields)


def to_arrow(
    schema: pa.Schema, texts: Mapping[str, Sequence[str]], outputs: Mapping[str, np.ndarray]
) -> pa.Table:
    """Rows of a table: texts of N images, and model outputs for those without an error."""
    good = np.array([not error for error in texts["error"]], bool)
    arrays = []
    for field in schema:
        if field.name in texts:
            arrays.append(pa.array(texts[field.name], field.type))
            continue
        values = outputs[field.name]
        spread = np.zeros((len(good), *values.shape[1:]), values.dtype)
        spread[good] = values
        if field.name in VECTORS:
            flat = pa.array(spread.reshape(-1), pa.float32())
            size = values.shape[1]
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, size, mask=pa.array(~good)))
        else:
            arrays.append(pa.array(spread, field.type, mask=~good))
    return pa.table(arrays, schema=schema)


def to_numpy(block: pa.Table, name: str) -> np.ndarray:
    """One column of some rows, see `Table`."""
    column = block[name].combine_chunks()
    if name in TEXTS:
        texts = ("" if text is None else str(text) for text in column.to_pylist())
        return np.array(list(texts), object)
    if name == "accept":
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
    if name not in VECTORS:
        return column.to_numpy(zero_copy_only=False).astype(np.float32)
    good = column.is_valid().to_numpy(zero_copy_only=False)
    flat = column.flatten().to_numpy(zero_copy_only=False)  # without the null rows
    size = column.type.list_size if pa.types.is_fixed_size_list(column.type) else -1
    values = flat.reshape(int(good.sum()), size if good.any() else max(size, 0))
    spread = np.full((len(good), values.shape[1]), np.nan, np.float32)
    spread[good] = values
    return spread


def write_table(file: BinaryIO, kind: str, schema: pa.Schema, rows: int, blocks: Blocks) -> None:
    """Writes a table of `rows` rows, block by block; `kind` is its extension."""
    _WRITERS[kind](file, schema, rows, blocks)


def _write_parquet(file: BinaryIO, schema: pa.Schema, rows: int, blocks: Blocks) -> None:
    del rows
    repeated = [name for name in ("error", "label", "class") if name in schema.names]
    with pq.ParquetWriter(file, schema, use_dictionary=repeated) as writer:
        for block in blocks(schema.names):
            writer.write_table(block)


def _write_npz(file: BinaryIO, schema: pa.Schema, rows: int, blocks: Blocks) -> None:
    # `np.savez` would need all arrays at once. Here the blocks are read once per column.
    with zipfile.ZipFile(file, "w") as archive:
        for field in schema:
            name = field.name
            shape = (rows, field.type.list_size) if name in VECTORS else (rows,)
            dtype: np.dtype = np.dtype(bool if name == "accept" else np.float32)
            if name in TEXTS:
                lengths = (len(text) for block in blocks([name]) for text in to_numpy(block, name))
                dtype = np.dtype(f"<U{max(lengths, default=0) or 1}")
            # A ZipInfo without a time, so that the same table gives the same bits.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                write_npy(member, shape, (to_numpy(b, name) for b in blocks([name])), dtype)


def _write_csv(file: BinaryIO, schema: pa.Schema, rows: int, blocks: Blocks) -> None:
    del rows
    names = [name for name in schema.names if name not in VECTORS]
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)  # with \r\n: only then does Python 3.11 quote a \r within a cell
    writer.writerow(names)
    for block in blocks(names):
        columns = [_csv_cells(block, name) for name in names]
        writer.writerows(zip(*columns, strict=True))
    text.detach()


_WRITERS = {".parquet": _write_parquet, ".npz": _write_npz, ".csv": _write_csv}


def _csv_cells(block: pa.Table, name: str) -> Iterator[str]:
    if name == "accept":
        words = {True: "true", False: "false", None: ""}
        return (words[value] for value in block[name].to_pylist())
    values = to_numpy(block, name)
    if name in TEXTS:
        return map(csv_text, values)
    return ("" if np.isnan(value) else str(value) for value in values)  # the shortest exact form


def _open_parquet(path: pathlib.Path) -> tuple[Sequence[str], int, Blocks]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: there are no .parquet files in this folder")
    found = [pq.read_metadata(file) for file in files]
    columns = found[0].schema.to_arrow_schema().names
    for file, other in zip(files, found, strict=True):
        if other.schema.to_arrow_schema().names != columns:
            raise UserError(f"{file} has other columns than {files[0].name}")

    def blocks(names: Sequence[str]) -> Iterator[pa.Table]:
        for file in files:
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(ROWS, columns=list(names)):
                    yield pa.Table.from_batches([batch])

    return columns, sum(each.num_rows for each in found), blocks


def _open_npz(path: pathlib.Path) -> tuple[Sequence[str], int, Blocks]:
    with open_npz(path) as archive:
        columns = [name.removesuffix(".npy") for name in archive.namelist()]
        known = [name for name in COLUMNS if name in columns]
        found = {_npy(archive, name)[1][0] for name in known}
    if len(found) > 1:
        raise ValueError(f"its columns have {' and '.join(map(str, sorted(found)))} rows")
    rows = found.pop() if found else 0

    def blocks(names: Sequence[str]) -> Iterator[pa.Table]:
        # `np.load` would read whole columns.
        with open_npz(path) as archive:
            members = {name: _npy(archive, name) for name in names}
            for start in range(0, rows, ROWS):
                count = min(ROWS, rows - start)
                yield pa.table({name: _rows(count, *each) for name, each in members.items()})

    return columns, rows, blocks


def _npy(archive: zipfile.ZipFile, name: str) -> tuple[IO[bytes], tuple[int, ...], np.dtype]:
    """An array in an npz file: the stream at its content, its shape and its type."""
    shape, dtype, by_columns, file = open_array(archive, name)
    if len(shape) != 1 + (name in VECTORS):
        expected = "one row of numbers" if name in VECTORS else "one value"
        raise ValueError(f"{name} is {dtype} {list(shape)}: expected {expected} per image")
    if by_columns and len(shape) > 1:
        raise ValueError(f"{name} is stored by columns: save np.ascontiguousarray({name})")
    return file, shape, dtype


def _rows(count: int, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype) -> pa.Array:
    size = count * int(np.prod(shape[1:])) * dtype.itemsize
    if len(content := file.read(size)) < size:
        raise EOFError("it ends too early")
    values = pa.array(np.frombuffer(content, dtype).astype(dtype.newbyteorder("="), copy=False))
    return values if len(shape) == 1 else pa.FixedSizeListArray.from_arrays(values, shape[1])


def _open_csv(path: pathlib.Path) -> tuple[Sequence[str], int, Blocks]:
    def lines() -> Iterator[list[str]]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from csv.reader(file, strict=True)

    columns = next(lines(), [])

    def blocks(names: Sequence[str]) -> Iterator[pa.Table]:
        found = lines()
        next(found)
        while chunk := [line for _, line in zip(range(ROWS), found, strict=False)]:
            cells = dict(zip(columns, zip(*chunk, strict=True), strict=True))
            yield pa.table({name: _from_cells(cells[name], name) for name in names})

    return columns, sum(1 for _ in lines()) - 1, blocks


def _from_cells(cells: Sequence[str], name: str) -> pa.Array:
    if name in TEXTS:
        return pa.array([csv_text_back(cell) for cell in cells], pa.string())
    if name == "accept":
        return pa.array([cell == "true" for cell in cells], pa.bool_())
    return pa.array([float(cell) if cell else None for cell in cells], pa.float32())


@contextlib.contextmanager
def _damaged(path: pathlib.Path) -> Iterator[None]:
    """Turns any error of a damaged file into one line."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: there is no such file; expected a table of tfvmf embed"
        ) from error
    except (OSError, ValueError, KeyError, EOFError, csv.Error, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{path} is not a table of tfvmf embed, or damaged: {reason}") from error
