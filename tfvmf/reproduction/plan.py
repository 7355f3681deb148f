"""What an experiment still needs: runs to train, measurements to make, and the time they take."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import ml_collections
import tensorflow as tf

from tfvmf.config import flatten, validate
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, frost_source
from tfvmf.errors import UserError
from tfvmf.files import read_text, write_json
from tfvmf.methods import METHODS
from tfvmf.models.resnet import ARCHITECTURES
from tfvmf.reproduction.experiments import Budget, Experiment, ImageSet, Run, Task, all_runs
from tfvmf.training import checkpoints, read_metrics, run_directory
from tfvmf.training.loop import member_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """One reproduction: a budget, its directory and the choices of the user."""

    budget: Budget
    directory: str | pathlib.Path  # holds `runs/<name>`, the stand-ins in `data/`, and the outputs
    data_dir: str = ""  # of prepared TFDS data sets
    max_pixels: int = 0  # larger images are refused; 0 for the default
    max_images: int = 0  # number of test images that are measured; 0 for the budget's
    seed: int = 0  # of all runs
    seeds: int = 1  # so many times, with this seed and the following ones
    repetition: int = 0  # the number of these runs among them
    strategy: str = "default"  # of all runs
    results: str = ""  # directory of results that count as measured, and that new ones go to

    @property
    def root(self) -> pathlib.Path:
        """`directory` as a path."""
        return pathlib.Path(self.directory).expanduser()

    @property
    def images(self) -> int:
        """Number of test images that are measured."""
        return min(self.max_images or self.budget.max_images, self.budget.sets[0].test_images)

    @functools.cached_property
    def runs(self) -> dict[str, Run]:
        """All runs by name."""
        return all_runs(self.budget)

    def repetitions(self) -> "list[Workspace]":
        """This workspace for each of its seeds."""
        return [
            dataclasses.replace(self, seed=self.seed + number, repetition=number)
            for number in range(self.seeds)
        ]

    def run_directory(self, name: str) -> pathlib.Path:
        """The directory of a run; those of the first seed are called as where there is but one."""
        mark = f"-seed{self.seed}" if self.repetition else ""
        return self.root / "runs" / f"{name}{mark}"

    def fingerprint(self, *names: str) -> str:
        """A hash of all settings of runs that their results depend on."""
        settings = []
        for name in filter(None, names):
            config = self.config(name)
            config.data.source = self.runs[name].images.name  # not the place of a stand-in
            flat = flatten(config).items()
            settings.append({k: v for k, v in flat if k not in run_directory.MAY_DIFFER})
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def config(self, name: str) -> ml_collections.ConfigDict:
        """The configuration of a run."""
        run, config = self.runs[name], self.budget.base_config()
        config.update_from_flattened_dict(dict(run.changes))
        config.data.source = self.source(run.images)
        config.data.data_dir = self.data_dir
        config.data.max_pixels = self.max_pixels or config.data.max_pixels
        config.seed = self.seed
        config.strategy = self.strategy
        config.ensemble.num_members = run.num_members
        validate(config)
        return config

    def source(self, images: ImageSet) -> str:
        """A data set, as `config.data.source` names it."""
        return images.source or f"npz:{self.stand_in(images)}"

    def stand_in(self, images: ImageSet) -> pathlib.Path:
        """The file of a stand-in; absolute, so that a run does not depend on the current folder."""
        size = self.budget.base.data.image_size
        return self.root.resolve() / "data" / f"{images.name}_{size}.npz"

    def others(self, images: ImageSet) -> list[ImageSet]:
        """The budget's data sets except one."""
        return [other for other in self.budget.sets if other is not images]

    def description(self) -> str:
        """What every output says about how it was made."""
        config, home = self.budget.base, self.budget.sets[0]
        last = self.seed + self.seeds - 1
        seeds = f" {last}" if self.seeds == 1 else f"s {self.seed} to {last}"
        return (
            f"budget {self.budget.name}: {home.description}, {config.model.backbone} of width "
            f"{config.model.width}, {config.data.image_size}x{config.data.image_size} pixels, "
            f"{config.epochs} epochs, {self.images:,} test images, seed{seeds}"
        )


