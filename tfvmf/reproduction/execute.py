"""Carries out a plan: trains and measures what is missing, then writes the outputs."""

import dataclasses
import gc
import pathlib
import time
from collections.abc import Iterable

import keras

from tfvmf import evaluation, training
from tfvmf.reproduction import measure, reports, stand_ins
from tfvmf.reproduction.experiments import EXPERIMENTS, Experiment, Task
from tfvmf.reproduction.plan import Measurement, Plan, Training, Workspace, make_plan
from tfvmf.training import checkpoints, run_directory


def reproduce(name: str, workspace: Workspace, *, dry_run: bool = False) -> list[pathlib.Path]:
    """Makes a table or figure of the paper.

    When called again it continues where it stopped: finished runs and measurements are reused.

    Args:
        name: One of `EXPERIMENTS`.
        workspace: Budget, directory and choices.
        dry_run: Only print the plan.

    Returns:
        The files that were written.

    Raises:
        UserError: Something the user can fix.
        training.Interrupted: Ctrl-C or SIGTERM while training; the state was saved.
    """
    experiment = EXPERIMENTS[name]
    plan = make_plan(experiment, workspace)
    print(f"{experiment.title}\n{workspace.description()}; in {workspace.directory}")
    print("\n".join(plan.lines()), flush=True)
    if dry_run:
        return []
    if not all(run.finished for run in plan.trainings):
        _prepare_data(workspace, plan.trainings)
        for run in plan.trainings:
            if not run.finished:
                print(f"\n{run.label}:", flush=True)
                training.train(run.config, run.directory)
                _forget()
        plan = make_plan(experiment, workspace)
    _claim_ensembles(workspace, experiment)
    measure_missing(workspace, plan)
    return reports.write(experiment, workspace, reports.Results(plan.measurements))


def _prepare_data(workspace: Workspace, trainings: Iterable[Training]) -> None:
    """Writes stand-ins, and loads all data: nothing is trained while some of it is missing."""
    wanted = {run.config.data.source: run.config for run in trainings}
    size = workspace.budget.base.data.image_size
    for images in workspace.budget.sets:
        if not images.source and workspace.source(images) in wanted:
            stand_ins.write(images.name, workspace.stand_in(images), size=size)
    for source, config in wanted.items():
        for split in (config.data.train_split, config.data.eval_split):
            training.load_source(config, source, split)


def _claim_ensembles(workspace: Workspace, experiment: Experiment) -> None:
    """Writes the configuration of each ensemble, whose members were trained one by one."""
    for task in experiment.tasks(workspace.budget):
        if workspace.runs[task.run].num_members > 1 and not task.first_member:
            directory = workspace.run_directory(task.run)
            run_directory.write_or_check_config(directory, workspace.config(task.run), {})


def measure_missing(workspace: Workspace, plan: Plan) -> None:
    """Makes the measurements that are missing, those of one run one after another."""
    missing = [item for item in plan.measurements if not item.done]
    subject: evaluation.Subject | None = None
    for item in sorted(missing, key=lambda item: (str(item.directory), item.step)):
        print(f"\n{item.label}:", flush=True)
        clock = time.perf_counter()
        if subject is None or subject.workdir != item.directory:
            subject = None
            _forget()
            ensemble = item.key["score"] == "ensemble"
            subject = _subject(workspace, item.directory, "" if ensemble else _checkpoint(item))
        elif subject.facts["step"] != item.step:
            subject = subject.at(_checkpoint(item))  # the same images
        found = measure.MEASURES[item.task.kind](subject, _options(workspace, item.task))
        item.keep(found, seconds=time.perf_counter() - clock)
    _forget()


def _options(workspace: Workspace, task: Task) -> evaluation.Options:
    options = evaluation.Options(
        max_images=workspace.images, num_passes=workspace.budget.num_passes
    )
    if not task.supervised:
        return options
    others = workspace.others(workspace.runs[task.run].images)
    return dataclasses.replace(
        options,
        ood_sources=tuple(map(workspace.source, others)),
        supervised=_subject(workspace, workspace.run_directory(task.supervised)),
    )


def _subject(
    workspace: Workspace, directory: pathlib.Path, checkpoint: str = ""
) -> evaluation.Subject:
    return evaluation.subject_from_run(
        directory,
        checkpoint=checkpoint,
        data_dir=workspace.data_dir,
        max_pixels=workspace.max_pixels,
    )


def _checkpoint(item: Measurement) -> str:
    return str(checkpoints.directory(item.directory) / f"step-{item.step}")


def _forget() -> None:
    """Frees the graphs of a finished run."""
    keras.utils.clear_session()
    gc.collect()
