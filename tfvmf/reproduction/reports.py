"""From measured numbers to Markdown, CSV, LaTeX and a picture, beside the paper's numbers."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tfvmf import vmf
from tfvmf.data.corruptions import CORRUPTIONS, SOURCE
from tfvmf.evaluation import paper
from tfvmf.evaluation.plots import BLUE, GREEN, ORANGE
from tfvmf.evaluation.tables import Cell, Page, Picture, Table
from tfvmf.files import write_text
from tfvmf.reproduction import experiments, figures
from tfvmf.reproduction.experiments import Budget, Experiment, own_run, supervised_run
from tfvmf.reproduction.plan import Measurement, Workspace

PAPER = (
    "The paper's numbers are from 1000 epochs of ResNet-50 on CIFAR-10, and CIFAR-10-C, where a "
    "row does not say otherwise. Ours are of this budget: compare signs and orders, not values."
)
_LABELS = [name.replace("_", " ") for name in CORRUPTIONS]


class Results:
    """The results of all measurements of one seed."""

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


@dataclasses.dataclass(frozen=True)
class Report:
    """What is written about an experiment."""

    table: Table
    notes: list[str]  # that a reader of the numbers needs
    draw: Callable[[figures.Columns], Figure]  # of the table's columns


@dataclasses.dataclass(frozen=True)
class Written:
    """An experiment's files, and its table for a terminal."""

    title: str
    text: str
    paths: list[pathlib.Path]


def write(experiment: Experiment, workspace: Workspace, results: Sequence[Results]) -> Written:
    """Writes `<experiment>.md`, `.csv`, `.tex` and `.png`; `results` are those of each seed."""
    budget = workspace.budget
    reports = [_REPORTS[experiment.name](workspace, found) for found in results]
    shown, numbers = _combine([report.table for report in reports])
    title = f"{experiment.title} (budget {budget.name})"
    kinds = {task.kind for task in experiment.tasks(budget)}
    corrupted = "" if kinds <= {"ood", "accuracy", "failure"} else f" Corrupted images: {SOURCE}."
    description = workspace.description()
    provenance: dict[str, Cell] = {
        "budget": budget.name,
        "data": budget.sets[0].name,
        "epochs": budget.base_config().epochs,
        "images": workspace.images,
    }
    sentences = [f"{description[0].upper()}{description[1:]}.{corrupted}", PAPER]
    if len(results) > 1:
        provenance["seeds"] = len(results)
        sentences.append(
            f"Mean ± standard deviation over {len(results)} seeds; images are those of the first."
        )
    paths = [workspace.root / f"{experiment.name}.{end}" for end in ("md", "csv", "tex", "png")]
    page, table, latex, picture = paths
    columns = dict(zip(numbers.columns, zip(*numbers.rows, strict=True), strict=True))
    below = "\n".join(each for each in sentences if each is not PAPER or budget.is_papers)
    figures.write(picture, title, below, lambda: reports[0].draw(columns))
    write_text(table, numbers.csv(beside=provenance))
    write_text(latex, shown.latex())
    drawn = Picture(picture.name, title)
    write_text(page, Page(title, [*sentences, drawn, shown, *reports[0].notes]).markdown())
    return Written(title, shown.text(), paths)


def _combine(tables: Sequence[Table]) -> tuple[Table, Table]:
    """The tables of several seeds as one to be shown, with `mean ± sd`, and one of numbers.

    There a column whose numbers differ between seeds is followed by a column `<title>, sd`.
    """
    first = tables[0]
    if len(tables) == 1:
        return first, first
    seeds = [list(zip(*table.rows, *table.footer, strict=True)) for table in tables]
    shown: list[list[Cell]] = []
    numbers: dict[str, list[Cell]] = {}
    sides = ""
    for title, *columns in zip(first.columns, *seeds, strict=True):
        cells = [_spread(values) for values in zip(*columns, strict=False)]
        form = first.form
        texts = [m if sd is None else f"{m:{form}} ± {sd:{form}}" for m, sd in cells]
        shown.append(texts)
        numbers[title] = [mean for mean, _ in cells]
        if any(sd is not None for _, sd in cells):
            numbers[f"{title}, sd"] = [sd for _, sd in cells]
        sides += "l" if any(isinstance(mean, str) for mean, _ in cells) else "r"
    rows, all_numbers = (list(zip(*each, strict=True)) for each in (shown, numbers.values()))
    n = len(first.rows)
    return (
        dataclasses.replace(first, rows=rows[:n], footer=rows[n:], align=sides),
        dataclasses.replace(
            first, columns=[*numbers], rows=all_numbers[:n], footer=all_numbers[n:]
        ),
    )


