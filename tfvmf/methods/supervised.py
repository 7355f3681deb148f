"""A classifier trained with labels: features for OOD detection, and an upper bound."""

import keras
import ml_collections
import tensorflow as tf

from tfvmf.errors import UserError
from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config


class Supervised(Method):
    """Cross entropy of a linear classifier on the backbone's features."""

    num_views = 1

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool = False, num_classes: int
    ) -> None:
        if num_classes < 2:
            raise UserError(
                f"method supervised needs labels of at least 2 classes, and data source "
                f"{config.data.source!r} has {num_classes}: choose a labeled source"
            )
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        encoder = encoder_from_config(config, concentration=False)
        features = keras.Input(encoder.output["features"].shape[1:], name="features")
        logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(features)
        self.models["encoder"] = encoder
        self.models["classifier"] = keras.Model(features, logits, name="classifier")

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`."""
        (outputs,) = self.encode(views, moment)
        logits = self.models["classifier"](outputs["features"])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return {"cross_entropy": tf.reduce_mean(entropy)}, [], []
