"""Writes measured numbers beside the paper's, as Markdown, CSV, LaTeX and a picture."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tfvmf import vmf
from tfvmf.data.corruptions import CORRUPTIONS, SOURCE
from tfvmf.evaluation import paper
from tfvmf.evaluation.plots import BLUE, GRAY, GREEN, ORANGE
from tfvmf.evaluation.tables import Cell, Page, Picture, Table
from tfvmf.files import write_text
from tfvmf.reproduction import experiments, figures
from tfvmf.reproduction.experiments import Budget, Experiment, own_run, supervised_run
from tfvmf.reproduction.plan import Measurement, Workspace

PAPER = (
    "Unless a row says otherwise, the paper's numbers are from 1000 epochs of ResNet-50 on "
    "CIFAR-10 and CIFAR-10-C. Ours are from this budget: compare signs and orders, not values."
)
_COLORS = (BLUE, ORANGE, GREEN, GRAY, "#7e4fa3", "#2aa1a1", "#c9a227")
_DRAWN = ("wide head (-)", "VI-SimSiam (-)")  # drawn, although the paper does not have them
_LONG = 30  # rows; longer tables are only in files of their own
_LABELS = [name.replace("_", " ") for name in CORRUPTIONS]


class Results:
    """The results of one seed; for runs that were not repeated, those of the first seed."""

    def __init__(self, measurements: Iterable[Measurement], first: "Results | None" = None) -> None:
        found: dict[tuple[str, str], list[tuple[float, dict[str, Any]]]] = {}
        for item in sorted(measurements, key=lambda item: item.step):
            result = item.read()
            if result is None:
                raise ValueError(f"{item.label} was not measured")
            found.setdefault((item.task.run, item.task.kind), []).append((item.epoch, result))
        self.found: dict[tuple[str, str], Any] = (first.found if first else {}) | found

    def __call__(self, run: str, kind: str) -> dict[str, Any]:
        """The result at the end of a run."""
        return self.along(run, kind)[-1][1]

    def get(self, run: str, kind: str) -> dict[str, Any] | None:
        """The same, or None if it was not measured."""
        return self(run, kind) if (run, kind) in self.found else None

    def along(self, run: str, kind: str) -> list[tuple[float, dict[str, Any]]]:
        """The results along a run: (epoch, result) pairs, the earliest first."""
        return self.found[run, kind]


def of_seeds(items: Sequence[Measurement], workspace: Workspace) -> list[Results]:
    """The results of each seed of a workspace; of the first alone if nothing was repeated."""
    found: list[Results] = []
    for each in workspace.repetitions():
        own = [item for item in items if item.workspace == each]
        if own:
            found.append(Results(own, found[0] if found else None))
    return found


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of an experiment's files."""

    table: Table
    notes: list[str]  # paragraphs about the table
    draw: Callable[[figures.Columns], Figure]  # draws the table's columns
    more: Mapping[str, Table] = dataclasses.field(default_factory=dict)  # further tables by name


@dataclasses.dataclass(frozen=True)
class Written:
    """An experiment's files, and its table for a terminal."""

    title: str
    text: str
    paths: list[pathlib.Path]


def write(experiment: Experiment, workspace: Workspace, results: Sequence[Results]) -> Written:
    """Writes `<experiment>.md`, `.csv`, `.tex` and `.png`; `results` has one entry per seed.

    Further tables have files of their own (`<experiment>_<name>.csv`) and, unless they are long,
    are also in the `.md` and `.tex` files.
    """
    budget = workspace.budget
    reports = [_REPORTS[experiment.name](workspace, found) for found in results]
    shown, numbers = _combine([report.table for report in reports])
    more = {name: _combine([each.more[name] for each in reports]) for name in reports[0].more}
    title = f"{experiment.title} (budget {budget.name})"
    kinds = {task.kind for task in experiment.tasks(budget)}
    corrupted = "" if kinds <= {"ood", "accuracy", "failure"} else f" Corrupted images: {SOURCE}."
    description = workspace.description(len(results))
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
            f"±: standard deviation over {len(results)} seeds; numbers without it, and images, are "
            "from the first."
        )
    paths = [workspace.root / f"{experiment.name}.{end}" for end in ("md", "csv", "tex", "png")]
    page, table, latex, picture = paths
    columns = dict(zip(numbers.columns, zip(*numbers.rows, strict=True), strict=True))
    below = "\n".join(each for each in sentences if each is not PAPER or budget.is_papers)
    figures.write(picture, title, below, lambda: reports[0].draw(columns))
    write_text(table, numbers.csv(beside=provenance))
    for name, (_, further) in more.items():
        paths.append(workspace.root / f"{experiment.name}_{name}.csv")
        write_text(paths[-1], further.csv(beside=provenance))
    tables = [shown, *(each for each, _ in more.values() if len(each.rows) <= _LONG)]
    write_text(latex, "\n".join(each.latex() for each in tables))
    drawn = Picture(picture.name, title)
    blocks: list[Any] = [*sentences, drawn, shown, *reports[0].notes, *tables[1:]]
    write_text(page, Page(title, blocks).markdown())
    return Written(title, shown.text(), paths)


