"""The training run: from a configuration and a directory to a trained encoder in it."""

import contextlib
import dataclasses
import functools
import math
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf.config import validate
from tfvmf.data import pipeline
from tfvmf.errors import UserError
from tfvmf.files import lock
from tfvmf.methods import Method, build_method, building, check_name
from tfvmf.progress import Progress
from tfvmf.training import run_directory
from tfvmf.training.checkpoints import Checkpoints, load_method
from tfvmf.training.inputs import Inputs, check_broken, image_inputs, make_iterator
from tfvmf.training.memory import check_memory
from tfvmf.training.metrics import MetricsWriter, describe, summary
from tfvmf.training.monitor import collapse_warning
from tfvmf.training.optimizers import make_optimizer
from tfvmf.training.step import TrainStep, make_train_step
from tfvmf.training.strategies import (
    PEER_TIMEOUT,
    agree_to_stop,
    as_user_errors,
    check_same,
    is_chief,
    make_strategy,
    num_workers,
    run_facts,
)

_TIMED_STEPS, _TIMED_SECONDS = 20, 20.0  # of the measurement for config.minutes, at most


def train(
    config: ml_collections.ConfigDict,
    workdir: str | pathlib.Path,
    *,
    force_config: bool = False,
    logical_devices: int = 0,
    peer_timeout: float = PEER_TIMEOUT,
    deterministic: bool = True,
    strict: bool = False,
    command: Callable[[int], str] | None = None,
) -> dict[str, float]:
    """Trains what a configuration asks for: one run, or all members of an ensemble.

    Every member of an ensemble of seeds is a run directory of its own, `<workdir>/members/00` and
    so on, that evaluates and exports like any other. Members that are already trained are left as
    they are, so the same call continues from where it was stopped. Arguments, result and errors
    are those of `train_run`.
    """
    options = {name: value for name, value in locals().items() if name not in ("config", "workdir")}
    validate(config)
    check_memory(config, workers=num_workers(config.strategy))
    workdir = pathlib.Path(workdir)
    if config.ensemble.num_members == 1 or config.ensemble.kind == "snapshot":
        return train_run(config, workdir, **options)
    chief = is_chief(config.strategy)
    latest: dict[str, float] = {}
    with lock(workdir) if chief else contextlib.nullcontext():
        if chief:
            run_directory.write_or_check_config(workdir, config, {}, force=force_config)
        for number in range(config.ensemble.num_members):
            print(f"member {number + 1} of {config.ensemble.num_members}", flush=True)
            member = alone(config, seed=config.seed + number)
            latest = train_run(member, run_directory.member(workdir, number), **options)
    return latest


def alone(config: ml_collections.ConfigDict, **changes: Any) -> ml_collections.ConfigDict:
    """The configuration of a member of an ensemble as that of a run of its own."""
    member = ml_collections.ConfigDict(config.to_dict())
    member.ensemble.num_members = 1
    member.update(changes)
    return member


def load_members(
    workdir: str | pathlib.Path, *, trust_model: bool = False
) -> list[tuple[Method, int]]:
    """The trained methods of an ensemble with the steps of their weights; [] for any other run."""
    workdir = pathlib.Path(workdir).expanduser()
    config, _ = run_directory.read(workdir)
    if config.ensemble.num_members == 1:
        return []
    loaded = []
    for number in range(config.ensemble.num_members):
        directory = run_directory.member(workdir, number)
        try:
            loaded.append(load_method(directory, trust_model=trust_model)[1:])
        except UserError as error:
            raise UserError(
                f"member {number + 1} of {config.ensemble.num_members} is not there yet: {error}"
            ) from error
    return loaded


