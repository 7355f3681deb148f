"""Measurements of runs, and the files that keep their results."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfvmf.data.corruptions import CORRUPTIONS, SEVERITIES, frost_source
from tfvmf.files import write_json
from tfvmf.reproduction.estimates import Estimator, expected_seconds, read_kept
from tfvmf.reproduction.experiments import Task
from tfvmf.reproduction.trainings import Training
from tfvmf.reproduction.workspace import Workspace
from tfvmf.training import run_directory


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One task at one checkpoint.

    Attributes:
        task: What is measured.
        label: For people.
        directory: The run directory.
        step: The checkpoint's.
        epoch: The same in epochs.
        score: The measure of uncertainty; "" where none is needed.
        key: All that the result depends on, beside the run.
        path: The file that keeps the result.
        seconds: It will take so long.
        expected_seconds: By the times of the budget alone.
    """

    task: Task
    label: str
    directory: pathlib.Path
    step: int
    epoch: float
    score: str
    key: dict[str, Any]
    path: pathlib.Path
    seconds: float
    expected_seconds: float

    @property
    def images(self) -> int:
        """How many test images are measured."""
        return self.key["images"]

    @property
    def done(self) -> bool:
        """Whether the file holds the result of this very key."""
        return self.read() is not None

    def read(self) -> dict[str, Any] | None:
        """The kept result, None if there is none of this very key."""
        if not self.path.exists():
            return None
        entry = read_kept(self.path)
        return entry["results"] if entry["key"] == self.key else None

    def keep(self, results: dict[str, Any], *, seconds: float) -> None:
        """Keeps a result beside the run, with the time that it took."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "key": self.key,
            "seconds": seconds,
            "expected_seconds": self.expected_seconds,
            "results": results,
        }
        write_json(self.path, content)


def measurements_of(
    workspace: Workspace,
    estimator: Estimator,
    trainings: Mapping[pathlib.Path, Training],
    task: Task,
) -> Iterator[Measurement]:
    """The measurements of a task: one, or one a checkpoint.

    Args:
        workspace: Where its run is.
        estimator: Says how long they take.
        trainings: All trainings of the experiment, by directory.
        task: What is measured.
    """
    directory = workspace.run_directory(task.run)
    ensemble = workspace.runs[task.run].members > 1
    first = run_directory.member(directory, 0) if ensemble else directory
    run = trainings[first]  # the members of an ensemble end at the same step
    if task.member:
        directory = first
    score = _score(workspace, task)
    forward = _forward_images(workspace, task, score)
    for step in run.checkpoint_steps() if task.along else [run.total_steps]:
        yield Measurement(
            task=task,
            label=f"{task.kind} of {task.run}" + (f" at step {step:,}" if task.along else ""),
            directory=directory,
            step=step,
            epoch=step * run.config.epochs / run.total_steps,
            score=score,
            key={
                "kind": task.kind,
                "step": step,
                "images": workspace.images,
                "score": score,
                "passes": workspace.budget.passes,
                "frost": frost_source(),
            },
            path=directory / "eval" / "reproduce" / f"{task.kind}-{step}.json",
            seconds=estimator.measure(run.config, forward),
            expected_seconds=expected_seconds(workspace.budget, run.config, forward),
        )


def _score(workspace: Workspace, task: Task) -> str:
    """What a task follows: the run's uncertainty."""
    run = workspace.runs[task.run]
    if task.kind == "accuracy":
        return ""
    if run.members > 1 and not task.member:
        return "ensemble"
    return "dropout" if workspace.config(task.run).model.dropout else "kappa"


def _forward_images(workspace: Workspace, task: Task, score: str) -> int:
    """Forward passes of one image that a task costs."""
    count, run = workspace.images, workspace.runs[task.run]
    passes = {"ensemble": run.members, "dropout": workspace.budget.passes + 1}.get(score, 1)
    train = run.images.train_images
    return (
        passes
        * {
            "corruption": count * (1 + len(CORRUPTIONS) * len(SEVERITIES)),
            "accuracy": train + count,
            "failure": train + count,
            "ood": 2 * (train + 3 * count),
            "examples": 2 * count,
            "spread": count * (1 + len(CORRUPTIONS)),
        }[task.kind]
    )
