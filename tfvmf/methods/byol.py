"""BYOL: predict what a slow copy of the network says of the other view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import ml_collections

from tfvmf.lazy import lazy_import
from tfvmf.methods.base import Method, Objective, StepContext, concentrations
from tfvmf.methods.simsiam import SimSiam, aligned, predict
from tfvmf.settings import Setting

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfvmf import distribute, losses, models
else:
    tf, distribute, losses, models = lazy_import(
        "tensorflow", "tfvmf.distribute", "tfvmf.losses", "tfvmf.models"
    )


class BYOL(Method):
    """Each view predicts the target network's direction of the other.

        loss = mean(|p_1 - z_2|^2) + mean(|p_2 - z_1|^2)

    The target's weights are a moving average of the encoder's, t <- m t + (1 - m) w, with
    m = 1 - (1 - m_0) (cos(pi e / E) + 1) / 2 after e of E epochs. Its batch norms see its own
    batches.
    """

    section: ClassVar[str] = "byol"
    settings: ClassVar[dict[str, Setting]] = {
        "momentum": Setting(0.99, "of the target at the start; it rises to 1", low=0, below=1),
        # The method's paper has none, and then takes far more steps until it learns anything.
        "output_norm": Setting(False, "batch norm at the end of the projector"),
    }
    term_names: ClassVar[tuple[str, ...]] = ("regression",)
    relative_cost: ClassVar[float] = 1.3  # the target sees both views too, without a gradient
    kappa_note = SimSiam.kappa_note

    def __init__(self, config: ml_collections.ConfigDict, *, num_classes: int = 0) -> None:
        super().__init__(config, num_classes=num_classes)
        self.models["encoder"] = self.build_encoder(concentration=self.probabilistic)
        self.models["predictor"] = models.build_predictor(
            config.model.dimension, hidden=config.model.hidden
        )
        self.models["target"] = self.build_encoder(concentration=False)
        self._online = models.with_projection(self.encoder)
        # A weight of the target, and the encoder's.
        self._averaged: list[tuple[keras.Variable, keras.Variable]] = []
        assert self.backbone is not None
        for layer in (self.backbone.model.name, "direction_head"):
            target, source = self.models["target"].get_layer(layer), self.encoder.get_layer(layer)
            target.set_weights(source.get_weights())
            self._averaged += zip(
                target.trainable_variables, source.trainable_variables, strict=True
            )

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """All but those of the target, which stays in training mode for its batch norms."""
        learned = (model for name, model in self.models.items() if name != "target")
        return [variable for model in learned for variable in model.trainable_variables]

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Batch norm at the end of the projector, where the settings ask for it."""
        return {**super().head_options(config), "output_norm": config.byol.output_norm}

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, context: StepContext
    ) -> Objective:
        """See `Method.objective`."""
        online = self.encode(views, context, model=self._online)
        slow = self.encode(views, context, model=self.models["target"])
        predicted = predict(self, online)
        targets = [tf.stop_gradient(view["mean_direction"]) for view in reversed(slow)]
        pairs = list(zip(predicted, targets, strict=True))
        regression = tf.add_n([losses.squared_distance(p, target) for p, target in pairs])
        return Objective(
            {"regression": regression}, aligned(predicted, targets), concentrations(online)
        )

    def after_step(self, context: StepContext) -> None:
        """Moves the target a little towards the encoder."""
        keep = self.momentum(context.epoch)
        for target, source in self._averaged:
            distribute.update(target, lambda t, w: keep * t + (1.0 - keep) * w, source)

    def momentum(self, epoch: tf.Tensor | float) -> tf.Tensor:
        """Share of the target that a step keeps, from the configured one up to 1 at the end."""
        done = tf.minimum(tf.cast(epoch, tf.float32) / self.config.epochs, 1.0)
        return 1.0 - (1.0 - self.config.byol.momentum) * (tf.cos(math.pi * done) + 1.0) / 2.0
