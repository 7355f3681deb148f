"""The paper's tables and figures: which runs each needs, and what is measured on them.

A new one is an entry here and a function in `reports` or `figure_reports`.
"""

import dataclasses
from collections.abc import Callable

from tfvmf.reproduction.budgets import Budget
from tfvmf.reproduction.runs import dimension_runs, network_runs, own_run


@dataclasses.dataclass(frozen=True)
class Task:
    """One measurement of a run.

    Attributes:
        run: The name of the run.
        kind: What is measured: a function of `measure.MEASURES`.
        member: Of an ensemble only its first member, as a run of its own.
        along: At every checkpoint, not only at the last.
        beside: Another run that the measurement needs.
    """

    run: str
    kind: str
    member: bool = False
    along: bool = False
    beside: str = ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: As typed.
        title: What it is in the paper, and what it shows.
        tasks: What it is made of, at a budget.
    """

    name: str
    title: str
    tasks: Callable[[Budget], list[Task]]


# Table 1 and its Pearson twin: run -> the paper's row.
BASELINES = {
    "simclr": "Model ensembles (+)",
    "simclr-dropout": "MC dropout (+)",
    "mc_infonce": "MCInfoNCE (-)",
    "simclr_vmf": "Ours (-)",
}
# Table 3: run -> the paper's column.
FRAMEWORKS = {
    "simclr_vmf": "simclr",
    "simsiam_vmf": "simsiam",
    "byol_vmf": "byol",
    "swav_vmf": "swav",
}
# Figure 3: run -> what it adds.
AUGMENTATIONS = {
    "simclr_vmf": "default",
    "simclr_vmf-noise": "+ Gaussian noise",
    "simclr_vmf-jitter": "+ stronger color jitter",
}


def _corruption(*runs: str) -> list[Task]:
    return [Task(run, "corruption") for run in dict.fromkeys(runs)]


def _foreign(budget: Budget) -> list[Task]:
    return [
        Task(own_run(budget, images), "ood", beside=f"supervised-{images.name}")
        for images in budget.sets
    ]


def _along_training(_: Budget) -> list[Task]:
    return [
        Task("simclr", "accuracy", member=True, along=True),
        *(Task(run, "accuracy", along=True) for run in ("simclr_vmf", "mc_infonce")),
        *(Task(run, "corruption", along=True) for run in ("simclr_vmf", "mc_infonce")),
    ]


EXPERIMENTS: dict[str, Experiment] = {
    entry.name: entry
    for entry in (
        Experiment(
            "table1",
            "Table 1: Spearman correlation of uncertainty with the severity of corruption",
            lambda _: _corruption(*BASELINES),
        ),
        Experiment(
            "table2",
            "Table 2: AUROC of out-of-distribution detection",
            _foreign,
        ),
        Experiment(
            "table3",
            "Table 3: mean Spearman correlation of kappa with severity, by framework",
            lambda _: _corruption(*FRAMEWORKS),
        ),
        Experiment(
            "table4",
            "Table 4: mean Spearman correlation of kappa with severity, by dimension",
            lambda budget: _corruption(*dimension_runs(budget).values()),
        ),
        Experiment(
            "table5",
            "Appendix, network complexity: mean Spearman correlation of kappa with severity",
            lambda budget: _corruption(*network_runs(budget).values()),
        ),
        Experiment(
            "pearson",
            "Appendix, Table 1 with Pearson's correlation",
            lambda _: _corruption(*BASELINES),
        ),
        Experiment(
            "figure1",
            "Figure 1: the vMF distribution at growing kappa, and at a trained encoder's",
            lambda _: [Task("simclr_vmf", "spread")],
        ),
        Experiment(
            "figure2",
            "Figure 2: kappa of images, of corrupted images (A) and of failures (B)",
            lambda _: [Task("simclr_vmf", "examples"), Task("simclr_vmf", "failure")],
        ),
        Experiment(
            "figure3",
            "Figure 3: Spearman correlation of kappa with severity under further augmentations",
            lambda _: _corruption(*AUGMENTATIONS),
        ),
        Experiment(
            "figure4",
            "Figure 4: accuracy and mean Spearman correlation along training",
            _along_training,
        ),
    )
}
