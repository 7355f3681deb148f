"""Embeds images into a table: one file, or a directory of Parquet files from many processes.

Each file holds a fixed range of rows and is written atomically; only missing files are computed. So
a stopped run continues, and the files do not depend on the number of shards or the engine.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import itertools
import json
import operator
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import tfvmf
from tfvmf.data import contact_sheet, load_source
from tfvmf.data.contact_sheet import TILE, Block, Picture
from tfvmf.embedding import table
from tfvmf.embedding.images import FileImages, SourceImages, find_images, list_images
from tfvmf.errors import UserError
from tfvmf.files import fingerprint, lock, replacing, write_json, writing
from tfvmf.progress import Progress
from tfvmf.serving import EmbeddingModel, load
from tfvmf.settings import MAX_PIXELS

PART_ROWS = 1024  # rows per part: a killed run loses at most these
# A directory has about FILES files, with LEAST_ROWS to MOST_ROWS rows each.
FILES, LEAST_ROWS, MOST_ROWS = 4096, 256, 8192
JOB = "job.json"  # describes the content of a directory
DRAWN = 50  # images on each half of the sheet: least certain, most certain
DRIFT = 0.01  # p-value below which confidences do not look like in-distribution images


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedded:
    """The result of `embed`."""

    output: pathlib.Path  # the table
    images: int  # number of rows
    broken: int  # rows with an error
    rejected: int | None  # neither broken nor accepted; None if the model is not calibrated
    lowest: float  # lowest concentration; NaN if all are broken
    highest: float
    sheet: pathlib.Path | None = None
    drift: "Drift | None" = None  # None if the model is not calibrated, or all are broken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """Whether the confidences of a batch look like those of in-distribution images."""

    p_value: float  # two-sample Kolmogorov-Smirnov test; small if they do not
    below: float  # share of images that are not accepted
    alpha: float | None = None  # share expected in distribution, if the model has one

    def __str__(self) -> str:
        seen = "look" if self.p_value >= DRIFT else "do NOT look"
        expected = "" if self.alpha is None else f", expected {self.alpha:.1%}"
        # A model is more certain about its training images.
        few = self.p_value < DRIFT and self.alpha is not None and self.below < self.alpha
        return (
            f"confidences {seen} like in-distribution images: Kolmogorov-Smirnov "
            f"p = {self.p_value:.2g}; rejected {self.below:.1%}{expected}"
            + (" (so few is usual for training images)" if few else "")
        )


def measure_drift(
    confidence: np.ndarray, accept: np.ndarray, calibration: Mapping[str, Any] | None = None
) -> Drift:
    """Tests whether confidences [N], with decisions [N], look like in-distribution images.

    A confidence is (1 + r) / (m + 1) if r of m calibration images are not more certain. The test
    compares the batch with these m images, because a batch much larger than m would otherwise show
    the noise of the calibration as drift. It uses only ranks, so a value between the r-th image and
    the next stands for the image. `calibration` is from the model's card: `ranks` (m; `images` in
    old exports), and `alpha` or `reject_below`. If m is unknown, the reference is uniform.
    """
    from scipy import stats  # half of the import time of this module

    calibration = calibration or {}
    if count := calibration.get("ranks", calibration.get("images")):
        places = confidence.astype(np.float64) * (count + 1) - 0.5
        test = stats.ks_2samp(places, np.arange(1.0, count + 1.0))
    else:
        test = stats.kstest(confidence, "uniform")
    return Drift(
        p_value=float(test.pvalue),
        below=float(1 - np.mean(accept)),
        alpha=calibration.get("alpha", calibration.get("reject_below")),
    )


def embed(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] = "",
    split: str = "all",
    data_dir: str | os.PathLike[str] = "",
    download: bool = False,
    sort: str = "",
    batch_size: int = 64,
    max_pixels: int = MAX_PIXELS,
    restart: bool = False,
    trust_model: bool = False,
    shard: str = "",
    engine: str = "local",
    actors: int = 2,
    ray_address: str = "",
    column: str = "",
    with_levels: bool = False,
) -> Embedded:
    """Embeds images and writes their table, see `tfvmf.embedding.table`.

    An unreadable file becomes a row with its error. The same call continues a stopped one: parts
    of the table are kept in `OUTPUT.parts` until it is complete. With `shard` or `engine="ray"` the
    table is a directory of Parquet files, which many processes may fill.

    Args:
        model: A run directory, an export, or a `.keras`, `.onnx` or `.tflite` file.
        data: A spec for `tfvmf.data.load_source`, or the path of a folder or of one image; for Ray
            see `tfvmf.embedding.images`.
        output: The `.parquet`, `.npz` or `.csv` file, or the directory, created if missing.
        checkpoint: Checkpoint of a run: `step-110`, `110` or a path; the newest by default.
        split: The split of the data.
        data_dir: Folder of prepared TFDS data sets.
        download: Download and prepare a missing TFDS data set.
        sort: `concentration` sorts the rows by it, ascending, and draws the least and the most
            certain images to the same name with `.png`, unless all concentrations are equal.
        batch_size: Images per forward pass.
        max_pixels: Larger images are not decoded: their rows have an error.
        restart: Start again instead of continuing.
        trust_model: See `tfvmf.load`.
        shard: `3/16` is part 3 of the parts 0 to 15; the returned counts are for this part.
        engine: `local`, or `ray`.
        actors: With Ray, the number of processes that embed.
        ray_address: With Ray, the cluster; by default one is started on this machine.
        column: With Ray, the column of Parquet files or TFRecords with the images.
        with_levels: Also write the column `levels`, see `tfvmf.load`.

    Raises:
        UserError: The arguments are invalid (found before loading the model where possible), or
            existing output is for another model or other data.
    """
    number, of, output = table.check_output(output, shard=shard, engine=engine)
    if sort not in ("", "concentration") or batch_size < 1 or actors < 1:
        given = f"sort={sort}, batch_size={batch_size}, actors={actors}"
        raise UserError(f"{given}: sort must be concentration or empty, the others at least 1")
    if of and (sort or restart or with_levels):
        given = f"sort={sort}" if sort else "restart=true" if restart else "with_levels=true"
        raise UserError(f"{given}: not with shard or engine=ray, which write a directory")
    on_ray = engine == "ray"
    if on_ray and importlib.util.find_spec("ray") is None:
        raise UserError("engine=ray: Ray is not installed: pip install 'tfvmf[ray]'")
    find = functools.partial(find_images, column=column) if on_ray else list_images
    images: Any = find(os.fspath(data), split, max_pixels)
    directory = output if of else output.with_name(f"{output.name}.parts")
    with contextlib.nullcontext() if of else _claimed(directory, output):
        settings: dict[str, Any] = {"checkpoint": os.fspath(checkpoint), "trust_model": trust_model}
        loaded = load(model, levels=with_levels, **settings)
        size = loaded.card["image_size"]
        if size is None:
            raise UserError(f"{loaded.path} has no image size: expected a run")
        if images is None:
            place: dict[str, Any] = {"data_dir": data_dir, "download": download}
            source = load_source(data, split, image_size=size, max_pixels=max_pixels, **place)
            images = SourceImages(source)
        # Records have one file per input file.
        units = getattr(images, "units", None) or file_rows(len(images.names), PART_ROWS * (not of))
        # An empty batch shows the columns.
        outputs = loaded.embed(np.empty((0, size, size, 3), np.uint8))
        if with_levels and "levels" not in outputs:
            raise UserError(f"with_levels: the network of {loaded.path} has no maps of levels")
        schema = table.table_schema(outputs, labels=images.labels is not None)
        plan = {
            "model": model_identity(loaded),
            "data": os.fspath(data),
            "split": split,
            "images": sum(map(len, units)),
            "files": len(units),
            "contents": images.identity(),
            "max_pixels": max_pixels,
            "columns": schema.names,
            "tfvmf": tfvmf.__version__,
        }
        _claim(directory, plan, output, restart=restart)
        count, parts = len(units), of or 1
        own = range(number * count // parts, (number + 1) * count // parts)
        files = {unit: directory / f"{unit:08}.{'parquet' if of else 'arrow'}" for unit in own}
        missing = {unit: units[unit] for unit in own if not files[unit].exists()}
        if on_ray:
            from tfvmf.embedding.on_ray import Work, embed_units

            path = str(loaded.path.absolute())
            work = Work(path, settings, plan["model"], schema, batch_size, max_pixels)
            rows = embed_units(images, missing, work, actors=actors, address=ray_address)
        else:
            rows = (
                (unit, block)
                for unit, part in missing.items()
                for block in embed_rows(images, part, loaded, schema, batch_size)
            )
        total, left = (sum(len(units[unit]) for unit in some) for some in (own, missing))
        bar = Progress(total, initial=total - left, unit="image", description="embedding")
        with bar, contextlib.closing(rows):
            for unit, pairs in itertools.groupby(rows, operator.itemgetter(0)):
                _write(files[unit], schema, (block for _, block in pairs), bar)
        if of:
            names = [name for name in ("error", "concentration", "accept") if name in schema.names]
            tables = map(table.read_table, files.values())
            return _summary((part for each in tables for part in each.parts(*names)), output, names)
        done = _join(directory, images, output, schema, loaded.card.get("calibration"), bool(sort))
        shutil.rmtree(directory)
        return done


def file_rows(count: int, rows: int = 0) -> list[range]:
    """The rows of each file; `rows` per file if given."""
    rows = rows or min(max(-(-count // FILES), LEAST_ROWS), MOST_ROWS)
    return [range(count)[start : start + rows] for start in range(0, count, rows)]


@contextlib.contextmanager
def _claimed(parts: pathlib.Path, output: pathlib.Path) -> Iterator[None]:
    """Creates and locks the directory of parts; removes it at the end if it holds none."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(parts))
        except UserError as error:  # its text is about a run directory
            reason = str(error).replace("--workdir=", "").replace("--workdir", "output")
            raise UserError(f"output={output}: {reason}") from error
        try:
            with writing(f"output={output}"):
                yield
        finally:
            if not list(parts.glob("*.arrow")):
                shutil.rmtree(parts, ignore_errors=True)


