"""What stands on a backbone: the mean direction on the sphere and the concentration around it."""

import math

import keras
from keras import layers

from tfvmf.models.batch_norm import BatchNorm


def build_direction_head(
    features: int, *, dimension: int = 128, hidden: int = 512, name: str = "direction_head"
) -> keras.Model:
    """Builds features [B, features] -> mean direction mu [B, dimension], |mu| = 1.

    As in the paper: linear without bias, batch norm, ReLU, linear; then mu = v / |v|.
    """
    inputs = keras.Input((features,), name="features")
    outputs = _perceptron(inputs, hidden, dimension)
    outputs = layers.UnitNormalization(name="mean_direction", dtype="float32")(outputs)
    return keras.Model(inputs, outputs, name=name)


def build_concentration_head(
    features: int,
    *,
    hidden: int = 512,
    initial: float = math.log(2.0),
    name: str = "concentration_head",
) -> keras.Model:
    """Builds features [B, features] -> concentration kappa [B], kappa = s softplus(v) >= 0.

    The scale s = initial / softplus(0) makes `initial` the kappa of v = 0, around which an
    untrained head scatters. The default is the paper's head, s = 1.
    """
    if initial <= 0.0:
        raise ValueError(f"initial must be positive, not {initial}")
    inputs = keras.Input((features,), name="features")
    outputs = _perceptron(inputs, hidden, 1)
    outputs = layers.Activation("softplus", name="softplus", dtype="float32")(outputs)
    outputs = layers.Rescaling(initial / math.log(2.0), name="scale", dtype="float32")(outputs)
    outputs = layers.Reshape((), name="concentration", dtype="float32")(outputs)
    return keras.Model(inputs, outputs, name=name)


def _perceptron(x: keras.KerasTensor, hidden: int, outputs: int) -> keras.KerasTensor:
    """Linear without bias, batch norm, ReLU, linear; in float32 under any precision."""
    x = layers.Dense(hidden, use_bias=False, dtype="float32", name="hidden")(x)
    x = BatchNorm(dtype="float32", name="norm")(x)
    x = layers.ReLU(dtype="float32", name="relu")(x)
    return layers.Dense(outputs, dtype="float32", name="output")(x)