def _spread(values: Sequence[Any]) -> tuple[Any, float | None]:
    """Mean and standard deviation of numbers that differ; otherwise what all say, and None."""
    different = list(dict.fromkeys(values))
    if len(different) == 1 or None in different:
        return different[0], None
    if any(isinstance(value, str) for value in different):
        return "; ".join(map(str, different)), None
    return float(np.mean(values)), float(np.std(values, ddof=1))


def baselines(
    kind: str, printed: dict[str, dict[str, float]], workspace: Workspace, results: Results
) -> Report:
    """Table 1 and its Pearson twin: one row per corruption, four methods next to the paper's."""
    columns: dict[str, Mapping[str, float]] = {}
    panels = {}
    for run, (title, row) in experiments.BASELINES.items():
        columns |= {title: results(run, "corruption")[kind], f"paper: {title}": printed[row]}
        look = ("variance, should rise", ORANGE) if "+)" in title else ("kappa, should fall", BLUE)
        panels[title] = {title: look}
    budget = workspace.budget
    notes = [
        "(+) and (-) are the expected signs: variance should grow with corruption, kappa should "
        "fall.",
        f"Ensembles have {budget.num_members} members with different seeds; dropout has a rate of "
        f"{budget.dropout} and {budget.num_passes} passes. The paper gives neither number.",
    ]
    if kind == "spearman":
        notes.append(
            f"The paper's row of its own method has a mean of {_mean(printed['Ours (-)']):.3f}; "
            f"its text and its other tables say {paper.TABLE_3['simclr']:.3f}."
        )
    axis = f"{kind.capitalize()} correlation"
    return Report(_by_corruption(columns), notes, _bars(workspace, _LABELS, panels, axis))


def out_of_distribution(workspace: Workspace, results: Results) -> Report:
    """Table 2: one row per pair of data sets, three detectors next to the paper's."""
    detectors = {"f_res": "F_res", "kappa": "kappa", "f_res+kappa": "F_res + kappa"}
    columns = ["familiar", "foreign"]
    for title in detectors.values():
        columns += [title, f"paper: {title}"]
    rows: list[list[Cell]] = []
    budget, trained = workspace.budget, []
    for inside in budget.sets:
        measured = results(own_run(budget, inside), "ood")["auroc"]
        for outside, values in zip(workspace.others(inside), measured, strict=True):
            pair = inside.stands_for, outside.stands_for
            row: list[Cell] = [inside.name, outside.name]
            for name in detectors:
                row += [values[name], paper.TABLE_2[pair][name]]
            rows.append(row if budget.is_papers else [*row, f"{pair[0]}, {pair[1]}"])
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
    if not budget.is_papers:
        columns.append("the paper's pair")
        notes.append(
            "The data sets are stand-ins that need no download, one pair near and one far, in the "
            "place of the paper's pairs: the paper's numbers are of other images."
        )
    series = dict(
        zip(
            detectors.values(),
            (("F_res", BLUE), ("kappa", ORANGE), ("F_res + kappa", GREEN)),
            strict=True,
        )
    )
    labels = [f"{row[0]},\n{row[1]}" for row in rows]
    draw = _bars(workspace, labels, {"": series}, "AUROC", line=0.5)
    return Report(Table(columns=columns, rows=rows, form=".4f"), notes, draw)


