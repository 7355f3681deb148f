"""From measured numbers to Markdown, CSV and a picture, with the paper's numbers beside ours."""

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tfvmf.data.corruptions import CORRUPTIONS, SOURCE
from tfvmf.evaluation import paper
from tfvmf.evaluation.tables import Cell, Page, Picture
from tfvmf.files import write_text
from tfvmf.reproduction import figure_reports, figures
from tfvmf.reproduction.experiments import BASELINES, FRAMEWORKS, Experiment
from tfvmf.reproduction.runs import dimension_runs, network_runs, own_run
from tfvmf.reproduction.tables import Report, Results
from tfvmf.reproduction.workspace import Workspace

PAPER = (
    "The paper's numbers are from 1000 epochs of ResNet-50 on CIFAR-10, and CIFAR-10-C, where a "
    "row does not say otherwise. Ours are of this budget: compare signs and orders, not values."
)


def write(experiment: Experiment, workspace: Workspace, results: Results) -> list[pathlib.Path]:
    """Writes `<experiment>.md`, `.csv` and `.png`; returns their paths."""
    report = _REPORTS[experiment.name](workspace, results)
    title = f"{experiment.title} (budget {workspace.budget.name})"
    described = workspace.described()
    kinds = {task.kind for task in experiment.tasks(workspace.budget)}
    made = "" if kinds <= {"ood", "accuracy", "failure"} else f" Corrupted images: {SOURCE}."
    sentences = [f"B{described[1:]}.{made}", PAPER]
    config = workspace.budget.base
    provenance: dict[str, Cell] = {
        "budget": workspace.budget.name,
        "data": workspace.budget.sets[0].name,
        "epochs": config.epochs,
        "images": workspace.images,
    }
    paths = [workspace.directory / f"{experiment.name}.{ending}" for ending in ("md", "csv", "png")]
    page, table, picture = paths
    report.draw(picture, title, f"{sentences[0]}\n{PAPER}")
    write_text(table, report.table.csv(beside=provenance))
    shown = Picture(picture.name, title)
    write_text(page, Page(title, [*sentences, shown, report.table, *report.notes]).markdown())
    return paths


def baselines(
    workspace: Workspace, results: Results, *, kind: str, printed: dict[str, dict[str, float]]
) -> Report:
    """Table 1 and its twin in the appendix: a row a corruption, four methods beside the paper's."""
    ours = {row: results(run, "corruption")[kind] for run, row in BASELINES.items()}
    columns = ["corruption"]
    for row in ours:
        columns += [f"tfvmf: {row}", f"paper: {row}"]
    rows: list[list[Cell]] = [
        [
            name.replace("_", " "),
            *(table[row][name] for row in ours for table in (ours, printed)),
        ]
        for name in CORRUPTIONS
    ]
    means = [float(np.mean(list(t[row].values()))) for row in ours for t in (ours, printed)]
    rows.append(["mean", *means])
    draw = functools.partial(
        figures.draw_panels,
        labels=[name.replace("_", " ") for name in CORRUPTIONS],
        panels={
            row: ([values[n] for n in CORRUPTIONS], [printed[row][n] for n in CORRUPTIONS])
            for row, values in ours.items()
        },
        axis_label=f"{kind.capitalize()} correlation",
    )
    notes = [
        "(+) and (-) are the signs that are expected: variance should grow with corruption, kappa "
        "should fall.",
        f"Ensembles have {workspace.budget.members} members of other seeds; dropout has a rate of "
        f"{workspace.budget.dropout} and {workspace.budget.passes} passes. The paper tells neither "
        "number.",
    ]
    if kind == "spearman":
        notes.append(
            f"The paper's row of its own method has a mean of {means[-1]:.3f}; its text and its "
            f"other tables say {paper.TABLE_3['simclr']:.3f}."
        )
    return Report(columns=columns, rows=rows, notes=notes, draw=draw)


