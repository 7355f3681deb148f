"""A classifier trained with labels: features for OOD detection, and an upper bound."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_collections

from tfvmf.methods.base import Method, Objective, StepContext, Views, keras, tf


class Supervised(Method):
    """Cross entropy of a linear classifier on the backbone's features."""

    term_names: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    num_views = 1
    needs_labels: ClassVar[bool] = True
    probabilistic: ClassVar[bool] = False
    relative_cost: ClassVar[float] = 0.5  # one view

    def build_parts(self) -> None:
        """Adds the classifier."""
        features = keras.Input(self.encoder.output["features"].shape[1:], name="features")
        logits = keras.layers.Dense(self.num_classes, dtype="float32", name="logits")(features)
        self.models["classifier"] = keras.Model(features, logits, name="classifier")

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """No direction head: with labels, the features themselves are compared."""
        return {"dimension": None}

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        (outputs,) = self.encode(views, context)
        logits = self.models["classifier"](outputs["features"])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return Objective({"cross_entropy": tf.reduce_mean(entropy)})
