"""The encoder: an image in; features, a direction and how sure the encoder is of it out."""

import importlib
import math
from typing import Any

import keras
from keras import layers

from tfvmf.models import heads
from tfvmf.settings import BACKBONES, LEVELS

OUTPUTS = ("features", "mean_direction", "concentration")


def build_encoder(
    backbone: str = "resnet18",
    width: int = 64,
    dimension: int | None = 128,
    stem: str = "cifar",
    *,
    hidden: int = 512,
    hidden_layers: int = 1,
    output_norm: bool = False,
    dropout: float = 0.0,
    concentration: bool = True,
    initial_concentration: float = math.log(2.0),
    concentration_levels: str = "last",
) -> keras.Model:
    """Builds the model that everything else trains, evaluates and serves.

    Args:
        backbone: The name of a network (`BACKBONES`), such as `resnet18`.
        width: Channels of the first stage (64 in the original ResNets).
        dimension: Length d of the mean direction. None: no direction head, the mean direction is
            the normalized feature vector (for encoders trained with labels).
        stem: `cifar` (3x3 convolution, no pooling) or `imagenet`.
        hidden: Width of the hidden layers of both heads.
        hidden_layers: Of the direction head, see `build_direction_head`.
        output_norm: Of the direction head, see there.
        dropout: Probability of dropout_masks a unit in the backbone and in the heads (`Dropout`).
        concentration: Whether there is a concentration head. Without one, `concentration` is 1
            for every image: the encoder has no opinion, and its outputs keep their names.
        initial_concentration: Scale of kappa, see `build_concentration_head`.
        concentration_levels: What the concentration head sees: the `last` features, as in the
            paper, or pooled means and deviations of `all` four stages (`Levels`).

    Returns:
        A Keras model from float images [B, H, W, 3] in [0, 1] to a dictionary of float32
        `features` [B, F], `mean_direction` [B, d] of unit length and `concentration` [B].
        Its parts are `get_layer("direction_head")`, `get_layer("concentration_head")` and a layer
        named after the backbone.
    """
    if concentration_levels not in LEVELS:
        raise ValueError(f"concentration_levels must be last or all, not {concentration_levels!r}")
    for name, value in (("dimension", dimension), ("hidden", hidden)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if dimension is not None and dimension < 2:
        raise ValueError(f"dimension must be at least 2 (a circle), not {dimension}")
    if backbone not in BACKBONES:
        raise ValueError(f"backbone {backbone!r} is unknown: use one of {', '.join(BACKBONES)}")
    module = importlib.import_module(BACKBONES[backbone])
    images = keras.Input((None, None, 3), name="images")
    levels = module.build_backbone(backbone, width=width, stem=stem, dropout=dropout)(images)
    features = levels["features"]
    size = features.shape[-1]
    if dimension is None:
        direction = layers.UnitNormalization(name="mean_direction", dtype="float32")(features)
    else:
        direction = heads.build_direction_head(
            size,
            dimension=dimension,
            hidden=hidden,
            hidden_layers=hidden_layers,
            output_norm=output_norm,
            dropout=dropout,
        )(features)
    if concentration:
        head_inputs = features
        if concentration_levels == "all":
            maps = {name: value for name, value in levels.items() if name != "features"}
            head_inputs = heads.Levels(name="levels", dtype="float32")(maps)
        kappa = heads.build_concentration_head(
            head_inputs.shape[-1],
            hidden=hidden,
            initial=initial_concentration,
            dropout=dropout,
            input_norm=concentration_levels == "all",
        )(head_inputs)
    else:
        kappa = ConstantConcentration(name="concentration")(features)
    outputs: dict[str, Any] = {
        "features": features,
        "mean_direction": direction,
        "concentration": kappa,
    }
    return keras.Model(images, outputs, name="encoder")


def with_projection(encoder: keras.Model) -> keras.Model:
    """The same encoder, sharing all weights, with the unnormalized `projection` [B, d] beside.

    What a predictor is trained on (SimSiam, BYOL): mean_direction = projection / |projection|.
    """
    head = encoder.get_layer("direction_head")
    divided = head.get_layer("mean_direction")
    both = keras.Model(
        head.input, {"projection": divided.input, "mean_direction": divided.output}, name=head.name
    )
    features, kappa = encoder.output["features"], encoder.output["concentration"]
    outputs = {"features": features, "concentration": kappa, **both(features)}
    return keras.Model(encoder.input, outputs, name=encoder.name)


def without_concentration(encoder: keras.Model) -> keras.Model:
    """The same encoder, sharing all weights, whose concentration head does not run."""
    outputs = {name: value for name, value in encoder.output.items() if name != "concentration"}
    return keras.Model(encoder.input, outputs, name=encoder.name)


def frozen_outputs(encoder: keras.Model) -> keras.Model:
    """The same encoder up to its concentration head, sharing all weights.

    Images -> `mean_direction` [B, d], and `head_inputs` [B, F], what the concentration head is
    applied to: the layer `levels` where there is one, otherwise the features.
    """
    sees_levels = any(layer.name == "levels" for layer in encoder.layers)
    outputs = {
        "mean_direction": encoder.output["mean_direction"],
        "head_inputs": encoder.get_layer("levels").output
        if sees_levels
        else encoder.output["features"],
    }
    return keras.Model(encoder.input, outputs, name="frozen_outputs")


@keras.saving.register_keras_serializable(package="tfvmf", name="Certain")  # its name in 0.1
class ConstantConcentration(layers.Layer):
    """Features [B, F] -> ones [B]: the concentration of an encoder that does not learn one."""

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Returns one for each row."""
        return keras.ops.ones_like(inputs[:, 0], dtype="float32")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None]:
        """One number per row."""
        return (input_shape[0],)
