"""SimSiam: a predictor and a stopped gradient keep two views from collapsing."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_collections

from tfvmf.methods.base import (
    Method,
    Objective,
    StepContext,
    Views,
    concentrations,
    losses,
    models,
    tf,
)
from tfvmf.settings import Setting


class SimSiam(Method):
    """Each view predicts the direction of the other, which stands still.

        loss = -1/2 mean(p_1.stop(mu_2)) - 1/2 mean(p_2.stop(mu_1))

    Three-layer projector with batch norm at its end, bottleneck predictor p on the projection.
    """

    section: ClassVar[str] = "simsiam"
    settings: ClassVar[dict[str, Setting]] = {
        "bottleneck": Setting(4, "the predictor's hidden layer is dimension / bottleneck", low=1)
    }
    term_names: ClassVar[tuple[str, ...]] = ("regression",)
    kappa_note = "kappa was taught by the cosine of a prediction with its target"

    def build_parts(self) -> None:
        """The predictor."""
        hidden = max(1, self.dimension // self.config.simsiam.bottleneck)
        self.models["predictor"] = models.build_predictor(self.dimension, hidden=hidden)
        self._online = models.with_projection(self.encoder)

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Two hidden layers, and batch norm at the end of the projector."""
        return {**super().head_options(config), "hidden_layers": 2, "output_norm": True}

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        online = self.encode(views, context, model=self._online)
        predicted = predict(self, online, context)
        targets = [view["mean_direction"] for view in reversed(online)]
        pairs = list(zip(predicted, targets, strict=True))
        regression = tf.add_n([0.5 * losses.negative_cosine(p, target) for p, target in pairs])
        return Objective(
            {"regression": regression}, aligned(predicted, targets), concentrations(online)
        )


def predict(method: Method, online: list[dict[str, tf.Tensor]], context: StepContext) -> Views:
    """The predictor on the projections of the views, in as many passes: directions [B, d]."""
    predictor = method.models["predictor"]
    projections = [view["projection"] for view in online]
    training = context.training
    if not method.config.model.one_pass:
        return [predictor(projection, training=training) for projection in projections]
    return tf.split(predictor(tf.concat(projections, axis=0), training=training), len(online))


def aligned(predicted: list[tf.Tensor], targets: list[tf.Tensor]) -> list[tf.Tensor]:
    """The cosines [B] that the concentration of each view is aligned with.

    Those that the method itself raises, its prediction with the stopped target: a symmetric term
    mu_1.mu_2 would pull both views together, and without negatives nothing would hold them apart.
    """
    return [
        losses.cosine(p, tf.stop_gradient(target))
        for p, target in zip(predicted, targets, strict=True)
    ]