def train_run(
    config: ml_collections.ConfigDict,
    workdir: str | pathlib.Path,
    *,
    force_config: bool = False,
    logical_devices: int = 0,
    peer_timeout: float = PEER_TIMEOUT,
    deterministic: bool = True,
    strict: bool = False,
    command: Callable[[int], str] | None = None,
    initialize: Callable[[Method], None] | None = None,
    make_inputs: Callable[[ml_collections.ConfigDict], Inputs] = image_inputs,
    advice: str = run_directory.FORCE,
) -> dict[str, float]:
    """Trains a method, or continues the run that is in the directory.

    Args:
        config: Every setting of the run (`tfvmf.config.default_config`).
        workdir: The run directory. Training there again resumes from the last checkpoint.
        force_config: Continue although the directory's run had other settings.
        logical_devices: See `strategies.make_strategy`.
        peer_timeout: See there.
        deterministic: Switch TensorFlow's op determinism on, for good in this process: the same
            call gives the same bits, interrupted or not.
        strict: Refuse to train if any file cannot be read (`check_broken`).
        command: With `config.minutes`, the command that trains for a number of epochs, to print.
        initialize: Gives a new method other weights than random ones; a run that is resumed has
            its own.
        make_inputs: What the configuration is trained on.
        advice: What to do, beside choosing another directory, where its run had other settings.

    Returns:
        The last measured values (`loss`, `knn_accuracy`, ...).

    Raises:
        UserError: Something the user can fix; nothing was trained.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
    """
    workdir = pathlib.Path(workdir)
    check_name(config.method)
    chief = is_chief(config.strategy)

    # ---- Data: every problem with it shows before anything is trained.
    inputs = make_inputs(config)
    check_broken(inputs, workdir, strict=strict, write=chief)
    epoch_steps = pipeline.steps_per_epoch(inputs.size, config.batch_size, name=inputs.name)

    # ---- Model, optimizer and state. The same seed gives the same bits, interrupted or not.
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    alike = run_facts(config, inputs) if config.strategy == "multi_worker" else {}
    strategy = make_strategy(
        config.strategy, logical_devices=logical_devices, facts=alike, peer_timeout=peer_timeout
    )

    def build(plan: Plan) -> tuple[Method, keras.optimizers.Optimizer]:
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
        return method, optimizer

    def build_step(method: Method, optimizer: keras.optimizers.Optimizer) -> TrainStep:
        steps = {"seed": config.seed, "steps_per_epoch": epoch_steps}
        rate, views = config.optimizer.backbone_rate, inputs.views(method)
        return make_train_step(strategy, method, optimizer, views, backbone_rate=rate, **steps)

    if config.minutes:
        config = ml_collections.ConfigDict(config.to_dict())
        stored = run_directory.chosen_epochs(workdir, config, force=force_config)
        if stored is None:
            method, optimizer = build(Plan.of(config, epoch_steps))
            batches = make_iterator(strategy, inputs, config, total_steps=_TIMED_STEPS)
            pace = measure(
                build_step(method, optimizer), batches(0), inputs.monitor(method), epoch_steps
            )
            stored = pace.epochs(config)
            told = command(stored) if command else f"config.epochs={stored}"
            print(
                f"{config.batch_size / pace.step:.0f} images/s: {stored} epochs take about "
                f"{stored * pace.epoch(config) / 60:.1f} minutes\n"
                f"the same bits without measuring: {told}",
                flush=True,
            )
        config.epochs = stored
    plan = Plan.of(config, epoch_steps)
    method, optimizer = build(plan)
    inputs.check(method)
    batches = make_iterator(strategy, inputs, config, total_steps=plan.total_steps)
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
                method.keep_files(workdir)
        variables = [v for model in method.models.values() for v in model.variables]
        check_same(strategy, alike, variables, workdir, start)

        def save_member(number: int) -> None:
            """Writes the present state as a run directory of its own."""
            directory = run_directory.member(workdir, number)
            if chief:
                run_directory.write_or_check_config(directory, alone(config), facts, force=True)
                method.keep_files(directory)
            Checkpoints(directory, method, optimizer, keep=1, chief=chief).save()

        # ---- Training.
        describe(
            method,
            f"{inputs.name.removesuffix(' (train)')}: {inputs.description}",
            replicas=strategy.num_replicas_in_sync,
            start=start,
            workdir=workdir,
            total_steps=plan.total_steps,
        )
        for note in inputs.notes:
            print(note, flush=True)
        writer = None
        if chief:
            writer = stack.enter_context(contextlib.closing(MetricsWriter(workdir, step=start)))
        if start < plan.total_steps:
            inputs.prepare(method)
        run = Run(
            plan=plan,
            method=method,
            optimizer=optimizer,
            step=build_step(method, optimizer),
            monitor=inputs.monitor(method),
            checkpoints=checkpoints,
            batch_size=config.batch_size,
            writer=writer,
            save_member=save_member,
            stopping=functools.partial(agree_to_stop, strategy, every=plan.log_every),
        )
        return run(batches(start), start)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run is, and how often it saves, measures and logs; all in steps."""

    steps_per_epoch: int
    total_steps: int
    cycles: int  # of the learning rate, each of the same length
    monitor_every: int
    save_every: int
    log_every: int

    @classmethod
    def of(cls, config: ml_collections.ConfigDict, steps_per_epoch: int) -> "Plan":
        """The plan that a run's configuration describes."""

        def steps(epochs: float) -> int:  # 0 stays 0, all else is at least one
            return max(1, round(epochs * steps_per_epoch)) if epochs else 0

        return cls(
            steps_per_epoch=steps_per_epoch,
            total_steps=config.epochs * steps_per_epoch,
            cycles=config.ensemble.num_members if config.ensemble.kind == "snapshot" else 1,
            monitor_every=steps(config.monitor.every_epochs),
            save_every=steps(config.checkpoint.every_epochs),
            log_every=config.log_every_steps,
        )

    @property
    def cycle(self) -> int:
        """Steps of a cycle of the learning rate."""
        return self.total_steps // self.cycles

    def is_due(self, step: int, every: int) -> bool:
        """Whether something that happens every few steps, and at the end, happens now."""
        return every > 0 and (step % every == 0 or step == self.total_steps)


