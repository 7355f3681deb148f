"""One interface for all measures of certainty or uncertainty: images in, one number per image out.

scores = uncertainty(encoder, images, score=("kappa", "feature_norm"))
scores = uncertainty(members, images, score="ensemble")
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfvmf.errors import UserError
from tfvmf.lazy import lazy_import

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfvmf import counter_random, inference, models
    from tfvmf.data import Augmentation
    from tfvmf.posthoc import Judge
else:
    keras, tf, counter_random, inference, models = lazy_import(
        "keras", "tensorflow", "tfvmf.counter_random", "tfvmf.inference", "tfvmf.models"
    )

Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Score:
    """A measure of certainty (expected sign -1) or of uncertainty (+1)."""

    name: str  # in flags and files
    title: str  # in tables and pictures
    expected_sign: int  # sign of its correlation with the severity of a corruption

    def uncertainty(self, values: np.ndarray) -> np.ndarray:
        """The values with the sign that makes high mean uncertain."""
        return self.expected_sign * values


SCORES = {
    score.name: score
    for score in (
        Score("kappa", "kappa", -1),
        Score("familiarity", "familiarity", -1),
        Score("confidence", "confidence", -1),
        Score("feature_norm", "feature norm", -1),
        Score("agreement", "agreement of views", -1),
        Score("ensemble", "ensemble variance", +1),
        Score("dropout", "dropout variance", +1),
    )
}

JUDGED = ("familiarity", "confidence")
_ONE_PASS = ("kappa", "feature_norm")
NO_JUDGE = (
    "a calibrated run: one that was trained with --config.data.reserve=0.1, at its last checkpoint"
)


class Uncertainty:
    """Computes scores of images.

    - `kappa`: the encoder's concentration; `feature_norm`: the length of its features;
      `familiarity` and `confidence`: from the judge. One pass for all of them.
    - `agreement`: E[cos] between the directions of augmented views of the image, which kappa
      estimates (up to a factor) without augmenting. `num_views` passes.
    - `ensemble`: mean over feature dimensions of the variance over members. One pass per member.
    - `dropout`: the same over `num_passes` passes with dropped units, one drawn network per pass.
      Batch norm stays in inference mode.

    All images share the random views and masks, so scores do not depend on batching, and a clean
    image and its corrupted copy are compared with the same draws.

    Args:
        members: An encoder, or several. All scores but `ensemble` use the first.
        score: One or several names from `SCORES`.
        judge: Judge of the first encoder, for `familiarity` and `confidence`.
        further: Maps the first encoder's outputs to further values {name: [B]} of the same pass.
        augmentation: Makes the views for `agreement`.
        num_views: Views per image for `agreement`.
        num_passes: Passes for `dropout`.
        seed: Seed of views and masks.
    """

    def __init__(
        self,
        members: keras.Model | Sequence[keras.Model],
        score: str | Sequence[str] = "kappa",
        *,
        judge: Judge | None = None,
        further: Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]] | None = None,
        augmentation: Augmentation | None = None,
        num_views: int = 8,
        num_passes: int = 16,
        seed: int = 0,
    ) -> None:
        self._members = [members] if isinstance(members, keras.Model) else list(members)
        if not self._members:
            raise UserError("there is no encoder to measure: the list of members is empty")
        for member in self._members:
            check_outputs(member)
        scores = [score] if isinstance(score, str) else score
        self.scores = check_known("score", scores, SCORES)
        if not scores:
            raise UserError(f"name at least one score of {', '.join(SCORES)}")
        if judge is None and (judged := [name for name in scores if name in JUDGED]):
            raise UserError(f"the score {judged[0]} needs {NO_JUDGE}")
        if "ensemble" in scores and len(self._members) < 2:
            raise UserError("the score ensemble needs at least 2 members")
        if "agreement" in scores and (augmentation is None or num_views < 2):
            raise UserError("the score agreement needs an augmentation and at least 2 views")
        if "dropout" in scores and not (num_passes > 1 and models.has_dropout(self._members[0])):
            raise UserError("the score dropout needs an encoder with dropout and 2 passes or more")
        self._network = with_judge(self._members[0], judge)
        self._further, self._augmentation = further, augmentation
        self._views, self._passes, self._seed = num_views, num_passes, seed
        self._embedder = inference.Embedder(self._forward)

    def __call__(self, images: np.ndarray) -> Values:
        """The scores {name: [N]} of images [N, H, W, 3], uint8 or float in [0, 1]."""
        return self._embedder(images)

    def _forward(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        """All scores [B] of a batch, in one graph."""
        first, outputs = self._members[0], self._network(images, training=training)
        values = {**outputs, "kappa": outputs["concentration"]}
        values["feature_norm"] = tf.norm(outputs["features"], axis=1)

        def seeds(number: tf.Tensor) -> tf.Tensor:
            same = tf.zeros(tf.shape(images)[:1], tf.int32)
            return counter_random.example_seeds(self._seed, number, same, 0)

        def direction(number: tf.Tensor) -> tf.Tensor:
            assert self._augmentation is not None
            views = self._augmentation(images, seeds(number))
            return first(views, training=False)["mean_direction"]

        def dropped(number: tf.Tensor) -> tf.Tensor:
            with models.dropout_masks(seeds(number)):
                return first(images, training=False)["features"]

        if "ensemble" in self.scores:
            others = [member(images, training=training) for member in self._members[1:]]
            features = [member["features"] for member in (outputs, *others)]
            values["ensemble"] = _mean_variance(tf.stack(features))
        if "agreement" in self.scores:
            # E[cos] over all pairs of K unit vectors: (|sum|^2 - K) / (K (K - 1)).
            total, count = tf.reduce_sum(_draws(direction, self._views), axis=0), self._views
            square = tf.reduce_sum(tf.square(total), axis=-1)
            values["agreement"] = (square - count) / (count * (count - 1.0))
        if "dropout" in self.scores:
            values["dropout"] = _mean_variance(_draws(dropped, self._passes))
        more = self._further(outputs) if self._further else {}
        return {name: values[name] for name in self.scores} | more


def uncertainty(
    members: keras.Model | Sequence[keras.Model],
    images: np.ndarray,
    *,
    score: str | Sequence[str] = "kappa",
    **settings: Any,
) -> Values:
    """The scores {name: [N]} of images [N, H, W, 3]; `settings` are those of `Uncertainty`."""
    return Uncertainty(members, score, **settings)(images)


def one_pass(judge: Judge | None) -> tuple[str, ...]:
    """The scores that a single forward pass of an encoder gives."""
    return (*_ONE_PASS, *(JUDGED if judge else ()))


def from_outputs(name: str, outputs: Values) -> np.ndarray | None:
    """The score [N] from the outputs of an encoder (see `with_judge`), or None."""
    if name == "feature_norm":
        return np.linalg.norm(outputs["features"], axis=1)
    return outputs.get("concentration" if name == "kappa" else name)


def with_judge(encoder: keras.Model, judge: Judge | None) -> inference.Encoder:
    """The encoder with additional outputs `familiarity`, `confidence` and `accept` [B]."""
    if judge is None:
        return encoder
    network = models.with_levels(encoder)
    judged = tf.function(judge, reduce_retracing=True)  # a graph then holds its arrays once

    def forward(images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        outputs = dict(network(images, training=training))
        found = judged(outputs)
        outputs.pop("levels", None)  # large, and not needed any more
        return outputs | found

    return forward


def check_known(what: str, names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Returns the names; raises UserError if one is not known."""
    for name in [name for name in names if name not in known]:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{what}={name} is unknown: {hint}use some of {', '.join(known)}")
    return tuple(names)