def means(
    first: str,
    runs: Callable[[Budget], Mapping[Any, str]],
    printed: Mapping[Any, float],
    workspace: Workspace,
    results: Results,
) -> Report:
    """Tables 3, 4 and 5: one row per run, {value of the column `first`: run}."""
    rows: list[list[Cell]] = []
    for label, run in runs(workspace.budget).items():
        values = results(run, "corruption")
        further = (values["mean_pearson"], values["mean_per_image"])
        rows.append([str(label), values["mean_spearman"], printed[label], *further])
    series = {"": {"tfvmf": ("tfvmf", BLUE)}}
    draw = _bars(workspace, [str(row[0]) for row in rows], series, "mean Spearman correlation")
    notes = [
        "Means over 18 corruptions of the correlation of six mean kappas with severity, which "
        "should be negative. Over all images: the correlation over every (image, severity) pair, "
        "which means of images hide."
    ]
    columns = [first, "tfvmf", "paper", "Pearson", "over all images"]
    return Report(Table(columns=columns, rows=rows), notes, draw)


def distributions(_: Workspace, results: Results) -> Report:
    """Figure 1: samples of the vMF distribution on a sphere, at chosen and at learned kappas."""
    found = results("simclr_vmf", "spread")
    dimension = found["dimension"]
    kappas = [("chosen", kappa) for kappa in figures.CHOSEN_KAPPAS]
    for quantile, name, kappa in zip(
        found["quantiles"], found["conditions"], found["kappa"], strict=True
    ):
        kappas.append((f"encoder, {quantile:.0%} quantile ({name})", kappa))
    rows: list[list[Cell]] = [
        [label, kappa, *(float(vmf.mean_resultant_length(kappa, d)) for d in (3, dimension))]
        for label, kappa in kappas
    ]
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
    return Report(Table(columns=columns, rows=rows), notes, draw)


def images_and_failures(_: Workspace, results: Results) -> Report:
    """Figure 2: A examples from certain to uncertain, B kappa of correct and wrong predictions."""
    examples, failure = results("simclr_vmf", "examples"), results("simclr_vmf", "failure")
    rows: list[list[Cell]] = []
    for name, key in {
        "correct predictions": "correct",
        "wrong predictions": "wrong",
        "mean kappa, correct": "mean_correct",
        "mean kappa, wrong": "mean_wrong",
        "smallest p": "smallest_p",
        "largest p": "largest_p",
        "AUROC, wrong is positive": "auroc",
    }.items():
        pair = [failure[key], paper.FAILURE.get(key)]
        if key.endswith("_p"):
            pair = [None if value is None else f"{value:.2e}" for value in pair]
        rows.append([f"B: {name}", *pair])
    for name in ("most", "least"):
        rows.append([f"A: kappa of the {name} certain image", examples[name]["kappa"][0], None])
    for name, entry in examples["corrupted"].items():
        for severity, kappa in enumerate(entry["kappa"]):
            rows.append([f"A: {name.replace('_', ' ')}, severity {severity}", kappa, None])
    notes = [
        "A: the test images of greatest and least kappa, and the one of median kappa from clean "
        "(severity 0) to severe. B: predictions of a linear probe; one-sided p of Mann-Whitney's "
        "U over 50 rounds of 100 draws from either group.",
    ]
    if "note" in failure:
        notes.append(f"Note: {failure['note']}.")
    table = Table(columns=["", "tfvmf", "paper"], rows=rows, form=".4g")
    draw = functools.partial(figures.draw_images_and_failures, examples=examples, failure=failure)
    return Report(table, notes, draw)


def augmentations(workspace: Workspace, results: Results) -> Report:
    """Figure 3: one row per corruption, one column per set of augmentations."""
    columns, series = {}, {}
    colors = iter((GREEN, BLUE, ORANGE))
    for run, title in experiments.AUGMENTATIONS.items():
        columns[title] = results(run, "corruption")["spearman"]
        series[title] = (title, next(colors))
    columns["paper: default"] = paper.TABLE_1["Ours (-)"]
    notes = [
        "Gaussian noise: sigma drawn below 0.25. Stronger color jitter: brightness, contrast and "
        'saturation 0.3 to 0.4 and, for the paper\'s "hue (p = 0.2 to p = 0.3)", gray views with '
        "a probability of 0.3 instead of 0.2.",
        "The paper draws this figure without numbers; for the default views it prints Table 1. It "
        "says that with noise among the views the correlations of Gaussian and speckle noise turn "
        "positive, and that those of brightness and similar corruptions shift with stronger "
        "jitter.",
    ]
    draw = _bars(workspace, _LABELS, {"": series}, "Spearman correlation")
    return Report(_by_corruption(columns), notes, draw)