class Pace(NamedTuple):
    """What takes how long, in seconds: a step, all steps of an epoch, a look at held-out images."""

    step: float
    steps: float
    monitor: float

    def epoch(self, config: ml_collections.ConfigDict) -> float:
        """Seconds of an epoch with its share of the looks."""
        every = config.monitor.every_epochs
        return self.steps + (self.monitor / every if every else 0.0)

    def epochs(self, config: ml_collections.ConfigDict) -> int:
        """How many epochs fit into `config.minutes`: at least one, and whole cycles."""
        cycles = config.ensemble.num_members if config.ensemble.kind == "snapshot" else 1
        fitting = int(60 * config.minutes / self.epoch(config)) // cycles * cycles
        return max(cycles, fitting)


def measure(
    step: TrainStep, batches: Iterator, monitor: Callable[[], object], epoch_steps: int
) -> Pace:
    """Trains some steps, of a run that is then thrown away, and looks at held-out images once."""
    seconds: list[float] = []
    description = "measuring the pace"
    with Progress(_TIMED_STEPS, description=description, rate=False) as progress:
        for _ in range(_TIMED_STEPS):
            clock = time.perf_counter()
            step(batches)["loss"].numpy()
            seconds.append(time.perf_counter() - clock)
            progress.update()
            if len(seconds) > 2 and sum(seconds[1:]) > _TIMED_SECONDS:
                break
    clock = time.perf_counter()
    monitor()
    # The first step builds the graph; of the others the median, as other programs may interfere.
    typical = float(np.median(seconds[1:]))
    return Pace(typical, typical * epoch_steps, time.perf_counter() - clock)


class Interrupted(Exception):
    """The run was asked to stop, and saved its state first."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, as shells count."""
        return 128 + self.signum


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collects Ctrl-C or SIGTERM, to be obeyed after the present step; a second one acts at once.

    TensorFlow's PreemptionCheckpointHandler stops where its own `run` is called and saves by its
    own manager; here the same step saves, logs and agrees with the other workers.
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
    batch_size: int
    writer: MetricsWriter | None
    save_member: Callable[[int], None]  # saves the state as that member of an ensemble
    stopping: Callable[[int, int], int]  # signal of this process, step -> signal to obey now

    def __call__(self, batches: Iterator, start: int) -> dict[str, float]:
        """Trains from step `start` to the end of the plan."""
        plan, latest = self.plan, dict[str, float]()
        pending: list[dict[str, tf.Tensor]] = []
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
                    if not first:  # which built the graph
                        images = len(pending) * self.batch_size
                        values["images_per_second"] = images / (time.perf_counter() - clock)
                    self._write(step, values)
                    latest.update(values)
                    pending = []
                progress.update(1, self._summary(latest))
                if monitors:
                    watched = self.monitor()
                    self._write(step, watched)
                    latest.update(watched)
                    epoch = step / plan.steps_per_epoch
                    progress.note(f"epoch {epoch:.0f}: {self._summary(latest)}")
                    warning = collapse_warning(watched) if self.method.learns_directions else ""
                    if warning:
                        progress.note(warning)
                if plan.cycles > 1 and step % plan.cycle == 0:
                    self.save_member(step // plan.cycle - 1)
                if saves:
                    self.checkpoints.save()
                if signum:
                    raise Interrupted(
                        signum,
                        f"stopped after step {step} of {plan.total_steps}, all saved: "
                        "the same command continues from here",
                    )
                if not pending:
                    clock = time.perf_counter()
        return latest or self.monitor()

    def _collect(self, pending: list[dict[str, tf.Tensor]], step: int) -> dict[str, float]:
        """Mean of the terms since the last log line; refuses to continue from a broken loss."""
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

    def _summary(self, values: dict[str, float]) -> str:
        return summary(values, self.method.term_names)

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self.writer:
            self.writer.write(step, values)
