"""What an experiment still needs: runs to train, measurements to make, and the time they take."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

import ml_collections

from tfvmf.config import default_config, flatten, validate
from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, frost_source
from tfvmf.errors import UserError
from tfvmf.files import fingerprint, read_text, write_json
from tfvmf.methods import METHODS
from tfvmf.reproduction.experiments import REFERENCE, Budget, Experiment, ImageSet, Task, all_runs
from tfvmf.training import checkpoints, read_metrics, run_directory
from tfvmf.training.loop import alone

NUM_VIEWS = 4  # per image, for the score `agreement`
FITTED = "fitted.json"  # marks the directory of a finished head
_VIEWS = 5  # per image that a head is fitted to
REFERENCE_SCALE = 3  # enlarges images for a pretrained encoder
_LATEST_LINES = 20  # lines of metrics.jsonl that give the rate of a run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """One reproduction: a budget, its directory and the choices of the user."""

    budget: Budget
    directory: str | pathlib.Path  # holds `runs/<name>`, the stand-ins in `data/`, and the outputs
    data_dir: str = ""  # directory of prepared TFDS data sets
    max_pixels: int = 0  # larger images are rejected; 0 for the default
    max_images: int = 0  # number of test images to measure; 0 for the budget's
    seed: int = 0  # seed of all runs
    seeds: int = 1  # number of repetitions, with `seed` and the seeds after it
    repeat: tuple[str, ...] = ()  # the runs to repeat; () for all
    repetition: int = 0  # index of this repetition
    strategy: str = "default"  # distribution strategy of all runs
    reference: str = ""  # a pretrained encoder, as `posthoc.fit_kappa` takes it
    results: str = ""  # directory where finished measurements are read and added

    @property
    def root(self) -> pathlib.Path:
        """`directory` as a path."""
        return pathlib.Path(self.directory).expanduser()

    @property
    def images(self) -> int:
        """Number of test images to measure."""
        return min(self.max_images or self.budget.max_images, self.budget.sets[0].test_images)

    @functools.cached_property
    def runs(self) -> dict[str, Any]:
        """All runs by name."""
        return all_runs(self.budget)

    @property
    def mark(self) -> str:
        """The end of labels in a plan: the seed, if there are several."""
        return f", seed {self.seed}" if self.seeds > 1 else ""

    def repetitions(self) -> "list[Workspace]":
        """This workspace for each of its seeds."""
        return [
            dataclasses.replace(self, seed=self.seed + number, repetition=number)
            for number in range(self.seeds)
        ]

    def has(self, task: Task) -> bool:
        """Whether a task is measured with this seed.

        Further seeds of named runs leave out what takes long (supervised runs, all checkpoints,
        controls) and pictures.
        """
        if task.run == REFERENCE and (self.repetition or not self.reference):
            return False
        if not self.repetition or not self.repeat:
            return True
        once = task.supervised or task.every_checkpoint
        once = once or task.kind in ("controls", "examples", "spread")
        return task.run in self.repeat and not once

    def run_directory(self, name: str) -> pathlib.Path:
        """The directory of a run; its name has a seed only in further repetitions."""
        mark = f"-seed{self.seed}" if self.repetition else ""
        return self.root / "runs" / f"{name}{mark}"

    def fingerprint(self, *names: str) -> str:
        """A hash of the settings that the results of runs depend on.

        Settings at their default are left out, so that a new setting changes no hash.
        """
        settings, usual = [], flatten(default_config())
        for name in filter(None, names):
            config = self.config(name)
            config.data.source = self.runs[name].images.name  # not the path of a stand-in
            given = pathlib.Path(self.reference).expanduser()
            if name == REFERENCE:
                config.fit_kappa.model = fingerprint(given) if given.exists() else self.reference
            flat = flatten(config).items()
            free = (*run_directory.MAY_DIFFER, "name", "checkpoint.keep", "log_every_steps")
            settings.append({k: v for k, v in flat if k not in free and v != usual[k]})
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
        if run.head_of:
            config.method, config.fit_kappa.model = "fit_kappa", run.head_of
        if name == REFERENCE:
            config.data.image_size *= REFERENCE_SCALE
        validate(config)
        return config

    def source(self, images: ImageSet) -> str:
        """The `config.data.source` of a data set."""
        return images.source or f"npz:{self.stand_in(images)}"

    def stand_in(self, images: ImageSet) -> pathlib.Path:
        """The file of a stand-in; absolute, so that a run does not depend on the current folder."""
        size = self.budget.base_config().data.image_size
        return self.root.resolve() / "data" / f"{images.name}_{size}.npz"

    def others(self, images: ImageSet) -> list[ImageSet]:
        """The budget's other data sets."""
        return [other for other in self.budget.sets if other is not images]

    def description(self, seeds: int = 0) -> str:
        """How every output was made, in words; `seeds` is their number if it is not the plan's."""
        config, home = self.budget.base_config(), self.budget.sets[0]
        size, last = config.data.image_size, self.seed + (seeds or self.seeds) - 1
        numbers = f" {last}" if last == self.seed else f"s {self.seed} to {last}"
        return (
            f"budget {self.budget.name}: {home.description}, {size}x{size} pixels, {self.images:,} "
            f"test images, seed{numbers}; {config.model.backbone} of width {config.model.width} "
            f"and {config.epochs} epochs, unless a note names others"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One run to train, one member of an ensemble, or a head to fit to the encoder of a run."""

    label: str  # name in the plan
    directory: pathlib.Path
    config: ml_collections.ConfigDict
    step: int  # steps done so far
    total_steps: int  # 1 for a head
    seconds: float  # estimated time left
    model: str = ""  # the model that a head is fitted to; "" for a run

    @property
    def done(self) -> bool:
        """Whether nothing is left to train."""
        return self.step >= self.total_steps

    def checkpoint_steps(self) -> list[int]:
        """Steps of the regular checkpoints that will be written or, once done, still exist."""
        steps_per_epoch = self.total_steps // self.config.epochs
        every = max(1, round(self.config.checkpoint.every_epochs * steps_per_epoch))
        planned = sorted({*range(every, self.total_steps + 1, every), self.total_steps})
        kept = {checkpoints.step_of(path) for path in checkpoints.paths(self.directory)}
        return [step for step in planned if step in kept] if self.done else planned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One task at one checkpoint, and the files that keep its result.

    One file is next to the run. Another one is in `--results`, if given, with a hash of the run's
    settings in its name.
    """

    task: Task
    label: str  # name in the plan
    workspace: Workspace  # with the seed of the run
    directory: pathlib.Path  # directory of the run
    step: int  # step of the checkpoint
    epoch: float  # epoch of the checkpoint
    key: dict[str, Any]  # everything that the result depends on, apart from the run
    passes: int  # forward passes of single images
    seconds: float  # estimated time
    ready: bool  # whether all runs that it needs are trained

    @property
    def done(self) -> bool:
        """Whether a result with this key is kept."""
        return self.read() is not None

    @property
    def paths(self) -> list[pathlib.Path]:
        """The files that keep the result."""
        task, workspace = self.task, self.workspace
        paths = [self.directory / "eval" / "reproduce" / f"{task.kind}-{self.step}.json"]
        if workspace.results:
            settings = workspace.fingerprint(task.run, task.supervised)
            name = f"{task.kind}-{task.run}-{self.step}-{settings}.json"
            paths.append(pathlib.Path(workspace.results).expanduser() / name)
        return paths

    def read(self) -> dict[str, Any] | None:
        """The kept result, or None if there is none with this key."""
        kept = (entry for entry in map(_read_kept, self.paths) if entry.get("key") == self.key)
        return next((entry["results"] for entry in kept), None)

    def keep(self, results: dict[str, Any], *, seconds: float) -> None:
        """Writes a result and the time it took."""
        effort = {"passes": self.passes, "seconds": seconds}
        for path in self.paths:
            write_json(path, {"key": self.key, **effort, "results": results})


@dataclasses.dataclass(frozen=True)
class Plan:
    """All trainings and measurements of experiments, done or not."""

    trainings: list[Training]
    measurements: list[Measurement]

    @property
    def seconds(self) -> float:
        """Estimated time left; NaN if it is unknown."""
        items: list[Training | Measurement] = [*self.trainings, *self.measurements]
        return sum(item.seconds for item in items if not item.done)

    def lines(self) -> Iterator[str]:
        """The plan as text: one line for all checkpoints, members and seeds of a run."""
        groups: dict[tuple[str, str, str], list[Training | Measurement]] = {}
        for run in self.trainings:
            amount = "a head" if run.model else f"{run.total_steps:,} steps"
            groups.setdefault(("train", run.label.partition(",")[0], amount), []).append(run)
        for each in self.measurements:
            amount = f"{each.key['images']:,} images"
            groups.setdefault(("measure", each.label.partition(",")[0], amount), []).append(each)
        width = max(len(label) for _, label, _ in groups)
        for (verb, label, amount), items in groups.items():
            left = [item for item in items if not item.done]
            some = f"{len(left)} of " if 0 < len(left) < len(items) else ""
            times = f"{some}{len(items)} x" if len(items) > 1 else ""
            state = "done, reused"
            if left:
                begun = verb == "train" and left[0].step
                state = "to be trained" if verb == "train" else "to be measured"
                state = f"continues from step {left[0].step:,}" if begun else state
                state += f", {duration(sum(item.seconds for item in left))}"
            yield f"  {verb:8} {label:{width}} {times:>5}{amount:>14}: {state}"
        note = ""
        if math.isnan(self.seconds):
            note = (
                " This budget needs a GPU: the time is estimated once a run has begun. "
                "Without a GPU, use --budget=cpu."
            )
        yield f"Total: {duration(self.seconds)}, estimated.{note}"


def make_plan(workspace: Workspace, *experiments: Experiment) -> Plan:
    """Compares what experiments need with what exists. Trains nothing and needs no data."""
    rates = _Rates(workspace)
    trainings: dict[pathlib.Path, Training] = {}
    measurements: dict[pathlib.Path, Measurement] = {}
    needed: set[pathlib.Path] = set()
    for each in workspace.repetitions():
        tasks = (task for each_of in experiments for task in each_of.tasks(each.budget))
        for task in filter(each.has, tasks):
            used: list[Training] = []
            for name in filter(None, (task.run, task.supervised)):
                used += _trainings(each, rates, name, trainings, task.first_member)
            for item in _measurements(each, rates, used, task):
                measurements.setdefault(item.paths[0], item)
                if not item.done:
                    needed.update(run.directory for run in used)
    # An untrained run is not needed if all its measurements are known.
    kept = [run for run in trainings.values() if run.done or run.directory in needed]
    return Plan(kept, list(measurements.values()))


def duration(seconds: float) -> str:
    """A time as text: 45 s, 12 min, 3 h 10 min."""
    if math.isnan(seconds):
        return "time unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class _Rates:
    """Images per second: the budget's rates, corrected by those measured in a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._budget, self.measuring = workspace.budget, workspace.budget.measuring
        self._runs: dict[tuple[str, str], float] = {}
        factors = []  # how much faster than the budget this machine is
        for path in workspace.root.glob("runs/**/metrics.jsonl"):
            lines = read_metrics(path.parent)
            rates = [line["images_per_second"] for line in lines if "images_per_second" in line]
            if rates:
                config, _ = run_directory.read(path.parent)
                rate = statistics.median(rates[-_LATEST_LINES:])
                self._runs[config.method, config.model.backbone] = rate
                factors.append(rate / self._usual(config))
        unknown = 1.0 if self._budget.rates else math.nan
        self._factor = statistics.median(factors) if factors else unknown
        found = map(_read_kept, workspace.root.glob("runs/**/eval/reproduce/*.json"))
        efforts = [(each["passes"], each["seconds"]) for each in found if "passes" in each]
        if efforts:
            passes, seconds = map(sum, zip(*efforts, strict=True))
            self.measuring = passes / max(seconds, 1e-9)

    def training(self, config: ml_collections.ConfigDict) -> float:
        """The rate measured for this method and network, or else an estimate."""
        measured = self._runs.get((config.method, config.model.backbone))
        return measured or self._factor * self._usual(config)

    def _usual(self, config: ml_collections.ConfigDict) -> float:
        rate = self._budget.rates.get(config.model.backbone, 1.0)
        return rate / METHODS[config.method].relative_cost


def _trainings(
    workspace: Workspace,
    rates: _Rates,
    name: str,
    known: dict[pathlib.Path, Training],
    first_member: bool = False,
) -> list[Training]:
    """The trainings of a run: one, or one per member of an ensemble (or only the first).

    Also includes, after a head that is not done, the trainings of its encoder. `known` has the
    trainings found before, and gets the new ones.
    """
    run, config, place = workspace.runs[name], workspace.config(name), workspace.run_directory(name)
    parts = [(name, place, config)]
    if run.num_members > 1:
        members = range(1 if first_member else run.num_members)
        parts = [
            (f"{name}, member {1 + n}", run_directory.member(place, n), each)
            for n, each in ((n, alone(config, seed=config.seed + n)) for n in members)
        ]
    fitted, model, base = (place / FITTED).exists(), "", list[Training]()
    if run.head_of:
        model = workspace.reference
        if name != REFERENCE:
            model = str(workspace.run_directory(run.head_of).resolve())
            base = [] if fitted else _trainings(workspace, rates, run.head_of, known)
    for label, directory, settings in parts:
        if directory in known:
            continue
        images, kept = run.images.train_images, settings.data.reserve
        if model:
            total, step, seconds = 1, int(fitted), _VIEWS * images / rates.measuring
        else:
            images -= round(kept if kept >= 1 else kept * images)
            if read_text(directory / "config.json") is not None:
                images = run_directory.check(directory, settings).get("train_images", images)
            total = settings.epochs * (images // settings.batch_size)
            newest = checkpoints.latest(directory)
            step = checkpoints.step_of(newest) if newest else 0
            seconds = (total - step) * settings.batch_size / rates.training(settings)
        known[directory] = Training(
            label=f"{label}{workspace.mark}", directory=directory, config=settings, step=step,
            total_steps=total, seconds=seconds, model=model,
        )  # fmt: skip
    return [*(known[directory] for _, directory, _ in parts), *base]


def _measurements(
    workspace: Workspace, rates: _Rates, used: list[Training], task: Task
) -> Iterator[Measurement]:
    """The measurements of a task: one, or one per checkpoint of its run, the first of `used`.

    For an ensemble, this is the first member: all members end at the same step.
    """
    run = used[0]
    score, passes = _effort(workspace, task)
    for step in run.checkpoint_steps() if task.every_checkpoint else [run.total_steps]:
        place = f", step {step:,}" if task.every_checkpoint else ""
        yield Measurement(
            task=task,
            label=f"{task.kind} of {task.run}{place}{workspace.mark}",
            workspace=workspace,
            directory=run.directory if task.first_member else workspace.run_directory(task.run),
            step=step,
            epoch=step * run.config.epochs / run.total_steps,
            key={
                "kind": task.kind,
                "step": step,
                "images": workspace.images,  # a seeded sample; in version 0.1 the first ones
                "sample": "seeded",
                "score": score,
                "passes": workspace.budget.num_passes,
                "frost": frost_source(),
            },
            passes=passes,
            seconds=passes / rates.measuring,
            ready=all(each.done for each in used),
        )


def _effort(workspace: Workspace, task: Task) -> tuple[str, int]:
    """The measure of uncertainty that a task uses ("" for none), and its forward passes."""
    count, run = workspace.images, workspace.runs[task.run]
    train = run.images.train_images
    corrupted = count * (1 + len(CORRUPTIONS) * len(SEVERITIES))
    images = {
        "controls": corrupted * (1 + NUM_VIEWS),
        "accuracy": train + count,
        "failure": train + count,
        "ood": 2 * (train + 3 * count),
    }.get(task.kind, corrupted)
    if task.kind in ("accuracy", "controls"):
        return "", images
    if run.num_members > 1 and not task.first_member:
        return "ensemble", images * run.num_members
    if run.changes.get("model.dropout"):
        return "dropout", images * (workspace.budget.num_passes + 1)
    return "kappa", images


def _read_kept(path: pathlib.Path) -> dict[str, Any]:
    """A kept measurement: `key`, `passes`, `seconds`, `results`; {} if there is none."""
    try:
        return json.loads(read_text(path) or "{}")
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}): rename it to measure again") from error