def _combine(tables: Sequence[Table]) -> tuple[Table, Table]:
    """Combines the tables of several seeds: one to show, with `mean ± sd`, and one of numbers.

    In the latter, a column that differs between seeds is followed by a column `<title>, sd`.
    """
    first = tables[0]
    lines = zip(*([*table.rows, *table.footer] for table in tables), strict=True)
    cells = [[_spread(values) for values in zip(*rows, strict=True)] for rows in lines]
    form, count, columns = first.form, len(first.rows), list(zip(*cells, strict=True))
    shown = [
        [mean if sd is None else f"{mean:{form}} ± {sd:{form}}" for mean, sd in row]
        for row in cells
    ]
    sides = "".join("l" if any(isinstance(m, str) for m, _ in each) else "r" for each in columns)
    numbers: dict[str, list[Cell]] = {}
    for title, each in zip(first.columns, columns, strict=True):
        numbers[title] = [mean for mean, _ in each]
        if any(sd is not None for _, sd in each):
            numbers[f"{title}, sd"] = [sd for _, sd in each]
    rows = list(zip(*numbers.values(), strict=True))
    return (
        dataclasses.replace(first, rows=shown[:count], footer=shown[count:], align=sides),
        dataclasses.replace(first, columns=[*numbers], rows=rows[:count], footer=rows[count:]),
    )


def _spread(values: Sequence[Any]) -> tuple[Any, float | None]:
    """Mean and standard deviation of numbers that differ; otherwise the cell to show, and None."""
    different = list(dict.fromkeys(values))
    if len(different) == 1 or None in different:
        return different[0], None
    if any(isinstance(value, str) for value in different):
        return "; ".join(map(str, different)), None
    return float(np.mean(values)), float(np.std(values, ddof=1))


# Columns after each mean Spearman correlation: {title: key}; the interval follows.
_BESIDE = {"Pearson": "mean_pearson", "AUROC": "mean_auroc", "per image": "mean_per_image"}
_BESIDE_NOTE = (
    "Spearman and Pearson: the correlation of six means over images with severity, as in the "
    "paper. For single images: AUROC, clean against severity 5 (0.5 is chance), and (per image) "
    "Spearman's correlation over all (image, severity) pairs with its 95 % interval. All are means "
    "over 18 corruptions."
)


def _beside(values: Mapping[str, Any]) -> dict[str, Cell]:
    low, high = values["interval"]
    return {**{title: values[key] for title, key in _BESIDE.items()}, "low": low, "high": high}