@dataclasses.dataclass(frozen=True)
class Training:
    """One run to train, or one member of an ensemble."""

    label: str  # in the plan
    directory: pathlib.Path
    config: ml_collections.ConfigDict
    step: int  # done so far
    total_steps: int
    seconds: float  # left, estimated
    pace: str  # source of the estimate

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        return self.step >= self.total_steps

    def checkpoint_steps(self) -> list[int]:
        """Steps of the regular checkpoints: those that will be written or, once finished, exist."""
        steps_per_epoch = self.total_steps // self.config.epochs
        every = max(1, round(self.config.checkpoint.every_epochs * steps_per_epoch))
        planned = sorted({*range(every, self.total_steps + 1, every), self.total_steps})
        if not self.finished:
            return planned
        kept = {checkpoints.step_of(path) for path in checkpoints.paths(self.directory)}
        return [step for step in planned if step in kept]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One task at one checkpoint, and the file that keeps its result."""

    task: Task
    label: str  # in the plan
    workspace: Workspace  # with the seed of the run
    directory: pathlib.Path  # of the run
    step: int  # of the checkpoint
    epoch: float  # of the checkpoint
    key: dict[str, Any]  # everything that the result depends on, apart from the run
    seconds: float  # estimated
    expected_seconds: float  # by the times of the budget alone

    @property
    def paths(self) -> list[pathlib.Path]:
        """The files that keep the result: next to the run, and in `--results` if that is given.

        A name there has a hash of the settings of the run.
        """
        name = f"{self.task.kind}-{self.step}.json"
        paths = [self.directory / "eval" / "reproduce" / name]
        if self.workspace.results:
            settings = self.workspace.fingerprint(self.task.run, self.task.supervised)
            name = f"{self.task.kind}-{self.task.run}-{self.step}-{settings}.json"
            paths.append(pathlib.Path(self.workspace.results).expanduser() / name)
        return paths

    @property
    def done(self) -> bool:
        """Whether a result with this key is kept."""
        return self.read() is not None

    def read(self) -> dict[str, Any] | None:
        """The kept result, or None if there is none with this key."""
        for path in self.paths:
            entry = _read_kept(path)
            if entry and entry["key"] == self.key:
                return entry["results"]
        return None

    def keep(self, results: dict[str, Any], *, seconds: float) -> None:
        """Writes a result and the time that it took next to the run, and to `--results`."""
        times = {"seconds": seconds, "expected_seconds": self.expected_seconds}
        for path in self.paths:
            write_json(path, {"key": self.key, **times, "results": results})


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that experiments are made of, finished or not."""

    trainings: list[Training]
    measurements: list[Measurement]
    note: str = ""  # about the times

    @property
    def seconds(self) -> float:
        """Estimated time left."""
        left = [item.seconds for item in self.measurements if not item.done]
        return sum(left) + sum(run.seconds for run in self.trainings)

    def lines(self) -> Iterator[str]:
        """The plan as text: one line for all checkpoints, members and seeds of a run."""
        runs, items = _grouped(self.trainings), _grouped(self.measurements)
        width = max(map(len, [*runs, *items]))
        paces = {run.pace for run in self.trainings if not run.finished}
        for label, trainings in runs.items():
            left, state = [run for run in trainings if not run.finished], "finished, reused"
            if left:
                at = f"continues from step {left[0].step:,}" if left[0].step else "to be trained"
                pace = f" ({left[0].pace})" if len(paces) > 1 else ""
                state = f"{at}, {duration(sum(run.seconds for run in left))}{pace}"
            amount = f"{trainings[0].total_steps:,} steps"
            yield f"  train    {label:{width}} {_times(left, trainings)}{amount:>14}: {state}"
        for label, measurements in items.items():
            missing, state = [item for item in measurements if not item.done], "done, reused"
            if missing:
                state = f"to be measured, {duration(sum(item.seconds for item in missing))}"
            amount = f"{measurements[0].key['images']:,} images"
            yield f"  measure  {label:{width}} {_times(missing, measurements)}{amount:>14}: {state}"
        same = f", {paces.pop()}" if len(paces) == 1 else ""
        yield f"Total: {duration(self.seconds)}{same}.{self.note}"


_Item = TypeVar("_Item", Training, Measurement)


def _grouped(items: Iterable[_Item]) -> dict[str, list[_Item]]:
    """Items by the first part of their labels: what follows is a member, a seed, a checkpoint."""
    groups: dict[str, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.label.partition(",")[0], []).append(item)
    return groups