def along_training(workspace: Workspace, results: Results) -> Report:
    """Figure 4: accuracy of three methods, correlation of two, by epoch."""
    methods = {
        "simclr": "SimCLR (deterministic)",
        "simclr_vmf": "SimCLR + vMF",
        "mc_infonce": "MC-InfoNCE",
    }
    ends = {
        "simclr_vmf": _mean(paper.TABLE_1["Ours (-)"]),
        "mc_infonce": _mean(paper.TABLE_1["MCInfoNCE (-)"]),
    }
    rows: list[list[Cell]] = []
    for run, method in methods.items():
        measured = results.along(run, "corruption") if run in ends else []
        spearman = {epoch: found["mean_spearman"] for epoch, found in measured}
        for epoch, found in results.along(run, "accuracy"):
            accuracy = (found["linear"], found["knn"])
            whole = int(epoch) if epoch == int(epoch) else epoch
            rows.append([method, whole, *accuracy, spearman.get(epoch)])
    share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
    rows.append(["paper: SimCLR + vMF", 1000, share, None, ends["simclr_vmf"]])
    rows.append(["paper: MC-InfoNCE", 1000, None, None, ends["mc_infonce"]])
    notes = [
        "Linear: a linear probe on the features; k-NN: a vote of "
        f"{results('simclr_vmf', 'accuracy')['neighbors']} neighbors.",
        "The paper draws this figure without numbers. Its accuracy here is the share of correct "
        "predictions that it prints for Figure 2B; its correlations are the means of Table 1. It "
        "says that the deterministic method is 2 % more accurate than its own, which is more "
        "accurate than MC-InfoNCE.",
    ]
    columns = ["method", "epoch", "accuracy: linear", "accuracy: k-NN", "mean Spearman"]
    drawn = {methods[run]: end for run, end in ends.items() if workspace.budget.is_papers}
    draw = functools.partial(figures.draw_lines, ends=drawn)
    return Report(Table(columns=columns, rows=rows), notes, draw)


def _by_corruption(columns: Mapping[str, Mapping[str, float]]) -> Table:
    """One row per corruption, one column per {title: {corruption: number}}, and their means."""
    rows: list[list[Cell]] = [
        [label, *(column[name] for column in columns.values())]
        for label, name in zip(_LABELS, CORRUPTIONS, strict=True)
    ]
    footer: list[Cell] = ["mean", *map(_mean, columns.values())]
    return Table(columns=["corruption", *columns], rows=rows, footer=[footer])


def _bars(
    workspace: Workspace, labels: list[str], panels: figures.Panels, axis: str, *, line: float = 0.0
) -> Callable[[figures.Columns], Figure]:
    printed = workspace.budget.is_papers  # otherwise its numbers are of other data
    return lambda columns: figures.draw_bars(
        columns, labels=labels, panels=panels, axis_label=axis, line=line, paper=printed
    )


def _mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


def _varied(setting: str) -> Callable[[Budget], dict[Any, str]]:
    return functools.partial(experiments.varied_runs, setting=setting)


_REPORTS: dict[str, Callable[[Workspace, Results], Report]] = {
    "table1": functools.partial(baselines, "spearman", paper.TABLE_1),
    "pearson": functools.partial(baselines, "pearson", paper.TABLE_1_PEARSON),
    "table2": out_of_distribution,
    "table3": lambda *of: means("framework", lambda _: experiments.FRAMEWORKS, paper.TABLE_3, *of),
    "table4": lambda *of: means("dimension", _varied("model.dimension"), paper.TABLE_4, *of),
    "table5": lambda *of: means("network", _varied("model.backbone"), paper.TABLE_NETWORKS, *of),
    "figure1": distributions,
    "figure2": images_and_failures,
    "figure3": augmentations,
    "figure4": along_training,
}
