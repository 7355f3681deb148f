"""The losses as Keras losses: called on two views, or given to `compile(loss=...)`.

In `compile(loss=...)` the first view is `y_true` and the second is the model's output `y_pred`. The
output then learns to agree with the direction that another model (a teacher, or a text encoder)
gives the same image; the other images of the batch are the negatives. To train one encoder on two
views of each image, use `tfvmf.Contrastive`.

A view is a tensor of unit vectors [B, d]. Where a loss needs the concentration, a view is a
dictionary of `mean_direction` [B, d] and `concentration` [B], such as the outputs of
`tfvmf.models.build_encoder`; or one tensor [B, d + 1] with the concentration in the last column,
which Keras can pass through `compile`.

All losses are means over the batch. They do not support sample weights, because an image is also a
negative for the others. Under a strategy each replica compares the images of its own share.
"""

from typing import Any

import keras
import tensorflow as tf

from tfvmf.losses.functions import concentration_terms, cosine, mc_infonce, nt_xent


class _TwoViewLoss(keras.losses.Loss):
    """A loss with a name and settings, which `get_config` returns."""

    def __init__(self, *, name: str, **settings: Any) -> None:
        super().__init__(name=name)
        self._settings = settings

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """The loss of two views, a scalar."""
        if sample_weight is not None:
            raise ValueError(f"{self.name} takes no sample weights, because it compares images")
        return super().__call__(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        return {"name": self.name, **self._settings}


@keras.saving.register_keras_serializable(package="tfvmf")
class NTXent(_TwoViewLoss):
    """SimCLR's loss, see `nt_xent`: `NTXent(temperature=0.5)(direction_1, direction_2)`."""

    def __init__(self, *, temperature: float = 0.5, name: str = "nt_xent") -> None:
        super().__init__(name=name, temperature=temperature)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of unit vectors [B, d] of both views."""
        return nt_xent(y_true, y_pred, **self._settings)


@keras.saving.register_keras_serializable(package="tfvmf")
class VMFAlignment(_TwoViewLoss):
    """`concentration_terms` of both concentrations, or of the second view's if only it has one."""

    def __init__(
        self,
        *,
        align_weight: float = 0.05,
        penalty_weight: float = 0.005,
        regularizer: str = "l2",
        name: str = "vmf_alignment",
    ) -> None:
        weights = {"align_weight": align_weight, "penalty_weight": penalty_weight}
        super().__init__(name=name, regularizer=regularizer, **weights)

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
    """`mc_infonce` of both views, with new samples for every call; `seed=None` draws a seed."""

    def __init__(
        self,
        *,
        temperature: float = 0.5,
        num_samples: int = 64,
        aggregation: str = "mean_log",
        seed: int | None = None,
        name: str = "mc_infonce",
    ) -> None:
        settings = {"num_samples": num_samples, "aggregation": aggregation, "seed": seed}
        super().__init__(name=name, temperature=temperature, **settings)
        self._seeds = keras.random.SeedGenerator(seed)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """The loss of directions and concentrations of both views."""
        seed = tf.bitcast(tf.cast(self._seeds.next(), tf.uint32), tf.int32)
        return mc_infonce(*_view(y_true), *_view(y_pred), **{**self._settings, "seed": seed})


def _view(outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Direction [B, d] and concentration [B] of a view."""
    if isinstance(outputs, dict):
        return outputs["mean_direction"], outputs["concentration"]
    return outputs[:, :-1], outputs[:, -1]
