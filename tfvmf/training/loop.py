"""A training run: from a configuration to a trained encoder in a run directory."""

import contextlib
import dataclasses
import functools
import importlib
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfvmf.config import validate, view_size
from tfvmf.data import pipeline
from tfvmf.errors import UserError
from tfvmf.files import lock
from tfvmf.methods import METHODS, Method, build_method, building
from tfvmf.progress import Progress
from tfvmf.settings import BACKBONES
from tfvmf.training import run_directory, strategies
from tfvmf.training.checkpoints import Checkpoints, load_method, variables_of
from tfvmf.training.inputs import Inputs, check_broken, image_inputs, make_iterator
from tfvmf.training.metrics import MetricsWriter, summary
from tfvmf.training.monitor import collapse_warning
from tfvmf.training.optimizers import make_optimizer
from tfvmf.training.step import TrainStep, make_train_step
from tfvmf.training.strategies import PEER_TIMEOUT, as_user_errors, is_chief, make_strategy

_TIMED_STEPS, _TIMED_SECONDS = 20, 20.0  # upper bounds of the measurement for config.minutes
# Upper bounds of weights per width^2, and of layer outputs per width and pixel, for all networks
# here (ResNet-50: 5,900 and 180). If these fit into memory, nothing else is checked.
_MOST_WEIGHTS, _MOST_OUTPUTS = 8_000, 250
# Lower bound of the peak memory of ResNet-18 as a share of all its layers' float32 outputs, which
# are kept for the gradient. Measured: 0.75 at batch 690 and width 16, 0.97 at 128 and 32.
_KEPT = 0.7
_NARROW = 8  # the width of the network that is built to count weights and outputs


