"""Files of models that were trained elsewhere, as Keras models with the outputs that are asked for.

Nothing of a file is run as Python: `.keras` files are loaded in Keras's safe mode, and a SavedModel
is a graph.
"""

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfvmf.errors import UserError

_DEFAULTS = ("features", "mean_direction")
_SHOWN = 12  # names in a message


def load_keras(path: pathlib.Path, features: str, chosen: dict[str, str]) -> keras.Model:
    """A `.keras` file, from pixels to `features`, `mean_direction` if it has that, and `chosen`.

    Args:
        path: The file.
        features: Name of an output or of a layer, or "" (`choose`).
        chosen: {name in the result: name of an output or of a layer}.
    """
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

    def tensor(name: str, flag: str) -> keras.KerasTensor:
        if name in outputs:
            return outputs[name]
        found = [layer for layer in model.layers if layer.name == name]
        if not found:
            raise UserError(
                f"--{flag}={name}: {path} has no such output or layer: it has "
                f"{_listed([*outputs, *(layer.name for layer in model.layers)])}"
            )
        try:
            output = found[0].output
        except (AttributeError, ValueError) as error:  # never called, or several times
            raise UserError(f"--{flag}={name}: {_line(error)}") from error
        if not isinstance(output, keras.KerasTensor):
            raise UserError(f"--{flag}={name}: the layer has several outputs")
        return output

    features = features or choose(list(outputs), str(path))
    return _trunk(inputs[0], outputs, features, chosen, tensor)


def load_saved_model(path: pathlib.Path, features: str, chosen: dict[str, str]) -> keras.Model:
    """The same for a SavedModel: its signature `serving_default`, its only one, or its call."""
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:
        raise UserError(f"{path} cannot be loaded as a SavedModel: {_line(error)}") from error
    layer = SavedFunction(loaded, path, name="saved_function")
    inputs = keras.Input(
        layer.spec.shape[1:], batch_size=layer.spec.shape[0], dtype=layer.spec.dtype.name
    )
    outputs = layer(inputs)

    def tensor(name: str, flag: str) -> keras.KerasTensor:
        if name not in outputs:
            raise UserError(
                f"--{flag}={name}: {path} has no such output: it has {_listed(list(outputs))} (a "
                "SavedModel does not show its layers)"
            )
        return outputs[name]

    features = features or choose(list(outputs), str(path))
    return _trunk(inputs, outputs, features, chosen, tensor)


class SavedFunction(keras.layers.Layer):
    """A function of a SavedModel as a layer: pixels in, {name: tensor} out. Not trained.

    Attributes:
        spec: What it takes.
        resources: The variables that it reads, which Keras does not know of.
    """

    def __init__(self, loaded: Any, path: pathlib.Path, **options: Any) -> None:
        super().__init__(trainable=False, dtype="float32", **options)
        function = _function(loaded, path)
        leaves = tf.nest.flatten(function.structured_input_signature)
        specs = [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]
        if len(specs) != 1 or specs[0].shape.rank != 4:
            raise UserError(
                f"{path} takes {', '.join(str(spec.shape) for spec in specs) or 'nothing'}: one "
                "input is needed, of images [N, H, W, 3]"
            )
        self.spec: tf.TensorSpec = specs[0]
        self._function = function
        self._loaded = loaded  # its functions do not keep its variables alive

    @property
    def resources(self) -> list[tf.Variable]:
        """All variables of the SavedModel."""
        return list(self._function.graph.variables)

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


def choose(names: list[str], where: str) -> str:
    """The output that is the features when nobody says which."""
    if len(names) == 1:
        return names[0]
    for name in _DEFAULTS:
        if name in names:
            return name
    raise UserError(f"{where} has the outputs {_listed(names)}: choose one with --features=NAME")


def resources(encoder: keras.Model) -> list[tf.Variable]:
    """Variables inside an encoder that Keras does not know of: those of SavedModels."""
    found: list[tf.Variable] = []
    for layer in encoder.layers:
        if isinstance(layer, SavedFunction):
            found += layer.resources
        elif isinstance(layer, keras.Model):
            found += resources(layer)
    return found


def _trunk(
    inputs: keras.KerasTensor,
    outputs: dict[str, keras.KerasTensor],
    features: str,
    chosen: dict[str, str],
    tensor: Callable[[str, str], keras.KerasTensor],
) -> keras.Model:
    """The model of what was asked for; `tensor` finds it by its name, for a flag."""
    picked = {"features": tensor(features, "features")}
    if "mean_direction" in outputs:
        picked["mean_direction"] = outputs["mean_direction"]
    picked |= {key: tensor(name, "level_layers") for key, name in chosen.items()}
    return keras.Model(inputs, picked, name="trunk")


def _function(loaded: Any, path: pathlib.Path) -> Any:
    """The concrete function that is called: it knows the shapes of what it takes and returns."""
    signatures = dict(getattr(loaded, "signatures", {}))
    if "serving_default" in signatures:
        return signatures["serving_default"]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    called = vars(loaded).get("__call__")  # TensorFlow puts it on the object, not on its class
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
    if isinstance(model.output, dict):
        return dict(model.output)
    names = getattr(model, "output_names", None) or [model.layers[-1].name]
    return dict(zip(names, model.outputs, strict=True))


def _listed(names: list[str]) -> str:
    """Names for a message, not too many."""
    unique = list(dict.fromkeys(names))
    more = f", ... ({len(unique)} in all)" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more if unique else "none"


def _line(error: Exception) -> str:
    """The first sentence of an error that was written for programmers."""
    return " ".join(str(error).split())[:160]
