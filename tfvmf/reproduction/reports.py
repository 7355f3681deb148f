"""From measured numbers to Markdown, CSV and a picture, with the paper's numbers next to ours."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfvmf import vmf
from tfvmf.data.corruptions import CORRUPTIONS, SOURCE
from tfvmf.evaluation import paper
from tfvmf.evaluation.tables import Cell, Page, Picture, Table
from tfvmf.files import write_text
from tfvmf.reproduction import figures
from tfvmf.reproduction.experiments import (
    AUGMENTATIONS,
    BASELINES,
    FRAMEWORKS,
    Experiment,
    dimension_runs,
    network_runs,
    own_run,
    supervised_run,
)
from tfvmf.reproduction.plan import Measurement, Workspace

PAPER = (
    "The paper's numbers are from 1000 epochs of ResNet-50 on CIFAR-10, and CIFAR-10-C, where a "
    "row does not say otherwise. Ours are of this budget: compare signs and orders, not values."
)
_LABELS = [name.replace("_", " ") for name in CORRUPTIONS]


class Results:
    """The results of an experiment's measurements, all of which have been made.

    Args:
        measurements: The experiment's measurements.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._found: dict[tuple[str, str], list[tuple[float, dict[str, Any]]]] = {}
        for item in sorted(measurements, key=lambda item: item.step):
            result = item.read()
            if result is None:
                raise ValueError(f"{item.label} was not measured")
            self._found.setdefault((item.task.run, item.task.kind), []).append((item.epoch, result))

    def __call__(self, run: str, kind: str) -> dict[str, Any]:
        """The result at the end of a run."""
        return self._found[run, kind][-1][1]

    def along(self, run: str, kind: str) -> list[tuple[float, dict[str, Any]]]:
        """The results along a run: (epoch, result) pairs, the earliest first."""
        return self._found[run, kind]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What is written about an experiment.

    Attributes:
        table: The numbers.
        notes: Sentences that a reader of the numbers needs.
        draw: Draws the picture; called with its path, a title and the text below it.
    """

    table: Table
    notes: list[str]
    draw: Callable[[pathlib.Path, str, str], None]


def write(experiment: Experiment, workspace: Workspace, results: Results) -> list[pathlib.Path]:
    """Writes `<experiment>.md`, `.csv` and `.png`; returns their paths."""
    report = _REPORTS[experiment.name](workspace, results)
    title = f"{experiment.title} (budget {workspace.budget.name})"
    kinds = {task.kind for task in experiment.tasks(workspace.budget)}
    corrupted = "" if kinds <= {"ood", "accuracy", "failure"} else f" Corrupted images: {SOURCE}."
    description = workspace.description()
    sentences = [f"{description[0].upper()}{description[1:]}.{corrupted}", PAPER]
    provenance: dict[str, Cell] = {
        "budget": workspace.budget.name,
        "data": workspace.budget.sets[0].name,
        "epochs": workspace.budget.base.epochs,
        "images": workspace.images,
    }
    paths = [workspace.root / f"{experiment.name}.{ending}" for ending in ("md", "csv", "png")]
    page, table, picture = paths
    report.draw(picture, title, "\n".join(sentences))
    write_text(table, report.table.csv(beside=provenance))
    shown = Picture(picture.name, title)
    write_text(page, Page(title, [*sentences, shown, report.table, *report.notes]).markdown())
    return paths


# Tables.


def baselines(
    workspace: Workspace, results: Results, *, kind: str, printed: dict[str, dict[str, float]]
) -> Report:
    """Table 1 and its Pearson twin: one row per corruption, four methods next to the paper's."""
    ours = {row: results(run, "corruption")[kind] for run, row in BASELINES.items()}
    columns = ["corruption"]
    for row in ours:
        columns += [f"tfvmf: {row}", f"paper: {row}"]
    pairs = [table[row] for row in ours for table in (ours, printed)]
    means = [_mean(values) for values in pairs]
    draw = functools.partial(
        figures.draw_panels,
        labels=_LABELS,
        panels={
            row: ([values[n] for n in CORRUPTIONS], [printed[row][n] for n in CORRUPTIONS])
            for row, values in ours.items()
        },
        axis_label=f"{kind.capitalize()} correlation",
    )
    notes = [
        "(+) and (-) are the expected signs: variance should grow with corruption, kappa should "
        "fall.",
        f"Ensembles have {workspace.budget.num_members} members with different seeds; dropout has "
        f"a rate of {workspace.budget.dropout} and {workspace.budget.num_passes} passes. The paper "
        "gives neither number.",
    ]
    if kind == "spearman":
        notes.append(
            f"The paper's row of its own method has a mean of {means[-1]:.3f}; its text and its "
            f"other tables say {paper.TABLE_3['simclr']:.3f}."
        )
    return Report(table=_by_corruption(columns, pairs), notes=notes, draw=draw)


