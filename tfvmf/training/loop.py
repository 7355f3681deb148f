"""The training run: from a configuration and a directory to a trained encoder in it."""

import contextlib
import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf.data import pipeline
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, Method, build_method
from tfvmf.progress import Progress
from tfvmf.training import run_directory
from tfvmf.training.checkpoints import Checkpoints
from tfvmf.training.failures import explained
from tfvmf.training.inputs import Inputs, image_inputs, make_iterator
from tfvmf.training.metrics import MetricsWriter
from tfvmf.training.monitor import collapse_warning
from tfvmf.training.optimizers import make_optimizer
from tfvmf.training.plan import Plan
from tfvmf.training.report import describe, summary
from tfvmf.training.signals import Interrupted, StopRequest
from tfvmf.training.step import TrainStep, make_train_step
from tfvmf.training.strategies import agree_to_stop, check_same, is_chief, make_strategy


def train_run(
    config: ml_collections.ConfigDict,
    workdir: str | pathlib.Path,
    *,
    force_config: bool = False,
    logical_devices: int = 0,
    initialize: Callable[[Method], None] | None = None,
    inputs: Callable[[ml_collections.ConfigDict], Inputs] = image_inputs,
) -> dict[str, float]:
    """Trains a method, or goes on with the run that is in the directory.

    Args:
        config: Every setting of the run (`tfvmf.config.default_config`).
        workdir: The run directory. Training there again resumes from the last checkpoint.
        force_config: Go on although the directory's run had other settings.
        logical_devices: See `strategies.make_strategy`.
        initialize: Gives a new method other weights than random ones; a run that is resumed has
            its own.
        inputs: What the configuration is trained on.

    Returns:
        The last measured values (`loss`, `knn_accuracy`, ...).

    Raises:
        UserError: Something the user can mend; nothing was trained.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
    """
    workdir = pathlib.Path(workdir)
    if config.method not in METHODS:  # before any data is read
        build_method(config)

    # ---- Data: every problem with it shows before anything is trained.
    material = inputs(config)
    train_source = material.source
    epoch_steps = pipeline.steps_per_epoch(train_source, config.batch_size)
    plan = Plan.of(config, epoch_steps)

    # ---- Model, optimizer and state. The same seed gives the same bits, interrupted or not.
    keras.utils.set_random_seed(config.seed)
    tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(config.precision)
    strategy = make_strategy(config.strategy, logical_devices=logical_devices)
    chief = is_chief(config.strategy)
    with strategy.scope():
        method = build_method(config, num_classes=train_source.num_classes)
        optimizer = make_optimizer(
            config.optimizer,
            method.trainable_variables,
            steps_per_epoch=epoch_steps,
            total_steps=plan.total_steps,
            cycles=plan.cycles,
        )
    material.check(method)
    batches = make_iterator(strategy, train_source, config, total_steps=plan.total_steps)
    facts = {"num_classes": train_source.num_classes, "train_images": train_source.size}
    with contextlib.ExitStack() as stack:
        if chief:
            stack.enter_context(run_directory.hold(workdir))
            run_directory.claim(workdir, config, facts, force=force_config)
        stack.enter_context(explained(strategy))
        with strategy.scope():
            checkpoints = Checkpoints(
                workdir, method, optimizer, keep=config.checkpoint.keep, chief=chief
            )
            start = checkpoints.restore()
            if start == 0 and initialize is not None:
                initialize(method)
        check_same(strategy, config, workdir, start)

        # ---- Training.
        describe(
            method,
            strategy,
            train_source,
            start=start,
            workdir=workdir,
            total_steps=plan.total_steps,
        )
        if start < plan.total_steps:
            material.prepare(method)
        run = Run(
            plan=plan,
            method=method,
            optimizer=optimizer,
            step=make_train_step(
                strategy,
                method,
                optimizer,
                material.views(method),
                seed=config.seed,
                steps_per_epoch=epoch_steps,
            ),
            monitor=material.monitor(method),
            checkpoints=checkpoints,
            batch_size=config.batch_size,
            writer=stack.enter_context(contextlib.closing(MetricsWriter(workdir, step=start)))
            if chief
            else None,
            snapshot=functools.partial(
                _save_member, config, facts, workdir, method, optimizer, chief
            ),
            stopping=functools.partial(agree_to_stop, strategy, every=plan.log_every),
        )
        return run(batches(start), start)


