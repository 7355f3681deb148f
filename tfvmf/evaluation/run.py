"""What a suite is given: a trained encoder, its data, and a place for results."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import ml_collections
import numpy as np

from tfvmf import data, inference, models, training
from tfvmf.errors import UserError
from tfvmf.evaluation import linear
from tfvmf.evaluation.scores import SCORES, Score, Uncertainty
from tfvmf.methods import Method
from tfvmf.methods.encoders import takes_features
from tfvmf.progress import Progress
from tfvmf.training import checkpoints

_CHUNK = 1000


class NotApplicable(UserError):
    """A suite has nothing to measure here: `--suite=all` goes on without it."""


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
        views: Augmented views of the score `agreement`.
        corruptions: `generate`, or `tfds` for the data set cifar10_corrupted.
        corrupted_dir: Directory of corrupted images in CIFAR-10-C's layout, used if given.
        cache_corrupted: Whether to write what is missing there first.
        in_source: In-distribution data of the suite ood; "" for what the run is judged on.
        out_sources: Out-of-distribution data of the suites ood and agreement.
        supervised_workdir: A run of method supervised, whose features the suite ood uses.
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
    in_source: str = ""
    out_sources: tuple[str, ...] = ()
    supervised_workdir: str = ""

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

    @property
    def own_source(self) -> str:
        """The data that the run is judged on, as `--config.data.source` names it."""
        return self.config.data.eval_source or self.config.data.source

    @functools.cached_property
    def train(self) -> data.Source:
        """Labelled training images of the data that the run is judged on."""
        return self._load(self.config.data.train_split)

    @functools.cached_property
    def test(self) -> data.Source:
        """Held-out images of the same."""
        return self._load(self.config.data.eval_split)

    @functools.cached_property
    def train_embeddings(self) -> inference.Embeddings:
        """The encoder's outputs on `train`: computed once for all suites."""
        return self.embed(self.train)

    @functools.cached_property
    def test_embeddings(self) -> inference.Embeddings:
        """The encoder's outputs on `test`, on its first `images`."""
        return self.embed(self.test, limit=self.images)

    @functools.cached_property
    def linear_probe(self) -> linear.LinearProbe:
        """Logistic regression on the features of `train`: fitted once for all suites."""
        labels, _ = self.labels("probe")
        return linear.fit(self.train_embeddings["features"], labels)

    def labels(self, suite: str) -> tuple[np.ndarray, np.ndarray]:
        """Labels [N] of `train` and [n] of the first `images` of `test`, for a suite's sake."""
        if self.train.labels is None or self.test.labels is None:
            raise NotApplicable(
                f"{self.test.name} has no labels: the suite {suite} needs a labeled "
                "--config.data.eval_source at training"
            )
        return self.train.labels, self.test.labels[: self.images or None]

    def embed(self, source: data.Source, *, limit: int = 0) -> inference.Embeddings:
        """The encoder's outputs on a source, or on its first `limit` images."""
        return self._run(self.embedder, source, limit)

    def main_score(self, source: data.Source, embeddings: inference.Embeddings) -> np.ndarray:
        """The main score [N] of the first N images of a source, whose embeddings are known."""
        if self.score.name == "kappa":
            return embeddings["concentration"]
        if self.score.name == "feature_norm":
            return np.linalg.norm(embeddings["features"], axis=1)
        size = len(embeddings["features"])
        return self.measure(source, limit=size)[self.score.name]

    def checkpoints(self) -> list[str]:
        """All checkpoints that the run keeps, the oldest first."""
        return checkpoints.paths(self.workdir)

    def at(self, checkpoint: str) -> "Evaluation":
        """The same run at another of its checkpoints."""
        _, method, step = checkpoints.load_method(self.workdir, checkpoint=checkpoint)
        name = pathlib.Path(checkpoint).name
        return self._sharing(method=method, checkpoint=name, step=step)

    def followed_by(self, *scores: str) -> "Evaluation":
        """The same run, measured by other scores."""
        return self._sharing(scores=scores)

    def measure(self, source: data.Source, *, limit: int = 0) -> dict[str, np.ndarray]:
        """All scores {name: [N]} of a source, or of its first `limit` images."""
        return self._run(self.uncertainty, source, limit)

    def directory(self, suite: str) -> pathlib.Path:
        """Where a suite writes."""
        path = self.workdir / "eval" / suite
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _sharing(self, **changes: Any) -> "Evaluation":
        """The same with other fields; sources that are already loaded are shared."""
        other = dataclasses.replace(self, **changes)
        for name in {"train", "test"} & self.__dict__.keys():
            other.__dict__[name] = self.__dict__[name]
        return other

    @staticmethod
    def _run(
        function: Callable[[np.ndarray], dict[str, np.ndarray]], source: data.Source, limit: int
    ) -> dict[str, np.ndarray]:
        """A function of uint8 images on the first `limit` of a source (0: on all)."""
        size = min(limit or source.size, source.size)
        parts = []
        with Progress(size, unit="image", description=f"{source.name} ({source.split}) ") as bar:
            for start in range(0, size, _CHUNK):
                stop = min(start + _CHUNK, size)
                parts.append(function(source.images(start, stop)))
                bar.update(stop - start)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _load(self, split: str) -> data.Source:
        return training.load_source(self.config, self.own_source, split)


def load(
    workdir: str | pathlib.Path,
    *,
    checkpoint: str = "",
    data: str = "",
    data_dir: str = "",
    **options: Any,
) -> Evaluation:
    """Loads a run for evaluation.

    Args:
        workdir: The run directory.
        checkpoint: One of its checkpoints; the newest by default.
        data: Labeled data to measure on, with the splits that the run names; its own by default.
        data_dir: Replaces the one that the run was trained with.
        **options: Fields of `Evaluation` (`images`, `corrupted_dir`, ...).
    """
    workdir = pathlib.Path(workdir)
    members = training.load_members(workdir)
    if members:
        if checkpoint:
            raise UserError("--checkpoint: the members of an ensemble are evaluated at their last")
        options["members"] = tuple(method.encoder for method, _ in members)
        method, step = members[0]
        config, name = method.config, f"{len(members)} members"
    else:
        config, method, step = checkpoints.load_method(workdir, checkpoint=checkpoint)
        name = pathlib.Path(checkpoint or checkpoints.latest(workdir) or "").name
    if takes_features(config):
        raise UserError(
            f"--workdir={workdir} is a head for features of your own, without an encoder: there "
            "are no images to measure it on (bin/export writes it)"
        )
    if data_dir:
        config.data.data_dir = data_dir
    config.data.eval_source = data or config.data.eval_source
    return Evaluation(
        workdir=workdir,
        config=config,
        method=method,
        checkpoint=name,
        step=step,
        **options,
    )
