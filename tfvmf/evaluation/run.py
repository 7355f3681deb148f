"""What a suite is given: a trained encoder, its data, and a place for results."""

import dataclasses
import functools
import pathlib

import ml_collections

from tfvmf import data, inference, training
from tfvmf.methods import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One trained run, ready to be measured.

    Attributes:
        workdir: The run directory.
        config: The run's configuration.
        method: The trained method.
        step: The training step of its weights.
        images: How many test images a suite looks at; 0 for all.
        corrupted_dir: Directory of corrupted images in CIFAR-10-C's layout; "" generates them.
    """

    workdir: pathlib.Path
    config: ml_collections.ConfigDict
    method: Method
    step: int
    images: int = 0
    corrupted_dir: str = ""

    @functools.cached_property
    def embedder(self) -> inference.Embedder:
        """The encoder as a function of uint8 images."""
        return inference.Embedder(self.method.encoder)

    @functools.cached_property
    def train(self) -> data.Source:
        """Labelled training images of the data that the run is judged on."""
        return self._load(self.config.data.train_split)

    @functools.cached_property
    def test(self) -> data.Source:
        """Held-out images of the same."""
        return self._load(self.config.data.eval_split)

    def directory(self, suite: str) -> pathlib.Path:
        """Where a suite writes."""
        path = self.workdir / "eval" / suite
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _load(self, split: str) -> data.Source:
        return training.load_source(
            self.config, self.config.data.eval_source or self.config.data.source, split
        )


def load(
    workdir: str | pathlib.Path,
    *,
    checkpoint: str = "",
    data_dir: str = "",
    images: int = 0,
    corrupted_dir: str = "",
) -> Evaluation:
    """Loads a run for evaluation; `data_dir` replaces the one that it was trained with."""
    workdir = pathlib.Path(workdir)
    config, method, step = training.load_method(workdir, checkpoint=checkpoint)
    if data_dir:
        config.data.data_dir = data_dir
    return Evaluation(
        workdir=workdir,
        config=config,
        method=method,
        step=step,
        images=images,
        corrupted_dir=corrupted_dir,
    )
