"""What suites measure: an encoder, two image sources, and facts about them."""

import dataclasses
import functools
import pathlib
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf

from tfvmf import inference, models, posthoc, training
from tfvmf.config import flatten
from tfvmf.data import Augmentation, Source
from tfvmf.data.base import sample_indices
from tfvmf.errors import UserError
from tfvmf.evaluation import scores
from tfvmf.evaluation.scores import SCORES, Score, Uncertainty
from tfvmf.evaluation.suites import NotApplicable, Options
from tfvmf.files import beside, find_model, scratch
from tfvmf.methods import Method
from tfvmf.progress import Progress
from tfvmf.training import checkpoints, run_directory

_CHUNK = 1000

T = TypeVar("T")
Arrays = dict[str, np.ndarray]
Load = Callable[[str, str], Source]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Subject:
    """An encoder and its data, ready to be measured: `evaluation.failure(Subject(...))`.

    Suites share what they compute (embeddings, the linear probe).

    Attributes:
        encoder: Maps images [B, H, W, 3] in [0, 1] to `features` [B, F], `mean_direction` [B, d]
            (unit vectors) and `concentration` [B].
        train: Images to compare with, labeled for most suites.
        test: Images to measure.
        members: Encoders of an ensemble, `encoder` first; () for a single encoder.
        probabilistic: Whether the concentration is trained, and so the main score.
        augmentation: Makes the views for the score and the suite `agreement`.
        classifier: Maps features [B, F] to logits [B, C], if trained with labels.
        predicted_cosine: Maps kappa to E[cos] of two views; raises ValueError if it is unknown.
        judge: Familiarity and decision of a calibrated encoder.
        load: Maps a spec for `data.load_source` and a split to a source of this image size.
        reserve: Opens labeled images outside `train` and `test`, if there are any.
        trained_on: Name of the training data, if known.
        metrics: Lines logged in training, {name: value}; for an ensemble also with `member`.
        directory: Where suites write; None to write nothing.
        workdir: The run directory it was loaded from, if any.
        facts: Entries for the results of every suite (`step`, `checkpoint`).
        settings: Settings that the report lists.
        trust_model: Whether `at` may load any file (see `tfvmf.load`).
        kept: The storage of `keep`, shared with samples of the subject.
    """

    encoder: keras.Model
    train: Source
    test: Source
    name: str = "encoder"
    description: str = ""
    members: tuple[keras.Model, ...] = ()
    probabilistic: bool = True
    augmentation: Augmentation | None = None
    classifier: keras.Model | None = None
    predicted_cosine: Callable[[tf.Tensor], tf.Tensor] | None = None
    kappa_note: str = ""
    judge: posthoc.Judge | None = None
    load: Load | None = None
    reserve: Callable[[], Source | None] | None = None
    trained_on: str = ""
    metrics: Sequence[Mapping[str, float]] = ()
    directory: str | pathlib.Path | None = None
    workdir: pathlib.Path | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trust_model: bool = False
    kept: dict[Hashable, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        scores.check_outputs(self.encoder)

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """Calls `make` once per key, encoder, judge and training source, and keeps the result."""
        key = (self.encoder, self.judge, self.train, key)
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def sample(self, count: int) -> "Subject":
        """A copy with a stratified sample of test images (0: all), in <directory>/sample<count>."""
        if count < 1 or count >= self.test.size:
            return self

        def make() -> Subject:
            test = self.test.subset(sample_indices(self.test, count))
            place = self.directory and pathlib.Path(self.directory) / f"sample{count}"
            return dataclasses.replace(self, test=test, directory=place)

        return self.keep(("sample", self.test, count), make)

    def identity(self) -> dict[str, Any]:
        """Names the subject in results; results with the same identity share a page."""
        return {"data": self.test.name, "method": self.name, **self.facts}

    @property
    def embedder(self) -> inference.Embedder:
        """The encoder, with its judge if there is one, as a function of images."""
        embedder, judged = inference.Embedder, scores.with_judge
        return self.keep(embedder, lambda: embedder(judged(self.encoder, self.judge)))

    def embed(self, source: Source) -> Arrays:
        """The outputs of the encoder and its judge on a source."""
        if source is self.train or source is self.test:
            return self.keep(source, lambda: _apply(self.embedder, source))
        return _apply(self.embedder, source)

    def labels(self, suite: str) -> tuple[np.ndarray, np.ndarray]:
        """Labels [N] of `train` and [n] of `test`, which a suite needs."""
        if self.train.labels is None or self.test.labels is None:
            lack = f"{self.test.name} has no labels, which the suite {suite} needs"
            command = shlex.join(["tfvmf", "evaluate", str(self.workdir)])
            example = f", `{command} folder:/labeled/images`" if self.workdir else ""
            raise NotApplicable(f"{lack}: name labeled data{example}")
        return self.train.labels, self.test.labels

    def score(self, options: Options) -> Score:
        """The main score: the first one requested, or the encoder's default."""
        if options.scores:
            return SCORES[self.uncertainty(options).scores[0]]
        if len(self.members) > 1:
            return SCORES["ensemble"]
        if models.has_dropout(self.encoder):
            return SCORES["dropout"]
        return SCORES["kappa" if self.probabilistic else "feature_norm"]

    def uncertainty(self, options: Options, further: Any = None) -> Uncertainty:
        """The requested scores as a function of uint8 images; `further`: see `Uncertainty`."""
        names = tuple(options.scores) or (self.score(options).name,)
        given: dict[str, Any] = {"num_views": options.num_views, "num_passes": options.num_passes}
        given |= {"judge": self.judge, "augmentation": self.augmentation, "further": further}

        def make() -> Uncertainty:
            try:
                return Uncertainty(self.members or self.encoder, names, **given)
            except UserError as error:
                raise UserError(f"score={','.join(names)}: {error}") from error

        return self.keep((Uncertainty, names, *given.values()), make)

    def measure(self, source: Source, options: Options, further: Any = None) -> Arrays:
        """All scores {name: [N]} of a source; `further`: see `Uncertainty`."""
        return _apply(self.uncertainty(options, further), source)

    def main_score(self, source: Source, embeddings: Arrays, options: Options) -> np.ndarray:
        """The main score [N] of a source with known embeddings."""
        name = self.score(options).name
        known = scores.from_outputs(name, embeddings)
        return self.measure(source, options)[name] if known is None else known

    def all_scores(self, source: Source, embeddings: Arrays, options: Options) -> Arrays:
        """Requested scores {name: [N]} of a source with known embeddings, the main one first."""
        names = tuple(options.scores) or (self.score(options).name,)
        known = {name: scores.from_outputs(name, embeddings) for name in names}
        found = {name: values for name, values in known.items() if values is not None}
        return found if len(found) == len(names) else self.measure(source, options)

    def open(self, source: str | Source, split: str = "test", *, sample: int = 0) -> Source:
        """Opens data by name, or takes a source; draws at most `sample` images if it is not 0."""
        if isinstance(source, str):
            if self.load is None:
                raise UserError(f"{source}: the subject cannot load data by name: pass a source")
            source = self.load(source, split)
        return source.subset(sample_indices(source, sample)) if 0 < sample < source.size else source

    def directory_for(self, suite: str) -> pathlib.Path | None:
        """The directory of a suite's files; None to write nothing."""
        if self.directory is None:
            return None
        path = pathlib.Path(self.directory).expanduser()
        # Fail now rather than after measuring if the directory cannot be written to.
        with scratch(path, advice="write elsewhere with --output=DIR"):
            return path / suite

    def at(self, checkpoint: str | pathlib.Path) -> "Subject":
        """The same run at another checkpoint, with the same sources."""
        if self.workdir is None:
            raise UserError(f"{self.name} was not loaded from a run: it has no checkpoints")
        _, method, step = checkpoints.load_method(
            self.workdir, checkpoint=str(checkpoint), trust_model=self.trust_model
        )
        facts = {"step": step, "checkpoint": f"step-{step}"}
        judge = posthoc.load(self.workdir, step=step)
        return dataclasses.replace(self, **_declared(method), judge=judge, facts=facts, kept={})


def subject_from_run(
    workdir: str | pathlib.Path,
    *,
    checkpoint: str | pathlib.Path = "",
    data: str = "",
    data_dir: str | pathlib.Path = "",
    max_pixels: int = 0,
    directory: str | pathlib.Path | None = None,
    trust_model: bool = False,
) -> Subject:
    """Loads a trained run as a subject. Its data are opened on first use.

    Args:
        workdir: The run directory, or the name of a shipped model.
        checkpoint: One of its checkpoints; the newest by default.
        data: A spec for `data.load_source`; by default the evaluation data of training.
        data_dir: Replaces the run's directory of TFDS data sets.
        max_pixels: Replaces the run's limit; larger images are rejected.
        directory: Where suites write; `<workdir>/eval`, or `runs/NAME/eval` for a shipped model.
        trust_model: See `tfvmf.load`.
    """
    workdir = find_model(workdir)
    members = training.load_members(workdir, trust_model=trust_model)
    if members:
        if checkpoint:
            why = "an ensemble is evaluated at the last checkpoint of each member"
            raise UserError(f"checkpoint={checkpoint}: {why}")
        method, step = members[0]
        config, name = method.config, f"{len(members)} members"
    else:
        config, method, step = checkpoints.load_method(
            workdir, checkpoint=str(checkpoint), trust_model=trust_model
        )
        name = f"step-{step}"
    if method.takes != "images":
        raise UserError(
            f"{workdir} is a head for features of your own, without an encoder: there are no "
            "images to measure it on (`tfvmf export` writes it)"
        )
    if data_dir:
        config.data.data_dir = str(data_dir)
    config.data.max_pixels = max_pixels or config.data.max_pixels
    judged = data or config.data.eval_source or config.data.source
    load = functools.partial(training.load_source, config)
    train, test = (
        cast(Source, DeferredSource(load, judged, split, config.data.image_size))
        for split in (config.data.train_split, config.data.eval_split)
    )
    reserve = functools.partial(training.load_reserve, config)
    metrics = training.read_metrics(workdir) or [
        {"member": number, **line}
        for number in range(len(members))
        for line in training.read_metrics(run_directory.member(workdir, number))
    ]
    return Subject(
        **_declared(method),
        train=train,
        test=test,
        name=config.method,
        members=tuple(member.encoder for member, _ in members),
        augmentation=training.augmentation_from_config(config),
        judge=posthoc.load(run_directory.member(workdir, 0) if members else workdir, step=step),
        load=load,
        reserve=reserve if judged == config.data.source else None,
        trained_on=config.data.source,
        metrics=metrics,
        directory=beside(workdir) / "eval" if directory is None else directory,
        workdir=workdir,
        facts={"step": step, "checkpoint": name},
        settings=flatten(config),
        trust_model=trust_model,
    )


class DeferredSource:
    """A source that is opened when more than its name or image size is requested."""

    def __init__(self, load: Load, name: str, split: str, image_size: int) -> None:
        self._load = functools.cache(lambda: load(name, split))
        self.name, self.split = name, split
        self.image_shape = (image_size, image_size, 3)

    def __getattr__(self, name: str) -> Any:
        # Only for attributes that are not set above.
        return getattr(self._load(), name)


def _declared(method: Method) -> dict[str, Any]:
    """A method's declarations about itself, as fields of a subject."""
    names = ("encoder", "probabilistic", "classifier", "predicted_cosine", "kappa_note")
    fields = {name: getattr(method, name) for name in names}
    return {**fields, "description": method.describe_encoder()}


def _apply(function: Callable[[np.ndarray], Arrays], source: Source) -> Arrays:
    """Applies a function of uint8 images to all images of a source."""
    parts = []
    with Progress(source.size, unit="image", description=f"{source.name} ({source.split})") as bar:
        for start in range(0, source.size, _CHUNK):
            images = source.images(start, start + _CHUNK)
            parts.append(function(images))
            bar.update(len(images))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
