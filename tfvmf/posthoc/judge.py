"""A run's judge of images: are they familiar, and should they be accepted?

A run directory keeps it in `judge.npz`. Familiarity is fitted to training images. The decision is
calibrated on images that the run held back (`config.data.reserve`).
"""

import dataclasses
import hashlib
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf import data, files, inference, models, training
from tfvmf.data.npz import Archive
from tfvmf.errors import UserError
from tfvmf.methods import Method
from tfvmf.posthoc.decision import Decision
from tfvmf.posthoc.familiarity import Familiarity
from tfvmf.progress import Progress
from tfvmf.training import run_directory

FILE = "judge.npz"  # in a run directory
_TRAINING, _CALIBRATION = 10_000, 5_000  # maximum number of images
_CHUNK = 1000
_PARTS = {"familiarity": Familiarity, "decision": Decision}
# The file's arrays with their axes, one letter per length; numbers are float.
_AXES = {
    "familiarity.bank": "MF",
    "familiarity.bandwidth": "",
    "familiarity.columns": "K",
    "familiarity.softness": "K",
    "familiarity.center": "K",
    "familiarity.scale": "K",
    "familiarity.whitening": "KK",
    "familiarity.reference": "DD",
    "decision.concentration": "N",
    "decision.familiarity": "O",
    "decision.joined": "T",
    "decision.alpha": "",
    "decision.weights": "W",
    **dict.fromkeys(("step", "source", "images"), ""),
}
_KINDS = {"familiarity.columns": "i", "step": "i", "images": "i", "source": "U"}
_ASCENDING = ("decision.concentration", "decision.familiarity", "decision.joined")
_POSITIVE = (
    *(f"familiarity.{name}" for name in ("bandwidth", "softness", "scale", "reference")),
    "decision.weights",
)
_BYTES = 2**28  # maximum size of all arrays; `fit_judge` writes 10 MB


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """A familiarity and a decision for one encoder.

    Attributes:
        familiarity: Maps features and levels to a familiarity.
        decision: Maps concentration and familiarity to a decision.
        step: The encoder's training step.
        source: Description of the calibration images.
        images: Number of calibration images.
    """

    familiarity: Familiarity
    decision: Decision
    step: int = 0
    source: str = ""
    images: int = 0

    def __call__(self, outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Judges a batch, eagerly or in a graph: `familiarity`, `confidence`, `accept`, each [B].

        `outputs` of `models.with_levels(encoder)` are arrays or tensors: `features` [B, F],
        `concentration` [B] and, if the encoder has levels, `levels` [B, L].
        """
        familiarity = self.familiarity(outputs["features"], outputs.get("levels"))
        decided = self.decision(outputs["concentration"], familiarity)
        return {"familiarity": familiarity, **decided}

    def at(self, alpha: float) -> "Judge":
        """The same judge with another share of in-distribution images that may be rejected."""
        return dataclasses.replace(self, decision=dataclasses.replace(self.decision, alpha=alpha))

    def describe(self) -> dict[str, Any]:
        """The calibration, for the card of an export."""
        ranks = len(self.decision.joined)  # the number of ranks behind a confidence
        facts = {"source": self.source, "images": self.images, "ranks": ranks}
        return {**facts, "alpha": self.decision.alpha}

    def save(self, workdir: str | os.PathLike[str]) -> None:
        """Writes `judge.npz` atomically, as plain arrays."""
        arrays = {
            f"{part}.{name}": value
            for part in _PARTS
            for name, value in dataclasses.asdict(getattr(self, part)).items()
        }
        facts: dict[str, Any] = {name: getattr(self, name) for name in ("step", "source", "images")}
        with files.replacing(pathlib.Path(workdir) / FILE) as file:
            np.savez(file, allow_pickle=False, **arrays, **facts)


def fit_judge(
    workdir: str | os.PathLike[str], *, alpha: float = 0.05, trust_model: bool = False
) -> Judge | None:
    """Fits the judge of a trained run at its newest checkpoint, and stores it in the run.

    Uses up to 10,000 training images and 5,000 of the reserve. Without a reserve, returns None.
    """
    workdir = pathlib.Path(workdir).expanduser()
    config, _ = run_directory.read(workdir)
    if config.ensemble.num_members > 1:
        for number in range(config.ensemble.num_members):
            fit_judge(run_directory.member(workdir, number), alpha=alpha, trust_model=trust_model)
        return None
    if not config.data.reserve or config.fit_kappa.kind == "features":
        print("not calibrated: the run has no reserve of images (--config.data.reserve=0.1)")
        return None
    config, method, step = training.load_method(workdir, trust_model=trust_model)
    reserve = training.load_reserve(config)
    assert reserve is not None
    judge = make_judge(config, method, reserve, step=step, alpha=alpha)
    judge.save(workdir)
    print(f"calibrated on {judge.images:,} images of the reserve: alpha={alpha:g}")
    return judge


def make_judge(
    config: ml_collections.ConfigDict,
    method: Method,
    calibration: data.Source,
    *,
    step: int,
    alpha: float = 0.05,
    familiarity: Familiarity | None = None,
) -> Judge:
    """The judge of a method's encoder, calibrated on unseen images.

    By default `familiarity` is fitted to the run's training images. `alpha`: see `Decision`.
    """
    embedder = inference.Embedder(models.with_levels(method.encoder))
    if familiarity is None:
        train = training.load_source(config, config.data.source, config.data.train_split)
        known = _embed(embedder, train, _TRAINING, "familiarity")
        familiarity = Familiarity.fit(known["features"], known.get("levels"))
    found = _embed(embedder, calibration, _CALIBRATION, "calibrating")
    decision = Decision.fit(
        found["concentration"],
        familiarity(found["features"], found.get("levels")).numpy(),
        alpha=alpha,
    )
    return Judge(
        familiarity=familiarity,
        decision=decision,
        step=step,
        source=f"{calibration.name} ({calibration.split})",
        images=len(found["concentration"]),
    )


def refuse_overlap(config: ml_collections.ConfigDict, calibration: data.Source) -> None:
    """Raises UserError if calibration images are also training or test images, by their pixels."""
    found = _hashes(calibration)
    judged = config.data.eval_source or config.data.source
    for use, spec, split in (
        ("training", config.data.source, config.data.train_split),
        ("test", judged, config.data.eval_split),
    ):
        if common := len(found & _hashes(training.load_source(config, spec, split))):
            raise UserError(
                f"calibrate_on={calibration.name} ({calibration.split}): {common:,} of its "
                f"{calibration.size:,} images are {use} images ({spec}, {split}): calibrate on "
                "others, or train with --config.data.reserve"
            )


def _hashes(source: data.Source) -> set[bytes]:
    found: set[bytes] = set()
    for start in range(0, source.size, _CHUNK):
        images = source.images(start, start + _CHUNK)
        found.update(hashlib.sha256(image.tobytes()).digest() for image in images)
    return found


def _embed(
    embedder: inference.Embedder, source: data.Source, limit: int, what: str
) -> inference.Embeddings:
    """Outputs on up to `limit` images of a source, sampled without regard to labels."""
    rows = np.random.default_rng(0).permutation(source.size)[:limit]
    parts = []
    with Progress(len(rows), unit="image", description=what) as bar:
        for chunk in np.array_split(np.sort(rows), -(-len(rows) // _CHUNK)):
            outputs = embedder(source.take(chunk))
            outputs.pop("mean_direction")
            parts.append(outputs)
            bar.update(len(chunk))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def load(
    workdir: str | os.PathLike[str],
    *,
    step: int | None = None,
    encoder: keras.Model | None = None,
) -> Judge | None:
    """The judge in a run directory (at `step`, of `encoder`), or None; UserError if damaged."""
    path = pathlib.Path(workdir).expanduser() / FILE
    if not os.path.lexists(path):
        return None
    archive = Archive(str(path))
    try:
        values = _read(archive)
        parts: dict[str, Any] = {
            part: kind(**{f.name: values[f"{part}.{f.name}"] for f in dataclasses.fields(kind)})
            for part, kind in _PARTS.items()
        }
    except (ValueError, SystemError) as error:
        raise UserError(f"{path} was not written by tfvmf, or is damaged: {error}") from error
    judge = Judge(**parts, **{name: values[name] for name in ("step", "source", "images")})
    if step not in (None, judge.step):
        return None
    made = {} if encoder is None else models.with_levels(encoder).output
    lengths = {name: value.shape[-1] for name, value in made.items()}
    length, highest = judge.familiarity.bank.shape[1], judge.familiarity.columns.max(initial=-1)
    if made and (lengths["features"] != length or highest >= lengths.get("levels", 0)):
        raise UserError(f"{path} judges features of length {length}: it belongs to another encoder")
    return judge


def _read(archive: Archive) -> dict[str, Any]:
    """All values of a judge by name; headers are checked before arrays are read."""
    sizes, total = {"D": 2, "W": 2}, 0
    for key, axes in _AXES.items():
        shape, dtype = archive.header(key)
        total += math.prod(shape) * dtype.itemsize
        same = len(axes) == len(shape) and all(
            sizes.setdefault(axis, length) == length
            for axis, length in zip(axes, shape, strict=True)
        )
        known = dtype.kind == _KINDS.get(key, "f") and dtype.isnative and dtype != np.longdouble
        if not same or not known:
            raise ValueError(f"'{key}' is {dtype} {list(shape)}")
        if total > _BYTES:
            raise ValueError(f"the arrays up to '{key}' take {total:,} bytes")
    arrays = {key: archive.read(key) for key in _AXES}
    for key, value in arrays.items():
        scales = value[..., 1] if key.endswith("reference") else value
        if (
            (value.dtype.kind == "f" and not np.isfinite(value).all())
            or (key in _ASCENDING and (value[1:] < value[:-1]).any())
            or (key in _POSITIVE and (scales <= 0).any())
            or (value.dtype.kind == "i" and (value < 0).any())
        ):
            raise ValueError(f"'{key}' has invalid values")
    if not sizes["M"] or not sizes["N"] or sizes["O"] not in (0, sizes["N"]):
        raise ValueError(f"{sizes['N']} and {sizes['O']} calibration images")
    return {key: value if value.ndim else value.item() for key, value in arrays.items()}
