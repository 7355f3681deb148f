"""Carries out a plan: trains and measures what is missing, then writes the outputs."""

import gc
import time
from collections.abc import Iterable
from typing import Any

import keras

from tfvmf import evaluation, posthoc, training
from tfvmf.data.sources import parse
from tfvmf.files import write_json
from tfvmf.reproduction import measure, reports
from tfvmf.reproduction import plan as plan_of
from tfvmf.reproduction.experiments import named
from tfvmf.reproduction.plan import Measurement, Training, Workspace, duration, make_plan
from tfvmf.training import checkpoints, run_directory


def reproduce(name: str, workspace: Workspace, *, dry_run: bool = False) -> list[reports.Written]:
    """Makes a table or figure of the paper, or `all` of them; returns the files of each.

    When called again it continues where it stopped: finished runs and measurements are reused. A
    dry run only prints the plan and checks that the data exist.

    Raises:
        UserError: Something the user can fix.
        training.Interrupted: Ctrl-C or SIGTERM while training; the state was saved.
    """
    experiments = named(name)
    title = experiments[0].title if len(experiments) == 1 else "All tables and figures"
    plan = make_plan(workspace, *experiments)
    print(f"{title}\n{workspace.description()}; in {workspace.directory}")
    print("\n".join(plan.lines()), flush=True)
    _check_data(workspace, [run for run in plan.trainings if not run.done], dry_run=dry_run)
    if dry_run:
        return []
    written: dict[str, reports.Written] = {}
    while True:
        plan = make_plan(workspace, *experiments)
        measure_missing(item for item in plan.measurements if item.ready)
        for experiment in experiments:
            if experiment.name not in written:
                items = make_plan(workspace, experiment).measurements
                if all(item.done for item in items):
                    found = reports.of_seeds(items, workspace)
                    written[experiment.name] = reports.write(experiment, workspace, found)
        left = [run for run in plan.trainings if not run.done]
        if not left:
            return list(written.values())
        place = f"run {1 + len(plan.trainings) - len(left)} of {len(plan.trainings)}"
        print(f"\n{place}, {duration(plan.seconds)} left: {left[0].label}", flush=True)
        _train(left[0])


def _train(run: Training) -> None:
    """Trains a run, or fits a head."""
    if run.model:
        changes = {"data.data_dir": run.config.data.data_dir}
        posthoc.fit_kappa(run.model, run.directory, config=run.config, changes=changes)
        write_json(run.directory / plan_of.FITTED, {"model": run.model})
    else:
        training.train(run.config, run.directory)
    _forget()


def _check_data(workspace: Workspace, trainings: Iterable[Training], *, dry_run: bool) -> None:
    """Loads all data, so that nothing is trained if some of it is missing. Writes the stand-ins.

    A dry run writes nothing, and loads only the first image of a TFDS data set.
    """
    wanted = {run.config.data.source: run.config for run in trainings if not run.model}
    for images in workspace.budget.sets:
        config = wanted.get(workspace.source(images))
        if config and not images.source:
            if dry_run:
                del wanted[workspace.source(images)]
            else:
                path = workspace.stand_in(images)
                measure.write_stand_in(images.name, path, size=config.data.image_size)
    for source, config in wanted.items():
        first = "[:1]" if dry_run and parse(source)[1] == "tfds" else ""
        for split in (config.data.train_split, config.data.eval_split):
            training.load_source(config, source, f"{split}{first}")


def measure_missing(measurements: Iterable[Measurement]) -> None:
    """Makes the missing measurements, run by run."""
    missing = [item for item in measurements if not item.done]
    missing.sort(key=lambda item: (str(item.directory), item.step))
    subject: evaluation.Subject | None = None
    for number, item in enumerate(missing, start=1):
        left = duration(sum(each.seconds for each in missing[number - 1 :]))
        print(f"\nmeasurement {number} of {len(missing)}, {left} left: {item.label}", flush=True)
        clock = time.perf_counter()
        workspace, task = item.workspace, item.task
        places: Any = {"data_dir": workspace.data_dir, "max_pixels": workspace.max_pixels}
        head = bool(workspace.runs[task.run].head_of)  # measured at its newest checkpoint
        checkpoint = checkpoints.directory(item.directory) / f"step-{item.step}"
        if subject is None or subject.workdir != item.directory:
            subject = None
            _forget()
            ensemble = item.key["score"] == "ensemble"
            if ensemble:  # its members were trained one by one, without a common config
                run_directory.write_or_check_config(item.directory, workspace.config(task.run), {})
            at = "" if head or ensemble else checkpoint
            subject = evaluation.subject_from_run(item.directory, checkpoint=at, **places)
        elif not head and subject.facts["step"] != item.step:
            subject = subject.at(checkpoint)  # keeps the images
        supervised = None
        if task.supervised:
            place = workspace.run_directory(task.supervised)
            supervised = evaluation.subject_from_run(place, **places)
        options = evaluation.Options(
            max_images=workspace.images,
            num_passes=workspace.budget.num_passes,
            num_views=plan_of.NUM_VIEWS,
            ood_sources=[*map(workspace.source, workspace.others(workspace.runs[task.run].images))],
            supervised=supervised,
        )
        found = measure.MEASURES[task.kind](subject.sample(options.max_images), options)
        item.keep(found, seconds=time.perf_counter() - clock)
    _forget()


def _forget() -> None:
    """Frees the graphs of a finished run."""
    keras.utils.clear_session()
    gc.collect()