def train(
    config: ConfigDict,
    workdir: str | pathlib.Path,
    *,
    force_config: bool = False,
    logical_devices: int = 0,
    peer_timeout: float = PEER_TIMEOUT,
    deterministic: bool = True,
    strict: bool = False,
    command: Callable[[int], str] | None = None,
    initialize: Callable[[Method], None] | None = None,
    make_inputs: Callable[[ConfigDict], Inputs] = image_inputs,
    advice: str = run_directory.FORCE,
) -> dict[str, float]:
    """Trains a configuration, or continues the run in the directory.

    Each member of an ensemble of seeds is a run directory of its own, `<workdir>/members/00` and
    so on, which can be evaluated and exported. Members that are already trained are skipped.

    Args:
        config: Every setting of the run (`tfvmf.config.default_config`).
        workdir: The run directory. Training there again resumes from the last checkpoint.
        force_config: Continue even if the run in the directory had other settings.
        logical_devices: See `strategies.make_strategy`.
        peer_timeout: See `strategies.make_strategy`.
        deterministic: Enable TensorFlow's op determinism, permanently for this process: the same
            call gives the same bits, interrupted or not.
        strict: Do not train if any file cannot be read (`check_broken`).
        command: With `config.minutes`, makes the command to print for a number of epochs.
        initialize: Replaces the random weights of a new method.
        make_inputs: Makes the training data from the configuration.
        advice: What to do, besides choosing another directory, if the run in it had other settings.

    Returns:
        The last measured values (`loss`, `knn_accuracy`, ...).

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
    """
    options = {name: value for name, value in locals().items() if name not in ("config", "workdir")}
    validate(config)
    workdir = pathlib.Path(workdir)
    chief = is_chief(config.strategy)
    if make_inputs is image_inputs:
        check_memory(config, workers=strategies.num_workers(config.strategy))
    if config.ensemble.num_members > 1 and config.ensemble.kind == "seeds":
        latest: dict[str, float] = {}
        with lock(workdir) if chief else contextlib.nullcontext():
            if chief:
                run_directory.write_or_check_config(workdir, config, {}, force=force_config)
            for number in range(config.ensemble.num_members):
                print(f"member {number + 1} of {config.ensemble.num_members}", flush=True)
                member = alone(config, seed=config.seed + number)
                latest = train(member, run_directory.member(workdir, number), **options)
        return latest

    # ---- Data: all problems show before training starts.
    inputs = make_inputs(config)
    check_broken(inputs, workdir, strict=strict, write=chief)
    epoch_steps = pipeline.steps_per_epoch(inputs.size, config.batch_size, name=inputs.name)

    # ---- Model, optimizer and state. The same seed gives the same bits, interrupted or not.
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    alike = strategies.run_facts(config, inputs) if config.strategy == "multi_worker" else {}
    strategy = make_strategy(
        config.strategy, logical_devices=logical_devices, facts=alike, peer_timeout=peer_timeout
    )
    pipeline.check_shares(config.batch_size, strategy.num_replicas_in_sync)

    def build(plan: Plan) -> tuple[Method, keras.optimizers.Optimizer, TrainStep]:
        with (
            as_user_errors(strategy),
            building(seed=config.seed, precision=config.precision),
            strategy.scope(),
        ):
            method = build_method(config, num_classes=inputs.num_classes)
            optimizer = make_optimizer(
                config.optimizer,
                method.trainable_variables,
                steps_per_epoch=epoch_steps,
                total_steps=plan.total_steps,
                cycles=plan.cycles,
            )
        step = make_train_step(
            strategy,
            method,
            optimizer,
            inputs.views(method),
            seed=config.seed,
            steps_per_epoch=epoch_steps,
            backbone_rate=config.optimizer.backbone_rate,
        )
        return method, optimizer, step

    if config.minutes:
        config = ConfigDict(config.to_dict())
        epochs = run_directory.chosen_epochs(workdir, config, force=force_config)
        if epochs is None:
            method, _, step = build(Plan(config, epoch_steps))
            batches = make_iterator(strategy, inputs, config, total_steps=_TIMED_STEPS)
            seconds, look = measure(step, batches, inputs.monitor(method))
            every = config.monitor.every_epochs
            epoch_seconds = seconds * epoch_steps + (look / every if every else 0.0)
            epochs = epochs_within(config, epoch_seconds)
            told = command(epochs) if command else f"config.epochs={epochs}"
            print(
                f"{config.batch_size / seconds:.0f} images/s: {epochs} epochs take about "
                f"{epochs * epoch_seconds / 60:.1f} minutes\n"
                f"to repeat this run exactly: {told}",
                flush=True,
            )
        config.epochs = epochs
    plan = Plan(config, epoch_steps)
    method, optimizer, step = build(plan)
    inputs.check(method)
    facts = {"num_classes": inputs.num_classes, "train_images": inputs.size}
    with contextlib.ExitStack() as stack:
        if chief:
            stack.enter_context(lock(workdir))
            run_directory.write_or_check_config(
                workdir, config, facts, force=force_config, advice=advice
            )
        stack.enter_context(as_user_errors(strategy))
        with strategy.scope():
            checkpoints = Checkpoints(
                workdir, method, optimizer, keep=config.checkpoint.keep, chief=chief
            )
            start = checkpoints.restore()
            if start == 0 and initialize is not None:
                initialize(method)
            if start == 0 and chief:
                run_directory.prepare(workdir, method)
        strategies.check_same(strategy, alike, variables_of(method), workdir, start)

        def save_member(number: int) -> None:
            """Writes the current state as a run directory of its own."""
            directory = run_directory.member(workdir, number)
            if chief:
                run_directory.write_or_check_config(directory, alone(config), facts, force=True)
                run_directory.prepare(directory, method)
            Checkpoints(directory, method, optimizer, keep=1, chief=chief).save()

        # ---- Training.
        count = sum(math.prod(v.shape) for v in method.trainable_variables)
        where = f"from step {start}" if start else "from the start"
        for line in (
            f"{config.method} on {inputs.name.removesuffix(' (train)')}: {inputs.description}, "
            f"{method.describe_encoder()}, {count:,} weights, "
            f"{strategy.num_replicas_in_sync} replica(s)",
            method.describe_choices(),
            f"{plan.total_steps} steps ({config.epochs} epochs) {where}, in {workdir}",
            *inputs.notes,
        ):
            if line:
                print(line, flush=True)
        writer = None
        if chief:
            writer = stack.enter_context(contextlib.closing(MetricsWriter(workdir, step=start)))
        if start < plan.total_steps:
            inputs.prepare(method)
        run = Run(
            plan=plan,
            method=method,
            optimizer=optimizer,
            step=step,
            monitor=inputs.monitor(method),
            checkpoints=checkpoints,
            writer=writer,
            save_member=save_member,
            stopping=functools.partial(strategies.agree_to_stop, strategy, every=plan.log_every),
        )
        steps = {"start": start, "total_steps": plan.total_steps}
        return run(make_iterator(strategy, inputs, config, **steps), start)