def _times(left: Sequence[_Item], items: Sequence[_Item]) -> str:
    if len(items) == 1:
        return " " * 5
    some = f"{len(left)} of " if 0 < len(left) < len(items) else ""
    return f"{some}{len(items)} x".rjust(5)


def make_plan(workspace: Workspace, *experiments: Experiment) -> Plan:
    """Compares what experiments need with what exists. Trains nothing and needs no data."""
    estimator = make_estimator(workspace.budget, workspace.root)
    trainings: dict[pathlib.Path, Training] = {}
    measurements: dict[pathlib.Path, Measurement] = {}
    needed: set[pathlib.Path] = set()
    for each in workspace.repetitions():
        for task in (task for each_of in experiments for task in each_of.tasks(each.budget)):
            used: list[Training] = []
            for name in filter(None, (task.run, task.supervised)):
                used += _trainings(each, estimator, name, trainings, task.first_member)
            for item in _measurements(each, estimator, used[0], task):
                measurements.setdefault(item.paths[0], item)
                if not item.done:
                    needed.update(run.directory for run in used)
    # A run that is not there is not needed where all that is measured of it is known.
    kept = [run for run in trainings.values() if run.finished or run.directory in needed]
    note = ""
    if math.isnan(estimator.training):
        note = (
            " This budget needs a GPU, and TensorFlow sees none here: how long it takes is known "
            "once a run has begun. --budget=cpu is made for a machine like this."
        )
    return Plan(kept, list(measurements.values()), note)


def duration(seconds: float) -> str:
    """A time as text: 45 s, 12 min, 3 h 10 min."""
    if math.isnan(seconds):
        return "time unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _trainings(
    workspace: Workspace,
    estimator: "Estimator",
    name: str,
    known: dict[pathlib.Path, Training],
    first_member: bool,
) -> Iterator[Training]:
    """The trainings of a run: one, or one per member of an ensemble (or only the first).

    `known` has those that were looked at before, and gets the new ones.
    """
    run, config, place = workspace.runs[name], workspace.config(name), workspace.run_directory(name)
    seed = f", seed {workspace.seed}" if workspace.seeds > 1 else ""
    parts = [(f"{name}{seed}", place, config)]
    if run.num_members > 1:
        parts = [
            (f"{name}, member {1 + n}{seed}", run_directory.member(place, n), each)
            for n in range(1 if first_member else run.num_members)
            for each in [member_config(config, n)]
        ]
    for label, directory, settings in parts:
        if directory not in known:
            images = run.images.train_images
            if read_text(directory / "config.json") is not None:
                images = run_directory.check(directory, settings).get("train_images", images)
            total = settings.epochs * (images // settings.batch_size)
            newest = checkpoints.latest(directory)
            step = checkpoints.step_of(newest) if newest else 0
            seconds, pace = estimator.train(settings, directory, max(0, total - step))
            known[directory] = Training(label, directory, settings, step, total, seconds, pace)
        yield known[directory]


def _measurements(
    workspace: Workspace, estimator: "Estimator", run: Training, task: Task
) -> Iterator[Measurement]:
    """The measurements of a task: one, or one per checkpoint of its run.

    Of an ensemble `run` is the first member: all of them end at the same step.
    """
    score, passes = _effort(workspace, task)
    seed = f", seed {workspace.seed}" if workspace.seeds > 1 else ""
    for step in run.checkpoint_steps() if task.every_checkpoint else [run.total_steps]:
        place = f", step {step:,}" if task.every_checkpoint else ""
        yield Measurement(
            task=task,
            label=f"{task.kind} of {task.run}{place}{seed}",
            workspace=workspace,
            directory=run.directory if task.first_member else workspace.run_directory(task.run),
            step=step,
            epoch=step * run.config.epochs / run.total_steps,
            key={
                "kind": task.kind,
                "step": step,
                "images": workspace.images,
                "score": score,
                "passes": workspace.budget.num_passes,
                "frost": frost_source(),
            },
            seconds=estimator.measure(run.config, passes),
            expected_seconds=Estimator(workspace.budget).measure(run.config, passes),
        )


def _effort(workspace: Workspace, task: Task) -> tuple[str, int]:
    """The measure of uncertainty that a task uses ("" for none), and its forward passes."""
    count, run, score, passes = workspace.images, workspace.runs[task.run], "kappa", 1
    train = run.images.train_images
    images = {
        "corruption": count * (1 + len(CORRUPTIONS) * len(SEVERITIES)),
        "accuracy": train + count,
        "failure": train + count,
        "ood": 2 * (train + 3 * count),
        "examples": 2 * count,
        "spread": count * (1 + len(CORRUPTIONS)),
    }[task.kind]
    if task.kind == "accuracy":
        score = ""
    elif run.num_members > 1 and not task.first_member:
        score, passes = "ensemble", run.num_members
    elif workspace.config(task.run).model.dropout:
        score, passes = "dropout", workspace.budget.num_passes + 1
    return score, images * passes


def _read_kept(path: pathlib.Path) -> dict[str, Any]:
    """A kept measurement: `key`, `seconds`, `expected_seconds`, `results`; {} if there is none."""
    try:
        return json.loads(read_text(path) or "{}")
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is damaged ({error}): rename it, and it is measured again"
        ) from error


