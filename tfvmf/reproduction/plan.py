"""What an experiment still needs: runs to train, measurements to make, and the time they take."""

import dataclasses
import functools
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from tfvmf.config import validate
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
    strategy: str = "default"  # of all runs

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

    def run_directory(self, name: str) -> pathlib.Path:
        """The directory of a run."""
        return self.root / "runs" / name

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
        return (
            f"budget {self.budget.name}: {home.description}, {config.model.backbone} of width "
            f"{config.model.width}, {config.data.image_size}x{config.data.image_size} pixels, "
            f"{config.epochs} epochs, {self.images:,} test images, seed {self.seed}"
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
    directory: pathlib.Path  # of the run
    step: int  # of the checkpoint
    epoch: float  # of the checkpoint
    key: dict[str, Any]  # everything that the result depends on, apart from the run
    path: pathlib.Path  # of the result
    seconds: float  # estimated
    expected_seconds: float  # by the times of the budget alone

    @property
    def done(self) -> bool:
        """Whether a result with this key is kept."""
        return self.read() is not None

    def read(self) -> dict[str, Any] | None:
        """The kept result, or None if there is none with this key."""
        entry = _read_kept(self.path)
        return entry["results"] if entry and entry["key"] == self.key else None

    def keep(self, results: dict[str, Any], *, seconds: float) -> None:
        """Writes a result and the time that it took next to the run."""
        times = {"seconds": seconds, "expected_seconds": self.expected_seconds}
        write_json(self.path, {"key": self.key, **times, "results": results})


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that an experiment is made of, finished or not."""

    trainings: list[Training]
    measurements: list[Measurement]

    @property
    def seconds(self) -> float:
        """Estimated time left."""
        left = [item.seconds for item in self.measurements if not item.done]
        return sum(left) + sum(run.seconds for run in self.trainings)

    def lines(self) -> Iterator[str]:
        """The plan as text."""
        labels = [run.label for run in self.trainings] + [item.label for item in self.measurements]
        width = max(map(len, labels))
        for run in self.trainings:
            state = "finished, reused"
            if not run.finished:
                start = f"continues from step {run.step:,}" if run.step else "to be trained"
                state = f"{start}, {duration(run.seconds)} ({run.pace})"
            yield f"  train    {run.label:{width}}  {run.total_steps:>7,} steps: {state}"
        for item in self.measurements:
            state = "done, reused" if item.done else f"to be measured, {duration(item.seconds)}"
            yield f"  measure  {item.label:{width}}  {item.key['images']:>7,} images: {state}"
        yield f"Total: {duration(self.seconds)}."


def make_plan(experiment: Experiment, workspace: Workspace) -> Plan:
    """Compares what an experiment needs with what exists. Trains nothing and needs no data."""
    estimator = make_estimator(workspace.budget, workspace.root)
    tasks = experiment.tasks(workspace.budget)
    trainings: dict[pathlib.Path, Training] = {}
    for task in tasks:
        for name in filter(None, (task.run, task.supervised)):
            for run in _trainings(workspace, estimator, name, first_member=task.first_member):
                trainings.setdefault(run.directory, run)
    measurements = [
        measurement
        for task in tasks
        for measurement in _measurements(workspace, estimator, trainings, task)
    ]
    return Plan(list(trainings.values()), measurements)


def duration(seconds: float) -> str:
    """A time as text: 45 s, 3.5 min, 12.0 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _trainings(
    workspace: Workspace, estimator: "Estimator", name: str, *, first_member: bool
) -> Iterator[Training]:
    """The trainings of a run: one, or one per member of an ensemble (or only the first)."""
    run, config, place = workspace.runs[name], workspace.config(name), workspace.run_directory(name)
    parts = [(name, place, config)]
    if run.num_members > 1:
        parts = [
            (f"{name}, member {n + 1}", run_directory.member(place, n), member_config(config, n))
            for n in range(1 if first_member else run.num_members)
        ]
    for label, directory, settings in parts:
        images = run.images.train_images
        if read_text(directory / "config.json") is not None:
            images = run_directory.check(directory, settings).get("train_images", images)
        total = settings.epochs * (images // settings.batch_size)
        newest = checkpoints.latest(directory)
        step = checkpoints.step_of(newest) if newest else 0
        seconds, pace = estimator.train(settings, directory, max(0, total - step))
        yield Training(label, directory, settings, step, total, seconds, pace)


def _measurements(
    workspace: Workspace,
    estimator: "Estimator",
    trainings: Mapping[pathlib.Path, Training],
    task: Task,
) -> Iterator[Measurement]:
    """The measurements of a task: one, or one per checkpoint."""
    directory = workspace.run_directory(task.run)
    ensemble = workspace.runs[task.run].num_members > 1
    first = run_directory.member(directory, 0) if ensemble else directory
    run = trainings[first]  # all members of an ensemble end at the same step
    if task.first_member:
        directory = first
    score, passes = _effort(workspace, task)
    for step in run.checkpoint_steps() if task.every_checkpoint else [run.total_steps]:
        place = f" at step {step:,}" if task.every_checkpoint else ""
        yield Measurement(
            task=task,
            label=f"{task.kind} of {task.run}{place}",
            directory=directory,
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
            path=directory / "eval" / "reproduce" / f"{task.kind}-{step}.json",
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
    return Estimator(
        budget,
        training=statistics.median(paces) if paces else 1.0,
        measuring=taken / expected if expected else 1.0,
    )


def _seconds_per_step(directory: pathlib.Path, batch_size: int) -> float | None:
    """The pace of a run's latest steps; None if it has not logged any."""
    found = [line.get("images_per_second") for line in read_metrics(directory)]
    rates = list(filter(None, found))[-_LATEST_LINES:]
    return batch_size / statistics.median(rates) if rates else None