def out_of_distribution(workspace: Workspace, results: Results) -> Report:
    """Table 2: one row per pair of data sets, three detectors next to the paper's."""
    detectors = {"f_res": "F_res", "kappa": "kappa", "f_res+kappa": "F_res + kappa"}
    columns = ["familiar", "foreign"]
    for title in detectors.values():
        columns += [f"tfvmf: {title}", f"paper: {title}"]
    columns.append("the paper's pair")
    rows: list[list[Cell]] = []
    ours: dict[str, list[float]] = {title: [] for title in detectors.values()}
    printed: dict[str, list[float]] = {title: [] for title in detectors.values()}
    budget, trained = workspace.budget, []
    for inside in budget.sets:
        measured = results(own_run(budget, inside), "ood")["auroc"]
        for outside, values in zip(workspace.others(inside), measured, strict=True):
            pair = inside.stands_for, outside.stands_for
            row: list[Cell] = [inside.name, outside.name]
            for name, title in detectors.items():
                ours[title].append(values[name])
                printed[title].append(paper.TABLE_2[pair][name])
                row += [values[name], paper.TABLE_2[pair][name]]
            rows.append([*row, f"{pair[0]}, {pair[1]}"])
        # A run may be shorter than the budget's others, or have another network.
        for run in (own_run(budget, inside), supervised_run(inside)):
            config = workspace.config(run)
            trained.append(f"{run}, {config.epochs} epochs of {config.model.backbone}")
    sets = "; ".join(f"{images.name}: {images.description}" for images in budget.sets)
    notes = [
        "F_res: mean cosine distance to the 5 nearest training images in the features of a "
        f"supervised run; kappa is of a run without labels. {sets}.",
        f"Trained: {'; '.join(trained)}.",
    ]
    if any(not images.source for images in budget.sets):
        notes.append(
            "The data sets are stand-ins that need no download, one pair near and one far, in the "
            "place of the paper's pairs: the paper's numbers are of other images."
        )
    draw = functools.partial(
        figures.draw_bars,
        labels=[f"{row[0]},\n{row[1]}" for row in rows],
        series=ours,
        printed=printed,
        axis_label="AUROC",
        line=0.5,
    )
    return Report(table=Table(columns=columns, rows=rows, form=".4f"), notes=notes, draw=draw)


def means(
    workspace: Workspace,
    results: Results,
    *,
    first: str,
    runs: Callable[[Workspace], Mapping[Any, str]],
    printed: Mapping[Any, float],
) -> Report:
    """Tables 3, 4 and 5: the mean correlation of each run.

    Args:
        workspace: The reproduction.
        results: Its numbers.
        first: Title of the first column.
        runs: Gives the run of each row.
        printed: The paper's number of each row.
    """
    measured = {label: results(run, "corruption") for label, run in runs(workspace).items()}
    kinds = ("mean_spearman", "mean_pearson", "mean_per_image")
    rows: list[list[Cell]] = []
    for label, values in measured.items():
        spearman, pearson, per_image = (values[kind] for kind in kinds)
        rows.append([str(label), spearman, printed[label], pearson, per_image])
    columns = [first, "tfvmf", "paper", "tfvmf: Pearson", "tfvmf: over all images"]
    draw = functools.partial(
        figures.draw_bars,
        labels=[f"{row[0]}\n{row[1]:.3f} ({row[2]:.3f})" for row in rows],
        series={"tfvmf": [values["mean_spearman"] for values in measured.values()]},
        printed={"tfvmf": [printed[label] for label in measured]},
        axis_label="mean Spearman correlation",
    )
    notes = [
        "Means over 18 corruptions of the correlation of six mean kappas with severity, which "
        "should be negative. Over all images: the correlation over every (image, severity) pair, "
        "which means of images hide."
    ]
    return Report(table=Table(columns=columns, rows=rows), notes=notes, draw=draw)


