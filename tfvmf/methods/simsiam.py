"""SimSiam: a predictor and a stopped gradient keep two views from collapsing."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_collections

from tfvmf.methods.base import Method, Objective, StepContext, Views, losses, models, tf
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

        The concentration of a view is aligned with the cosine that the method itself raises, its
        prediction with the stopped target: a symmetric term mu_1.mu_2 would pull both views
        together, and without negatives nothing would hold them apart.
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
        """The direction [B, d] of each view that the other predicts."""
        return [view["mean_direction"] for view in online]

    def distance(self, predicted: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """What a prediction adds to the loss."""
        return 0.5 * losses.negative_cosine(predicted, target)
