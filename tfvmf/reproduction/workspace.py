"""One reproduction: a budget, the place where it is kept, and the choices of its user."""

import dataclasses
import functools
import pathlib

import ml_collections

from tfvmf.reproduction import runs
from tfvmf.reproduction.budgets import Budget, ImageSet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where runs, stand-ins and outputs of a budget are.

    Attributes:
        budget: How much is spent.
        directory: `runs/<name>` and `data/` are in it, and beside them the outputs.
        data_dir: Where TFDS finds prepared data sets.
        limit: How many test images are measured; 0 for the budget's number.
        seed: Of all runs.
        strategy: Of all runs.
    """

    budget: Budget
    directory: pathlib.Path
    data_dir: str = ""
    limit: int = 0
    seed: int = 0
    strategy: str = "default"

    @property
    def images(self) -> int:
        """How many test images are measured."""
        return min(self.limit or self.budget.images, self.budget.sets[0].test_images)

    @functools.cached_property
    def runs(self) -> dict[str, runs.Run]:
        """All runs by name."""
        return runs.all_runs(self.budget)

    def run_directory(self, name: str) -> pathlib.Path:
        """The directory of a run."""
        return self.directory / "runs" / name

    def config(self, name: str) -> ml_collections.ConfigDict:
        """Every setting of a run."""
        run = self.runs[name]
        return runs.config_of(
            run,
            self.budget,
            source=self.source(run.images),
            data_dir=self.data_dir,
            seed=self.seed,
            strategy=self.strategy,
        )

    def source(self, images: ImageSet) -> str:
        """A set of images, as `--config.data.source` names it."""
        return images.source or f"npz:{self.stand_in(images)}"

    def stand_in(self, images: ImageSet) -> pathlib.Path:
        """The file of a stand-in. Absolute: the same run, wherever the command is typed."""
        size = self.budget.base.data.image_size
        return self.directory.resolve() / "data" / f"{images.name}_{size}.npz"

    def others(self, images: ImageSet) -> list[ImageSet]:
        """The budget's sets but one."""
        return [other for other in self.budget.sets if other is not images]

    def described(self) -> str:
        """What all outputs say of themselves."""
        config, home = self.budget.base, self.budget.sets[0]
        return (
            f"budget {self.budget.name}: {home.described}, {config.model.backbone} of width "
            f"{config.model.width}, {config.data.image_size}x{config.data.image_size} pixels, "
            f"{config.epochs} epochs, {self.images:,} test images, seed {self.seed}"
        )
