"""Our side: tfvmf's train step and training loop, as candidates of a worker."""

import benchmarks.side_by_side.as_programs  # isort: skip # noqa: F401

import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from benchmarks import augmentation
from benchmarks.side_by_side.problem import Problem
from tfvmf.config import default_config
from tfvmf.methods import Method, build_method
from tfvmf.methods.base import ViewKind
from tfvmf.training.checkpoints import Checkpoints
from tfvmf.training.inputs import augmentation_from_config, image_inputs, make_iterator, views_of
from tfvmf.training.loop import Plan, Run
from tfvmf.training.metrics import MetricsWriter
from tfvmf.training.optimizers import make_optimizer
from tfvmf.training.step import TrainStep, make_train_step
from tfvmf.training.strategies import share_cores

_ENDLESS = 1_000_000  # steps


def config_of(
    problem: Problem, method: str, changes: dict[str, Any] | None = None
) -> ml_collections.ConfigDict:
    """The settings of a run; `changes` are dotted ones."""
    config = default_config()
    config.method = method
    config.update_from_flattened_dict({**problem.config_changes(), **(changes or {})})
    return config


def train_step(
    method: str = "simclr_vmf",
    augmented: bool = False,
    changes: dict[str, Any] | None = None,
    **problem: Any,
) -> Callable[[int], None]:
    """A function that takes so many training steps on one batch that lies in memory.

    Args:
        method: As of `tfvmf train`.
        augmented: Whether views are made in the step, as in training; else they are there already.
        changes: Dotted settings.
        **problem: As of `Problem`.
    """
    sizes = Problem(**problem)
    config = config_of(sizes, method, changes)
    trained = _Trained(config)
    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.image_size, sizes.image_size, 3)
    views = views_of(trained.method, augmentation_from_config(config))
    if not augmented:
        views = [(_Ready(rng.random(shape, np.float32)), 1) for _ in range(2)]
    batch = {
        "image": rng.integers(256, size=shape, dtype=np.uint8),
        "label": np.zeros(sizes.batch, np.int32),
    }
    batches: Iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    step = trained.step(views)

    def steps(count: int) -> None:
        for _ in range(count):
            terms = step(batches)
        if not np.isfinite(float(terms["loss"])):
            raise ValueError(f"the loss is {float(terms['loss'])}")

    return steps


def loop(**problem: Any) -> Callable[[int], None]:
    """A function that goes on so many steps in `training.loop`, on the digits.

    All that a run does between two checkpoints: input pipeline, views, step, log lines, metrics.
    """
    config = config_of(Problem(**problem), "simclr_vmf")
    config.monitor.every_epochs = 0.0
    trained, inputs = _Trained(config), image_inputs(config)
    strategy = tf.distribute.get_strategy()
    batches = make_iterator(strategy, inputs, config, total_steps=_ENDLESS)
    workdir = pathlib.Path(tempfile.mkdtemp())
    plan = Plan(config, inputs.size // config.batch_size)
    plan.save_every = 0
    run = Run(
        plan=plan,
        method=trained.method,
        optimizer=trained.optimizer,
        step=trained.step(inputs.views(trained.method)),
        monitor=inputs.monitor(trained.method),
        checkpoints=Checkpoints(workdir, trained.method, trained.optimizer, keep=1),
        writer=MetricsWriter(workdir, step=0),
        save_member=lambda number: None,
        stopping=lambda signum, step: signum,
    )

    def steps(count: int) -> None:
        start = int(trained.optimizer.iterations)
        plan.total_steps = start + count
        run(batches, start)

    return steps


def augment(batch: int, image_size: int) -> Callable[[int], None]:
    """A function that makes two views of a batch so many times, and nothing else."""
    shape = (batch, image_size, image_size, 3)
    images = tf.constant(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))
    graph = augmentation.two_views({}, images)

    def views(count: int) -> None:
        for number in range(count):
            graph(images, tf.constant(number, tf.int64))

    return views


class _Ready:
    """A view that is there already: in a variable, so that no graph can compute with it ahead."""

    def __init__(self, images: np.ndarray) -> None:
        self._images = tf.Variable(images, trainable=False)

    def __call__(self, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        del images, seeds
        return self._images.read_value()


class _Trained:
    """A method and its optimizer, in the state that `training.train` prepares."""

    def __init__(self, config: ml_collections.ConfigDict) -> None:
        share_cores(config)
        keras.utils.set_random_seed(config.seed)
        tf.config.experimental.enable_op_determinism()  # as in every run
        self.config = config
        self.method: Method = build_method(config)
        self.optimizer = make_optimizer(
            config.optimizer,
            self.method.trainable_variables,
            steps_per_epoch=100,
            total_steps=_ENDLESS,
        )

    def step(self, views: list[ViewKind]) -> TrainStep:
        """The graph of a step."""
        return make_train_step(
            tf.distribute.get_strategy(),
            self.method,
            self.optimizer,
            views,
            seed=self.config.seed,
            steps_per_epoch=100,
        )
