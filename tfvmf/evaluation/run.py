"""What a suite is given: a trained encoder, its data, and a place for results."""

import dataclasses
import functools
import pathlib
from typing import Any

import keras
import ml_collections

from tfvmf import data, inference, models, training
from tfvmf.errors import UserError
from tfvmf.evaluation.scores import SCORES, Score, Uncertainty
from tfvmf.methods import Method
from tfvmf.training import checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One trained run, ready to be measured.

    Sources are loaded when first used, and shared with the same run at other checkpoints.

    Attributes:
        workdir: The run directory.
        config: The run's configuration.
        method: The trained method.
        checkpoint: The name of the checkpoint that its weights are from.
        step: The training step of its weights.
        members: Encoders of an ensemble, the method's own first; of any other run only that.
        images: How many test images a suite looks at; 0 for all.
        scores: Names of the measures of uncertainty, the main one first; () for what suits the run.
        passes: Forward passes of Monte Carlo dropout.
        views: Augmented views of the score `disagreement`.
        corruptions: `generate`, or `tfds` for the data set cifar10_corrupted.
        corrupted_dir: Directory of corrupted images in CIFAR-10-C's layout, used if given.
        cache_corrupted: Whether to write what is missing there first.
    """

    workdir: pathlib.Path
    config: ml_collections.ConfigDict
    method: Method
    checkpoint: str
    step: int
    members: tuple[keras.Model, ...] = ()
    images: int = 0
    scores: tuple[str, ...] = ()
    passes: int = 16
    views: int = 8
    corruptions: str = "generate"
    corrupted_dir: str = ""
    cache_corrupted: bool = False

    @functools.cached_property
    def embedder(self) -> inference.Embedder:
        """The encoder as a function of uint8 images."""
        return inference.Embedder(self.method.encoder)

    @functools.cached_property
    def uncertainty(self) -> Uncertainty:
        """The scores of the evaluation as a function of uint8 images."""
        try:
            return Uncertainty(
                self.members or self.method.encoder,
                self.scores or (self.score.name,),
                augmentation=training.augmentation_from_config(self.config),
                views=self.views,
                passes=self.passes,
            )
        except ValueError as error:
            raise UserError(f"--score={','.join(self.scores)}: {error}") from error

    @property
    def score(self) -> Score:
        """The main score: the one asked for first, or what suits the run."""
        if self.scores:
            return self.uncertainty.score
        if len(self.members) > 1:
            return SCORES["ensemble"]
        if models.has_dropout(self.method.encoder):
            return SCORES["dropout"]
        return SCORES["kappa" if self.method.probabilistic else "feature_norm"]

    @functools.cached_property
    def train(self) -> data.Source:
        """Labelled training images of the data that the run is judged on."""
        return self._load(self.config.data.train_split)

    @functools.cached_property
    def test(self) -> data.Source:
        """Held-out images of the same."""
        return self._load(self.config.data.eval_split)

    def checkpoints(self) -> list[str]:
        """All checkpoints that the run keeps, the oldest first."""
        return checkpoints.paths(self.workdir)

    def at(self, checkpoint: str) -> "Evaluation":
        """The same run at another of its checkpoints."""
        _, method, step = checkpoints.load_method(self.workdir, checkpoint=checkpoint)
        name = pathlib.Path(checkpoint).name
        other = dataclasses.replace(self, method=method, checkpoint=name, step=step)
        for name in {"train", "test"} & self.__dict__.keys():
            other.__dict__[name] = self.__dict__[name]
        return other

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
    **options: Any,
) -> Evaluation:
    """Loads a run for evaluation.

    Args:
        workdir: The run directory.
        checkpoint: One of its checkpoints; the newest by default.
        data_dir: Replaces the one that the run was trained with.
        **options: Fields of `Evaluation` (`images`, `corrupted_dir`, ...).
    """
    workdir = pathlib.Path(workdir)
    config, method, step = checkpoints.load_method(workdir, checkpoint=checkpoint)
    if data_dir:
        config.data.data_dir = data_dir
    return Evaluation(
        workdir=workdir,
        config=config,
        method=method,
        checkpoint=pathlib.Path(checkpoint or checkpoints.latest(workdir) or "").name,
        step=step,
        **options,
    )
