"""Carries out a plan: trains and measures what is missing, then writes the outputs."""

import dataclasses
import gc
import pathlib
import time
from collections.abc import Iterable

import keras

from tfvmf import evaluation, training
from tfvmf.data.sources import parse
from tfvmf.reproduction import measure, reports, stand_ins
from tfvmf.reproduction.experiments import Task, named
from tfvmf.reproduction.plan import Measurement, Training, Workspace, duration, make_plan
from tfvmf.training import checkpoints, run_directory


def reproduce(name: str, workspace: Workspace, *, dry_run: bool = False) -> list[reports.Written]:
    """Makes a table or figure of the paper.

    When called again it continues where it stopped: finished runs and measurements are reused.

    Args:
        name: One of `EXPERIMENTS`, or `all`.
        workspace: Budget, directory and choices.
        dry_run: Only print the plan, and check that the data are there.

    Returns:
        What was written, of each experiment.

    Raises:
        UserError: Something the user can fix.
        training.Interrupted: Ctrl-C or SIGTERM while training; the state was saved.
    """
    experiments = named(name)
    title = experiments[0].title if len(experiments) == 1 else "All tables and figures"
    plan = make_plan(workspace, *experiments)
    print(f"{title}\n{workspace.description()}; in {workspace.directory}")
    print("\n".join(plan.lines()), flush=True)
    _check_data(workspace, [run for run in plan.trainings if not run.finished], dry_run=dry_run)
    if dry_run:
        return []
    written = []
    for experiment in experiments:
        for run in make_plan(workspace, experiment).trainings:
            if not run.finished:
                whole = make_plan(workspace, *experiments)
                number = 1 + sum(each.finished for each in whole.trainings)
                count, left = len(whole.trainings), duration(whole.seconds)
                print(f"\nrun {number} of {count}, {left} left: {run.label}", flush=True)
                training.train(run.config, run.directory)
                _forget()
        plan = make_plan(workspace, experiment)
        measure_missing(plan.measurements)
        found = [
            reports.Results([item for item in plan.measurements if item.workspace == each])
            for each in workspace.repetitions()
        ]
        written.append(reports.write(experiment, workspace, found))
    return written


def _check_data(workspace: Workspace, trainings: Iterable[Training], *, dry_run: bool) -> None:
    """Loads all data: nothing is trained while some of it is missing. Writes the stand-ins.

    In a dry run it writes nothing, and looks at the first image of a data set of TFDS only.
    """
    wanted = {run.config.data.source: run.config for run in trainings}
    for images in workspace.budget.sets:
        if not images.source and workspace.source(images) in wanted:
            path, size = workspace.stand_in(images), workspace.budget.base.data.image_size
            if dry_run:
                del wanted[workspace.source(images)]
            else:
                stand_ins.write(images.name, path, size=size)
    for source, config in wanted.items():
        first = "[:1]" if dry_run and parse(source)[1] == "tfds" else ""
        for split in (config.data.train_split, config.data.eval_split):
            training.load_source(config, source, f"{split}{first}")


def measure_missing(measurements: Iterable[Measurement]) -> None:
    """Makes the measurements that are missing, those of one run one after another."""
    missing = [item for item in measurements if not item.done]
    subject: evaluation.Subject | None = None
    for number, item in enumerate(
        sorted(missing, key=lambda item: (str(item.directory), item.step)), start=1
    ):
        left = duration(sum(each.seconds for each in missing if not each.done))
        print(f"\nmeasurement {number} of {len(missing)}, {left} left: {item.label}", flush=True)
        clock = time.perf_counter()
        if subject is None or subject.workdir != item.directory:
            subject = None
            _forget()
            ensemble = item.key["score"] == "ensemble"
            if ensemble:  # its members were trained one by one
                config = item.workspace.config(item.task.run)
                run_directory.write_or_check_config(item.directory, config, {})
            place = "" if ensemble else _checkpoint(item)
            subject = _subject(item.workspace, item.directory, place)
        elif subject.facts["step"] != item.step:
            subject = subject.at(_checkpoint(item))  # the same images
        options = _options(item.workspace, item.task)
        found = measure.MEASURES[item.task.kind](subject.sample(options.max_images), options)
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
