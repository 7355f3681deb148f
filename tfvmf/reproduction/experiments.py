"""The paper's tables and figures: what each one needs, and how much a budget spends on it.

A budget is the configuration, data and amounts that all runs of a reproduction share; a run is one
training under a name; an experiment is a table or figure, made of measurements of runs. Runs are
shared: one name is one directory, whichever experiment needs it. A new experiment is an entry in
`EXPERIMENTS` and a function in `reports`. Nothing here imports TensorFlow, so that a mistyped name
is answered at once.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

# Budgets.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSet:
    """One of the three data sets of a budget.

    Attributes:
        name: Name in run directories and tables.
        source: Data source, as `config.data.source` names it; "" for a stand-in
            (`tfvmf.reproduction.stand_ins`), which is written when it is needed.
        stands_for: The data set of the paper's Table 2 that it replaces.
        train_images: Number of training images, so that a plan needs no data.
        test_images: Number of test images.
        changes: Dotted settings that runs on it change.
        description: What it is, for reports.
    """

    name: str
    source: str
    stands_for: str
    train_images: int
    test_images: int
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    description: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What all runs and measurements of a reproduction have in common.

    Attributes:
        name: Name for `--budget`.
        config: Name of a config in `configs/`.
        changes: Dotted settings in which all runs differ from it.
        supervised: Settings in which supervised runs differ from the others.
        max_images: Number of test images that are measured.
        num_members: Size of the ensemble.
        dropout: Rate of MC dropout, which the paper does not give.
        num_passes: Forward passes of MC dropout.
        sets: Three data sets. All experiments except Table 2 train on the first.
        seconds_to_start: Time until the first step of a run, mostly to build its graph.
        seconds_per_step: Time of a step of simclr_vmf.
        seconds_to_measure: Time until the first image is measured.
        images_per_second: Images that are corrupted and measured per second.
        timing: Where these times come from.
    """

    name: str
    config: str
    changes: Mapping[str, Any]
    supervised: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_images: int
    num_members: int
    dropout: float = 0.1
    num_passes: int
    sets: tuple[ImageSet, ImageSet, ImageSet]
    seconds_to_start: float
    seconds_per_step: float
    seconds_to_measure: float
    images_per_second: float
    timing: str

    @functools.cached_property
    def base(self) -> ml_collections.FrozenConfigDict:
        """A read-only `base_config`."""
        return ml_collections.FrozenConfigDict(self.base_config())

    def base_config(self) -> ml_collections.ConfigDict:
        """The settings that all runs share: those of simclr_vmf."""
        config = importlib.import_module(f"tfvmf.configs.{self.config}").get_config()
        config.method = "simclr_vmf"
        config.update_from_flattened_dict(dict(self.changes))
        return config


_CIFAR10, _CIFAR100, _MNIST = (
    ImageSet(
        name="cifar10",
        source="cifar10",
        stands_for="cifar10",
        train_images=50_000,
        test_images=10_000,
        description="CIFAR-10",
    ),
    ImageSet(
        name="cifar100",
        source="cifar100",
        stands_for="cifar100",
        train_images=50_000,
        test_images=10_000,
        description="CIFAR-100",
    ),
    ImageSet(
        name="mnist",
        source="mnist",
        stands_for="mnist",
        train_images=60_000,
        test_images=10_000,
        changes={"augment.flip_probability": 0.0},  # a mirrored digit is no digit
        description="MNIST",
    ),
)

DIGITS = Budget(
    name="digits",
    config="digits",
    changes={
        "epochs": 10,
        "data.image_size": 16,
        "model.width": 8,
        "optimizer.learning_rate": 4e-3,
        "optimizer.warmup_epochs": 2.0,
        "monitor.every_epochs": 10.0,
        "checkpoint.every_epochs": 2.0,
        "checkpoint.keep": 15,
    },
    max_images=200,
    num_members=3,
    num_passes=8,
    sets=(
        ImageSet(
            name="digits",
            source="digits",
            stands_for="cifar10",
            train_images=1397,
            test_images=400,
            description="the handwritten digits of scikit-learn",
        ),
        ImageSet(
            name="digits_turned",
            source="",
            stands_for="cifar100",
            train_images=1397,
            test_images=400,
            description="the same digits turned by 90 degrees",
        ),
        ImageSet(
            name="photo_patches",
            source="",
            stands_for="mnist",
            train_images=1400,
            test_images=400,
            description="patches of scikit-learn's two sample photographs",
        ),
    ),
    seconds_to_start=15.0,
    seconds_per_step=0.2,
    seconds_to_measure=3.0,
    images_per_second=3500.0,
    timing="times measured on 2 CPU cores",
)

CPU = Budget(
    name="cpu",
    config="cifar10_cpu",
    # Ten checkpoints more than needed: each interruption writes another one.
    changes={"checkpoint.every_epochs": 2.0, "checkpoint.keep": 18},
    max_images=2_000,
    num_members=3,
    num_passes=16,
    sets=(
        _CIFAR10,
        _CIFAR100,
        dataclasses.replace(_MNIST, changes={**_MNIST.changes, "epochs": 5}),
    ),
    seconds_to_start=25.0,
    seconds_per_step=0.85,
    seconds_to_measure=5.0,
    images_per_second=1600.0,
    timing="times measured on 2 CPU cores",
)

