"""A table as a directory of Parquet files, which any number of processes may fill.

Each file has certain rows, whoever writes it: the files do not depend on the number of shards, nor
on the engine. A file is there whole or not at all, and what is missing is what is left to do.
"""

import contextlib
import functools
import itertools
import operator
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import tfvmf
from tfvmf.data import load_source
from tfvmf.embedding import local, remote, table
from tfvmf.errors import UserError
from tfvmf.files import replacing, write_json, writing
from tfvmf.progress import Progress
from tfvmf.settings import MAX_PIXELS

ENGINES = ("local", "ray")
JOB = "job.json"  # what the files of a directory are of
# A directory has about this many files, of rows between these bounds.
FILES, LEAST_ROWS, MOST_ROWS = 4096, 256, 8192


def embed_shard(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    shard: str = "0/1",
    engine: str = "local",
    actors: int = 2,
    ray_address: str = "",
    column: str = "",
    checkpoint: str | os.PathLike[str] = "",
    split: str = "all",
    data_dir: str | os.PathLike[str] = "",
    download: bool = False,
    batch_size: int = 64,
    max_pixels: int = MAX_PIXELS,
    trust_model: bool = False,
) -> local.Embedded:
    """Embeds images, or a part of them, into a directory that `read_table` reads.

    The same call continues with what is missing.

    Args:
        model: See `embed`, as for all that is not explained here.
        data: With `engine="ray"` see `tfvmf.embedding.remote`.
        output: The directory; it is made if need be.
        shard: `3/16` is part 3 of the parts 0 to 15.
        engine: `local`, or `ray`.
        actors: With Ray, the processes that embed.
        ray_address: With Ray, the cluster; by default one is started on this machine.
        column: With Ray, the column of Parquet files or TFRecords that has the images.
        checkpoint: Of a run.
        split: The part of the data.
        data_dir: Where TFDS data sets are prepared.
        download: Download and prepare a TFDS data set that is not there.
        batch_size: Images per forward pass.
        max_pixels: A larger image is not decoded: its row has an error.
        trust_model: See `tfvmf.load`.

    Returns:
        The counts of the shard, without `drift`.

    Raises:
        UserError: A mistake in the arguments, found before the model is loaded where possible; or
            the directory holds files of another job.
    """
    number, of = table.parse_shard(shard)
    directory = table.check_directory(output)
    if batch_size < 1 or actors < 1 or engine not in ENGINES:
        given = f"batch_size={batch_size}, actors={actors}, engine={engine}"
        raise UserError(f"{given}: expected 1 or more, 1 or more, one of {', '.join(ENGINES)}")
    on_ray = import_on_ray() if engine == "ray" else None
    find = functools.partial(remote.find_images, column=column) if on_ray else local.list_images
    images: Any = find(os.fspath(data), split, max_pixels)
    settings: dict[str, Any] = {"checkpoint": os.fspath(checkpoint), "trust_model": trust_model}
    loaded = local.load(model, **settings)
    size = local.image_size(loaded)
    images = images or local.SourceImages(
        load_source(
            data,
            split,
            data_dir=data_dir,
            download=download,
            image_size=size,
            max_pixels=max_pixels,
        )
    )
    units = images.units if isinstance(images, remote.Records) else file_rows(len(images.names))
    plan = {
        "model": local.model_identity(loaded),
        "data": os.fspath(data),
        "split": split,
        "files": len(units),
        "contents": images.identity(),
        "max_pixels": max_pixels,
        "tfvmf": tfvmf.__version__,
    }
    outputs = loaded.embed(np.empty((0, size, size, 3), np.uint8))
    schema = table.table_schema(outputs, labels=images.labels is not None)
    _claim(directory, plan)
    own = range(len(units))[number * len(units) // of : (number + 1) * len(units) // of]
    missing = {unit: units[unit] for unit in own if not _file(directory, unit).exists()}
    rows = (
        (unit, block)
        for unit, part in missing.items()
        for block in local.embed_rows(images, part, loaded, schema, batch_size)
    )
    if on_ray:
        path = str(pathlib.Path(loaded.path).absolute())
        work = remote.Work(path, settings, plan["model"], schema, batch_size, max_pixels)
        rows = on_ray.embed_units(images, missing, work, actors=actors, address=ray_address)
    total, left = (sum(len(units[unit]) for unit in some) for some in (own, missing))
    bar = Progress(total, initial=total - left, unit="image", description="embedding")
    with bar, contextlib.closing(rows):
        for unit, pairs in itertools.groupby(rows, operator.itemgetter(0)):
            blocks = functools.partial(_row_groups, (block for _, block in pairs), bar)
            with replacing(_file(directory, unit)) as file:
                table.write_table(file, ".parquet", schema, 0, blocks)
    return _count([_file(directory, unit) for unit in own], directory, schema)


def import_on_ray() -> Any:
    """The module `on_ray`; UserError if Ray is not installed."""
    try:
        from tfvmf.embedding import on_ray
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise UserError("engine=ray: Ray is not installed: pip install 'tfvmf[ray]'") from error
    return on_ray


def file_rows(count: int) -> list[range]:
    """The rows of each file."""
    rows = min(max(-(-count // FILES), LEAST_ROWS), MOST_ROWS)
    return [range(count)[start : start + rows] for start in range(0, count, rows)]


def _file(directory: pathlib.Path, unit: int) -> pathlib.Path:
    return directory / f"{unit:08}.parquet"


def _claim(directory: pathlib.Path, plan: dict[str, Any]) -> None:
    """Notes what the directory is of, or checks that what is there is of the same."""
    path = directory / JOB
    with writing(f"output={directory}"):
        directory.mkdir(exist_ok=True)
        if not path.exists():
            if any(directory.glob("*.parquet")):
                raise UserError(f"output={directory} holds Parquet files without a {JOB}")
            # A link is there whole, or refused because another shard was first.
            with tempfile.TemporaryDirectory(dir=directory, prefix=".") as place:
                write_json(pathlib.Path(place, JOB), plan)
                with contextlib.suppress(FileExistsError):
                    os.link(pathlib.Path(place, JOB), path)
    if changed := local.differences(path, plan):
        raise UserError(
            f"output={directory} holds shards of another job: {changed}; choose another output"
        )


def _row_groups(
    blocks: Iterator[pa.Table], bar: Progress, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Blocks of some rows as blocks of about `table.ROWS`."""
    held: list[pa.Table] = []
    for block in blocks:
        held.append(block.select(list(columns)))
        bar.update(len(block))
        if sum(map(len, held)) >= table.ROWS:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _count(
    files: Sequence[pathlib.Path], directory: pathlib.Path, schema: pa.Schema
) -> local.Embedded:
    wanted = [name for name in ("error", "concentration", "accept") if name in schema.names]
    images, good, accepted, lowest, highest = 0, 0, 0, np.inf, -np.inf
    for file in files:
        for part in table.read_table(file).parts(*wanted):
            fine = part["error"] == ""
            images, good = images + len(fine), good + int(fine.sum())
            kappa = part["concentration"][fine]
            lowest = min(lowest, float(kappa.min(initial=np.inf)))
            highest = max(highest, float(kappa.max(initial=-np.inf)))
            accepted += int(part["accept"][fine].sum()) if "accept" in part else 0
    return local.Embedded(
        output=directory,
        images=images,
        broken=images - good,
        rejected=good - accepted if "accept" in wanted else None,
        lowest=lowest if good else np.nan,
        highest=highest if good else np.nan,
    )