# Figures.

_METHODS = {
    "simclr": "SimCLR (deterministic)",
    "simclr_vmf": "SimCLR + vMF",
    "mc_infonce": "MC-InfoNCE",
}


def distributions(_: Workspace, results: Results) -> Report:
    """Figure 1: samples of the vMF distribution on a sphere, at chosen and at learned kappas."""
    found = results("simclr_vmf", "spread")
    dimension = found["dimension"]

    def row(label: str, kappa: float) -> list[Cell]:
        cosines = [float(vmf.mean_resultant_length(kappa, d)) for d in (3, dimension)]
        return [label, kappa, *cosines]

    rows = [row("chosen", kappa) for kappa in figures.CHOSEN_KAPPAS]
    for quantile, condition, kappa in zip(
        found["quantiles"], found["conditions"], found["kappa"], strict=True
    ):
        rows.append(row(f"encoder, {quantile:.0%} quantile ({condition})", kappa))
    columns = ["kappa is", "kappa", "mean cosine in 3 dimensions", f"in {dimension} dimensions"]
    notes = [
        "The paper's figure has a fixed mean and kappas of its own choice; it prints no numbers. "
        "The lower row has kappas that the trained encoder gives to test images, clean and under "
        "every corruption at the greatest severity, on a sphere of 3 dimensions.",
        "The paper's loss leaves out the normalizer of the distribution: its kappa orders images "
        "by certainty, and its scale (0 to 5) is set by the weights of the loss. Read as a vMF "
        f"distribution of {dimension} dimensions it would be next to uniform.",
    ]
    draw = functools.partial(figures.draw_distributions, found=found)
    return Report(table=Table(columns=columns, rows=rows), notes=notes, draw=draw)


def images_and_failures(_: Workspace, results: Results) -> Report:
    """Figure 2: A examples from certain to uncertain, B kappa of correct and wrong predictions."""
    examples, failure = results("simclr_vmf", "examples"), results("simclr_vmf", "failure")
    printed = paper.FAILURE
    rows: list[list[Cell]] = [
        ["B: correct predictions", failure["correct"], printed["correct"]],
        ["B: wrong predictions", failure["wrong"], printed["wrong"]],
        ["B: mean kappa, correct", failure["mean_correct"], None],
        ["B: mean kappa, wrong", failure["mean_wrong"], None],
        ["B: smallest p", _small(failure["smallest_p"]), _small(printed["smallest_p"])],
        ["B: largest p", _small(failure["largest_p"]), _small(printed["largest_p"])],
        ["B: AUROC, wrong is positive", failure["auroc"], None],
        ["A: kappa of the most certain image", examples["most"]["kappa"][0], None],
        ["A: kappa of the least certain image", examples["least"]["kappa"][0], None],
    ]
    for name, entry in examples["corrupted"].items():
        for severity, kappa in enumerate(entry["kappa"]):
            rows.append([f"A: {name.replace('_', ' ')}, severity {severity}", kappa, None])
    notes = [
        "A: the test images of greatest and least kappa, and the one of median kappa from clean "
        "(severity 0) to severe. B: predictions of a linear probe; p of Mann-Whitney's U over 50 "
        "rounds of 100 draws from either group.",
    ]
    if "note" in failure:
        notes.append(f"Note: {failure['note']}.")
    table = Table(columns=["", "tfvmf", "paper"], rows=rows, form=".4g")
    draw = functools.partial(figures.draw_images_and_failures, examples=examples, failure=failure)
    return Report(table=table, notes=notes, draw=draw)


def augmentations(_: Workspace, results: Results) -> Report:
    """Figure 3: one row per corruption, one column per set of augmentations."""
    ours = {title: results(run, "corruption")["spearman"] for run, title in AUGMENTATIONS.items()}
    printed = paper.TABLE_1["Ours (-)"]
    notes = [
        "Gaussian noise: sigma drawn below 0.25. Stronger color jitter: brightness, contrast and "
        'saturation 0.3 to 0.4 and, for the paper\'s "hue (p = 0.2 to p = 0.3)", gray views with '
        "a probability of 0.3 instead of 0.2.",
        "The paper draws this figure without numbers; for the default views it prints Table 1. It "
        "says that with noise among the views the correlations of Gaussian and speckle noise turn "
        "positive, and that those of brightness and similar corruptions shift with stronger "
        "jitter.",
    ]
    draw = functools.partial(
        figures.draw_bars,
        labels=_LABELS,
        series={title: [values[n] for n in CORRUPTIONS] for title, values in ours.items()},
        printed={"default": [printed[n] for n in CORRUPTIONS]},
        axis_label="Spearman correlation",
        colors=(figures.GREEN, figures.BLUE, figures.ORANGE),
    )
    columns = ["corruption", *(f"tfvmf: {title}" for title in ours), "paper: default"]
    table = _by_corruption(columns, [*ours.values(), printed])
    return Report(table=table, notes=notes, draw=draw)


