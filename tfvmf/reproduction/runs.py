"""The runs that experiments ask for, by name. One name is one directory, whoever asks for it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from tfvmf.config import validate
from tfvmf.reproduction.budgets import Budget, ImageSet

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
    """One training, or that of an ensemble.

    Attributes:
        name: Of its directory.
        changes: Dotted settings in which it differs from the budget's.
        images: What it is trained on.
        members: Of an ensemble.
    """

    name: str
    changes: Mapping[str, Any]
    images: ImageSet
    members: int = 1


def all_runs(budget: Budget) -> dict[str, Run]:
    """Every run that some experiment asks for."""
    home = budget.sets[0]
    found = [
        Run("simclr_vmf", {}, home),
        # A member is a run like any other: the first one is Figure 4's.
        Run("simclr", {"method": "simclr"}, home, members=budget.members),
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
        found.append(Run(f"supervised-{images.name}", changes, images))
    named: dict[str, Run] = {}
    for run in found:  # what repeats the budget's own settings is called simclr_vmf: the first
        named.setdefault(run.name, run)
    return named


def own_run(budget: Budget, images: ImageSet) -> str:
    """The name of the simclr_vmf run on a set of images."""
    return "simclr_vmf" if images is budget.sets[0] else f"simclr_vmf-{images.name}"


def dimension_runs(budget: Budget) -> dict[int, str]:
    """Table 4: {dimension of the embedding: run}."""
    own = budget.base.model.dimension
    return {d: "simclr_vmf" if d == own else f"simclr_vmf-{d}d" for d in DIMENSIONS}


def network_runs(budget: Budget) -> dict[str, str]:
    """The appendix's table of networks: {backbone: run}."""
    own = budget.base.model.backbone
    return {n: "simclr_vmf" if n == own else f"simclr_vmf-{n}" for n in NETWORKS}


def config_of(
    run: Run,
    budget: Budget,
    *,
    source: str,
    data_dir: str = "",
    seed: int = 0,
    strategy: str = "default",
) -> ml_collections.ConfigDict:
    """Every setting of a run.

    Args:
        run: Which.
        budget: Whose settings it starts from.
        source: Its data, as `--config.data.source` names them.
        data_dir: Where TFDS finds them.
        seed: Of all that is random.
        strategy: Of training.
    """
    config = budget.base_config()
    config.update_from_flattened_dict(dict(run.changes))
    config.data.source = source
    config.data.data_dir = data_dir
    config.seed = seed
    config.strategy = strategy
    config.ensemble.num_members = run.members
    validate(config)
    return config
