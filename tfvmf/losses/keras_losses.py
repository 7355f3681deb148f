"""The losses as `keras.losses.Loss`: for a training of one's own, or for `compile(loss=...)`.

A loss compares two views: `loss(view_1, view_2)`. In `compile(loss=...)` the first view is `y_true`
and the second is the model's output `y_pred`. The output is then taught to agree with the direction
that another model gave the same image (a teacher's, or a text encoder's for its caption), and the
other images of the batch are the negatives. To train one encoder on two views of each image, use
`tfvmf.Contrastive`.

A view is a tensor of unit vectors [B, d]. Where a loss needs the concentration too, a view is a
dictionary of `mean_direction` [B, d] and `concentration` [B], such as the outputs of
`tfvmf.models.build_encoder`; or one tensor [B, d + 1] with the concentration in the last column,
which Keras can pass through `compile`.

All are means over the batch, and none takes sample weights: an image also counts as the negative of
the others. Under a strategy each replica compares the images of its own share.
"""

from typing import Any

import keras
import tensorflow as tf

from tfvmf.losses.concentration import concentration_terms, cosine
from tfvmf.losses.contrastive import nt_xent
from tfvmf.losses.mc_infonce import mc_infonce
from tfvmf.losses.prediction import (
    negative_cosine,
    sinkhorn,
    squared_distance,
    swapped_prediction,
)


class _TwoViewLoss(keras.losses.Loss):
    """What the losses have in common: a name and settings, which `get_config` returns."""

    def __init__(self, *, name: str | None = None, **settings: Any) -> None:
        super().__init__(name=name)
        self._settings = settings

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """The loss of two views, a scalar."""
        if sample_weight is not None:
            raise ValueError(f"{self.name} takes no sample weights: its images are compared")
        return super().__call__(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the loss again."""
        return {"name": self.name, **self._settings}


@keras.saving.register_keras_serializable(package="tfvmf")
class NTXent(_TwoViewLoss):
    """SimCLR's loss, see `nt_xent`: `NTXent(temperature=0.5)(direction_1, direction_2)`.

    Args:
        temperature: t > 0.
        name: Of the loss.
    """

    def __init__(self, *, temperature: float = 0.5, name: str = "nt_xent") -> None:
        super().__init__(name=name, temperature=temperature)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of unit vectors [B, d] of both views."""
        return nt_xent(y_true, y_pred, **self._settings)


@keras.saving.register_keras_serializable(package="tfvmf")
class VMFAlignment(_TwoViewLoss):
    """The paper's alignment and penalty of both concentrations, see `concentration_terms`.

    Where only the second view has a concentration (the first is a target [B, d] from elsewhere),
    only that one is taught.

    Args:
        align_weight: l_align.
        penalty_weight: l_reg, of the l2 regularizer.
        regularizer: `l2`, the paper's, or `vmf`, the exact -log C_d(kappa).
        name: Of the loss.
    """

    def __init__(
        self,
        *,
        align_weight: float = 0.05,
        penalty_weight: float = 0.005,
        regularizer: str = "l2",
        name: str = "vmf_alignment",
    ) -> None:
        super().__init__(
            name=name,
            align_weight=align_weight,
            penalty_weight=penalty_weight,
            regularizer=regularizer,
        )

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """The sum of alignment and penalty; `y_pred` has a concentration."""
        direction_2, kappa_2 = _view(y_pred)
        dimension = direction_2.shape[-1]
        if tf.is_tensor(y_true) and y_true.shape[-1] == dimension:
            direction_1, kappas = y_true, [kappa_2]
        else:
            direction_1, kappa_1 = _view(y_true)
            kappas = [kappa_1, kappa_2]
        cosines = [cosine(direction_1, direction_2)] * len(kappas)
        terms = concentration_terms(cosines, kappas, dimension=dimension, **self._settings)
        return terms["alignment"] + terms["penalty"]


@keras.saving.register_keras_serializable(package="tfvmf")
class MCInfoNCE(_TwoViewLoss):
    """NT-Xent of samples of each view's von Mises-Fisher distribution, see `mc_infonce`.

    Args:
        temperature: t > 0.
        num_samples: Draws from each distribution.
        aggregation: `mean_log` or `logmeanexp`.
        seed: Of the samples; every call draws new ones. None draws a seed.
        name: Of the loss.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.5,
        num_samples: int = 64,
        aggregation: str = "mean_log",
        seed: int | None = None,
        name: str = "mc_infonce",
    ) -> None:
        super().__init__(
            name=name, temperature=temperature, num_samples=num_samples, aggregation=aggregation
        )
        self.seed = seed
        self._seeds = keras.random.SeedGenerator(seed)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """The loss of directions and concentrations of both views."""
        seed = tf.bitcast(tf.cast(self._seeds.next(), tf.uint32), tf.int32)
        return mc_infonce(*_view(y_true), *_view(y_pred), seed=seed, **self._settings)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the loss again."""
        return {**super().get_config(), "seed": self.seed}


@keras.saving.register_keras_serializable(package="tfvmf")
class NegativeCosine(_TwoViewLoss):
    """SimSiam's loss, see `negative_cosine`. No gradient flows into `y_true`."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of the target's and the predicted unit vectors [B, d]."""
        return negative_cosine(y_pred, y_true)


@keras.saving.register_keras_serializable(package="tfvmf")
class SquaredDistance(_TwoViewLoss):
    """BYOL's loss, see `squared_distance`. No gradient flows into `y_true`."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of the target's and the predicted unit vectors [B, d]."""
        return squared_distance(y_pred, y_true)


@keras.saving.register_keras_serializable(package="tfvmf")
class SwappedPrediction(_TwoViewLoss):
    """SwAV's loss: each view predicts the assignment of the other, see `swapped_prediction`.

    Args:
        temperature: Of the softmax over prototypes.
        epsilon: Of `sinkhorn`, small values assign hard.
        iterations: Of `sinkhorn`.
        name: Of the loss.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        name: str = "swapped_prediction",
    ) -> None:
        super().__init__(name=name, temperature=temperature, epsilon=epsilon, iterations=iterations)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of the cosines [B, K] of both views with the prototypes."""
        options = dict(self._settings)
        temperature = options.pop("temperature")
        parts = [
            swapped_prediction(sinkhorn(codes, **options), scores, temperature=temperature)
            for codes, scores in ((y_true, y_pred), (y_pred, y_true))
        ]
        return tf.add_n(parts) / 2.0


def _view(outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Direction [B, d] and concentration [B] of a view."""
    if isinstance(outputs, dict):
        return outputs["mean_direction"], outputs["concentration"]
    return outputs[:, :-1], outputs[:, -1]
