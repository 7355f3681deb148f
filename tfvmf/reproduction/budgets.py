"""How much to spend on a reproduction: which configuration, data, images, and what it costs."""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from tfvmf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSet:
    """One of the three sets of images of a budget.

    Attributes:
        name: In names of runs and in tables.
        source: As `--config.data.source` names it; "" for a stand-in (`tfvmf.reproduction.
            stand_ins`), which is written when it is needed.
        stands_for: The set of the paper's Table 2 in whose place it is.
        train_images: How many, so that a plan needs no data.
        test_images: How many.
        changes: Settings that its runs need.
        described: What it is, for people.
    """

    name: str
    source: str
    stands_for: str
    train_images: int
    test_images: int
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    described: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What all runs and measurements of a reproduction have in common.

    Attributes:
        name: As `--budget` names it.
        config: A file of `configs/`, without its ending.
        changes: Dotted settings in which all runs differ from it.
        supervised: Settings in which supervised runs differ from the others.
        images: Test images that are measured.
        members: Of the ensemble.
        dropout: The rate of MC dropout, which the paper does not tell.
        passes: Forward passes of MC dropout.
        sets: Three sets of images. The first is what all but Table 2 is trained on.
        seconds_to_start: Until a run's first step, the building of its graph.
        seconds_per_step: Of simclr_vmf.
        seconds_to_measure: Until the first image is measured.
        images_per_second: That are corrupted and measured.
        timing: Where these times are from.
    """

    name: str
    config: str
    changes: Mapping[str, Any]
    supervised: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    images: int
    members: int
    dropout: float = 0.1
    passes: int
    sets: tuple[ImageSet, ImageSet, ImageSet]
    seconds_to_start: float
    seconds_per_step: float
    seconds_to_measure: float
    images_per_second: float
    timing: str

    @functools.cached_property
    def base(self) -> ml_collections.FrozenConfigDict:
        """`base_config`, to be read."""
        return ml_collections.FrozenConfigDict(self.base_config())

    def base_config(self) -> ml_collections.ConfigDict:
        """The settings that all runs of the budget share: those of simclr_vmf."""
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
        described="CIFAR-10",
    ),
    ImageSet(
        name="cifar100",
        source="cifar100",
        stands_for="cifar100",
        train_images=50_000,
        test_images=10_000,
        described="CIFAR-100",
    ),
    ImageSet(
        name="mnist",
        source="mnist",
        stands_for="mnist",
        train_images=60_000,
        test_images=10_000,
        changes={"augment.flip_probability": 0.0},  # a mirrored digit is another sign
        described="MNIST",
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
    images=200,
    members=3,
    passes=8,
    sets=(
        ImageSet(
            name="digits",
            source="digits",
            stands_for="cifar10",
            train_images=1397,
            test_images=400,
            described="the handwritten digits of scikit-learn",
        ),
        ImageSet(
            name="digits_turned",
            source="",
            stands_for="cifar100",
            train_images=1397,
            test_images=400,
            described="the same digits turned by 90 degrees",
        ),
        ImageSet(
            name="photo_patches",
            source="",
            stands_for="mnist",
            train_images=1400,
            test_images=400,
            described="patches of scikit-learn's two sample photographs",
        ),
    ),
    seconds_to_start=15.0,
    seconds_per_step=0.2,
    seconds_to_measure=3.0,
    images_per_second=3500.0,
    timing="measured on 2 CPU cores",
)

CPU = Budget(
    name="cpu",
    config="cifar10_cpu",
    # Ten checkpoints to spare: each interruption writes one more.
    changes={"checkpoint.every_epochs": 2.0, "checkpoint.keep": 18},
    images=2_000,
    members=3,
    passes=16,
    sets=(
        _CIFAR10,
        _CIFAR100,
        dataclasses.replace(_MNIST, changes={**_MNIST.changes, "epochs": 5}),
    ),
    seconds_to_start=25.0,
    seconds_per_step=0.85,
    seconds_to_measure=5.0,
    images_per_second=1600.0,
    timing="measured on 2 CPU cores",
)

PAPER = Budget(
    name="paper",
    config="cifar10",
    changes={"checkpoint.every_epochs": 50.0, "checkpoint.keep": 30},
    # The caption of Table 2: features of a ResNet-18. It does not say for how long.
    supervised={"model.backbone": "resnet18", "epochs": 200},
    images=10_000,
    members=5,
    passes=16,
    sets=(_CIFAR10, _CIFAR100, _MNIST),
    seconds_to_start=60.0,
    seconds_per_step=0.35,
    seconds_to_measure=20.0,
    images_per_second=1600.0,
    timing="assumed for one data-center GPU, never measured",
)

BUDGETS: dict[str, Budget] = {budget.name: budget for budget in (DIGITS, CPU, PAPER)}


def budget_by_name(name: str) -> Budget:
    """The budget that `--budget` names."""
    if name not in BUDGETS:
        raise UserError(f"--budget={name} is unknown: use one of {', '.join(BUDGETS)}")
    return BUDGETS[name]
