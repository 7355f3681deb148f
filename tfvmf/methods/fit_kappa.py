"""A concentration for an encoder that is already trained, and stays as it is."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, ClassVar

import ml_collections

from tfvmf import methods
from tfvmf.lazy import lazy_import
from tfvmf.methods.base import Method, Objective, StepContext, Terms, ViewKind
from tfvmf.settings import Setting

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfvmf import data, models
else:
    tf, data, models = lazy_import("tensorflow", "tfvmf.data", "tfvmf.models")

(frozen,) = lazy_import("tfvmf.training.frozen")

KINDS = ("run", "keras", "saved_model", "features")
INPUT_RANGES = ("0..1", "-1..1", "0..255")


class FitKappa(Method):
    """The paper's alignment and penalty, on a new concentration head alone.

    For fixed directions their sum is smallest at kappa = 5 E[cos] (with the paper's weights): the
    head learns to predict how well a view's direction agrees with that of an ordinary view.

    Views may be images, or vectors [B, F + d] that hold what `frozen_outputs` says of images:
    `head_inputs` [B, F] and `mean_direction` [B, d], as `pack` joins them.
    """

    section: ClassVar[str] = "fit_kappa"
    settings: ClassVar[dict[str, Setting]] = {  # `tfvmf fit-kappa` sets them
        "model": Setting("", "what is frozen: a run, a model's file, or cached features"),
        "kind": Setting("run", "what `model` is", choices=KINDS),
        "method": Setting("", "the method that trained it, if it is a run"),
        "fingerprint": Setting("", "of the file; the run directory keeps a copy of the model"),
        "feature_layer": Setting("", "the output that is the features; empty: the obvious one"),
        "input_range": Setting("", "of the pixels that it expects", choices=("", *INPUT_RANGES)),
        "level_layers": Setting("", "layers whose maps the head sees, separated by commas"),
        "cache_views": Setting(0, "views per image that are embedded once; 0: new ones", low=0),
    }

    def __init__(self, config: ml_collections.ConfigDict, *, num_classes: int = 0) -> None:
        super().__init__(config, num_classes=num_classes)
        # Wide views are views like the others: they all teach the head, and nothing else learns.
        self._wide, self.num_wide_views = self.num_wide_views, 0
        self._foreign = config.fit_kappa.kind != "run"
        self.takes = "features" if config.fit_kappa.kind == "features" else "images"
        self._encoder = self._build()
        if self._foreign:  # its weights are in a file of its own, not in the checkpoints
            self.models["concentration_head"] = self._head
        else:
            self.models["encoder"] = self._encoder

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Those of the method that trained the encoder."""
        trained_by = config.fit_kappa.method
        if not trained_by:
            return super().head_options(config)
        return methods.METHODS[trained_by].head_options(config)

    @classmethod
    def locate(cls, config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
        """Points the configuration to the copy of the model in the run directory."""
        frozen.locate(config, workdir)

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

    def describe_encoder(self) -> str:
        """What the encoder is, for people."""
        if not self._foreign:
            return super().describe_encoder()
        name = pathlib.Path(self.config.fit_kappa.model).name
        return f"{name} with a head of width {self.config.model.hidden}"

    def view_kinds(self, augmentation: data.Augmentation) -> list[ViewKind]:
        """Ordinary views, and wide ones where the head learns from them."""
        kinds = super().view_kinds(augmentation)
        if self._wide:
            kinds.append((data.WideViews(augmentation=augmentation), self._wide))
        return kinds

    def objective(
        self, views: list[tf.Tensor], labels: tf.Tensor | None, context: StepContext
    ) -> Objective:
        """See `Method.objective`."""
        return self.head_objective(views)

    def frozen_outputs(self, views: tf.Tensor) -> Terms:
        """See `Method.frozen_outputs`; of vectors that were computed before, their two parts."""
        if len(views.shape) == len(self._encoder.input.shape):
            return super().frozen_outputs(views)
        size = self._head.input.shape[-1]
        return {"head_inputs": views[:, :size], "mean_direction": views[:, size:]}

    @property
    def packed(self) -> int:
        """F + d, the length of what `pack` returns."""
        return self._head.input.shape[-1] + self._encoder.output["mean_direction"].shape[-1]

    def pack(self, views: tf.Tensor) -> tf.Tensor:
        """Images [B, H, W, 3] -> vectors [B, F + d] that stand for them in training."""
        parts = self.frozen_outputs(views)
        return tf.concat([parts["head_inputs"], parts["mean_direction"]], axis=1)

    def _build(self) -> keras.Model:
        """The encoder with a new concentration head."""
        config = self.config
        if not self._foreign:
            return self.build_encoder(concentration=True)
        head: dict[str, Any] = {
            "hidden": config.model.hidden,
            "initial_concentration": self.initial_concentration,
            "dropout": config.model.dropout,
        }
        if self.takes == "features":
            return models.build_feature_encoder(config.model.dimension, **head)
        given = config.fit_kappa
        return models.build_foreign_encoder(
            given.model,
            given.kind,
            features=given.feature_layer,
            input_range=given.input_range,
            level_layers=tuple(given.level_layers.split(",")) if given.level_layers else (),
            **head,
        )
