"""What stands on a backbone: the mean direction on the sphere and the concentration around it."""

import math

import keras
from keras import layers

from tfvmf.models.batch_norm import BatchNorm
from tfvmf.models.dropout import Dropout


def build_direction_head(
    features: int,
    *,
    dimension: int = 128,
    hidden: int = 512,
    hidden_layers: int = 1,
    output_norm: bool = False,
    dropout: float = 0.0,
    name: str = "direction_head",
) -> keras.Model:
    """Builds features [B, features] -> mean direction mu [B, dimension], |mu| = 1.

    As in the paper: linear without bias, batch norm, ReLU, linear; then mu = v / |v|. The layer
    `mean_direction` divides; what goes into it is the projection v.

    Args:
        features: Length of the features.
        dimension: Length of the direction.
        hidden: Width of the hidden layers.
        hidden_layers: How many there are; SimSiam has two.
        output_norm: Whether v is batch-normalized, without scale and offset, as in SimSiam.
        dropout: Probability of dropping a hidden unit.
        name: Of the model.
    """
    inputs = keras.Input((features,), name="features")
    x = inputs
    for layer in range(1, hidden_layers):
        x = _hidden(x, hidden, f"hidden_{layer}", f"norm_{layer}", f"relu_{layer}")
    x = _hidden(x, hidden, "hidden", "norm", "relu")
    if dropout:
        x = Dropout(dropout, dtype="float32", name=f"{name}_dropout")(x)
    bias = not output_norm  # which would take it out again
    x = layers.Dense(dimension, use_bias=bias, dtype="float32", name="output")(x)
    if output_norm:
        x = BatchNorm(affine=False, dtype="float32", name="output_norm")(x)
    outputs = layers.UnitNormalization(name="mean_direction", dtype="float32")(x)
    return keras.Model(inputs, outputs, name=name)


def build_concentration_head(
    features: int,
    *,
    hidden: int = 512,
    initial: float = math.log(2.0),
    dropout: float = 0.0,
    input_norm: bool = False,
    name: str = "concentration_head",
) -> keras.Model:
    """Builds features [B, features] -> concentration kappa [B], kappa = s softplus(v) >= 0.

    The scale s = initial / softplus(0) makes `initial` the kappa of v = 0, around which an
    untrained head scatters. The default is the paper's head, s = 1. `input_norm` puts inputs of
    very different scales on one (batch norm without scale and offset).
    """
    if initial <= 0.0:
        raise ValueError(f"initial must be positive, not {initial}")
    inputs = keras.Input((features,), name="features")
    x = inputs
    if input_norm:
        x = BatchNorm(affine=False, dtype="float32", name="input_norm")(x)
    x = _hidden(x, hidden, "hidden", "norm", "relu")
    if dropout:
        x = Dropout(dropout, dtype="float32", name=f"{name}_dropout")(x)
    x = layers.Dense(1, dtype="float32", name="output")(x)
    x = layers.Activation("softplus", name="softplus", dtype="float32")(x)
    x = layers.Rescaling(initial / math.log(2.0), name="scale", dtype="float32")(x)
    outputs = layers.Reshape((), name="concentration", dtype="float32")(x)
    return keras.Model(inputs, outputs, name=name)


def build_predictor(dimension: int, *, hidden: int, name: str = "predictor") -> keras.Model:
    """Builds projection [B, dimension] -> direction [B, dimension] that it predicts, |.| = 1.

    Linear without bias, batch norm, ReLU, linear, as in SimSiam (where `hidden` is a bottleneck)
    and BYOL.
    """
    inputs = keras.Input((dimension,), name="projection")
    x = _hidden(inputs, hidden, "hidden", "norm", "relu")
    x = layers.Dense(dimension, dtype="float32", name="output")(x)
    outputs = layers.UnitNormalization(name="prediction", dtype="float32")(x)
    return keras.Model(inputs, outputs, name=name)


def _hidden(
    x: keras.KerasTensor, units: int, linear: str, norm: str, relu: str
) -> keras.KerasTensor:
    """Linear without bias, batch norm, ReLU; in float32 under any precision."""
    x = layers.Dense(units, use_bias=False, dtype="float32", name=linear)(x)
    x = BatchNorm(dtype="float32", name=norm)(x)
    return layers.ReLU(dtype="float32", name=relu)(x)