def check_outputs(encoder: keras.Model) -> None:
    """Raises UserError unless the encoder has the outputs that scores need."""
    outputs = getattr(encoder, "output", getattr(encoder, "outputs", None))
    if outputs is None:  # a subclass of keras.Model, whose outputs are known only after a call
        return
    if not isinstance(outputs, dict) or not set(models.OUTPUTS) <= outputs.keys():
        found = ", ".join(outputs) if isinstance(outputs, dict) else "no dictionary"
        raise UserError(f"the encoder returns {found}: expected {', '.join(models.OUTPUTS)}")
    if len(outputs["concentration"].shape) != 1:
        shape = list(outputs["concentration"].shape)
        raise UserError(f"the concentration has the shape {shape}: expected [batch]")


def _mean_variance(features: tf.Tensor) -> tf.Tensor:
    """U [B] = 1/D sum over d of the variance over m of features [M, B, D]."""
    return tf.reduce_mean(tf.math.reduce_variance(features, axis=0), axis=-1)


def _draws(draw: Callable[[tf.Tensor], tf.Tensor], count: int) -> tf.Tensor:
    """Stacks `draw` of 0 ... count - 1 in a loop of the graph, which builds the network once."""
    return tf.map_fn(draw, tf.range(count), fn_output_signature=tf.float32, parallel_iterations=1)
