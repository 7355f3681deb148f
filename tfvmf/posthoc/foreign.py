"""Encoders from elsewhere: a Keras file or a SavedModel, frozen, with a concentration head of ours.

Nothing of a file is run as Python: `.keras` files are loaded in Keras's safe mode, and a SavedModel
after a look at its operations (`tfvmf.models.saved_model`).
"""

import difflib
import math
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tfvmf.errors import UserError
from tfvmf.models import Levels, build_concentration_head
from tfvmf.models.saved_model import load_saved_model
from tfvmf.posthoc.method import RANGES

_OBVIOUS = ("features", "mean_direction")  # outputs that are the features unless another is named
_LEVEL = "level:"  # starts the names of what the concentration head sees
_SHOWN = 12  # names in a message

# ---- The encoder.


def load_frozen(
    path: str | os.PathLike[str],
    kind: str,
    *,
    feature_layer: str = "",
    input_range: str = "",
    level_layers: tuple[str, ...] = (),
    trust_model: bool = False,
) -> keras.Model:
    """Loads a model that was trained elsewhere and stays as it is.

    Args:
        path: The model.
        kind: `keras` for a `.keras` file, `saved_model` for the directory of a SavedModel.
        feature_layer: Name of the output to use as features: vectors [B, F], or maps [B, H, W, F],
            which are averaged over space. In a Keras model it may also be the name of a layer. ""
            for the only output, or for one called `features` or `mean_direction`.
        input_range: The range of pixels that the model expects, one of `RANGES`; "" for the usual
            one of its input's type (`Pixels`).
        level_layers: Names of outputs, or of layers of a Keras model, with maps [B, H, W, C]: what
            a concentration head is to see instead of the features (`Levels`).
        trust_model: Load a SavedModel whatever it contains (`load_saved_model`).

    Returns:
        A Keras model from float images [B, H, W, 3] in [0, 1] to float32 `features` [B, F],
        `mean_direction` [B, d] (the model's own output of that name, otherwise the features,
        scaled to unit length) and `head_inputs`, for `add_head`.

    Raises:
        UserError: The model cannot be read, or has no such output.
    """
    path = pathlib.Path(path)
    loaded = _load_keras(path) if kind == "keras" else _load_saved(path, trust_model=trust_model)
    inputs, named, tensor = loaded
    picked = {"features": tensor(feature_layer or _obvious(named, path), "feature_layer")}
    if "mean_direction" in named:
        picked["mean_direction"] = named["mean_direction"]
    picked |= {f"{_LEVEL}{name}": tensor(name, "level_layers") for name in level_layers}
    trunk = keras.Model(inputs, picked, name="trunk")
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
                f"level_layers={name.removeprefix(_LEVEL)} has the shape {_words(value.shape)}: "
                "name layers with maps [N, H, W, C]"
            )
    seen = Levels(name="levels", dtype="float32")(maps) if maps else vectors
    return _frozen(images, vectors, direction, seen)


def frozen_features(size: int) -> keras.Model:
    """The same for features [B, size] that were computed elsewhere: features in, no images."""
    features = keras.Input((size,), name="features")
    return _frozen(features, features, features, features)


def _frozen(
    inputs: keras.KerasTensor,
    features: keras.KerasTensor,
    direction: keras.KerasTensor,
    seen: keras.KerasTensor,
) -> keras.Model:
    unit = layers.UnitNormalization(name="mean_direction", dtype="float32")(direction)
    outputs = {"features": features, "mean_direction": unit, "head_inputs": seen}
    return keras.Model(inputs, outputs, name="frozen")


def add_head(
    frozen: keras.Model,
    *,
    hidden: int = 512,
    initial_concentration: float = math.log(2.0),
    dropout: float = 0.0,
) -> keras.Model:
    """The encoder of a frozen model (`load_frozen`) with a new concentration head.

    Args:
        frozen: The model.
        hidden: Width of the head.
        initial_concentration: Scale of kappa (`build_concentration_head`).
        dropout: Dropout of the head.

    Returns:
        A Keras model from what `frozen` takes to the outputs of `models.build_encoder`: `features`,
        `mean_direction` and `concentration`.
    """
    outputs = dict(frozen.output)
    seen = outputs.pop("head_inputs")
    # The scale of foreign features is unknown, and may differ from one to the next.
    head = build_concentration_head(
        seen.shape[-1],
        hidden=hidden,
        initial=initial_concentration,
        dropout=dropout,
        input_norm=True,
    )
    return keras.Model(frozen.input, {**outputs, "concentration": head(seen)}, name="encoder")