def baselines(
    kind: str, printed: dict[str, dict[str, float]], workspace: Workspace, results: Results
) -> Report:
    """Table 1 and its Pearson twin: one row per corruption, four methods next to the paper's."""
    theirs = {title: printed[row] for title, row in experiments.BASELINES.values()}
    found: dict[str, Mapping[str, Any] | None] = {
        title: results(run, "corruption") for run, (title, _) in experiments.BASELINES.items()
    }
    for (run, measured, score), title in experiments.FURTHER.items():
        result = results.get(run, measured)
        found[title] = result["scores"].get(score) if result and score else result
    columns: dict[str, Mapping[str, float]] = {}
    panels, means, images = {}, list[dict[str, Cell]](), list[dict[str, Cell]]()
    for title, values in found.items():
        missing = "not given" if "pretrained" in title else "not measured"
        mean = {f"paper: {kind.capitalize()}": _mean(theirs[title]) if title in theirs else None}
        means.append({"method": title, "Spearman": missing, **mean})
        if values is None:
            continue
        means[-1] |= {"Spearman": values["mean_spearman"], **_beside(values)}
        columns[title] = values[kind]
        if title in theirs:
            columns[f"paper: {title}"] = theirs[title]
        if title in theirs or title in _DRAWN:
            rises = "+)" in title
            look = ("uncertainty, should rise", ORANGE) if rises else ("should fall", BLUE)
            panels[title] = {title: look}
        for label, name in zip(_LABELS, CORRUPTIONS, strict=True):
            single, row = values["per_image"][name], {"method": title, "corruption": label}
            row |= {word: values[word.lower()][name] for word in ("Spearman", "Pearson", "AUROC")}
            low, high = single["interval"]
            images.append({**row, "per image": single["spearman"], "low": low, "high": high})
    auroc = {title: values["auroc"] for title, values in found.items() if values}
    budget = workspace.budget
    notes = [
        "(+) and (-) are the expected signs: variance should grow with corruption, all other "
        "scores should fall.",
        f"Ensembles have {budget.num_members} members with different seeds; dropout has a rate of "
        f"{budget.dropout} and {budget.num_passes} passes. The paper gives neither number.",
        "Not in the paper: the wide head (tfvmf fit-kappa) on the encoder of SimCLR + vMF, with "
        "familiarity and confidence; three controls on the same encoder (feature norm, measured "
        "agreement of views, and the maximum softmax of a linear probe, which uses labels); "
        "VI-SimSiam (arXiv 2203.11437); the wide head on a pretrained encoder "
        "(--reference_encoder).",
        _BESIDE_NOTE,
    ]
    if kind == "spearman":
        notes.append(
            f"The mean of the paper's row for its own method is {_mean(printed['Ours (-)']):.3f}; "
            f"its text and its other tables give {paper.TABLE_3['simclr']:.3f}."
        )
    more = {
        "means": Table.of(means, title="Means over the corruptions"),
        "auroc": _by_corruption(auroc, "AUROC of single images, clean against severity 5"),
        "images": Table.of(images),
    }
    axis = f"{kind.capitalize()} correlation"
    return Report(_by_corruption(columns), notes, _bars(workspace, _LABELS, panels, axis), more)


# Table 2: detector -> title. The paper's three, others of the run, those of its wide head.
_DETECTORS = {"f_res": "F_res", "kappa": "kappa", "f_res+kappa": "F_res + kappa"}
_OWN = {
    "ssd": "SSD",
    "softmax": "probe's softmax",
    "feature_norm": "feature norm",
    "agreement": "agreement of views",
}
_HEAD = {"kappa": "wide head", "familiarity": "familiarity", "confidence": "confidence"}


def out_of_distribution(workspace: Workspace, results: Results) -> Report:
    """Table 2: one row per pair of data sets, three detectors next to the paper's, then others."""
    rows: list[dict[str, Cell]] = []
    budget, trained = workspace.budget, list[str]()
    for inside in budget.sets:
        own = own_run(budget, inside)
        measured, head = results(own, "ood"), results(f"{own}-kappa", "ood")
        pairs = zip(workspace.others(inside), measured["auroc"], head["auroc"], strict=True)
        for outside, values, by_head in pairs:
            pair = inside.stands_for, outside.stands_for
            row: dict[str, Cell] = {"familiar": inside.name, "foreign": outside.name}
            for name, title in _DETECTORS.items():
                row |= {title: values[name], f"paper: {title}": paper.TABLE_2[pair][name]}
            row |= {title: values[name] for name, title in _OWN.items()}
            row |= {title: by_head.get(name) for name, title in _HEAD.items()}
            rows.append(row if budget.is_papers else {**row, "the paper's pair": ", ".join(pair)})
        count = f" on {measured['train_images']:,} images"
        trained += [_trained(workspace, run) + count for run in (own, supervised_run(inside))]
    sets = "; ".join(f"{images.name}: {images.description}" for images in budget.sets)
    notes = [
        "F_res: mean cosine distance to the 5 nearest training images in the features of a "
        f"supervised run; kappa is from a run without labels. {sets}.",
        "Not in the paper, on the features of that run: SSD, the Mahalanobis distance at unit "
        "length; the maximum softmax of a linear probe, which uses labels; feature norm; the "
        "measured agreement of views; kappa, familiarity and confidence of the wide head (tfvmf "
        "fit-kappa).",
        f"Trained: {'; '.join(trained)}.",
    ]
    if not budget.is_papers:
        notes.append(
            "The data sets are stand-ins for the paper's that need no download, one pair near and "
            "one far: the paper's numbers are from other images."
        )
    drawn = [*_DETECTORS.values(), _OWN["ssd"], *_HEAD.values()]
    if any(row[_HEAD["familiarity"]] is None for row in rows):
        drawn = drawn[:-2]  # they need a reserve
    series = {title: (title, color) for title, color in zip(drawn, _COLORS, strict=False)}
    labels = [f"{row['familiar']},\n{row['foreign']}" for row in rows]
    draw = _bars(workspace, labels, {"": series}, "AUROC", line=0.5)
    return Report(Table.of(rows, form=".4f"), notes, draw)


