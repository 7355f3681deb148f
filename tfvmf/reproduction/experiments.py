"""The paper's tables and figures: what each one needs, and how much a budget spends on it.

A budget is the configuration, data and amounts that all runs of a reproduction share; a run is one
training under a name; an experiment is a table or figure, made of measurements of runs. Runs are
shared: one name is one directory, whichever experiment needs it. A new experiment is an entry in
`EXPERIMENTS` and a function in `reports`. Nothing here imports TensorFlow, so that a mistyped name
fails at once.
"""

import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_collections

from tfvmf.settings import flatten


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSet:
    """One of the three data sets of a budget."""

    name: str  # name in run directories and tables
    source: str  # its `config.data.source`; "" for one that `measure.write_stand_in` makes
    stands_for: str  # the data set of the paper's Table 2 that it replaces
    train_images: int  # number of images, so that a plan needs no data
    test_images: int
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # settings of runs on it
    description: str  # name in reports


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What all runs and measurements of a reproduction have in common."""

    name: str  # value of `--budget`
    config: str  # name of a config in `configs/`
    changes: Mapping[str, Any]  # dotted settings of all runs that differ from it
    # Further settings by method, and for runs that compare networks.
    methods: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    networks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_images: int  # number of test images to measure
    num_members: int  # size of the ensemble
    dropout: float = 0.1  # rate of MC dropout, which the paper does not give
    num_passes: int  # forward passes of MC dropout
    sets: tuple[ImageSet, ImageSet, ImageSet]  # Table 2 uses all for training, others the first
    # First estimates, on two CPU cores: images per second of training SimCLR, by network ({} for a
    # budget that needs a GPU), and of measuring.
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    measuring: float = math.nan

    @property
    def is_papers(self) -> bool:
        """Whether the data sets are the paper's, so that its numbers may be drawn beside ours."""
        return all(images.name == images.stands_for for images in self.sets)

    def base_config(self) -> ml_collections.ConfigDict:
        """The settings that all runs share: those of simclr_vmf."""
        config = importlib.import_module(f"tfvmf.configs.{self.config}").get_config()
        config.method = "simclr_vmf"
        config.data.reserve = 0.0  # the paper has no reserve
        config.update_from_flattened_dict(dict(self.changes))
        return config


def _image_set(name: str, description: str, train: int, test: int, **others: Any) -> ImageSet:
    """An `ImageSet` that is the paper's own, unless `others` say what it stands for."""
    named = {"source": name, "stands_for": name, "description": description, **others}
    return ImageSet(name=name, train_images=train, test_images=test, **named)


_CIFAR10 = _image_set("cifar10", "CIFAR-10", 50_000, 10_000)
_CIFAR100 = _image_set("cifar100", "CIFAR-100", 50_000, 10_000)
_NO_FLIPS = {"augment.flip_probability": 0.0}  # a mirrored digit is no digit
_MNIST = _image_set("mnist", "MNIST", 60_000, 10_000, changes=_NO_FLIPS)
_DIGITS = "the handwritten digits of scikit-learn"
_TURNED = "the same digits turned by 90 degrees"
_PATCHES = "patches of scikit-learn's two sample photographs"

DIGITS = Budget(
    name="digits",
    config="digits",
    changes={
        "epochs": 10,
        "data.image_size": 16,
        "data.reserve": 0.1,
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
        _image_set("digits", _DIGITS, 1397, 400, stands_for="cifar10"),
        _image_set("digits_turned", _TURNED, 1397, 400, source="", stands_for="cifar100"),
        _image_set("photo_patches", _PATCHES, 1400, 400, source="", stands_for="mnist"),
    ),
    rates={"resnet18": 640.0, "resnet34": 350.0, "resnet50": 330.0},
    measuring=3500.0,
)

CPU = Budget(
    name="cpu",
    config="cifar10_cpu",  # network, size of views and optimizer; losses and views are the paper's
    changes={
        "epochs": 6,
        "data.reserve": 2000.0,
        "model.width": 16,
        "model.one_pass": False,
        "simclr.temperature": 0.5,
        **{f"augment.{name}": 0.3 for name in ("brightness", "contrast", "saturation")},
        "augment.gray_probability": 0.2,
        # Ten checkpoints more than needed: each interruption writes another one.
        "checkpoint.every_epochs": 2.0,
        "checkpoint.keep": 14,
    },
    networks={"epochs": 3, "checkpoint.every_epochs": 1.0},
    max_images=2_000,
    num_members=3,
    num_passes=8,
    # About the same number of steps on each set.
    sets=(
        _CIFAR10,
        dataclasses.replace(_CIFAR100, train_images=25_000, changes={"epochs": 12}),
        dataclasses.replace(_MNIST, changes={**_NO_FLIPS, "epochs": 5}),
    ),
    rates={"convnet8": 750.0, "resnet18": 400.0, "resnet34": 200.0, "resnet50": 180.0},
    measuring=1600.0,
)

