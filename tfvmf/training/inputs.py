"""The input of a run, from its configuration: sources, views, batches."""

import contextlib
import csv
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfvmf import data
from tfvmf.config import validate, view_size
from tfvmf.data import contact_sheet, pipeline
from tfvmf.data.base import Subset, sample_indices
from tfvmf.errors import UserError
from tfvmf.files import csv_text, write_text
from tfvmf.methods import Method
from tfvmf.methods.base import ViewKind
from tfvmf.progress import printable
from tfvmf.training.monitor import Monitor, evenly
from tfvmf.training.step import make_views, views_of

_MOST_BROKEN = 0.01  # share of all files; more suggests a problem other than a few bad files
_LEAST_RESERVE = 25  # fewer do not give the 19 ranks that alpha = 0.05 needs (posthoc.Decision)
_DRAWN_IMAGES, _DRAWN_VIEWS = 10, 8  # per contact sheet of views

Sources = tuple[data.Source, data.Source, data.Source]


class Inputs(NamedTuple):
    """The data that a run is trained and monitored on."""

    name: str  # name of the data, for messages
    description: str  # the examples in words: `1,397 images of 32x32`
    size: int  # number of examples
    num_classes: int  # 0 without labels
    reader: Callable[[], pipeline.Reader]  # makes the function from indices [B] to their batch
    views: Callable[[Method], list[ViewKind]]  # the kinds of views that a method gets
    monitor: Callable[[Method], Callable[[], dict[str, float]]]  # makes a method's monitor
    fingerprint: Callable[[], str] = lambda: ""  # hash of the data, unless the configuration has it
    broken: Mapping[str, str] = {}  # {file: reason} for skipped files
    files: int = 0  # number of files, including the broken ones
    notes: Sequence[str] = ()  # lines to print about the data
    check: Callable[[Method], None] = lambda method: None  # called before anything is written
    prepare: Callable[[Method], None] = lambda method: None  # called before step 1, after loading


def image_inputs(config: ConfigDict, sources: Sources | None = None) -> Inputs:
    """The images that a run's configuration names, or `sources` from `load_sources`."""
    augmentation = augmentation_from_config(config, size=view_size(config))
    source, bank, queries = sources or load_sources(config)
    height, width, _ = source.image_shape
    broken = {**source.broken, **bank.broken, **queries.broken}
    watched = {k: v for k, v in config.monitor.items() if k != "every_epochs"}
    notes, kept = [], _reserved(source)
    if 0 < kept < _LEAST_RESERVE:
        raise UserError(
            f"--config.data.reserve={config.data.reserve:g} keeps {kept:,} of "
            f"{source.size + kept:,} training images, too few to calibrate on: set it to "
            f"{_LEAST_RESERVE} or more, or to 0 for a run without a decision"
        )
    if source.divided and queries.divided and source.name == queries.name:
        everything = queries.size + source.size + kept
        notes.append(f"{queries.size:,} of {everything:,} images are held out for evaluation")
    if kept:
        notes.append(
            f"{kept:,} of {source.size + kept:,} training images are kept for calibration "
            f"(data.reserve={config.data.reserve:g}): nothing is trained on them"
        )
    return Inputs(
        name=f"{source.name} ({source.split})",
        description=f"{source.size:,} images of {height}x{width}",
        size=source.size,
        num_classes=source.num_classes,
        reader=lambda: pipeline.image_reader(source),
        views=lambda method: views_of(method, augmentation),
        monitor=lambda method: Monitor(method.encoder, bank, queries, **watched),
        fingerprint=source.fingerprint,
        check=lambda method: method.check_images(),
        broken=broken,
        files=len(broken) + sum(each.size + _reserved(each) for each in {source, bank, queries}),
        notes=notes,
    )


def check_broken(inputs: Inputs, workdir: pathlib.Path, *, strict: bool, write: bool) -> None:
    """Lists unreadable files in `broken.csv`; UserError if over 1 % of all, or any if `strict`."""
    path, count = workdir / "broken.csv", len(inputs.broken)
    if not count:
        with contextlib.suppress(OSError):  # there is no such file
            path.unlink() if write else None
        return
    if write:
        lines = io.StringIO()
        rows = [("file", "error"), *inputs.broken.items()]
        csv.writer(lines).writerows(map(csv_text, row) for row in rows)
        write_text(path, lines.getvalue())
    first, reason = next(iter(inputs.broken.items()))
    told = f"{count:,} of {inputs.files:,} images cannot be read, such as {first}: {reason}"
    if strict or count > _MOST_BROKEN * inputs.files:
        limit = "--strict allows none" if strict else f"at most {_MOST_BROKEN:.0%} are left out"
        raise UserError(f"{told}: {limit}; all are listed in {path}: repair or remove them")
    if write:
        print(printable(f"left out: {told}; all are listed in {path}"))


