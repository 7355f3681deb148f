"""The paper's figures: the numbers behind them, and who draws them."""

import functools

import numpy as np

from tfvmf import vmf
from tfvmf.data.corruptions import CORRUPTIONS
from tfvmf.evaluation import paper
from tfvmf.evaluation.tables import Cell
from tfvmf.reproduction import figures, pictures
from tfvmf.reproduction.experiments import AUGMENTATIONS
from tfvmf.reproduction.tables import Report, Results
from tfvmf.reproduction.workspace import Workspace

_METHODS = {
    "simclr": "SimCLR (deterministic)",
    "simclr_vmf": "SimCLR + vMF",
    "mc_infonce": "MC-InfoNCE",
}


def distributions(_: Workspace, results: Results) -> Report:
    """Figure 1: samples of the vMF distribution on a sphere, at chosen and at learnt kappas."""
    found = results("simclr_vmf", "spread")
    dimension = found["dimension"]

    def row(label: str, kappa: float) -> list[Cell]:
        cosines = [float(vmf.mean_resultant_length(kappa, d)) for d in (3, dimension)]
        return [label, kappa, *cosines]

    rows = [row("chosen", kappa) for kappa in pictures.CHOSEN]
    for quantile, condition, kappa in zip(
        found["quantiles"], found["conditions"], found["kappa"], strict=True
    ):
        rows.append(row(f"encoder, {quantile:.0%} quantile ({condition})", kappa))
    columns = ["kappa is", "kappa", "mean cosine in 3 dimensions", f"in {dimension} dimensions"]
    notes = [
        "The paper's figure has a fixed mean and kappas of its own choice; it prints no numbers. "
        "The lower row has kappas of the trained encoder, of test images as they are and under the "
        "greatest severity of every corruption, on a sphere of 3 dimensions.",
        "The paper's loss leaves out the normalizer of the distribution: its kappa orders images "
        "by certainty, and its scale (0 to 5) is set by the weights of the loss. Read as a vMF "
        f"distribution of {dimension} dimensions it would be next to uniform.",
    ]
    draw = functools.partial(pictures.draw_distributions, found=found)
    return Report(columns=columns, rows=rows, notes=notes, draw=draw)


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
    draw = functools.partial(pictures.draw_images_and_failures, examples=examples, failure=failure)
    return Report(columns=["", "tfvmf", "paper"], rows=rows, form=".4g", notes=notes, draw=draw)


def augmentations(_: Workspace, results: Results) -> Report:
    """Figure 3: a row a corruption, a column a set of views."""
    ours = {title: results(run, "corruption")["spearman"] for run, title in AUGMENTATIONS.items()}
    printed = paper.TABLE_1["Ours (-)"]
    rows: list[list[Cell]] = [
        [name.replace("_", " "), *(values[name] for values in ours.values()), printed[name]]
        for name in CORRUPTIONS
    ]
    tables = (*ours.values(), printed)
    rows.append(["mean", *(float(np.mean(list(values.values()))) for values in tables)])
    notes = [
        "Gaussian noise: sigma drawn below 0.25. Stronger color jitter: brightness, contrast and "
        'saturation 0.3 to 0.4 and, for the paper\'s "hue (p = 0.2 to p = 0.3)", gray views with '
        "a probability of 0.3 instead of 0.2.",
        "The paper draws this figure without numbers; of the default views it prints Table 1. It "
        "says that with noise among the views the correlations of Gaussian and speckle noise turn "
        "positive, and that those of brightness and its like shift with stronger jitter.",
    ]
    draw = functools.partial(
        figures.draw_bars,
        labels=[name.replace("_", " ") for name in CORRUPTIONS],
        series={title: [values[n] for n in CORRUPTIONS] for title, values in ours.items()},
        printed={"default": [printed[n] for n in CORRUPTIONS]},
        axis_label="Spearman correlation",
        colors=(figures.GREEN, figures.BLUE, figures.ORANGE),
    )
    columns = ["corruption", *(f"tfvmf: {title}" for title in ours), "paper: default"]
    return Report(columns=columns, rows=rows, notes=notes, draw=draw)


def along_training(_: Workspace, results: Results) -> Report:
    """Figure 4: accuracy of three methods, correlation of two, by epoch."""
    accuracy = {run: results.along(run, "accuracy") for run in _METHODS}
    correlation = {run: results.along(run, "corruption") for run in ("simclr_vmf", "mc_infonce")}
    spearman = {
        run: {epoch: found["mean_spearman"] for epoch, found in pairs}
        for run, pairs in correlation.items()
    }
    rows: list[list[Cell]] = [
        [
            _METHODS[run],
            float(epoch),
            found["linear"],
            found["knn"],
            spearman.get(run, {}).get(epoch),
        ]
        for run, pairs in accuracy.items()
        for epoch, found in pairs
    ]
    share = paper.FAILURE["correct"] / (paper.FAILURE["correct"] + paper.FAILURE["wrong"])
    ends = {
        "simclr_vmf": float(np.mean(list(paper.TABLE_1["Ours (-)"].values()))),
        "mc_infonce": float(np.mean(list(paper.TABLE_1["MCInfoNCE (-)"].values()))),
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
    return Report(columns=columns, rows=rows, notes=notes, draw=draw)


def _small(value: float | None) -> str | None:
    return None if value is None else f"{value:.2e}"
