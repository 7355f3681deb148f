"""The method that trains a concentration head on a frozen encoder, and the files of its run."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, ClassVar

import ml_collections

from tfvmf import files, methods
from tfvmf.errors import UserError
from tfvmf.lazy import lazy_import
from tfvmf.methods.base import Method, Objective, StepContext, Terms, ViewKind, Views, data, tf
from tfvmf.settings import Setting

if TYPE_CHECKING:
    import keras

    from tfvmf import models
    from tfvmf.models import backbones
else:  # settings are read before TensorFlow is imported
    keras, models, backbones = lazy_import("keras", "tfvmf.models", "tfvmf.models.backbones")

KINDS = ("run", "keras", "saved_model", "applications", "hub", "features")
# File names of the model copies in a run.
_COPIES = {
    "saved_model": "encoder",
    **dict.fromkeys(("keras", "applications", "hub"), "encoder.keras"),
}


def whole_images(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """The identity view: images [B, H, W, 3] as floats in [0, 1]."""
    del seeds
    images = tf.convert_to_tensor(images)
    scale = 255.0 if images.dtype == tf.uint8 else 1.0
    return tf.cast(images, tf.float32) / scale


def damaged_views(
    augmentation: data.Augmentation, native_size: int | None
) -> tuple[data.WideViews, data.Augmentation]:
    """Wide views, and crops of 3 to 30 % of the area."""
    wide = data.WideViews(augmentation=augmentation, native_size=native_size)
    return wide, augmentation.changed(crop_min=0.03, crop_max=0.3)


class FitKappa(Method):
    """The paper's alignment and penalty, for a new concentration head alone.

    For fixed directions their sum is smallest at kappa = 5 E[cos] (with the paper's weights): the
    head learns to predict how well a view's direction agrees with that of an ordinary view. It
    is trained on the image itself and two damaged views, a wide one and a small crop; two ordinary
    views serve only for comparison (studies/kappa/teaching.py).

    The encoder is that of a run, an external model, or none (`takes` is `features`). Views are
    inputs of the encoder or, if `fit_kappa.cache_views` is set, vectors from `to_cache`.
    """

    section: ClassVar[str] = "fit_kappa"
    learns_directions: ClassVar[bool] = False
    native_size: int | None = None  # size of the images before they are enlarged for the encoder
    settings: ClassVar[dict[str, Setting]] = {  # set by `tfvmf fit-kappa`
        "model": Setting("", "what is frozen: a run, a model's file, or cached features"),
        "kind": Setting("run", "what `model` is", choices=KINDS),
        "method": Setting("", "the method that trained the frozen run, if any"),
        "fingerprint": Setting("", "hash of the file; the run directory keeps a copy of the model"),
        "trust_model": Setting(
            False, "load SavedModels, which may contain any operation; not read from runs"
        ),
        "cache_views": Setting(0, "views per image, embedded once; 0: new in every step", low=0),
        "max_images": Setting(20_000, "maximum number of images whose views are embedded", low=2),
    }

    def build_parts(self) -> None:
        """Adds no parts. For an external encoder, only the head is trained and saved."""
        # Wide views are treated like the others: all views train only the head.
        self._wide, self.num_wide_views = bool(self.num_wide_views), 0
        self.num_views = 3 if self.takes == "images" else 2
        self._encoder = self.models["encoder"]
        self._head = self._encoder.get_layer("concentration_head")
        if self._foreign:  # its weights are in a file of their own, not in the checkpoints
            self.models = {"concentration_head": self._head}

    @property
    def _foreign(self) -> bool:
        return self.config.fit_kappa.kind != "run"

    @classmethod
    def check(cls, config: ml_collections.ConfigDict) -> None:
        """Raises UserError if there is no model to fit a head to."""
        if config.method == "fit_kappa" and not config.fit_kappa.model:
            raise UserError("--method=fit_kappa needs a model: use tfvmf fit-kappa MODEL")
        if config.fit_kappa.method:
            methods.check_name(config.fit_kappa.method)

    @classmethod
    def head_options(cls, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Options of the method that trained the encoder; no direction head for external models."""
        if config.fit_kappa.kind != "run":
            return {"dimension": None}
        trained_by = config.fit_kappa.method
        if not trained_by:
            return super().head_options(config)
        return methods.METHODS[trained_by].head_options(config)

    @classmethod
    def locate(
        cls, config: ml_collections.ConfigDict, workdir: pathlib.Path, *, trust_model: bool = False
    ) -> None:
        """Points a run's configuration to its copy of the model and checks the fingerprint."""
        config.fit_kappa.trust_model = trust_model  # regardless of the run's own setting
        kind = config.fit_kappa.kind
        if kind == "run":
            super().locate(config, workdir)
        if kind not in _COPIES:
            return
        path = workdir / _COPIES[kind]
        if not path.exists():
            raise UserError(f"{workdir}: its encoder, {path}, is missing")
        copied = kind in ("keras", "saved_model")  # the others were converted
        if copied and files.fingerprint(path) != config.fit_kappa.fingerprint:
            raise UserError(
                f"{workdir}: {path} is damaged, or not the encoder that the head was fitted to"
            )
        config.fit_kappa.model = str(path)
        if not copied:
            config.fit_kappa.kind, config.model.weights = "keras", ""
        if not config.model.level_layers:  # a run older than the rules for choosing layers
            config.model.level_layers = "none"
            if kind == "keras" and not config.model.input_range:
                config.model.input_range = backbones.declared_input(str(path), kind)[1]

    @property
    def encoder(self) -> keras.Model:
        """The frozen encoder with its new head."""
        return self._encoder

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables of the concentration head."""
        return self._head.trainable_variables

    def describe_encoder(self) -> str:
        """The encoder in words."""
        if not self._foreign:
            return super().describe_encoder()
        name = pathlib.Path(self.config.fit_kappa.model).name
        return f"{name} with a head of width {self.config.model.hidden}"

    def describe_choices(self) -> str:
        """See `Method.describe_choices`; there are none for cached features."""
        return super().describe_choices() if self.takes == "images" else ""

    def keep_files(self, workdir: pathlib.Path) -> None:
        """Copies the frozen model, so that the run does not need the original."""
        kind = self.config.fit_kappa.kind
        if kind == "run":
            super().keep_files(workdir)
        elif kind in _COPIES and self.backbone is not None:
            self.backbone.keep(workdir / _COPIES[kind])

    def build_encoder(self, *, concentration: bool) -> keras.Model:
        """The encoder of a run's settings, an external model, or a head without an encoder."""
        self.takes = "features" if self.config.fit_kappa.kind == "features" else "images"
        encoder = super().build_encoder(concentration=concentration)
        self.config.model.dimension = encoder.output["mean_direction"].shape[-1]
        return encoder

    def build_backbone(self, spec: str = "", **options: Any) -> models.Backbone:
        """The frozen network, with its levels as inputs of the head if there are any."""
        config, frozen = self.config, self.config.fit_kappa
        if self.takes == "features":
            features = keras.Input((config.model.dimension,), name="features")
            same = keras.layers.Activation("linear", name="same", dtype="float32")(features)
            return models.Backbone(keras.Model(features, {"features": same}, name="backbone"))
        if self._foreign:
            spec, options = frozen.model, {"kind": frozen.kind, "trust_model": frozen.trust_model}
        backbone = super().build_backbone(spec, **options)
        if self._foreign:
            backbone.model.trainable = False
            if backbone.level_layers:
                config.concentration.levels = "all"
        return backbone

    def view_kinds(self, augmentation: data.Augmentation) -> list[ViewKind]:
        """The image, views of it, and damaged views if the head learns from them."""
        kinds: list[ViewKind] = [(whole_images, 1), (augmentation, self.num_views - 1)]
        if self._wide:
            kinds += [(damaged, 1) for damaged in damaged_views(augmentation, self.native_size)]
        return kinds

    def objective(self, views: Views, labels: tf.Tensor | None, context: StepContext) -> Objective:
        """See `Method.objective`."""
        damaged = len(views) > self.num_views and self.takes == "images"
        skip = range(1, self.num_views) if damaged else ()
        return self.head_objective(views, training=context.training, skip=skip)

    def frozen_outputs(self, views: tf.Tensor) -> Terms:
        """See `Method.frozen_outputs`; for cached vectors, their two parts."""
        if not self.config.fit_kappa.cache_views:
            return super().frozen_outputs(views)
        size = self._head.input.shape[-1]
        return {"head_inputs": views[:, :size], "mean_direction": views[:, size:]}

    @property
    def cached_size(self) -> int:
        """F + d, the length of the vectors from `to_cache`."""
        return self._head.input.shape[-1] + self._encoder.output["mean_direction"].shape[-1]

    def to_cache(self, views: tf.Tensor) -> tf.Tensor:
        """Views [B, H, W, 3] -> vectors [B, F + d]: the head's inputs, and the direction."""
        parts = super().frozen_outputs(views)
        return tf.concat([parts["head_inputs"], parts["mean_direction"]], axis=1)
