"""A concentration for an encoder that is already trained, and stays as it is."""

import keras
import ml_collections
import tensorflow as tf

from tfvmf.methods.base import Method, Moment, Objective
from tfvmf.methods.encoders import encoder_from_config


class FitKappa(Method):
    """The paper's alignment and penalty, on a new concentration head alone.

    For fixed directions their sum is smallest at kappa = 5 E[cos] (with the paper's weights): the
    head learns to foretell how well a view's direction agrees with that of an ordinary view.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool = True, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self.models["encoder"] = encoder_from_config(config, concentration=True)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Those of the concentration head."""
        return self.encoder.get_layer("concentration_head").trainable_variables

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`; with wide views, `Method.loss` does it all."""
        del labels, moment
        if self.num_wide_views:
            return {}, [], []
        return {}, *self.head_alone(views)