def alone(config: ConfigDict, **changes: Any) -> ConfigDict:
    """The configuration of an ensemble's member as a separate run."""
    member = ConfigDict(config.to_dict())
    member.ensemble.num_members = 1
    member.update(changes)
    return member


def load_members(
    workdir: str | pathlib.Path, *, trust_model: bool = False
) -> list[tuple[Method, int]]:
    """An ensemble's trained methods with the steps of their weights; [] for any other run."""
    workdir = pathlib.Path(workdir).expanduser()
    count = run_directory.read(workdir)[0].ensemble.num_members
    loaded = []
    for number in range(count if count > 1 else 0):
        directory = run_directory.member(workdir, number)
        try:
            loaded.append(load_method(directory, trust_model=trust_model)[1:])
        except UserError as error:
            raise UserError(f"member {number + 1} of {count} is not trained: {error}") from error
    return loaded


class Plan:
    """The length of a run and the intervals for saving, measuring and logging, in steps."""

    def __init__(self, config: ConfigDict, steps_per_epoch: int) -> None:
        def steps(epochs: float) -> int:  # 0 stays 0, anything else is at least one
            return max(1, round(epochs * steps_per_epoch)) if epochs else 0

        self.steps_per_epoch = steps_per_epoch
        self.total_steps = config.epochs * steps_per_epoch
        self.cycles = _num_cycles(config)  # cycles of the learning rate, of equal length
        self.monitor_every = steps(config.monitor.every_epochs)
        self.save_every = steps(config.checkpoint.every_epochs)
        self.log_every = config.log_every_steps

    def is_due(self, step: int, every: int) -> bool:
        """Whether `step` is a multiple of `every`, or the last one; never if `every` is 0."""
        return every > 0 and (step % every == 0 or step == self.total_steps)


def _num_cycles(config: ConfigDict) -> int:
    return config.ensemble.num_members if config.ensemble.kind == "snapshot" else 1


