"""BYOL: predict what a slow copy of the network says of the other view."""

import math

import keras
import ml_collections
import tensorflow as tf

from tfvmf import distribute, losses, models
from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config
from tfvmf.methods.simsiam import aligned, predict


class BYOL(Method):
    """Each view predicts the target network's direction of the other.

        loss = mean(|p_1 - z_2|^2) + mean(|p_2 - z_1|^2)

    The target's weights are a moving average of the encoder's, t <- m t + (1 - m) w, with
    m = 1 - (1 - m_0) (cos(pi e / E) + 1) / 2 after e of E epochs. Its batch norms see its own
    batches.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self.models["encoder"] = encoder_from_config(config, concentration=probabilistic)
        self.models["predictor"] = models.build_predictor(
            config.model.dimension, hidden=config.model.hidden
        )
        self.models["target"] = encoder_from_config(config, concentration=False)
        self._online = models.with_projection(self.encoder)
        # A weight of the target, and the encoder's.
        self._averaged: list[tuple[keras.Variable, keras.Variable]] = []
        for layer in (config.model.backbone, "direction_head"):
            target, source = self.models["target"].get_layer(layer), self.encoder.get_layer(layer)
            target.set_weights(source.get_weights())
            self._averaged += zip(
                target.trainable_variables, source.trainable_variables, strict=True
            )
        self.models["target"].trainable = False

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`."""
        del labels
        online = self.encode(views, moment, model=self._online)
        slow = self.encode(views, moment, model=self.models["target"])
        predicted = predict(self, online)
        targets = [tf.stop_gradient(view["mean_direction"]) for view in reversed(slow)]
        terms = {
            "regression": tf.add_n(
                [
                    losses.squared_distance(p, target)
                    for p, target in zip(predicted, targets, strict=True)
                ]
            )
        }
        return terms, aligned(predicted, targets), [view["concentration"] for view in online]

    def after_step(self, moment: Moment) -> None:
        """Moves the target a little towards the encoder."""
        keep = self.momentum(moment.epoch)
        for target, source in self._averaged:
            distribute.update(target, lambda t, w: keep * t + (1.0 - keep) * w, source)

    def momentum(self, epoch: tf.Tensor | float) -> tf.Tensor:
        """Share of the target that a step keeps, from the configured one up to 1 at the end."""
        done = tf.minimum(tf.cast(epoch, tf.float32) / self.config.epochs, 1.0)
        return 1.0 - (1.0 - self.config.byol.momentum) * (tf.cos(math.pi * done) + 1.0) / 2.0
