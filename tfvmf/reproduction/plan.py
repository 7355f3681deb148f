"""What an experiment still needs: runs to train, measurements to make, and how long they take."""

import dataclasses
import pathlib
from collections.abc import Iterator

from tfvmf.reproduction.estimates import make_estimator
from tfvmf.reproduction.experiments import Experiment
from tfvmf.reproduction.measurements import Measurement, measurements_of
from tfvmf.reproduction.trainings import Training, trainings_of
from tfvmf.reproduction.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that an experiment is made of, finished or not."""

    trainings: list[Training]
    measurements: list[Measurement]

    @property
    def seconds(self) -> float:
        """What is left will take so long."""
        left = [item.seconds for item in self.measurements if not item.done]
        return sum(left) + sum(run.seconds for run in self.trainings)

    def lines(self) -> Iterator[str]:
        """The plan for people."""
        labels = [run.label for run in self.trainings]
        labels += [item.label for item in self.measurements]
        width = max(map(len, labels))
        for run in self.trainings:
            state = "finished, is reused"
            if not run.finished:
                begins = f"goes on from {run.step:,}" if run.step else "to be trained"
                state = f"{begins}, {duration(run.seconds)} ({run.pace})"
            yield f"  train    {run.label:{width}}  {run.total_steps:>7,} steps: {state}"
        for item in self.measurements:
            state = "kept, is reused" if item.done else f"to be made, {duration(item.seconds)}"
            yield f"  measure  {item.label:{width}}  {item.images:>7,} images: {state}"
        yield f"In all {duration(self.seconds)}."


def make_plan(experiment: Experiment, workspace: Workspace) -> Plan:
    """Looks at what is there and says what is missing. Trains nothing, and needs no data."""
    estimator = make_estimator(workspace.budget, workspace.directory)
    tasks = experiment.tasks(workspace.budget)
    trainings: dict[pathlib.Path, Training] = {}
    for task in tasks:
        for name in filter(None, (task.run, task.beside)):
            for run in trainings_of(workspace, estimator, name, first=task.member):
                trainings.setdefault(run.directory, run)
    measurements = [
        measurement
        for task in tasks
        for measurement in measurements_of(workspace, estimator, trainings, task)
    ]
    return Plan(list(trainings.values()), measurements)


def duration(seconds: float) -> str:
    """A time for people: 45 s, 3.5 min, 12.0 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