def _claim(
    directory: pathlib.Path, plan: dict[str, Any], output: pathlib.Path, *, restart: bool
) -> None:
    """Writes the plan of a directory, or checks that its files were made by the same plan."""
    path, parts = directory / JOB, list(directory.glob("*.arrow"))
    if directory != output and (restart or not parts):
        for old in (path, *parts):
            old.unlink(missing_ok=True)
    with writing(f"output={directory}"):
        directory.mkdir(exist_ok=True)
        if not path.exists():
            if any(directory.glob("*.parquet")):
                raise UserError(f"output={directory} holds Parquet files without a {JOB}")
            # A link appears with its whole content, or fails because another shard was first.
            with tempfile.TemporaryDirectory(dir=directory, prefix=".") as place:
                write_json(pathlib.Path(place, JOB), plan)
                with contextlib.suppress(FileExistsError):
                    os.link(pathlib.Path(place, JOB), path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        changed = [key for key in plan if found.get(key) != plan[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is missing or damaged: choose another output") from error
    if changed:
        told = ", ".join(f"{key} ({found.get(key)} -> {plan[key]})" for key in changed)
        if directory == output:
            holds, advice = " holds shards of another job", ""
        else:
            holds = f": {directory.name} holds unfinished work for other images or another model"
            advice = ", or start again with --restart"
        raise UserError(f"output={output}{holds}: {told}; choose another output{advice}")


def model_identity(model: EmbeddingModel) -> str:
    """A hash of a model's weights, or of the whole export."""
    digest = hashlib.sha256()
    try:
        for variable in model.encoder.variables:
            digest.update(variable.numpy().tobytes())
    except UserError:  # an export has no encoder
        return fingerprint(model.path)[:16]
    return digest.hexdigest()[:16]


def _write(
    path: pathlib.Path, schema: pa.Schema, blocks: Iterable[pa.Table], bar: Progress
) -> None:
    """Writes a file from blocks of rows, in groups of about `table.ROWS`."""

    def groups(columns: Sequence[str]) -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        for block in blocks:
            held.append(block.select(list(columns)))
            bar.update(len(block))
            if sum(map(len, held)) >= table.ROWS:
                yield pa.concat_tables(held).combine_chunks()
                held = []
        if held:
            yield pa.concat_tables(held).combine_chunks()

    with replacing(path) as file:
        if path.suffix == ".parquet":
            table.write_table(file, ".parquet", schema, 0, groups)
            return
        with pa.ipc.new_file(file, schema) as writer:
            for group in groups(schema.names):
                writer.write_table(group)


def embed_rows(
    images: FileImages | SourceImages,
    rows: range,
    model: EmbeddingModel,
    schema: pa.Schema,
    batch_size: int,
) -> Iterator[pa.Table]:
    """Embeds some images, batch by batch, into rows of their table."""
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        part = slice(batch.start, batch.stop)
        pixels, errors = images.read(batch, model.card["image_size"])
        texts: dict[str, Sequence[str]] = {"file": images.names[part], "error": errors}
        if images.labels is not None:
            texts["label"] = images.labels[part]
        outputs = model.embed(pixels, batch_size=batch_size, progress=False)
        yield table.to_arrow(schema, texts, outputs)


def _summary(
    parts: Iterable[table.Columns], output: pathlib.Path, columns: Sequence[str]
) -> Embedded:
    """Counts the rows, given in parts; a broken row has kappa NaN and `accept` False."""
    images, good, accepted, lowest, highest = 0, 0, 0, np.nan, np.nan
    for part in parts:
        images += len(part["error"])
        good += int((part["error"] == "").sum())
        accepted += int(part["accept"].sum()) if "accept" in part else 0
        lowest = float(np.fmin.reduce(part["concentration"], initial=lowest))
        highest = float(np.fmax.reduce(part["concentration"], initial=highest))
    return Embedded(
        output=output,
        images=images,
        broken=images - good,
        rejected=good - accepted if "accept" in columns else None,
        lowest=lowest,
        highest=highest,
    )


def _join(
    parts: pathlib.Path,
    images: FileImages | SourceImages,
    output: pathlib.Path,
    schema: pa.Schema,
    calibration: Mapping[str, Any] | None,
    sort: bool,
) -> Embedded:
    """Joins the parts into one table and draws its sheet."""
    count = len(images.names)
    natural = np.arange(count)
    wanted = ("error", "concentration", "confidence", "accept")
    names = [name for name in wanted if name in schema.names]
    whole = pa.concat_tables(_blocks(parts, natural)(names))
    scalars = {name: table.to_numpy(whole, name) for name in names}
    done = _summary([scalars], output, names)
    kappa, good = scalars["concentration"], scalars["error"] == ""
    drift = None
    if {"accept", "confidence"} <= {*scalars} and good.any():
        drift = measure_drift(scalars["confidence"][good], scalars["accept"][good], calibration)
    sort &= done.lowest < done.highest or good.sum() == 1
    order = np.argsort(kappa, kind="stable") if sort else natural  # broken ones last
    with replacing(output) as file:
        table.write_table(file, output.suffix, schema, count, _blocks(parts, order))
    sheet = None
    if sort:
        sheet = output.with_suffix(".png")
        drawn = order[: int(good.sum())]
        least = drawn[: min(DRAWN, -(-len(drawn) // 2))]
        most = drawn[len(least) :][::-1][:DRAWN]

        def picture(row: int) -> Picture:
            pixels, _ = images.read(range(row, row + 1), TILE)
            tile = pixels[0] if len(pixels) else np.full((TILE, TILE, 3), 200, np.uint8)  # gone
            return Picture(tile, images.names[row], f"concentration {kappa[row]:#.3g}")

        halves = {"least certain first": least, "most certain first": most}
        blocks = [Block(name, [*map(picture, rows)], columns=5) for name, rows in halves.items()]
        contact_sheet.write_sheet(blocks, sheet, title=f"{output.name}: {count:,} images")
    return dataclasses.replace(done, drift=drift, sheet=sheet)


def _blocks(parts: pathlib.Path, order: np.ndarray) -> Callable[..., Iterator[pa.Table]]:
    """A reader of all rows in the given order, in blocks; the parts are memory-mapped."""

    def blocks(columns: Sequence[str]) -> Iterator[pa.Table]:
        for start in range(0, len(order), table.ROWS):
            numbers, rows = np.divmod(order[start : start + table.ROWS], PART_ROWS)
            pieces = []
            for number in np.unique(numbers):
                with pa.memory_map(str(parts / f"{number:08}.arrow")) as file:
                    part = pa.ipc.open_file(file).read_all().select(list(columns))
                    pieces.append(part.take(rows[numbers == number]))
            places = np.argsort(np.argsort(numbers, kind="stable"))
            yield pa.concat_tables(pieces).combine_chunks().take(places)

    return blocks
