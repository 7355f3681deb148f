"""SimSiam and BYOL: a predictor, and a target without gradient or a slowly moving one."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import ml_collections

from tfvmf.methods.base import Method, Objective, StepContext, Views, distribute, losses, models, tf
from tfvmf.settings import Setting


class SimSiam(Method):
    """Each view predicts the direction of the other, without a gradient to it.

        loss = -1/2 mean(p_1.stop(mu_2)) - 1/2 mean(p_2.stop(mu_1))

    The projector has three layers and ends with batch norm; the predictor p is a bottleneck.
    """

    section: ClassVar[str] = "simsiam"
    settings: ClassVar[dict[str, Setting]] = {
        "bottleneck": Setting(4, "the predictor's hidden layer is dimension / bottleneck", low=1)
    }
    term_names: ClassVar[tuple[str, ...]] = ("regression",)
    kappa_note = "kappa was taught by the cosine of a prediction with its target"

    def build_parts(self) -> None:
        """Adds the predictor."""
        self.build_predictor(max(1, self.dimension // self.config.simsiam.bottleneck))

    def build_predictor(self, hidden: int) -> None:
        """Adds the predictor, and the encoder with the projection that it is applied to."""
        self.models["predictor"] = models.build_predictor(self.dimension, hidden=hidden)
        self._online = models.with_projection(self.encoder)

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Two hidden layers, and batch norm at the end of the projector."""
        return {**super().head_options(config), "hidden_layers": 2, "output_norm": True}

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`.

        The concentration is aligned with the cosine of prediction and stopped target: without
        negatives, a symmetric term mu_1.mu_2 would let both views collapse.
        """
        online = self.encode(views, context, model=self._online)
        predictor = self.models["predictor"]
        projections = [view["projection"] for view in online]
        if self.config.model.one_pass:
            together = predictor(tf.concat(projections, axis=0), training=context.training)
            predicted = tf.split(together, len(online))
        else:
            predicted = [predictor(each, training=context.training) for each in projections]
        targets = reversed(self.targets(views, online, context))
        pairs = list(zip(predicted, targets, strict=True))
        regression = tf.add_n([self.distance(p, target) for p, target in pairs])
        cosines = [losses.cosine(p, tf.stop_gradient(target)) for p, target in pairs]
        return Objective({"regression": regression}, cosines, online)

    def targets(
        self, views: Views, online: list[dict[str, tf.Tensor]], context: StepContext
    ) -> Views:
        """For each view, the direction [B, d] that the other one predicts."""
        return [view["mean_direction"] for view in online]

    def distance(self, predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """The loss of a prediction."""
        return 0.5 * losses.negative_cosine(predicted, target)


class BYOL(SimSiam):
    """Each view predicts the target network's direction of the other.

        loss = mean(|p_1 - z_2|^2) + mean(|p_2 - z_1|^2)

    The target's weights are a moving average of the encoder's, t <- m t + (1 - m) w, with
    m = 1 - (1 - m_0) (cos(pi e / E) + 1) / 2 after e of E epochs.
    """

    section: ClassVar[str] = "byol"
    settings: ClassVar[dict[str, Setting]] = {
        "momentum": Setting(0.99, "the target's momentum at first; it rises to 1", low=0, below=1),
        # BYOL's paper has none, but then needs far more steps before it learns anything.
        "output_norm": Setting(False, "batch norm at the end of the projector"),
    }
    follows_epochs: ClassVar[bool] = True
    relative_cost: ClassVar[float] = 1.3  # the target sees both views too, without gradients

    def build_parts(self) -> None:
        """Adds the predictor, and the target: a copy of the encoder without its concentration."""
        self.build_predictor(self.config.model.hidden)
        target = self.models["target"] = models.copy_without_concentration(self.encoder)
        source = models.without_concentration(self.encoder)
        target.set_weights(source.get_weights())
        # Pairs of a weight of the target and the encoder's weight.
        self._averaged = list(
            zip(target.trainable_variables, source.trainable_variables, strict=True)
        )
        for variable in target.trainable_variables:  # `target.trainable` would end training mode
            variable.trainable = False

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Batch norm at the end of the projector, if the settings say so."""
        return {"dimension": config.model.dimension, "output_norm": config.byol.output_norm}

    def targets(
        self, views: Views, online: list[dict[str, tf.Tensor]], context: StepContext
    ) -> Views:
        """The directions from the target network."""
        slow = self.encode(views, context, model=self.models["target"])
        return [tf.stop_gradient(view["mean_direction"]) for view in slow]

    def distance(self, predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """See `SimSiam.distance`."""
        return losses.squared_distance(predicted, target)

    def after_step(self, context: StepContext) -> None:
        """Moves the target a little toward the encoder."""
        keep = self.momentum(context.epoch)
        for target, source in self._averaged:
            distribute.update(target, lambda t, w: keep * t + (1.0 - keep) * w, source)

    def momentum(self, epoch: tf.Tensor | float) -> tf.Tensor:
        """The share of the target that a step keeps; rises from the configured one to 1."""
        done = tf.minimum(tf.cast(epoch, tf.float32) / self.config.epochs, 1.0)
        return 1.0 - (1.0 - self.config.byol.momentum) * (tf.cos(math.pi * done) + 1.0) / 2.0
