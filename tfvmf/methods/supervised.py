"""A classifier trained with labels: features for OOD detection, and an upper bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import ml_collections

from tfvmf.errors import UserError
from tfvmf.lazy import lazy_import
from tfvmf.methods.base import Method, Objective, StepContext

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:
    keras, tf = lazy_import("keras", "tensorflow")


class Supervised(Method):
    """Cross entropy of a linear classifier on the backbone's features."""

    term_names: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    relative_cost: ClassVar[float] = 0.5  # one view
    num_views = 1
    needs_labels: ClassVar[bool] = True
    probabilistic: ClassVar[bool] = False

    def __init__(self, config: ml_collections.ConfigDict, *, num_classes: int = 0) -> None:
        if num_classes < 2:
            raise UserError(
                f"method supervised needs labels of at least 2 classes, and data source "
                f"{config.data.source!r} has {num_classes}: choose a labeled source"
            )
        super().__init__(config, num_classes=num_classes)
        encoder = self.build_encoder(concentration=False)
        features = keras.Input(encoder.output["features"].shape[1:], name="features")
        logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(features)
        self.models["encoder"] = encoder
        self.models["classifier"] = keras.Model(features, logits, name="classifier")

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """No direction head: trained with labels, the features themselves are compared."""
        return {"dimension": None}

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, context: StepContext
    ) -> Objective:
        """See `Method.objective`."""
        (outputs,) = self.encode(views, context)
        logits = self.models["classifier"](outputs["features"])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return Objective({"cross_entropy": tf.reduce_mean(entropy)})
