"""Embedding on Ray Data: any number of processes, on one machine or a cluster.

Ray reads, moves and retries; `tfvmf.embedding.local` decodes and embeds. Rows return in the order
of the data to this process, the only one that writes, so each row is written exactly once. Model,
tfvmf and files must have the same paths on all machines.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
import ray
import ray.data

from tfvmf import cores
from tfvmf.embedding import local
from tfvmf.embedding.images import FileImages, Records, Units, file_system, readable
from tfvmf.errors import UserError
from tfvmf.serving import load

_BATCHES = 4  # batches per call of an actor
_BLOCK = 2**24  # maximum bytes of a block in transit, unless one image is larger
_STORE = 2**29  # bytes of the object store of a local Ray
_PATIENCE = 10  # seconds for a cluster to answer
_FETCHES = 16  # files that an actor fetches from a remote file system at a time


class Work(NamedTuple):
    """The arguments of an actor."""

    model: str
    settings: dict[str, Any]  # for `tfvmf.load`
    identity: str  # hash of the model
    schema: pa.Schema
    batch_size: int
    max_pixels: int
    column: str = ""  # column with the images; "" if rows have paths
    threads: int = 1  # threads of a forward pass


def embed_units(
    images: FileImages | Records, units: Units, work: Work, *, actors: int, address: str
) -> Generator[tuple[int, pa.Table], None, None]:
    """Yields the rows of the units, in order, as (unit, block of rows)."""
    if not units:
        return
    rows = _BATCHES * work.batch_size
    files = images.files if isinstance(images, Records) else {}
    with readable("data", files), _connected(address):
        every, nodes = ray.cluster_resources(), len(ray.nodes())
        work = work._replace(threads=max(1, int(every["CPU"]) // max(actors, nodes)))
        context = ray.data.DataContext.get_current().copy()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.target_max_block_size = _BLOCK
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its exceptions are enough
        with ray.data.DataContext.current(context):
            if isinstance(images, Records):
                work = work._replace(column=images.columns[0])
                dataset = _records(images, units)
            else:
                dataset = ray.data.from_arrow([*_paths(images, units, rows)])
            embedded = dataset.map_batches(
                _Actor,
                fn_constructor_args=(work,),
                batch_size=rows if work.column else None,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=actors),
                # Half of the processors are left for reading, which would otherwise wait forever.
                num_cpus=min(1.0, every["CPU"] / 2 / actors),
                num_gpus=min(1.0, every.get("GPU", 0) / actors),
            )
            blocks = embedded.iter_batches(batch_size=None, batch_format="pyarrow")
            found = (block.select(work.schema.names).cast(work.schema) for block in blocks)
            yield from images.by_unit(units, found, work.schema.empty_table())


class _Actor:
    """A process that holds the model."""

    def __init__(self, work: Work) -> None:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(work.threads)
        self._work, self._model = work, load(work.model, **work.settings)
        if local.model_identity(self._model) != work.identity:
            raise UserError(f"{work.model} on {socket.gethostname()} is not the driver's model")

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Maps rows with an image, or its path, to rows of the table."""
        work, paths = self._work, [os.fsdecode(path) for path in rows["path"].to_pylist()]
        given = rows[work.column].to_pylist() if work.column else paths
        labels = None
        if "label" in work.schema.names:
            labels = [_text(label) for label in rows["label"].to_pylist()]

        def contents(part: range) -> list[Any]:
            with ThreadPoolExecutor(_FETCHES) as threads:
                return [*threads.map(_content, given[part.start : part.stop])]

        fetched = work.column or any("://" in path for path in paths)
        images = FileImages(paths, labels, work.max_pixels, contents if fetched else None)
        whole = range(len(paths))
        blocks = local.embed_rows(images, whole, self._model, work.schema, work.batch_size)
        return pa.concat_tables(blocks)


def _content(given: Any) -> Any:
    """The content of an image, the path of a local file, or the error of reading it."""
    if isinstance(given, str) and "://" in given:
        try:
            system, path = file_system(given)
            with system.open_input_file(path) as file:
                return file.read()
        except (OSError, pa.ArrowException) as error:
            return error
    given = given.get("bytes") if isinstance(given, dict) else given
    return given if isinstance(given, str | bytes) else b""


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _paths(images: FileImages, units: Units, rows: int) -> Iterator[pa.Table]:
    """Paths and labels of some units, one table per call of an actor."""
    for unit in units.values():
        for part in (unit[start : start + rows] for start in range(0, len(unit), rows)):
            paths = images.paths[part.start : part.stop]
            cells = {"path": pa.array([os.fsencode(path) for path in paths], pa.binary())}
            if images.labels is not None:
                cells["label"] = pa.array(images.labels[part.start : part.stop], pa.string())
            yield pa.table(cells)


def _records(images: Records, units: Units) -> ray.data.Dataset:
    read = ray.data.read_parquet if images.kind == "parquet" else ray.data.read_tfrecords
    own: dict[str, Any] = {"partitioning": None} if images.kind == "parquet" else {}
    rows = read([images.uris[unit] for unit in units], include_paths=True, **own)
    return rows.select_columns([*images.columns, "path"])


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """A connection to Ray: the caller's own, to a cluster, or to one started here."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # else it warns about its own actors
    here: dict[str, Any] = {"num_cpus": cores.available(), "object_store_memory": _STORE}
    here["include_dashboard"] = False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
        ray.init(address or "local", **quiet, **({} if address else here))
    except Exception as error:  # Ray raises `Exception` itself, too
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"ray_address={address}: no connection to Ray: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()