def epochs_within(config: ConfigDict, seconds: float) -> int:
    """The number of epochs that fit into `config.minutes`: at least one, in whole cycles."""
    cycles = _num_cycles(config)
    return max(1, int(60 * config.minutes / seconds) // cycles) * cycles


def measure(
    step: TrainStep, batches: Iterator, monitor: Callable[[], object]
) -> tuple[float, float]:
    """Seconds per step and per monitor call, in a run that is then discarded."""
    seconds: list[float] = []
    with Progress(_TIMED_STEPS, description="measuring the speed", rate=False) as progress:
        for _ in range(_TIMED_STEPS):
            clock = time.perf_counter()
            step(batches)["loss"].numpy()
            seconds.append(time.perf_counter() - clock)
            progress.update()
            if len(seconds) > 2 and sum(seconds[1:]) > _TIMED_SECONDS:
                break
    clock = time.perf_counter()
    monitor()
    # The first step builds the graph. The median of the others ignores interference.
    return float(np.median(seconds[1:])), time.perf_counter() - clock


class Interrupted(Exception):
    """The run was stopped and its state saved; `exit_code` is 130 (Ctrl-C) or 143 (SIGTERM)."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM, to be obeyed after the current step; a second one acts at once.

    TensorFlow's PreemptionCheckpointHandler stops inside its own `run` and saves with its own
    manager; here the same step saves, logs and agrees with the other workers.
    """
    requests: list[int] = []
    previous: dict[int, Any] = {}

    def remember(signum: int, frame: FrameType | None) -> None:
        del frame
        requests.append(signum)
        signal.signal(signum, previous[signum])

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, remember)
    try:
        yield requests
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@dataclasses.dataclass
class Run:
    """The parts of a run, and the loop over its steps."""

    plan: Plan
    method: Method
    optimizer: keras.optimizers.Optimizer
    step: TrainStep
    monitor: Callable[[], dict[str, float]]
    checkpoints: Checkpoints
    writer: MetricsWriter | None
    save_member: Callable[[int], None]  # saves the state as this member of an ensemble
    stopping: Callable[[int, int], int]  # signal of this process, step -> signal to obey now

    def __call__(self, batches: Iterator, start: int) -> dict[str, float]:
        """Trains from step `start` to the end of the plan."""
        plan, latest = self.plan, dict[str, float]()
        pending: list[dict[str, tf.Tensor]] = []

        def write(values: dict[str, float]) -> str:
            if self.writer:
                self.writer.write(step, values)
            latest.update(values)
            return summary(latest, self.method.term_names)

        told, cycle = "", plan.total_steps // plan.cycles
        bar = Progress(plan.total_steps, initial=start, description="training", rate=False)
        with stop_requests() as requests, bar as progress:
            progress.update(0, "building the train step: 10 to 60 seconds, once")
            clock = time.perf_counter()
            for step in range(start + 1, plan.total_steps + 1):
                # Not read here: on an accelerator the host runs ahead until the next log line.
                pending.append(self.step(batches))
                signum = self.stopping(requests[-1] if requests else 0, step)
                first = step == start + 1
                saves = plan.is_due(step, plan.save_every) or signum
                monitors = plan.is_due(step, plan.monitor_every)
                if saves or monitors or first or plan.is_due(step, plan.log_every):
                    values = self._collect(pending, step)
                    if not first:  # the first step built the graph
                        images = len(pending) * self.method.config.batch_size
                        values["images_per_second"] = images / (time.perf_counter() - clock)
                    told, pending = write(values), []
                progress.update(1, told)
                if monitors:
                    watched = self.monitor()
                    told = write(watched)
                    progress.note(f"epoch {step / plan.steps_per_epoch:.0f}: {told}")
                    warning = collapse_warning(watched) if self.method.learns_directions else ""
                    if warning:
                        progress.note(warning)
                if plan.cycles > 1 and step % cycle == 0:
                    self.save_member(step // cycle - 1)
                if saves:
                    self.checkpoints.save()
                if signum:
                    raise Interrupted(
                        signum,
                        f"stopped and saved after step {step} of {plan.total_steps}: "
                        "run the same command to continue",
                    )
                if not pending:
                    clock = time.perf_counter()
        return latest or self.monitor()

    def _collect(self, pending: list[dict[str, tf.Tensor]], step: int) -> dict[str, float]:
        """Means of the terms since the last log line; raises an error if the loss is not finite."""
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
        rate, epoch = float(self.optimizer.learning_rate), step / self.plan.steps_per_epoch
        return {**values, "learning_rate": rate, "epoch": epoch}


def check_memory(config: ConfigDict, *, workers: int = 1) -> None:
    """Raises UserError if weights, gradients, moments and a batch's outputs exceed the memory."""
    if tf.config.list_physical_devices("GPU"):
        return
    size, width, backbone = view_size(config), config.model.width, config.model.backbone
    images = METHODS[config.method].num_views * config.batch_size / workers
    there = available_memory()

    def bytes_of(weights: float, outputs: float) -> float:
        return 4 * (4 * weights + _KEPT * images * outputs)

    needed = bytes_of(width**2 * _MOST_WEIGHTS, width * size**2 * _MOST_OUTPUTS)
    if backbone not in BACKBONES:  # only its input size is known
        needed = bytes_of(0, 3 * size**2)
    elif needed > there:
        needed = bytes_of(*_footprint(backbone, config.model.stem, size, width))
    if needed > there:
        raise UserError(
            f"--config.batch_size={config.batch_size}, model.width={width} and views of "
            f"{size}x{size} pixels need at least {needed / 2**30:,.0f} GiB of memory, and this "
            f"machine has {there / 2**30:,.0f} GiB: make one of them smaller"
        )


def _footprint(backbone: str, stem: str, size: int, width: int) -> tuple[float, float]:
    """Number of weights and of outputs per image of a network, scaled up from a narrow one."""
    with building(seed=0):
        module = importlib.import_module(BACKBONES[backbone])
        narrow = module.build_backbone(backbone, width=_NARROW, stem=stem)
        sized = keras.models.clone_model(narrow, input_tensors=keras.Input((size, size, 3)))
    tensors = tf.nest.flatten([layer.output for layer in sized.layers])
    outputs = sum(math.prod(tensor.shape[1:]) for tensor in tensors)
    return narrow.count_params() * (width / _NARROW) ** 2, outputs * width / _NARROW


def available_memory() -> float:
    """The memory that this process may use, in bytes."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no limit, or "max"
            total = min(total, float(pathlib.Path(limit).read_text(encoding="ascii")))
    return total