PAPER = Budget(
    name="paper",
    config="cifar10",
    changes={"checkpoint.every_epochs": 50.0, "checkpoint.keep": 30},
    # The caption of Table 2 gives the network, but not the epochs.
    methods={"supervised": {"model.backbone": "resnet18", "epochs": 200}},
    max_images=10_000,
    num_members=5,
    num_passes=16,
    sets=(_CIFAR10, _CIFAR100, _MNIST),
)

BUDGETS: dict[str, Budget] = {budget.name: budget for budget in (DIGITS, CPU, PAPER)}


# Runs.

# The settings that Table 4 and the appendix's table of networks vary.
VARIED: dict[str, tuple[Any, ...]] = {
    "model.dimension": (64, 128, 256, 384),
    "model.backbone": ("resnet18", "resnet34", "resnet50"),
}
# The study of further augmentations: noise of sigma < 0.25; brightness, contrast and saturation
# from 0.3 to 0.4, and "hue (p = 0.2 -> p = 0.3)". The only probability of 0.2 among SimCLR's
# augmentations is that of gray views, so this one is raised.
NOISE = {"augment.noise_sigma_max": 0.25}
JITTER = {
    **{f"augment.{name}": 0.4 for name in ("brightness", "contrast", "saturation")},
    "augment.gray_probability": 0.3,
}
# Table 1 and its Pearson twin: run -> (title with the expected sign, the paper's row).
BASELINES = {
    "simclr": ("ensemble (+)", "Model ensembles (+)"),
    "simclr-dropout": ("MC dropout (+)", "MC dropout (+)"),
    "mc_infonce": ("MC-InfoNCE (-)", "MCInfoNCE (-)"),
    "simclr_vmf": ("SimCLR + vMF (-)", "Ours (-)"),
}
# Table 3: the paper's column -> run.
FRAMEWORKS = {name: f"{name}_vmf" for name in ("simclr", "simsiam", "byol", "swav")}
# The head on a pretrained encoder that the user gives.
REFERENCE = "reference"
# Rows that the paper does not have: (run, kind of task, score; "" for the run's own) -> title.
FURTHER = {
    ("simclr_vmf-kappa", "corruption", ""): "wide head (-)",
    ("simclr_vmf-kappa", "corruption", "familiarity"): "familiarity (-)",
    ("simclr_vmf-kappa", "corruption", "confidence"): "confidence (-)",
    ("vi_simsiam", "corruption", ""): "VI-SimSiam (-)",
    ("simclr_vmf", "controls", "feature_norm"): "feature norm (-)",
    ("simclr_vmf", "controls", "agreement"): "agreement of views (-)",
    ("simclr_vmf", "controls", "softmax"): "probe's softmax (-)",
    (REFERENCE, "corruption", ""): "pretrained, wide head (-)",
}
# Figure 3: run -> title of its augmentations.
AUGMENTATIONS = {
    "simclr_vmf": "default",
    "simclr_vmf-noise": "+ Gaussian noise",
    "simclr_vmf-jitter": "+ stronger color jitter",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run or ensemble; its directory has the same name."""

    images: ImageSet  # training data
    changes: Mapping[str, Any]  # dotted settings that differ from the budget's
    num_members: int = 1  # size of the ensemble; 1 for an ordinary run
    head_of: str = ""  # the run to whose encoder `fit_kappa` fits a head


def all_runs(budget: Budget) -> dict[str, Run]:
    """The runs of all experiments, by name."""
    home = budget.sets[0]
    methods = ("simclr_vmf", "mc_infonce", "vi_simsiam", *FRAMEWORKS.values())
    found = {
        # A member is a run like any other: Figure 4 uses the first one.
        "simclr": Run(home, {"method": "simclr"}, num_members=budget.num_members),
        "simclr-dropout": Run(home, {"method": "simclr", "model.dropout": budget.dropout}),
        **{name: Run(home, {**budget.methods.get(name, {}), "method": name}) for name in methods},
        "simclr_vmf-noise": Run(home, NOISE),
        "simclr_vmf-jitter": Run(home, JITTER),
    }
    for setting in VARIED:
        for value, name in varied_runs(budget, setting).items():
            further = budget.networks if setting == "model.backbone" else {}
            found.setdefault(name, Run(home, {setting: value, **further}))
    for images in budget.sets:
        found.setdefault(own_run(budget, images), Run(images, images.changes))
        changes = {**images.changes, **budget.methods.get("supervised", {})}
        found[supervised_run(images)] = Run(images, {**changes, "method": "supervised"})
        own = own_run(budget, images)
        found[f"{own}-kappa"] = Run(images, images.changes, head_of=own)
    return {**found, REFERENCE: Run(home, {}, head_of=REFERENCE)}


def named(name: str) -> list["Experiment"]:
    """The experiment with this name, or `all` of them."""
    return list(EXPERIMENTS.values()) if name == "all" else [EXPERIMENTS[name]]


def sources(name: str, budget: Budget) -> list[str]:
    """The data sources that an experiment needs, without stand-ins, which need no download."""
    tasks = [task for experiment in named(name) for task in experiment.tasks(budget)]
    runs = all_runs(budget)
    return list(dict.fromkeys(filter(None, (runs[task.run].images.source for task in tasks))))


def own_run(budget: Budget, images: ImageSet) -> str:
    """The name of the simclr_vmf run on a data set."""
    return "simclr_vmf" if images is budget.sets[0] else f"simclr_vmf-{images.name}"


def supervised_run(images: ImageSet) -> str:
    """The name of the supervised run on a data set."""
    return f"supervised-{images.name}"


def varied_runs(budget: Budget, setting: str) -> dict[Any, str]:
    """{value: name of the run} for a setting of `VARIED`; the budget's own value is simclr_vmf."""
    own = flatten(budget.base_config())[setting]
    unit = "d" if setting == "model.dimension" else ""
    return {v: "simclr_vmf" if v == own else f"simclr_vmf-{v}{unit}" for v in VARIED[setting]}


# Experiments.


@dataclasses.dataclass(frozen=True)
class Task:
    """One measurement of a run."""

    run: str
    kind: str  # a key of `measure.MEASURES`
    first_member: bool = False  # only the first member of an ensemble, as a run of its own
    every_checkpoint: bool = False  # not only at the last one
    supervised: str = ""  # the supervised run whose features the measurement also uses


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str  # name on the command line
    title: str  # number in the paper and content
    tasks: Callable[[Budget], list[Task]]


def _tasks(name: str, budget: Budget) -> list[Task]:
    """The measurements for a table or figure."""
    own, kappa = {own_run(budget, images): images for images in budget.sets}, "simclr_vmf-kappa"
    frameworks, followed = FRAMEWORKS.values(), ("simclr_vmf", "mc_infonce")
    dimensions, networks = (varied_runs(budget, setting).values() for setting in VARIED)
    further = [Task(run, kind) for run, kind, _ in FURTHER]
    baselines = list(dict.fromkeys([*_each("corruption", BASELINES), *further]))
    first = Task("simclr", "accuracy", first_member=True, every_checkpoint=True)
    along = [_each(kind, followed, every_checkpoint=True) for kind in ("accuracy", "corruption")]
    return {
        "table1": baselines,
        "table2": [
            *(Task(run, "ood", supervised=supervised_run(images)) for run, images in own.items()),
            *(Task(f"{run}-kappa", "ood") for run in own),
        ],
        "table3": [
            *_each("corruption", [*frameworks, kappa, "vi_simsiam"]),
            *_each("accuracy", [*frameworks, "vi_simsiam"]),
        ],
        "table4": _each("corruption", dimensions),
        "table5": _each("corruption", networks),
        "pearson": baselines,
        "figure1": [Task("simclr_vmf", "spread")],
        "figure2": [Task("simclr_vmf", "examples"), *_each("failure", ["simclr_vmf", kappa])],
        "figure3": _each("corruption", AUGMENTATIONS),
        "figure4": [first, *itertools.chain(*along)],
    }[name]


def _each(kind: str, runs: Iterable[str], **options: Any) -> list[Task]:
    return [Task(run, kind, **options) for run in dict.fromkeys(runs)]


_MEAN = "mean Spearman correlation of kappa with severity"
_TITLES = {
    "table1": "Table 1: Spearman correlation of uncertainty with the severity of corruption",
    "table2": "Table 2: AUROC of out-of-distribution detection",
    "table3": f"Table 3: {_MEAN}, by framework",
    "table4": f"Table 4: {_MEAN}, by dimension",
    "table5": f"Appendix, network complexity: {_MEAN}",
    "pearson": "Appendix, Table 1 with Pearson's correlation",
    "figure1": "Figure 1: the vMF distribution at growing kappa, and at a trained encoder's",
    "figure2": "Figure 2: kappa of images, of corrupted images (A) and of failures (B)",
    "figure3": "Figure 3: Spearman correlation of kappa with severity under further augmentations",
    "figure4": "Figure 4: accuracy and mean Spearman correlation along training",
}
EXPERIMENTS = {
    name: Experiment(name, title, functools.partial(_tasks, name))
    for name, title in _TITLES.items()
}