def _trained(workspace: Workspace, run: str) -> str:
    """A run in words: it may be shorter than the budget's others, or have another network."""
    config = workspace.config(run)
    model = f"{config.model.backbone} of width {config.model.width}"
    return f"{run}, {config.epochs} epochs of {model}"


def means(
    first: str,
    runs: Callable[[Budget], Mapping[Any, str]],
    printed: Mapping[Any, float],
    workspace: Workspace,
    results: Results,
) -> Report:
    """Tables 3, 4 and 5: one row per run, {value of the column `first`: run}."""
    rows: list[dict[str, Cell]] = []
    chosen = runs(workspace.budget)
    for label, run in chosen.items():
        values, accuracy = results(run, "corruption"), results.get(run, "accuracy")
        ours = {"tfvmf": values["mean_spearman"], "paper": printed.get(label), **_beside(values)}
        rows.append({first: str(label), **ours})
        if accuracy:
            rows[-1]["k-NN accuracy"] = accuracy["knn"]
    series = {"": {"tfvmf": ("tfvmf", BLUE)}}
    labels = [str(label).replace(", ", ",\n") for label in chosen]
    draw = _bars(workspace, labels, series, "mean Spearman\ncorrelation")
    notes = [f"{_BESIDE_NOTE} Correlations should be negative."]
    if first == "network":
        notes.append(f"Trained: {'; '.join(_trained(workspace, run) for run in chosen.values())}.")
    return Report(Table.of(rows), notes, draw)