def along_training(_: Workspace, results: Results) -> Report:
    """Figure 4: accuracy of three methods, correlation of two, by epoch."""
    accuracy = {run: results.along(run, "accuracy") for run in _METHODS}
    spearman = {
        run: {epoch: found["mean_spearman"] for epoch, found in results.along(run, "corruption")}
        for run in ("simclr_vmf", "mc_infonce")
    }
    rows: list[list[Cell]] = []
    for run, pairs in accuracy.items():
        for epoch, found in pairs:
            correlation = spearman.get(run, {}).get(epoch)
            rows.append([_METHODS[run], float(epoch), found["linear"], found["knn"], correlation])
    share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
    ends = {
        "simclr_vmf": _mean(paper.TABLE_1["Ours (-)"]),
        "mc_infonce": _mean(paper.TABLE_1["MCInfoNCE (-)"]),
    }
    rows.append(["paper: SimCLR + vMF", 1000.0, share, None, ends["simclr_vmf"]])
    rows.append(["paper: MC-InfoNCE", 1000.0, None, None, ends["mc_infonce"]])
    neighbors = accuracy["simclr_vmf"][-1][1]["neighbors"]
    notes = [
        f"Linear: a linear probe on the features; k-NN: a vote of {neighbors} neighbors.",
        "The paper draws this figure without numbers. Its accuracy here is the share of correct "
        "predictions that it prints for Figure 2B; its correlations are the means of Table 1. It "
        "says that the deterministic method is 2 % more accurate than its own, which is more "
        "accurate than MC-InfoNCE.",
    ]
    draw = functools.partial(
        figures.draw_lines,
        left={
            _METHODS[run]: [(epoch, found["linear"]) for epoch, found in pairs]
            for run, pairs in accuracy.items()
        },
        right={_METHODS[run]: list(pairs.items()) for run, pairs in spearman.items()},
        ends={_METHODS[run]: value for run, value in ends.items()},
    )
    columns = ["method", "epoch", "accuracy: linear", "accuracy: k-NN", "mean Spearman"]
    return Report(table=Table(columns=columns, rows=rows), notes=notes, draw=draw)


def _by_corruption(columns: list[str], values: Sequence[Mapping[str, float]]) -> Table:
    """One row per corruption, one column per {corruption: number}, and their means."""
    rows: list[list[Cell]] = [
        [label, *(column[name] for column in values)]
        for label, name in zip(_LABELS, CORRUPTIONS, strict=True)
    ]
    return Table(columns=columns, rows=rows, footer=[["mean", *map(_mean, values)]])


def _mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


def _small(value: float | None) -> str | None:
    return None if value is None else f"{value:.2e}"


_REPORTS: dict[str, Callable[[Workspace, Results], Report]] = {
    "table1": functools.partial(baselines, kind="spearman", printed=paper.TABLE_1),
    "pearson": functools.partial(baselines, kind="pearson", printed=paper.TABLE_1_PEARSON),
    "table2": out_of_distribution,
    "table3": functools.partial(
        means,
        first="framework",
        runs=lambda _: {name: run for run, name in FRAMEWORKS.items()},
        printed=paper.TABLE_3,
    ),
    "table4": functools.partial(
        means,
        first="dimension",
        runs=lambda workspace: dimension_runs(workspace.budget),
        printed=paper.TABLE_4,
    ),
    "table5": functools.partial(
        means,
        first="network",
        runs=lambda workspace: network_runs(workspace.budget),
        printed=paper.TABLE_NETWORKS,
    ),
    "figure1": distributions,
    "figure2": images_and_failures,
    "figure3": augmentations,
    "figure4": along_training,
}
