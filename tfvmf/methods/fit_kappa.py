"""A concentration for an encoder that is already trained, and stays as it is."""

import keras
import ml_collections
import tensorflow as tf

from tfvmf.methods.base import Method, Moment, Objective, Terms
from tfvmf.methods.encoders import encoder_from_config, is_foreign


class FitKappa(Method):
    """The paper's alignment and penalty, on a new concentration head alone.

    For fixed directions their sum is smallest at kappa = 5 E[cos] (with the paper's weights): the
    head learns to predict how well a view's direction agrees with that of an ordinary view.

    Views may be images, or vectors [B, F + d] that hold what `frozen_parts` says of images: `seen`
    [B, F] and `mean_direction` [B, d], as `pack` joins them.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool = True, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self._encoder = encoder_from_config(config, concentration=True)
        if is_foreign(config):  # its weights are in a file of its own, not in the checkpoints
            self.models["concentration_head"] = self._head
        else:
            self.models["encoder"] = self._encoder

    @property
    def encoder(self) -> keras.Model:
        """The frozen encoder with its new head."""
        return self._encoder

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Those of the concentration head."""
        return self._head.trainable_variables

    @property
    def _head(self) -> keras.Model:
        return self._encoder.get_layer("concentration_head")

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`; with wide views, `Method.loss` does it all."""
        del labels, moment
        if self.num_wide_views:
            return {}, [], []
        return {}, *self.head_alone(views)

    def frozen_parts(self, views: tf.Tensor) -> Terms:
        """See `Method.frozen_parts`; of vectors that were computed before, their two parts."""
        if len(views.shape) == len(self._encoder.input.shape):
            return super().frozen_parts(views)
        size = self._head.input.shape[-1]
        return {"seen": views[:, :size], "mean_direction": views[:, size:]}

    @property
    def packed(self) -> int:
        """F + d, the length of what `pack` returns."""
        return self._head.input.shape[-1] + self._encoder.output["mean_direction"].shape[-1]

    def pack(self, views: tf.Tensor) -> tf.Tensor:
        """Images [B, H, W, 3] -> vectors [B, F + d] that stand for them in training."""
        parts = self.frozen_parts(views)
        return tf.concat([parts["seen"], parts["mean_direction"]], axis=1)