def _pooled(value: keras.KerasTensor, where: str, name: str) -> keras.KerasTensor:
    """Vectors [B, F] in float32; maps [B, H, W, F] are averaged over space."""
    shape = value.shape
    if len(shape) not in (2, 4) or shape[-1] is None or shape[-1] < 2:
        raise UserError(
            f"{where} have the shape {_words(shape)}: expected vectors [N, F] or maps "
            "[N, H, W, F], F at least 2; choose others with feature_layer=NAME"
        )
    if len(shape) == 4:
        return layers.GlobalAveragePooling2D(name=f"{name}_pool", dtype="float32")(value)
    return layers.Activation("linear", name=f"{name}_vectors", dtype="float32")(value)


def _words(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join(['N', *('?' if side is None else str(side) for side in shape[1:])])}]"


# ---- Its input.


@keras.saving.register_keras_serializable(package="tfvmf")
class Pixels(layers.Layer):
    """Images [B, H, W, 3] in [0, 1] -> what a model's input expects, in size, range and type.

    Args:
        expected: Shape [B, h, w, c] of the input. Images are resized (bilinear) where h and w are
            known; c is 3, or 1 for gray.
        pixel_type: Type of the input; integers are whole gray levels.
        input_range: One of `RANGES`; "" for 0..1, or 0..255 where the type is an integer.
    """

    def __init__(
        self,
        expected: tuple[int | None, ...],
        pixel_type: str = "float32",
        input_range: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **options})
        whole = "int" in pixel_type
        self.expected, self.pixel_type = tuple(expected), pixel_type
        self.input_range = input_range or ("0..255" if whole else "0..1")
        if len(self.expected) != 4 or self.expected[3] not in (1, 3):
            raise UserError(
                f"the model's input has the shape {list(self.expected)}: expected images, "
                "[N, H, W, 3] or [N, H, W, 1]"
            )
        if self.expected[0] is not None:
            raise UserError(
                f"the model takes batches of {self.expected[0]} only: save it with a batch of any "
                "size"
            )
        if (self.expected[1] is None) != (self.expected[2] is None):
            raise UserError(f"the model's input {list(self.expected)} fixes one side only")
        if self.input_range not in RANGES:
            raise UserError(f"input_range={input_range} is unknown: use one of {', '.join(RANGES)}")
        if whole and self.input_range != "0..255":
            raise UserError(
                f"input_range={input_range}: the model's input is {pixel_type}: use 0..255"
            )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Resizes, converts to gray, scales and casts, where the model needs it."""
        _, height, width, channels = self.expected
        if height is not None:
            images = tf.image.resize(images, [height, width])
        if channels == 1:
            images = tf.image.rgb_to_grayscale(images)
        low, high = RANGES[self.input_range]
        pixels = images * (high - low) + low
        if "int" in self.pixel_type:
            pixels = tf.round(pixels)
        return tf.cast(pixels, self.pixel_type)

    def compute_output_spec(self, images: keras.KerasTensor) -> keras.KerasTensor:
        """The model's input, of the images' size where it takes any."""
        sides = [given or side for given, side in zip(self.expected, images.shape, strict=True)]
        sides[3] = self.expected[3]
        return keras.KerasTensor(sides, dtype=self.pixel_type)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the layer again."""
        return {
            **super().get_config(),
            "expected": self.expected,
            "pixel_type": self.pixel_type,
            "input_range": self.input_range,
        }


# ---- Its file.

# Input and named outputs of a model, and a function that finds a tensor by its name; the function's
# second argument is the setting that names it.
Loaded = tuple[
    keras.KerasTensor,
    dict[str, keras.KerasTensor],
    Callable[[str, str], keras.KerasTensor],
]


def _load_keras(path: pathlib.Path) -> Loaded:
    """A `.keras` file: its outputs and its layers have names."""
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is damaged, or no Keras file (model.save('name.keras'))")
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # whatever classes in the file raise
        raise UserError(
            f"{path} cannot be loaded by Keras ({_line(error)}): export the model as a SavedModel "
            "(model.export) and give that"
        ) from error
    inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if not inputs or len(inputs) != 1:
        raise UserError(
            f"{path} must be a functional or sequential model with one input, of images: otherwise "
            "export it as a SavedModel (model.export) and give that"
        )
    outputs = _named_outputs(model)

    def tensor(name: str, setting: str) -> keras.KerasTensor:
        if name in outputs:
            return outputs[name]
        found = [layer for layer in model.layers if layer.name == name]
        if not found:
            raise UserError(
                f"{setting}={name}: {path} has no such output or layer: it has "
                f"{_listed([*outputs, *(layer.name for layer in model.layers)], near=name)}"
            )
        if isinstance(found[0], keras.Model):  # its output belongs to a graph of its own
            raise UserError(
                f"{setting}={name}: {path} has a whole model of this name: name a layer beside it"
            )
        try:
            output = found[0].output
        except (AttributeError, ValueError) as error:  # never called, or several times
            raise UserError(f"{setting}={name}: {_line(error)}") from error
        if not isinstance(output, keras.KerasTensor):
            raise UserError(f"{setting}={name}: the layer has several outputs")
        return output

    return inputs[0], outputs, tensor


