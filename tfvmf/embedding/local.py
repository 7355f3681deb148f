"""Images to their table on this machine: part by part, so that a stopped run continues."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import tfvmf
from tfvmf.data import Source, contact_sheet, load_source
from tfvmf.data.base import Request
from tfvmf.data.contact_sheet import TILE, Picture
from tfvmf.data.folder import files_identity, list_files
from tfvmf.data.images import read_images
from tfvmf.data.sources import parse
from tfvmf.embedding import table
from tfvmf.errors import UserError
from tfvmf.files import fingerprint, lock, replacing, write_json, writing
from tfvmf.progress import Progress
from tfvmf.serving import EmbeddingModel, load
from tfvmf.settings import MAX_PIXELS

PART_ROWS = 1024  # images at most that a run loses when it is killed, and rows that it holds
DRAWN = 50  # least and most certain images, each
DRIFT = 0.01  # below this p-value confidences are not those of in-distribution images


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedded:
    """What `embed` has done."""

    output: pathlib.Path  # the table
    images: int  # its rows
    broken: int  # rows with an error
    rejected: int | None  # neither broken nor accepted; None if the model is not calibrated
    lowest: float  # concentration; NaN if all are broken
    highest: float
    sheet: pathlib.Path | None = None
    drift: "Drift | None" = None  # None if the model is not calibrated, or all are broken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """Whether the confidences of a batch look like those of in-distribution images.

    Attributes:
        p_value: Of the two-sample Kolmogorov-Smirnov test. Small: they do not.
        below: The share of images that are not accepted.
        alpha: The share that is expected in distribution; None if the model does not say.
    """

    p_value: float
    below: float
    alpha: float | None = None

    def __str__(self) -> str:
        seen = "look" if self.p_value >= DRIFT else "do NOT look"
        expected = "" if self.alpha is None else f", expected {self.alpha:.1%}"
        return (
            f"confidences {seen} like in-distribution images: Kolmogorov-Smirnov "
            f"p = {self.p_value:.2g}; rejected {self.below:.1%}{expected}"
        )


def measure_drift(
    confidence: np.ndarray, accept: np.ndarray, calibration: Mapping[str, Any] | None = None
) -> Drift:
    """Tests whether confidences [N] look like those of in-distribution images.

    A confidence is (1 + r) / (m + 1), r of m calibration images being no surer. The test has two
    samples, the batch and these m images: a batch that is much larger than m would otherwise show
    the noise of the calibration as drift. The statistic knows ranks alone, so a place between the
    r-th image and the next stands for the image. Where m is unknown, confidences are compared
    with the uniform distribution.

    Args:
        confidence: Confidences of the images that could be read.
        accept: Their decisions [N].
        calibration: From the card of the model: `ranks` (m; `images` in old exports, which ranked
            all of these), and `alpha` or `reject_below`.
    """
    from scipy import stats  # half of the time that this module takes to import

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
    levels: bool = False,
) -> Embedded:
    """Embeds images and writes the table of them, see `tfvmf.embedding.table`.

    A file that cannot be read is a row with its error. Parts of the table are kept in
    `OUTPUT.parts` until it is complete; the same call continues after the last finished one.

    Args:
        model: A run directory, an export, or a `.keras`, `.onnx` or `.tflite` file.
        data: What `tfvmf.data.load_source` takes, or the path of a folder or of one image.
        output: The `.parquet`, `.npz` or `.csv` file.
        checkpoint: Checkpoint of a run: `step-110`, `110` or a path; the newest by default.
        split: The part of the data.
        data_dir: Where TFDS data sets are prepared.
        download: Download and prepare a TFDS data set that is not there.
        sort: `concentration` sorts the rows by it, ascending, and draws the least and the most
            certain images to the same name with `.png`, unless all concentrations are equal.
        batch_size: Images per forward pass.
        max_pixels: A larger image is not decoded: its row has an error.
        restart: Do not continue: start again.
        trust_model: See `tfvmf.load`.
        levels: Also write the column `levels`, see `tfvmf.load`.

    Raises:
        UserError: A mistake in the arguments, found before the model is loaded where possible; or
            `OUTPUT.parts` is of another model or other data.
    """
    output = table.check_output(output)
    if sort not in ("", "concentration") or batch_size < 1:
        raise UserError(f"sort={sort}, batch_size={batch_size}: expected concentration, 1 or more")
    files = list_images(data, split, max_pixels)
    parts = output.with_name(f"{output.name}.parts")
    with _claimed(parts, output):
        loaded = load(model, checkpoint=checkpoint, trust_model=trust_model, levels=levels)
        size = image_size(loaded)
        images: Images = files or SourceImages(
            load_source(
                data,
                split,
                data_dir=data_dir,
                download=download,
                image_size=size,
                max_pixels=max_pixels,
            )
        )
        # An empty batch shows the columns.
        outputs = loaded.embed(np.empty((0, size, size, 3), np.uint8))
        if levels and "levels" not in outputs:
            raise UserError(f"levels: the network of {loaded.path} shows no maps of its levels")
        schema = table.table_schema(outputs, labels=images.labels is not None)
        plan = {
            "model": model_identity(loaded),
            "data": os.fspath(data),
            "split": split,
            "images": len(images.names),
            "contents": images.identity(),
            "max_pixels": max_pixels,
            "part_rows": PART_ROWS,
            "columns": schema.names,
            "tfvmf": tfvmf.__version__,
        }
        _check_plan(parts, plan, output, restart=restart)
        _write_parts(parts, images, loaded, schema, batch_size)
        calibration = loaded.card.get("calibration")
        result = _join(parts, images, output, schema, calibration, sort=bool(sort))
        shutil.rmtree(parts)
    return result


class Images:
    """Images by position: `names`, `labels` or None, and how they are read."""

    names: Sequence[str]
    labels: Sequence[str] | None

    def read(self, rows: range, size: int) -> tuple[np.ndarray, list[str]]:
        """The pixels of those that are not broken, and all errors, "" if there is none."""
        raise NotImplementedError

    def tile(self, row: int) -> np.ndarray:
        """A picture for the contact sheet."""
        raise NotImplementedError

    def identity(self) -> str:
        """A hash that changes when the images do."""
        raise NotImplementedError


class FileImages(Images):
    """Files, or their contents.

    Args:
        paths: Of the files.
        labels: Names of their classes, or None.
        max_pixels: A larger image is broken.
        contents: What to read at some positions, each a path, the content of a file or an error;
            by default the paths.
    """

    def __init__(
        self,
        paths: Sequence[str],
        labels: Sequence[str] | None,
        max_pixels: int,
        contents: Callable[[range], list[Any]] | None = None,
    ) -> None:
        self.paths = paths
        self.max_pixels = max_pixels
        self.names = [_text(path) for path in paths]
        self.labels = labels
        self._contents = contents

    def read(self, rows: range, size: int) -> tuple[np.ndarray, list[str]]:
        """The pixels of those that are not broken, and all errors, "" if there is none."""
        paths = self.paths[rows.start : rows.stop]
        contents = self._contents(rows) if self._contents else paths
        failed = {i: str(e) for i, e in enumerate(contents) if isinstance(e, Exception)}
        contents = [b"" if i in failed else content for i, content in enumerate(contents)]
        broken: dict[int, str] = {}
        pixels = read_images(contents, size, max_pixels=self.max_pixels, names=paths, broken=broken)
        broken |= failed
        errors = [_text(broken.get(place, "")) for place in range(len(rows))]
        return pixels[[not error for error in errors]], errors

    def tile(self, row: int) -> np.ndarray:
        """A picture for the contact sheet; gray if the file is gone meanwhile."""
        tile, _ = self.read(range(row, row + 1), TILE)
        return tile[0] if len(tile) else np.full((TILE, TILE, 3), 200, np.uint8)

    def identity(self) -> str:
        """A hash that changes when the images do."""
        return files_identity(self.paths)


class SourceImages(Images):
    """The same of a source without files."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.names = [source.file(row) for row in range(source.size)]
        self.labels = label_names(source.labels, source.class_names)

    def read(self, rows: range, size: int) -> tuple[np.ndarray, list[str]]:
        """The pixels, and no errors."""
        return self._source.images(rows.start, rows.stop), [""] * len(rows)

    def tile(self, row: int) -> np.ndarray:
        """A picture for the contact sheet."""
        return self._source.images(row, row + 1)[0]

    def identity(self) -> str:
        """A hash of some of the images, which stand for all."""
        return self._source.fingerprint()