def _save_member(
    config: ml_collections.ConfigDict,
    facts: dict[str, int],
    workdir: pathlib.Path,
    method: Method,
    optimizer: keras.optimizers.Optimizer,
    chief: bool,
    number: int,
) -> None:
    """Writes the present state as a run directory of its own."""
    directory = run_directory.member(workdir, number)
    alone = ml_collections.ConfigDict(config.to_dict())
    alone.ensemble.num_members = 1
    if chief:
        run_directory.claim(directory, alone, facts, force=True)
    Checkpoints(directory, method, optimizer, keep=1, chief=chief).save()


@dataclasses.dataclass
class Run:
    """The parts of a run, and the loop over its steps."""

    plan: Plan
    method: Method
    optimizer: keras.optimizers.Optimizer
    step: TrainStep
    monitor: Callable[[], dict[str, float]]
    checkpoints: Checkpoints
    batch_size: int
    writer: MetricsWriter | None
    snapshot: Callable[[int], None]  # saves the state as that member of an ensemble
    stopping: Callable[[int, int], int]  # signal of this process, step -> signal to obey now

    def __call__(self, batches: Iterator, start: int) -> dict[str, float]:
        """Trains from step `start` to the end of the plan."""
        plan, latest = self.plan, dict[str, float]()
        pending: list[dict[str, tf.Tensor]] = []
        with (
            StopRequest() as stop,
            Progress(plan.total_steps, initial=start, rate=False) as progress,
        ):
            clock = time.perf_counter()
            for step in range(start + 1, plan.total_steps + 1):
                # Not read here: on an accelerator the host runs ahead until the next log line.
                pending.append(self.step(batches))
                signum, first = self.stopping(stop.signum, step), step == start + 1
                saves = plan.is_due(step, plan.save_every) or signum
                monitors = plan.is_due(step, plan.monitor_every)
                if saves or monitors or first or plan.is_due(step, plan.log_every):
                    values = self._collect(pending, step)
                    if not first:  # which built the graph
                        images = len(pending) * self.batch_size
                        values["images_per_second"] = images / (time.perf_counter() - clock)
                    self._write(step, values)
                    latest.update(values)
                    pending = []
                progress.update(1, summary(latest))
                if monitors:
                    watched = self.monitor()
                    self._write(step, watched)
                    latest.update(watched)
                    progress.note(f"epoch {step / plan.steps_per_epoch:.0f}: {summary(latest)}")
                    if warning := collapse_warning(watched):
                        progress.note(warning)
                if plan.cycles > 1 and step % plan.cycle == 0:
                    self.snapshot(step // plan.cycle - 1)
                if saves:
                    self.checkpoints.save()
                if signum:
                    raise Interrupted(
                        signum,
                        f"stopped after step {step} of {plan.total_steps}, all saved: "
                        "the same command goes on from here",
                    )
                if not pending:
                    clock = time.perf_counter()
        return latest or self.monitor()

    def _collect(self, pending: list[dict[str, tf.Tensor]], step: int) -> dict[str, float]:
        """Mean of the terms since the last log line; refuses to go on from a loss that broke."""
        terms = {name: np.array([entry[name] for entry in pending]) for name in pending[0]}
        for position, loss in enumerate(terms["loss"]):
            if not math.isfinite(loss):
                raise UserError(
                    f"the loss is {loss} at step {step - len(pending) + position + 1}: lower "
                    "--config.optimizer.learning_rate or lengthen its warm-up (the last "
                    "checkpoint, from before that step, is kept)"
                )
        values = {name: float(value.mean()) for name, value in terms.items()}
        if "kappa" in values:
            variance = values.pop("kappa_square") - values["kappa"] ** 2
            values["kappa_std"] = math.sqrt(max(variance, 0.0))
        values["learning_rate"] = float(self.optimizer.learning_rate)
        values["epoch"] = step / self.plan.steps_per_epoch
        return values

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self.writer:
            self.writer.write(step, values)