def distributions(_: Workspace, results: Results) -> Report:
    """Figure 1: samples of the vMF distribution on a sphere, at chosen and at learned kappas."""
    found = results("simclr_vmf", "spread")
    dimension = found["dimension"]
    kappas = [("chosen", kappa) for kappa in figures.CHOSEN_KAPPAS]
    measured = zip(found["quantiles"], found["conditions"], found["kappa"], strict=True)
    kappas += [(f"encoder, {part:.0%} quantile ({name})", kappa) for part, name, kappa in measured]
    rows: list[list[Cell]] = [
        [label, kappa, *(float(vmf.mean_resultant_length(kappa, d)) for d in (3, dimension))]
        for label, kappa in kappas
    ]
    columns = ["kappa is", "kappa", "mean cosine in 3 dimensions", f"in {dimension} dimensions"]
    notes = [
        "The paper's figure has a fixed mean and kappas of its own choice; it prints no numbers. "
        "The lower row has kappas that the trained encoder gives to test images, clean and under "
        "every corruption at the highest severity, on a sphere of 3 dimensions.",
        "The paper's loss leaves out the normalizer of the distribution: its kappa orders images "
        "by certainty, and its scale (0 to 5) is set by the weights of the loss. As that of a vMF "
        f"distribution in {dimension} dimensions, it would mean an almost uniform one.",
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
    head = results("simclr_vmf-kappa", "failure")["scores"]
    for title, score in {
        **{title: failure["scores"][name] for name, title in _OWN.items() if name != "ssd"},
        **{title: head.get(name) for name, title in _HEAD.items()},
    }.items():
        rows.append([f"B: AUROC of {title}", score, None])
    for name in ("most", "least"):
        rows.append([f"A: kappa of the {name} certain image", examples[name]["kappa"][0], None])
    for name, entry in examples["corrupted"].items():
        for severity, kappa in enumerate(entry["kappa"]):
            rows.append([f"A: {name.replace('_', ' ')}, severity {severity}", kappa, None])
    notes = [
        "A: the test images with the highest and lowest kappa, and, from clean (severity 0) to "
        "severe, the one whose kappa changes most like the mean over all images. B: predictions of "
        "a linear probe; one-sided p of Mann-Whitney's U over 50 rounds of 100 draws from either "
        "group.",
    ]
    if "note" in failure:
        notes.append(f"Note: {failure['note']}.")
    table = Table(columns=["", "tfvmf", "paper"], rows=rows, form=".4g")
    draw = functools.partial(figures.draw_images_and_failures, examples=examples, failure=failure)
    return Report(table, notes, draw)


def augmentations(workspace: Workspace, results: Results) -> Report:
    """Figure 3: one row per corruption, one column per set of augmentations."""
    columns, series, rows = {}, {}, list[dict[str, Cell]]()
    views = zip(experiments.AUGMENTATIONS.items(), (GREEN, BLUE, ORANGE), strict=True)
    for (run, title), color in views:
        values = results(run, "corruption")
        columns[title], series[title] = values["spearman"], (title, color)
        rows.append({"views": title, "Spearman": values["mean_spearman"], **_beside(values)})
    columns["paper: default"] = paper.TABLE_1["Ours (-)"]
    notes = [
        "Gaussian noise: sigma drawn below 0.25. Stronger color jitter: brightness, contrast and "
        'saturation 0.3 to 0.4 and, for the paper\'s "hue (p = 0.2 to p = 0.3)", gray views with '
        "a probability of 0.3 instead of 0.2.",
        "The paper draws this figure without numbers; for the default views it prints Table 1. It "
        "says that with noise among the views the correlations of Gaussian and speckle noise turn "
        "positive, and that those of brightness and similar corruptions shift with stronger "
        "jitter.",
        _BESIDE_NOTE,
    ]
    draw = _bars(workspace, _LABELS, {"": series}, "Spearman correlation")
    more = {"means": Table.of(rows, title="Means over the corruptions")}
    return Report(_by_corruption(columns), notes, draw, more)


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
    rows: list[dict[str, Cell]] = []
    for run, method in methods.items():
        known = dict(results.along(run, "corruption")) if run in ends else {}
        for epoch, found in results.along(run, "accuracy"):
            whole = int(epoch) if epoch == int(epoch) else epoch
            accuracy = {"accuracy: linear": found["linear"], "accuracy: k-NN": found["knn"]}
            rows.append({"method": method, "epoch": whole, **accuracy})
            if epoch in known:
                spearman = known[epoch]["mean_spearman"]
                rows[-1] |= {"mean Spearman": spearman, **_beside(known[epoch])}
    share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
    for run, mean in ends.items():
        rows.append({"method": f"paper: {methods[run]}", "epoch": 1000, "mean Spearman": mean})
        if run == "simclr_vmf":
            rows[-1]["accuracy: linear"] = share
    notes = [
        "Linear: a linear probe on the features; k-NN: a vote of "
        f"{results('simclr_vmf', 'accuracy')['neighbors']} neighbors.",
        "The paper draws this figure without numbers. Its accuracy here is the share of correct "
        "predictions that it prints for Figure 2B; its correlations are the means of Table 1. It "
        "says that the deterministic method is 2 % more accurate than its own, which is more "
        "accurate than MC-InfoNCE.",
        _BESIDE_NOTE,
    ]
    drawn = {methods[run]: end for run, end in ends.items() if workspace.budget.is_papers}
    draw = functools.partial(figures.draw_lines, ends=drawn)
    return Report(Table.of(rows), notes, draw)


def _by_corruption(columns: Mapping[str, Mapping[str, float]], title: str = "") -> Table:
    """One row per corruption, one column per {title: {corruption: number}}, and their means."""
    rows: list[list[Cell]] = [
        [label, *(column[name] for column in columns.values())]
        for label, name in zip(_LABELS, CORRUPTIONS, strict=True)
    ]
    footer: list[Cell] = ["mean", *map(_mean, columns.values())]
    return Table(columns=["corruption", *columns], rows=rows, footer=[footer], title=title)


def _bars(
    workspace: Workspace, labels: list[str], panels: figures.Panels, axis: str, *, line: float = 0.0
) -> Callable[[figures.Columns], Figure]:
    printed = workspace.budget.is_papers  # otherwise its numbers are from other data
    return lambda columns: figures.draw_bars(
        columns, labels=labels, panels=panels, axis_label=axis, line=line, paper=printed
    )


def _mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values())))


def _varied(setting: str) -> Callable[[Budget], dict[Any, str]]:
    return functools.partial(experiments.varied_runs, setting=setting)


_FRAMEWORKS = experiments.FRAMEWORKS | {
    "vi_simsiam": "vi_simsiam",
    "simclr, wide head": "simclr_vmf-kappa",
}
_REPORTS: dict[str, Callable[[Workspace, Results], Report]] = {
    "table1": functools.partial(baselines, "spearman", paper.TABLE_1),
    "pearson": functools.partial(baselines, "pearson", paper.TABLE_1_PEARSON),
    "table2": out_of_distribution,
    "table3": lambda *of: means("framework", lambda _: _FRAMEWORKS, paper.TABLE_3, *of),
    "table4": lambda *of: means("dimension", _varied("model.dimension"), paper.TABLE_4, *of),
    "table5": lambda *of: means("network", _varied("model.backbone"), paper.TABLE_NETWORKS, *of),
    "figure1": distributions,
    "figure2": images_and_failures,
    "figure3": augmentations,
    "figure4": along_training,
}