def list_images(data: str | os.PathLike[str], split: str, max_pixels: int) -> FileImages | None:
    """The files of a folder, or one file; None if `data` is another source."""
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


def label_names(labels: np.ndarray | None, classes: list[str] | None) -> list[str] | None:
    """Numbers of classes as their names; as texts, where there are none."""
    if labels is None:
        return None
    return [_text(classes[label] if classes else str(label)) for label in labels]


def _text(name: str) -> str:
    """A name that is not UTF-8 with an escape for each byte that is not."""
    return name.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def _claimed(parts: pathlib.Path, output: pathlib.Path) -> Iterator[None]:
    """Makes the directory of parts, for one process; removes it if there are none in the end."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(parts))
        except UserError as error:  # about a run directory
            reason = str(error).replace("--workdir=", "").replace("--workdir", "output")
            raise UserError(f"output={output}: {reason}") from error
        try:
            with writing(f"output={output}"):
                yield
        finally:
            if not list(parts.glob("*.arrow")):
                shutil.rmtree(parts, ignore_errors=True)


def image_size(model: EmbeddingModel) -> int:
    """Height and width of the images that a model takes; UserError if it does not tell."""
    if model.card["image_size"] is None:
        raise UserError(f"{model.path} does not say the size of its images: expected a run")
    return model.card["image_size"]


def model_identity(model: EmbeddingModel) -> str:
    """A hash of a model's weights, or of the whole export."""
    digest = hashlib.sha256()
    try:
        for variable in model.encoder.variables:
            digest.update(variable.numpy().tobytes())
    except UserError:  # an export has no encoder
        return fingerprint(model.path)[:16]
    return digest.hexdigest()[:16]


