"""The trainings behind a run: one, or one a member of an ensemble, each as far as it is."""

import dataclasses
import pathlib
from collections.abc import Iterator

import ml_collections

from tfvmf.config import differences
from tfvmf.errors import UserError
from tfvmf.reproduction.estimates import Estimator
from tfvmf.reproduction.workspace import Workspace
from tfvmf.training import checkpoints, run_directory
from tfvmf.training.loop import member_config


@dataclasses.dataclass(frozen=True)
class Training:
    """One run, or one member of an ensemble.

    Attributes:
        label: For people.
        directory: The run directory.
        config: Every setting.
        step: How far it is.
        total_steps: Where it ends.
        seconds: What is left will take so long.
        pace: What that is from.
    """

    label: str
    directory: pathlib.Path
    config: ml_collections.ConfigDict
    step: int
    total_steps: int
    seconds: float
    pace: str

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.step >= self.total_steps

    def checkpoint_steps(self) -> list[int]:
        """The checkpoints along the run, in steps: those that it will write, or has kept."""
        steps_per_epoch = self.total_steps // self.config.epochs
        every = max(1, round(self.config.checkpoint.every_epochs * steps_per_epoch))
        planned = sorted({*range(every, self.total_steps + 1, every), self.total_steps})
        if not self.finished:
            return planned
        kept = {checkpoint_step(path) for path in checkpoints.paths(self.directory)}
        return [step for step in planned if step in kept]


def trainings_of(
    workspace: Workspace, estimator: Estimator, name: str, *, first: bool = False
) -> Iterator[Training]:
    """The trainings of a run; of an ensemble only that of the `first` member, if asked."""
    run, config = workspace.runs[name], workspace.config(name)
    if run.members == 1:
        yield _training(workspace, estimator, name, workspace.run_directory(name), config)
        return
    for number in range(1 if first else run.members):
        directory = run_directory.member(workspace.run_directory(name), number)
        label = f"{name}, member {number + 1}"
        member = member_config(config, number)
        yield _training(workspace, estimator, name, directory, member, label=label)


def _training(
    workspace: Workspace,
    estimator: Estimator,
    name: str,
    directory: pathlib.Path,
    config: ml_collections.ConfigDict,
    *,
    label: str = "",
) -> Training:
    images = workspace.runs[name].images.train_images
    if (directory / "config.json").exists():
        found, facts = run_directory.read(directory)
        images = facts["train_images"]
        _check_same(directory, found, config)
    total = config.epochs * (images // config.batch_size)
    newest = checkpoints.latest(directory)
    step = checkpoint_step(newest) if newest else 0
    seconds, pace = estimator.train(config, directory, max(0, total - step))
    return Training(label or name, directory, config, step, total, seconds, pace)


def _check_same(
    directory: pathlib.Path, found: ml_collections.ConfigDict, config: ml_collections.ConfigDict
) -> None:
    """Refuses a directory whose run is another one."""
    changed = differences(found, config)
    for free in run_directory.FREE:
        changed.pop(free, None)
    if changed:
        keys = ", ".join(f"{key} ({old} -> {new})" for key, (old, new) in changed.items())
        raise UserError(
            f"{directory} holds a run with other settings: {keys}; choose another --workdir"
        )


def checkpoint_step(path: str) -> int:
    """The training step of a checkpoint."""
    return int(pathlib.Path(path).name.removeprefix("step-"))
