"""SimSiam: a predictor and a stopped gradient keep two views from collapsing."""

import ml_collections
import tensorflow as tf

from tfvmf import losses, models
from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config


class SimSiam(Method):
    """Each view predicts the direction of the other, which stands still.

        loss = -1/2 mean(p_1.stop(mu_2)) - 1/2 mean(p_2.stop(mu_1))

    Three-layer projector with batch norm at its end, bottleneck predictor p on the projection.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self.models["encoder"] = encoder_from_config(config, concentration=probabilistic)
        dimension = config.model.dimension
        hidden = max(1, dimension // config.simsiam.bottleneck)
        self.models["predictor"] = models.build_predictor(dimension, hidden=hidden)
        self._online = models.with_projection(self.encoder)

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`."""
        del labels
        online = self.encode(views, moment, model=self._online)
        predicted = predict(self, online)
        targets = [view["mean_direction"] for view in reversed(online)]
        terms = {
            "regression": tf.add_n(
                [
                    0.5 * losses.negative_cosine(p, target)
                    for p, target in zip(predicted, targets, strict=True)
                ]
            )
        }
        return terms, aligned(predicted, targets), [view["concentration"] for view in online]


def predict(method: Method, online: list[dict[str, tf.Tensor]]) -> list[tf.Tensor]:
    """The predictor on the projections of the views, in as many passes: directions [B, d]."""
    predictor = method.models["predictor"]
    projections = [view["projection"] for view in online]
    if not method.config.model.one_pass:
        return [predictor(projection, training=True) for projection in projections]
    return tf.split(predictor(tf.concat(projections, axis=0), training=True), len(online))


def aligned(predicted: list[tf.Tensor], targets: list[tf.Tensor]) -> list[tf.Tensor]:
    """The cosines [B] that the concentration of each view is aligned with.

    Those that the method itself raises, its prediction with the stopped target: a symmetric term
    mu_1.mu_2 would pull both views together, and without negatives nothing would hold them apart.
    """
    return [
        losses.cosine(p, tf.stop_gradient(target))
        for p, target in zip(predicted, targets, strict=True)
    ]