def _load_saved(path: pathlib.Path, *, trust_model: bool) -> Loaded:
    """A SavedModel: its signature `serving_default`, its only one, or its call."""
    loaded = load_saved_model(path, trust_model=trust_model)
    layer = SavedFunction(loaded, path, name="saved_function")
    inputs = keras.Input(
        layer.spec.shape[1:], batch_size=layer.spec.shape[0], dtype=layer.spec.dtype.name
    )
    outputs = layer(inputs)

    def tensor(name: str, setting: str) -> keras.KerasTensor:
        if name not in outputs:
            raise UserError(
                f"{setting}={name}: {path} has no such output: it has {_listed(list(outputs))} (a "
                "SavedModel does not show its layers)"
            )
        return outputs[name]

    return inputs, outputs, tensor


def _obvious(outputs: dict[str, keras.KerasTensor], path: str | os.PathLike[str]) -> str:
    """The name of the output that is the features when nobody says which."""
    names = list(outputs) if len(outputs) == 1 else [n for n in _OBVIOUS if n in outputs]
    if not names:
        raise UserError(
            f"{path} has the outputs {_listed(list(outputs))}: choose one with feature_layer=NAME"
        )
    return names[0]


class SavedFunction(layers.Layer):
    """A function of a SavedModel as a layer: pixels in, {name: tensor} out. Not trained.

    `keras.layers.TFSMLayer` keeps a second copy of every weight, which the function does not read,
    and does not say which input the function takes.

    Attributes:
        spec: The input.
        resources: The variables that it reads, which Keras does not know of.
    """

    def __init__(self, loaded: Any, path: pathlib.Path, **options: Any) -> None:
        super().__init__(trainable=False, dtype="float32", **options)
        function = _function(loaded, path)
        leaves = tf.nest.flatten(function.structured_input_signature)
        specs = [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]
        if len(specs) != 1 or specs[0].shape.rank != 4:
            raise UserError(
                f"{path} takes {', '.join(str(spec.shape) for spec in specs) or 'nothing'}: "
                "expected one input of images, [N, H, W, 3]"
            )
        self.spec: tf.TensorSpec = specs[0]
        self._function = function
        self._loaded = loaded  # its functions do not keep its variables alive

    @property
    def resources(self) -> list[tf.Variable]:
        """The variables that the function reads."""
        return list(self._function.variables)

    def call(self, pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        """All outputs of the function, by name."""
        args, keywords = tf.nest.map_structure(
            lambda leaf: pixels if isinstance(leaf, tf.TensorSpec) else leaf,
            self._function.structured_input_signature,
        )
        outputs = self._function(*args, **keywords)
        if isinstance(outputs, dict):
            return outputs
        flat = tf.nest.flatten(outputs)
        return {f"output_{number}": value for number, value in enumerate(flat)}


def resources(encoder: keras.Model) -> list[tf.Variable]:
    """Variables inside an encoder that Keras does not know of: those of SavedModels."""
    found: list[tf.Variable] = []
    for layer in encoder.layers:
        if isinstance(layer, SavedFunction):
            found += layer.resources
        elif isinstance(layer, keras.Model):
            found += resources(layer)
    return found


def _function(loaded: Any, path: pathlib.Path) -> Any:
    """The concrete function that is called: it knows the shapes of what it takes and returns."""
    signatures = dict(getattr(loaded, "signatures", {}))
    if "serving_default" in signatures:
        return signatures["serving_default"]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    # A function that was saved as the object's call; no other attribute says what it takes.
    called = getattr(loaded, "__call__", None)  # noqa: B004
    for function in getattr(called, "concrete_functions", []):
        # One that was traced for inference, if the model tells the two apart.
        if not any(leaf is True for leaf in tf.nest.flatten(function.structured_input_signature)):
            return function
    raise UserError(
        f"{path} has neither the signature serving_default nor a call: it has "
        f"{_listed(list(signatures))}"
    )


def _named_outputs(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """The outputs of a model, by their keys or by the names of their layers."""
    if isinstance(model, keras.Sequential):  # whose `output` raises, whether it was called or not
        return {model.layers[-1].name: model.outputs[0]}
    if isinstance(model.output, dict):
        return dict(model.output)
    return dict(zip(model.output_names, model.outputs, strict=True))


def _listed(names: list[str], near: str = "") -> str:
    """Names for a message, not too many; those that are most like `near` come first."""
    unique = list(dict.fromkeys([*difflib.get_close_matches(near, names), *names]))
    more = f", ... ({len(unique)} in all)" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more if unique else "none"


def _line(error: Exception) -> str:
    """The first sentence of an error that was written for programmers."""
    return " ".join(str(error).split())[:160]
