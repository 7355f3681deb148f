"""What a run's configuration says of its input: sources, views, batches."""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf import data
from tfvmf.config import validate, view_size
from tfvmf.counter_random import example_seeds
from tfvmf.data import contact_sheet, pipeline
from tfvmf.errors import UserError
from tfvmf.methods import Method
from tfvmf.methods.base import ViewKind
from tfvmf.training.monitor import Monitor
from tfvmf.training.step import views_of

_DRAWN_IMAGES, _DRAWN_VIEWS = 10, 8  # in a sheet of views

Sources = tuple[data.Source, data.Source, data.Source]


class Inputs(NamedTuple):
    """What a run is trained on, and watched on.

    Attributes:
        name: Of the data, for messages.
        description: What the examples are, for people: `1,397 images of 32x32`.
        size: Number of examples.
        num_classes: Number of classes of their labels, 0 without labels.
        reader: Makes the function from indices [B] to the batch of these examples.
        views: The kinds of views that a method gets of them.
        monitor: For a method, the function that measures it.
        fingerprint: Makes a hash of the data, where the configuration does not hold one.
        check: Called with the method before anything is written.
        prepare: Called with the method, its weights in place, before the first step.
    """

    name: str
    description: str
    size: int
    num_classes: int
    reader: Callable[[], pipeline.Reader]
    views: Callable[[Method], list[ViewKind]]
    monitor: Callable[[Method], Callable[[], dict[str, float]]]
    fingerprint: Callable[[], str] = lambda: ""
    check: Callable[[Method], None] = lambda method: None
    prepare: Callable[[Method], None] = lambda method: None


def image_inputs(config: ml_collections.ConfigDict, sources: Sources | None = None) -> Inputs:
    """The images that a run's configuration names; every problem with them shows here.

    Args:
        config: The run's configuration.
        sources: What `load_sources` returned, where it was called before.
    """
    augmentation = augmentation_from_config(config, size=view_size(config))
    source, bank, queries = sources or load_sources(config)
    height, width, _ = source.image_shape
    return Inputs(
        name=f"{source.name} ({source.split})",
        description=f"{source.size:,} images of {height}x{width}",
        size=source.size,
        num_classes=source.num_classes,
        reader=lambda: pipeline.image_reader(source),
        views=lambda method: views_of(method, augmentation),
        monitor=lambda method: Monitor(config.monitor, method.encoder, bank, queries),
        fingerprint=source.fingerprint,
        check=lambda method: method.check_images(),
    )


def memory_limit(config: ml_collections.ConfigDict) -> int:
    """Bytes that a run's data may take."""
    return int(config.data.memory_limit_gib * 2**30)


def load_source(config: ml_collections.ConfigDict, spec: str, split: str) -> data.Source:
    """Opens a source at the size and place that a run's configuration says."""
    return data.load_source(
        spec,
        split,
        data_dir=config.data.data_dir,
        image_size=config.data.image_size,
        memory_limit=memory_limit(config),
        max_pixels=config.data.max_pixels,
    )


def load_sources(config: ml_collections.ConfigDict) -> Sources:
    """Training data, and the monitor's bank and queries."""
    train_source = load_source(config, config.data.source, config.data.train_split)
    evaluated = config.data.eval_source or config.data.source
    bank = train_source
    if evaluated != config.data.source:
        bank = load_source(config, evaluated, config.data.train_split)
    return train_source, bank, load_source(config, evaluated, config.data.eval_split)


def augmentation_from_config(
    config: ml_collections.ConfigDict, *, size: int | None = None
) -> data.Augmentation:
    """The views that a run's configuration describes, as large as its images or of `size`."""
    size = size or config.data.image_size
    try:
        return data.Augmentation(size=size, **config.augment.to_dict())
    except ValueError as error:
        raise UserError(f"--config.augment: {error}") from error


def draw_views(config: ml_collections.ConfigDict, path: str | os.PathLike[str]) -> None:
    """Writes a PNG with a few training images, each beside views of it."""
    validate(config)
    source = load_source(config, config.data.source, config.data.train_split)
    rows = np.unique(np.linspace(0, source.size - 1, _DRAWN_IMAGES).astype(np.int64))
    images = source.take(rows)
    augmentation = augmentation_from_config(config, size=view_size(config))
    views = [
        augmentation(images, example_seeds(config.seed, 0, tf.range(len(images)), number))
        for number in range(_DRAWN_VIEWS)
    ]
    pixels = np.rint(255.0 * np.stack(views, axis=1)).astype(np.uint8)
    originals = [
        contact_sheet.Picture(image, f"{source.name}/{source.split}:{row}")
        for row, image in zip(rows, images, strict=True)
    ]
    contact_sheet.write_sheet(
        [
            contact_sheet.Block("original", originals, columns=1),
            contact_sheet.Block(
                f"views of {augmentation.size}x{augmentation.size}",
                [contact_sheet.Picture(view) for view in pixels.reshape(-1, *pixels.shape[2:])],
                columns=_DRAWN_VIEWS,
            ),
        ],
        path,
        title=f"{source.name} ({source.split}): what {config.name} trains on",
    )


def make_iterator(
    strategy: tf.distribute.Strategy,
    inputs: Inputs,
    config: ml_collections.ConfigDict,
    *,
    total_steps: int,
) -> Callable[[int], Iterator]:
    """Checks that the replicas can share a batch; returns start step -> iterator of batches."""
    replicas = strategy.num_replicas_in_sync

    def batches(start: int) -> Iterator:
        read = inputs.reader()

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
            # Endless, though nobody reads past the end: of data that ends, several workers ask
            # each other at every step whether there is some left, and forget the batch's size.
            return made.repeat()

        return iter(strategy.distribute_datasets_from_function(dataset))

    pipeline.check_shares(config.batch_size, replicas)
    return batches