_LATEST_LINES = 20  # of metrics.jsonl, for the pace of a run


@dataclasses.dataclass(frozen=True)
class Estimator:
    """Estimates how long trainings and measurements take."""

    budget: Budget  # whose times hold where nothing was measured
    training: float = 1.0  # factor on the budget's training times, from the runs that exist
    measuring: float = 1.0  # the same of measurements

    def train(
        self, config: ml_collections.ConfigDict, directory: pathlib.Path, steps: int
    ) -> tuple[float, str]:
        """Seconds for a number of steps of a run, and the source of this estimate."""
        if not steps:
            return 0.0, ""
        start = self.training * self.budget.seconds_to_start
        own = _seconds_per_step(directory, config.batch_size)
        if own:
            return start + steps * own, "measured pace of this run"
        source = self.budget.timing if self.training == 1.0 else "the pace of other runs here"
        if math.isnan(self.training):
            return math.nan, "without an estimate"
        step = self.training * self.budget.seconds_per_step * self.step_cost(config)
        return start + steps * step, f"estimated from {source}"

    def measure(self, config: ml_collections.ConfigDict, forward_passes: int) -> float:
        """Seconds for a number of forward passes of one image."""
        seconds = forward_passes * self.backbone_cost(config) / self.budget.images_per_second
        return self.measuring * (self.budget.seconds_to_measure + seconds)

    def step_cost(self, config: ml_collections.ConfigDict) -> float:
        """Time of a step of a run, relative to the budget's simclr_vmf."""
        method, base = (METHODS[each.method].relative_cost for each in (config, self.budget.base))
        return self.backbone_cost(config) * method / base

    def backbone_cost(self, config: ml_collections.ConfigDict) -> float:
        """Time of a forward pass of a run, relative to the budget's simclr_vmf."""
        own, base = (
            ARCHITECTURES[each.model.backbone].relative_cost for each in (config, self.budget.base)
        )
        return own / base


def make_estimator(budget: Budget, directory: pathlib.Path) -> Estimator:
    """An estimator that has looked at the runs and measurements in a directory."""
    plain = Estimator(budget)
    paces = []
    for path in sorted(directory.glob("runs/**/metrics.jsonl")):
        config, _ = run_directory.read(path.parent)
        pace = _seconds_per_step(path.parent, config.batch_size)
        if pace:
            paces.append(pace / (budget.seconds_per_step * plain.step_cost(config)))
    kept = list(filter(None, map(_read_kept, directory.glob("runs/**/eval/reproduce/*.json"))))
    taken, expected = (sum(e[key] for e in kept) for key in ("seconds", "expected_seconds"))
    # A GPU's times say nothing about another machine.
    blind = budget.needs_gpu and not tf.config.list_physical_devices("GPU")
    usual = math.nan if blind else 1.0
    return Estimator(
        budget,
        training=statistics.median(paces) if paces else usual,
        measuring=taken / expected if expected else usual,
    )


def _seconds_per_step(directory: pathlib.Path, batch_size: int) -> float | None:
    """The pace of a run's latest steps; None if it has not logged any."""
    found = [line.get("images_per_second") for line in read_metrics(directory)]
    rates = list(filter(None, found))[-_LATEST_LINES:]
    return batch_size / statistics.median(rates) if rates else None