def memory_limit(config: ConfigDict) -> int:
    """The memory limit for a run's data, in bytes."""
    return int(config.data.memory_limit_gib * 2**30)


def load_source(config: ConfigDict, spec: str, split: str, *, reserve: bool = False) -> data.Source:
    """Opens a source with a run's settings, without the reserve or (`reserve`) only the reserve."""
    source = data.load_source(
        spec,
        split,
        data_dir=config.data.data_dir,
        image_size=config.data.image_size,
        memory_limit=memory_limit(config),
        max_pixels=config.data.max_pixels,
        skip_broken=True,
    )
    share = config.data.reserve
    if not share or (spec, split) != (config.data.source, config.data.train_split):
        return source
    count = round(share * source.size) if share < 1 else int(share)
    if not 0 < count <= source.size - 2:
        raise UserError(
            f"--config.data.reserve={share:g} keeps {count:,} of {source.size:,} training images: "
            "expected at least 1, and 2 left to train on"
        )
    kept = sample_indices(source, count)  # stratified by class
    return source.subset(kept if reserve else np.setdiff1d(np.arange(source.size), kept))


def load_reserve(config: ConfigDict) -> data.Source | None:
    """The images kept out of training (`config.data.reserve`), the same for every seed, or None."""
    if not config.data.reserve:
        return None
    return load_source(config, config.data.source, config.data.train_split, reserve=True)


def _reserved(source: data.Source) -> int:
    return source.whole.size - source.size if isinstance(source, Subset) else 0


def load_sources(config: ConfigDict) -> Sources:
    """The training data, and the monitor's bank and queries."""
    train_source = load_source(config, config.data.source, config.data.train_split)
    evaluated = config.data.eval_source or config.data.source
    bank = train_source
    if evaluated != config.data.source:
        bank = load_source(config, evaluated, config.data.train_split)
    return train_source, bank, load_source(config, evaluated, config.data.eval_split)


def augmentation_from_config(config: ConfigDict, *, size: int | None = None) -> data.Augmentation:
    """The augmentation of a run's configuration, at its image size or at `size`."""
    size = size or config.data.image_size
    try:
        return data.Augmentation(size=size, seed=config.seed, **config.augment.to_dict())
    except ValueError as error:
        raise UserError(f"--config.augment: {error}") from error


def draw_views(config: ConfigDict, path: str | os.PathLike[str]) -> None:
    """Writes a PNG with a few training images, each next to views of it."""
    validate(config)
    source = load_source(config, config.data.source, config.data.train_split)
    rows = evenly(source.size, _DRAWN_IMAGES)
    images = source.take(rows)
    augmentation = augmentation_from_config(config, size=view_size(config))
    views = make_views(tf.constant(images), [(augmentation, _DRAWN_VIEWS)], (config.seed, 0))
    pixels = np.rint(255.0 * np.stack(views, axis=1)).astype(np.uint8)
    names = [source.file(int(row)) for row in rows]
    originals = list(map(contact_sheet.Picture, images, names))
    drawn = list(map(contact_sheet.Picture, pixels.reshape(-1, *pixels.shape[2:])))
    views_of_size = f"views of {augmentation.size}x{augmentation.size}"
    blocks = [
        contact_sheet.Block("original", originals, columns=1),
        contact_sheet.Block(views_of_size, drawn, columns=_DRAWN_VIEWS),
    ]
    title = f"{source.name} ({source.split}): what {config.name} trains on"
    contact_sheet.write_sheet(blocks, path, title=title)


def make_iterator(
    strategy: tf.distribute.Strategy,
    inputs: Inputs,
    config: ConfigDict,
    *,
    start: int = 0,
    total_steps: int,
) -> Iterator:
    """The batches from step `start` on, each cut into the shares of the replicas."""
    replicas, read = strategy.num_replicas_in_sync, inputs.reader()

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        local = replicas // context.num_input_pipelines
        made = pipeline.training_batches(
            read,
            size=inputs.size,
            batch_size=config.batch_size,
            seed=config.seed,
            start_step=start,
            stop_step=total_steps,
            replicas=replicas,
            first_replica=context.input_pipeline_id * local,
            local_replicas=local,
        )
        # Endless, although nobody reads past the end: for finite data, workers ask each other at
        # every step whether there is more, and lose the static batch size.
        return made.repeat()

    return iter(strategy.distribute_datasets_from_function(dataset))
