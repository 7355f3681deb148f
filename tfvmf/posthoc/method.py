"""The method that trains a concentration head on a frozen encoder, and what its run keeps."""

import pathlib

import keras
import ml_collections
import tensorflow as tf

from tfvmf import files
from tfvmf.errors import UserError
from tfvmf.methods.base import Method, Moment, Objective, Terms
from tfvmf.methods.encoders import encoder_from_config, initial_concentration
from tfvmf.posthoc import foreign

# Kinds of models that a run keeps a copy of, and the name of the copy in the run directory.
_COPIES = {"keras": "encoder.keras", "saved_model": "encoder"}


class FitKappa(Method):
    """The paper's alignment and penalty, on a new concentration head alone.

    For fixed directions their sum is smallest at kappa = 5 E[cos] (with the paper's weights): the
    head learns to predict how well a view's direction agrees with that of an ordinary view.

    The encoder is that of a run, a model from elsewhere, or nothing (`takes` features). Views are
    what the encoder takes, or, where `fit_kappa.cache_views` is set, vectors that `to_cache` made
    of them.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, *, probabilistic: bool = True, num_classes: int = 0
    ) -> None:
        super().__init__(config, probabilistic=probabilistic, num_classes=num_classes)
        self._encoder = self.build_encoder()
        if config.fit_kappa.kind == "run":
            self.models["encoder"] = self._encoder
        else:  # its weights are in a file of its own, not in the checkpoints
            self.models["concentration_head"] = self._head

    @property
    def encoder(self) -> keras.Model:
        """The frozen encoder with its new head."""
        return self._encoder

    @property
    def takes(self) -> str:
        """What the encoder is applied to: `images`, or `features` where it is a head alone."""
        return "features" if self.config.fit_kappa.kind == "features" else "images"

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables of the concentration head."""
        return self._head.trainable_variables

    def describe_encoder(self) -> str:
        """What the encoder is, in words."""
        if self.config.fit_kappa.kind == "run":
            return super().describe_encoder()
        name = pathlib.Path(self.config.fit_kappa.model).name
        return f"{name} with a head of width {self.config.model.hidden}"

    def build_encoder(self) -> keras.Model:
        """The encoder of a run's settings, a model from elsewhere, or a head without an encoder."""
        config, frozen = self.config, self.config.fit_kappa
        if frozen.kind == "run":
            return encoder_from_config(config, concentration=True)
        head = {"hidden": config.model.hidden, "dropout": config.model.dropout}
        if frozen.kind == "features":
            return foreign.build_feature_encoder(
                config.model.dimension, initial_concentration=initial_concentration(config), **head
            )

        def initial(dimension: int) -> float:
            config.model.dimension = dimension  # known from the model only
            return initial_concentration(config)

        return foreign.build_foreign_encoder(
            frozen.model,
            frozen.kind,
            feature_layer=frozen.feature_layer,
            input_range=frozen.input_range,
            level_layers=tuple(frozen.level_layers.split(",")) if frozen.level_layers else (),
            initial_concentration=initial,
            **head,
        )

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, moment: Moment
    ) -> Objective:
        """See `Method.objective`; with wide views, `Method.loss` does it all."""
        del labels, moment
        if self.num_wide_views:
            return {}, [], []
        return {}, *self.head_alone(views)

    def frozen_parts(self, views: tf.Tensor) -> Terms:
        """See `Method.frozen_parts`; of cached vectors, their two parts."""
        if not self.config.fit_kappa.cache_views:
            return super().frozen_parts(views)
        size = self._head.input.shape[-1]
        return {"seen": views[:, :size], "mean_direction": views[:, size:]}

    @property
    def cached_size(self) -> int:
        """F + d, the length of what `to_cache` returns."""
        return self._head.input.shape[-1] + self._encoder.output["mean_direction"].shape[-1]

    def to_cache(self, views: tf.Tensor) -> tf.Tensor:
        """Views [B, H, W, 3] -> vectors [B, F + d]: what the head sees, and the direction."""
        parts = super().frozen_parts(views)
        return tf.concat([parts["seen"], parts["mean_direction"]], axis=1)

    @property
    def _head(self) -> keras.Model:
        return self._encoder.get_layer("concentration_head")

    @classmethod
    def locate(cls, config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
        """Points a run's configuration to its copy of the model, which must be the fitted one."""
        name = _COPIES.get(config.fit_kappa.kind)
        if name is None:
            return
        path = workdir / name
        if not path.exists():
            raise UserError(f"{workdir}: its encoder, {path}, is missing")
        if files.fingerprint(path) != config.fit_kappa.fingerprint:
            raise UserError(
                f"{workdir}: {path} is damaged, or not the encoder that the head was fitted to"
            )
        config.fit_kappa.model = str(path)


def copy_into_run(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
    """Copies the frozen model to the run directory, so that the run does not need the original."""
    name = _COPIES.get(config.fit_kappa.kind)
    if name is None:
        return
    try:
        files.copy(pathlib.Path(config.fit_kappa.model), workdir / name)
    except OSError as error:
        raise UserError(
            f"{workdir}: the encoder cannot be copied there: {error.strerror}"
        ) from error
