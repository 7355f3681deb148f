"""Encoders from elsewhere: a Keras file or a SavedModel, frozen, with a head of ours."""

import math
import pathlib

import keras
from keras import layers

from tfvmf.errors import UserError
from tfvmf.models import heads
from tfvmf.models.foreign_files import load_keras, load_saved_model
from tfvmf.models.heads import Levels
from tfvmf.models.pixels import Pixels

_LEVEL = "level:"  # before the names of what the concentration head sees
_LOADERS = {"keras": load_keras, "saved_model": load_saved_model}


def build_foreign_encoder(
    path: str | pathlib.Path,
    kind: str,
    *,
    features: str = "",
    input_range: str = "",
    level_layers: tuple[str, ...] = (),
    hidden: int = 512,
    initial_concentration: float = math.log(2.0),
    dropout: float = 0.0,
) -> keras.Model:
    """Builds an encoder like `build_encoder`'s around a model that stays as it is.

    Args:
        path: The model.
        kind: `keras` for a `.keras` file, `saved_model` for the directory of a SavedModel.
        features: Name of the output that is the features: [B, F], or maps [B, H, W, F] whose mean
            is taken. In a Keras model also the name of a layer. "" for the only output, or for one
            called `features` or `mean_direction`.
        input_range: What the model expects pixels to be, one of `RANGES`; "" for what suits the
            type of its input (`Pixels`).
        level_layers: Names of outputs, or of layers of a Keras model, with maps [B, H, W, C]: what
            the concentration head sees instead of the features.
        hidden: Width of the concentration head.
        initial_concentration: Scale of kappa, see `build_concentration_head`.
        dropout: Of the concentration head.

    Returns:
        A Keras model from float images [B, H, W, 3] in [0, 1] to a dictionary of float32
        `features` [B, F], `mean_direction` [B, d] (the model's own output of that name, otherwise
        the features, of unit length) and `concentration` [B].

    Raises:
        UserError: The model cannot be read, or has no such output.
    """
    chosen = {f"{_LEVEL}{name}": name for name in level_layers}
    trunk = _LOADERS[kind](pathlib.Path(path), features, chosen)
    trunk.trainable = False
    images = keras.Input((None, None, 3), name="images")
    pixels = Pixels(trunk.input.shape, trunk.input.dtype, input_range, name="pixels")
    outputs = trunk(pixels(images))
    vectors = _pooled(outputs["features"], f"{path}: its features", "features")
    direction = vectors
    if "mean_direction" in outputs:
        direction = _pooled(outputs["mean_direction"], f"{path}: its mean_direction", "given")
    maps = {name: value for name, value in outputs.items() if name.startswith(_LEVEL)}
    for name, value in maps.items():
        if len(value.shape) != 4 or value.shape[-1] is None:
            raise UserError(
                f"--level_layers={name.removeprefix(_LEVEL)} has the shape {_words(value.shape)}: "
                "name layers with maps [N, H, W, C]"
            )
    seen = Levels(name="levels", dtype="float32")(maps) if maps else vectors
    return _with_head(images, vectors, direction, seen, hidden, initial_concentration, dropout)


def build_feature_encoder(
    size: int,
    *,
    hidden: int = 512,
    initial_concentration: float = math.log(2.0),
    dropout: float = 0.0,
) -> keras.Model:
    """Builds features [B, size] -> the outputs of an encoder, for features made elsewhere."""
    features = keras.Input((size,), name="features")
    return _with_head(
        features, features, features, features, hidden, initial_concentration, dropout
    )


def _with_head(
    inputs: keras.KerasTensor,
    features: keras.KerasTensor,
    direction: keras.KerasTensor,
    seen: keras.KerasTensor,
    hidden: int,
    initial: float,
    dropout: float,
) -> keras.Model:
    """The model from inputs to the three outputs, with a new head on what it sees."""
    # The scale of foreign features is unknown, and may differ from one to the next.
    head = heads.build_concentration_head(
        seen.shape[-1], hidden=hidden, initial=initial, dropout=dropout, input_norm=True
    )
    outputs = {
        "features": features,
        "mean_direction": layers.UnitNormalization(name="mean_direction", dtype="float32")(
            direction
        ),
        "concentration": head(seen),
    }
    return keras.Model(inputs, outputs, name="encoder")


def _pooled(value: keras.KerasTensor, where: str, name: str) -> keras.KerasTensor:
    """Vectors [B, F] in float32; maps [B, H, W, F] are averaged over space."""
    shape = value.shape
    if len(shape) not in (2, 4) or shape[-1] is None or shape[-1] < 2:
        raise UserError(
            f"{where} have the shape {_words(shape)}: needed are vectors [N, F] or maps "
            "[N, H, W, F], F at least 2; choose with --features=NAME"
        )
    if len(shape) == 4:
        return layers.GlobalAveragePooling2D(name=f"{name}_pool", dtype="float32")(value)
    return layers.Activation("linear", name=f"{name}_vectors", dtype="float32")(value)


def _words(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join(['N', *('?' if side is None else str(side) for side in shape[1:])])}]"