def _check_plan(
    parts: pathlib.Path, plan: dict[str, Any], output: pathlib.Path, *, restart: bool
) -> None:
    """Notes what the parts are of, or checks that those that are there are of the same."""
    path, done = parts / "plan.json", list(parts.glob("*.arrow"))
    if restart or not done:
        for part in done:
            part.unlink()
        write_json(path, plan)
        return
    if changed := differences(path, plan):
        raise UserError(
            f"output={output}: {parts.name} holds unfinished work of other images or another model:"
            f" {changed}; choose another output, or restart (--restart) to do all again"
        )


def differences(path: pathlib.Path, plan: dict[str, Any]) -> str:
    """How a plan differs from the one in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        changed = [key for key in plan if found.get(key) != plan[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is missing or damaged: choose another output") from error
    return ", ".join(f"{key} ({found.get(key)} -> {plan[key]})" for key in changed)


def _write_parts(
    parts: pathlib.Path,
    images: Images,
    model: EmbeddingModel,
    schema: pa.Schema,
    batch_size: int,
) -> None:
    count = len(images.names)
    rows = range(count)
    wanted = [rows[start : start + PART_ROWS] for start in rows[::PART_ROWS]]
    missing = [part for part in wanted if not _part(parts, part.start).exists()]
    done = count - sum(map(len, missing))
    with Progress(count, initial=done, unit="image", description="embedding") as bar:
        for part in missing:
            blocks = []
            for block in embed_rows(images, part, model, schema, batch_size):
                blocks.append(block)
                bar.update(len(block))
            path = _part(parts, part.start)
            with replacing(path) as file, pa.ipc.new_file(file, schema) as writer:
                writer.write_table(pa.concat_tables(blocks).combine_chunks())


def embed_rows(
    images: Images, rows: range, model: EmbeddingModel, schema: pa.Schema, batch_size: int
) -> Iterator[pa.Table]:
    """Some images to rows of their table, batch by batch."""
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        pixels, errors = images.read(batch, model.card["image_size"])
        texts: dict[str, Sequence[str]] = {"error": errors}
        texts["file"] = images.names[batch.start : batch.stop]
        if images.labels is not None:
            texts["label"] = images.labels[batch.start : batch.stop]
        outputs = model.embed(pixels, batch_size=batch_size, progress=False)
        yield table.to_arrow(schema, texts, outputs)


def _part(parts: pathlib.Path, start: int) -> pathlib.Path:
    return parts / f"{start // PART_ROWS:06}.arrow"


def _join(
    parts: pathlib.Path,
    images: Images,
    output: pathlib.Path,
    schema: pa.Schema,
    calibration: Mapping[str, Any] | None,
    *,
    sort: bool,
) -> Embedded:
    """Parts to the table and its sheet."""
    count = len(images.names)
    natural = np.arange(count)
    wanted = ("error", "concentration", "confidence", "accept")
    found: dict[str, list[np.ndarray]] = {name: [] for name in wanted if name in schema.names}
    for block in _blocks(parts, natural)(list(found)):
        for name, values in found.items():
            values.append(table.to_numpy(block, name))
    scalars = {name: np.concatenate(values) for name, values in found.items()}
    kappa, good = scalars["concentration"], scalars["error"] == ""
    accept = scalars["accept"][good] if "accept" in scalars else None
    drift = None
    if accept is not None and "confidence" in scalars and good.any():
        drift = measure_drift(scalars["confidence"][good], accept, calibration)
    lowest, highest = (
        (float(kappa[good].min()), float(kappa[good].max())) if good.any() else (np.nan, np.nan)
    )
    told = lowest < highest or good.sum() == 1
    order = np.argsort(kappa, kind="stable") if sort and told else natural  # broken ones last
    with replacing(output) as file:
        table.write_table(file, output.suffix, schema, count, _blocks(parts, order))
    picture = None
    if sort and told:
        picture = output.with_suffix(".png")
        drawn = order[: int(good.sum())]
        least = drawn[: min(DRAWN, -(-len(drawn) // 2))]
        most = drawn[len(least) :][::-1][:DRAWN]

        def block(heading: str, rows: np.ndarray) -> contact_sheet.Block:
            notes = (f"concentration {kappa[row]:#.3g}" for row in rows)
            tiles, names = map(images.tile, rows), (images.names[row] for row in rows)
            return contact_sheet.Block(heading, list(map(Picture, tiles, names, notes)), columns=5)

        blocks = [block("least certain first", least), block("most certain first", most)]
        contact_sheet.write_sheet(blocks, picture, title=f"{output.name}: {count:,} images")
    return Embedded(
        output=output,
        images=count,
        broken=count - int(good.sum()),
        rejected=None if accept is None else int((~accept).sum()),
        drift=drift,
        lowest=lowest,
        highest=highest,
        sheet=picture,
    )


def _blocks(parts: pathlib.Path, order: np.ndarray) -> Callable[..., Iterator[pa.Table]]:
    """The rows of all parts in an order, some at a time; parts are mapped, not read."""

    def blocks(columns: Sequence[str]) -> Iterator[pa.Table]:
        for start in range(0, len(order), table.ROWS):
            rows = order[start : start + table.ROWS]
            by_part = np.argsort(rows // PART_ROWS, kind="stable")
            pieces = []
            for number in np.unique(rows // PART_ROWS):
                with pa.memory_map(str(_part(parts, number * PART_ROWS))) as file:
                    part = pa.ipc.open_file(file).read_all().select(list(columns))
                    chosen = rows[by_part][rows[by_part] // PART_ROWS == number]
                    pieces.append(part.take(chosen % PART_ROWS))
            yield pa.concat_tables(pieces).combine_chunks().take(np.argsort(by_part))

    return blocks