PAPER = Budget(
    name="paper",
    config="cifar10",
    changes={"checkpoint.every_epochs": 50.0, "checkpoint.keep": 30},
    # The caption of Table 2: features of a ResNet-18. It does not say for how long.
    supervised={"model.backbone": "resnet18", "epochs": 200},
    max_images=10_000,
    num_members=5,
    num_passes=16,
    sets=(_CIFAR10, _CIFAR100, _MNIST),
    seconds_to_start=60.0,
    seconds_per_step=0.35,
    seconds_to_measure=20.0,
    images_per_second=1600.0,
    timing="times assumed for one data-center GPU, never measured",
)

BUDGETS: dict[str, Budget] = {budget.name: budget for budget in (DIGITS, CPU, PAPER)}


# Runs.

DIMENSIONS = (64, 128, 256, 384)
NETWORKS = ("resnet18", "resnet34", "resnet50")

# The study of further augmentations: noise of sigma < 0.25; brightness, contrast and saturation
# from 0.3 to 0.4, and "hue (p = 0.2 -> p = 0.3)". The only probability of 0.2 among SimCLR's views
# is that of a gray one, so that is what is raised.
NOISE = {"augment.noise_sigma_max": 0.25}
JITTER = {
    "augment.brightness": 0.4,
    "augment.contrast": 0.4,
    "augment.saturation": 0.4,
    "augment.gray_probability": 0.3,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, or one ensemble.

    Attributes:
        name: Name of its directory.
        changes: Dotted settings in which it differs from the budget's.
        images: The data set it is trained on.
        num_members: Size of the ensemble; 1 for an ordinary run.
    """

    name: str
    changes: Mapping[str, Any]
    images: ImageSet
    num_members: int = 1


def all_runs(budget: Budget) -> dict[str, Run]:
    """All runs that some experiment needs, by name."""
    home = budget.sets[0]
    found = [
        Run("simclr_vmf", {}, home),
        # A member is a run like any other: Figure 4 uses the first one.
        Run("simclr", {"method": "simclr"}, home, num_members=budget.num_members),
        Run("simclr-dropout", {"method": "simclr", "model.dropout": budget.dropout}, home),
        Run("mc_infonce", {"method": "mc_infonce"}, home),
        *(Run(name, {"method": name}, home) for name in ("simsiam_vmf", "byol_vmf", "swav_vmf")),
        Run("simclr_vmf-noise", NOISE, home),
        Run("simclr_vmf-jitter", JITTER, home),
    ]
    for key, names in (
        ("model.dimension", dimension_runs(budget)),
        ("model.backbone", network_runs(budget)),
    ):
        found += [Run(name, {key: value}, home) for value, name in names.items()]
    for images in budget.sets:
        found.append(Run(own_run(budget, images), images.changes, images))
        changes = {**images.changes, **budget.supervised, "method": "supervised"}
        found.append(Run(supervised_run(images), changes, images))
    named: dict[str, Run] = {}
    for run in found:  # runs that repeat the budget's own settings are called simclr_vmf: the first
        named.setdefault(run.name, run)
    return named


def sources(experiment: "Experiment", budget: Budget) -> list[str]:
    """The data sources that an experiment needs; stand-ins, which need no download, are not."""
    runs = all_runs(budget)
    found = [runs[task.run].images.source for task in experiment.tasks(budget)]
    return list(dict.fromkeys(filter(None, found)))


def own_run(budget: Budget, images: ImageSet) -> str:
    """The name of the simclr_vmf run on a data set."""
    return "simclr_vmf" if images is budget.sets[0] else f"simclr_vmf-{images.name}"


def supervised_run(images: ImageSet) -> str:
    """The name of the supervised run on a data set."""
    return f"supervised-{images.name}"


def dimension_runs(budget: Budget) -> dict[int, str]:
    """Table 4: {dimension of the embedding: run}."""
    own = budget.base.model.dimension
    return {d: "simclr_vmf" if d == own else f"simclr_vmf-{d}d" for d in DIMENSIONS}


def network_runs(budget: Budget) -> dict[str, str]:
    """The appendix's table of networks: {backbone: run}."""
    own = budget.base.model.backbone
    return {n: "simclr_vmf" if n == own else f"simclr_vmf-{n}" for n in NETWORKS}


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


# Experiments.


@dataclasses.dataclass(frozen=True)
class Task:
    """One measurement of a run.

    Attributes:
        run: Name of the run.
        kind: What is measured: a function in `measure.MEASURES`.
        first_member: Measure only the first member of an ensemble, as a run of its own.
        every_checkpoint: Measure at every checkpoint, not only at the last.
        supervised: Name of the supervised run whose features the measurement also uses.
    """

    run: str
    kind: str
    first_member: bool = False
    every_checkpoint: bool = False
    supervised: str = ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: Name on the command line.
        title: Its number in the paper, and what it shows.
        tasks: The measurements it is made of, for a budget.
    """

    name: str
    title: str
    tasks: Callable[[Budget], list[Task]]


def _corruption(*runs: str) -> list[Task]:
    return [Task(run, "corruption") for run in dict.fromkeys(runs)]


def _out_of_distribution(budget: Budget) -> list[Task]:
    return [
        Task(own_run(budget, images), "ood", supervised=supervised_run(images))
        for images in budget.sets
    ]


def _along_training(_: Budget) -> list[Task]:
    return [
        Task("simclr", "accuracy", first_member=True, every_checkpoint=True),
        *(Task(run, "accuracy", every_checkpoint=True) for run in ("simclr_vmf", "mc_infonce")),
        *(Task(run, "corruption", every_checkpoint=True) for run in ("simclr_vmf", "mc_infonce")),
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
            _out_of_distribution,
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