def foreign(workspace: Workspace, results: Results) -> Report:
    """Table 2: a row a pair of sets, three detectors beside the paper's."""
    detectors = {"f_res": "F_res", "kappa": "kappa", "f_res+kappa": "F_res + kappa"}
    columns = ["familiar", "foreign"]
    for title in detectors.values():
        columns += [f"tfvmf: {title}", f"paper: {title}"]
    columns.append("the paper's pair")
    rows: list[list[Cell]] = []
    ours: dict[str, list[float]] = {title: [] for title in detectors.values()}
    beside: dict[str, list[float]] = {title: [] for title in detectors.values()}
    for inside in workspace.budget.sets:
        measured = results(own_run(workspace.budget, inside), "ood")["auroc"]
        for outside, values in zip(workspace.others(inside), measured, strict=True):
            pair = inside.stands_for, outside.stands_for
            row: list[Cell] = [inside.name, outside.name]
            for name, title in detectors.items():
                ours[title].append(values[name])
                beside[title].append(paper.TABLE_2[pair][name])
                row += [values[name], paper.TABLE_2[pair][name]]
            rows.append([*row, f"{pair[0]}, {pair[1]}"])
    sets = "; ".join(f"{images.name}: {images.described}" for images in workspace.budget.sets)
    notes = [
        "F_res: mean cosine distance to the 5 nearest training images in the features of a "
        f"supervised run; kappa is of a run without labels. {sets}.",
        f"Trained: {'; '.join(_trained(workspace))}.",
    ]
    if any(not images.source for images in workspace.budget.sets):
        notes.append(
            "The sets are stand-ins that need no download, one pair near and one far, in the "
            "place of the paper's pairs: the paper's numbers are of other images."
        )
    draw = functools.partial(
        figures.draw_bars,
        labels=[f"{row[0]},\n{row[1]}" for row in rows],
        series=ours,
        printed=beside,
        axis_label="AUROC",
        line=0.5,
    )
    return Report(columns=columns, rows=rows, form=".4f", notes=notes, draw=draw)


def _trained(workspace: Workspace) -> Iterator[str]:
    """The runs of Table 2 in words: they may be shorter than the budget's, or of other networks."""
    for images in workspace.budget.sets:
        for name in (own_run(workspace.budget, images), f"supervised-{images.name}"):
            config = workspace.config(name)
            yield f"{name}, {config.epochs} epochs of {config.model.backbone}"


def means(
    workspace: Workspace,
    results: Results,
    *,
    first: str,
    runs: Callable[[Workspace], Mapping[str, str]],
    printed: Mapping[str, float],
) -> Report:
    """Tables 3, 4 and 5: a mean correlation a run.

    Args:
        workspace: The reproduction.
        results: Its numbers.
        first: Title of the first column.
        runs: What a row is called -> its run.
        printed: What a row is called -> the paper's number.
    """
    named = runs(workspace)
    measured = {label: results(run, "corruption") for label, run in named.items()}
    rows: list[list[Cell]] = [
        [
            label,
            values["mean_spearman"],
            printed[label],
            values["mean_pearson"],
            values["mean_per_image"],
        ]
        for label, values in measured.items()
    ]
    columns = [first, "tfvmf", "paper", "tfvmf: Pearson", "tfvmf: over all images"]
    draw = functools.partial(
        figures.draw_bars,
        labels=[f"{row[0]}\n{row[1]:.3f} ({row[2]:.3f})" for row in rows],
        series={"tfvmf": [values["mean_spearman"] for values in measured.values()]},
        printed={"tfvmf": [printed[label] for label in named]},
        axis_label="mean Spearman correlation",
    )
    notes = [
        "Means over 18 corruptions of the correlation of six mean kappas with severity, minus is "
        "right. Over all images: of every (image, severity) pair, which means of images hide."
    ]
    return Report(columns=columns, rows=rows, notes=notes, draw=draw)


def _texts(table: Mapping[int, float]) -> dict[str, float]:
    return {str(key): value for key, value in table.items()}


def _frameworks(_: Workspace) -> dict[str, str]:
    return {name: run for run, name in FRAMEWORKS.items()}


def _dimensions(workspace: Workspace) -> dict[str, str]:
    return {str(key): run for key, run in dimension_runs(workspace.budget).items()}


def _networks(workspace: Workspace) -> Mapping[str, str]:
    return network_runs(workspace.budget)


_REPORTS: dict[str, Callable[[Workspace, Results], Report]] = {
    "table1": functools.partial(baselines, kind="spearman", printed=paper.TABLE_1),
    "pearson": functools.partial(baselines, kind="pearson", printed=paper.TABLE_1_PEARSON),
    "table2": foreign,
    "table3": functools.partial(means, first="framework", runs=_frameworks, printed=paper.TABLE_3),
    "table4": functools.partial(
        means, first="dimension", runs=_dimensions, printed=_texts(paper.TABLE_4)
    ),
    "table5": functools.partial(
        means, first="network", runs=_networks, printed=paper.TABLE_NETWORKS
    ),
    "figure1": figure_reports.distributions,
    "figure2": figure_reports.images_and_failures,
    "figure3": figure_reports.augmentations,
    "figure4": figure_reports.along_training,
}
