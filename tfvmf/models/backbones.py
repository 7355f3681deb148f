"""Any network as a backbone: images in [0, 1] to features and the maps of its levels.

A spec names a backbone: built-in ones such as `resnet18`, `applications:MobileNetV3Small`
(Keras Applications), `hub:PRESET` (KerasHub), `keras:/path/model.keras`. The pixel range and the
layers for features and levels are found by rules, or given by name.

No file is run as Python: `.keras` files are loaded in Keras's safe mode, and a SavedModel only
after its operations were checked (`tfvmf.models.saved_model`).
"""

import dataclasses
import difflib
import importlib
import json
import math
import pathlib
import re
import zipfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tfvmf import files
from tfvmf.errors import UserError
from tfvmf.models.layers import all_layers
from tfvmf.models.saved_model import input_shape, load_saved_model
from tfvmf.settings import BACKBONES, INPUT_RANGES, parse_backbone

VECTORS = ("features", "mean_direction")  # outputs of a backbone that are not maps of levels
_LEVEL = "level:"  # prefix of the names of level maps
_SHOWN = 12  # names in a message
USUAL_SIZE = 224  # image size for networks that take any: that of most ImageNet networks
_TOKEN_LEVELS = 4  # depths of a transformer used as levels
_ENDS = np.array([[[[0.0] * 3, [1.0] * 3]]], np.float32)  # an image of a black and a white pixel


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A network that an encoder is built on.

    `model` maps float images [B, H, W, 3] in [0, 1] to `features` [B, F], one entry per level (maps
    [B, H, W, C] or tokens [B, T, C]) and, if it has one of its own, `mean_direction` [B, d].
    """

    model: keras.Model
    built_in: bool = False  # one of `BACKBONES`; for others, `adapt` sets the next three
    feature_layer: str = ""
    input_range: str = ""
    level_layers: tuple[str, ...] = ()
    original: pathlib.Path | keras.Model | None = None  # the loaded file or model, if not built in

    def describe(self, image_size: int) -> str:
        """Image size, pixel range and layers in one line."""
        return (
            f"images {image_size}x{image_size}, pixels {self.input_range}, features "
            f"{self.feature_layer}, levels {','.join(self.level_layers) or 'none'}"
        )

    @property
    def image_size(self) -> int | None:
        """Height and width of its images, None if any size is accepted."""
        return None if self.built_in else self.model.get_layer("pixels").expected[1]

    def keep(self, path: pathlib.Path) -> None:
        """Writes a copy of the loaded model, so that a run does not need the original."""
        if isinstance(self.original, keras.Model):
            with files.scratch(path.parent) as place:
                self.original.save(place / path.name)
                (place / path.name).replace(path)
        elif self.original is not None:
            files.copy(self.original, path)


def load_backbone(
    spec: str,
    *,
    kind: str = "",
    width: int = 64,
    stem: str = "cifar",
    dropout: float = 0.0,
    weights: str = "",
    trust_model: bool = False,
    **choices: Any,
) -> Backbone:
    """Builds or loads the backbone of a spec, which has no prefix if `kind` is given.

    `width`, `stem` and `dropout` are for built-in networks (`resnet.build_backbone`), the `choices`
    (`feature_layer`, `input_range`, `level_layers`) for all others (`adapt`). `weights` for
    `applications:` are `imagenet` (default), `none` or a `.weights.h5` file; for `hub:` those of
    the preset (default), or `none`. The kind `saved_model` is the directory of a SavedModel, whose
    operations are not checked if `trust_model` is set (`load_saved_model`).
    """
    kind, name = (kind, spec) if kind else parse_backbone(spec)
    if weights and kind not in ("applications", "hub"):
        raise UserError(f"weights={weights}: expected applications:NAME or hub:PRESET, not {spec}")
    if kind == "built_in":
        module = importlib.import_module(BACKBONES[name])
        model = module.build_backbone(name, width=width, stem=stem, dropout=dropout)
        return Backbone(model, built_in=True)
    if kind in ("keras", "saved_model"):
        path = pathlib.Path(name).expanduser()
        network = _load_keras(path) if kind == "keras" else _load_saved(path, trust_model)
        _keep_statistics(network)
        return dataclasses.replace(adapt(network, where=str(path), **choices), original=path)
    where = f"{kind}:{name}"
    network, ends = (_load_application if kind == "applications" else _load_hub)(name, weights)
    _keep_statistics(network)
    if kind == "hub" and not choices.get("feature_layer"):  # tokens of a transformer
        choices["feature_layer"] = next(iter(Graph(network, where).outputs))
    if ends is not None and not choices.get("input_range"):
        choices["input_range"] = _range_of(ends, where)
    return adapt(network, where=where, **choices)


def _keep_statistics(network: keras.Model) -> None:
    """Freezes the batch norms of a trained network; a new network has no statistics to keep.

    One epoch of fine-tuning EfficientNet-Lite0 on 4,500 images replaced its statistics by those of
    augmented views, and lowered its k-NN accuracy on CIFAR-10 from 0.767 to 0.749.
    """
    for layer in all_layers(network):
        norm = isinstance(layer, layers.BatchNormalization) and layer.built
        if norm and keras.ops.any(layer.moving_mean != 0):
            layer.trainable = False


def adapt(
    network: keras.Model | keras.Layer,
    *,
    feature_layer: str = "",
    input_range: str = "",
    level_layers: tuple[str, ...] | None = None,
    where: str = "",
) -> Backbone:
    """Makes a backbone from any Keras model or layer that maps images to features.

    Args:
        network: Maps a batch of images to vectors [B, F]; to maps [B, H, W, F], which are averaged
            over space; or to tokens [B, T, F], of which the class token or the mean is used (only
            if their layer is named, because bounding boxes have the same shape).
        feature_layer: Name of the output or layer with the features. "": the only output, or one
            called `features` or `mean_direction`; for a classifier, the input of its last layer.
        input_range: Pixel range, one of `INPUT_RANGES`. "": found from the first layers, the type
            of the input or the statistics of the first batch norm, otherwise 0..1.
        level_layers: Names of outputs or layers with maps or tokens that a concentration head
            uses besides the features. None: the last block of each resolution, or four depths of
            a transformer. (): none.
        where: Name of the network in messages.
    """
    if not isinstance(network, keras.Model):
        images = keras.Input((None, None, 3), name="images")
        network = keras.Model(images, network(images), name=network.name)
    graph = Graph(network, where or network.name)
    ranks = (2, 3, 4) if feature_layer or graph.declared else (2, 4)
    feature_layer = feature_layer or graph.obvious_features()
    picked = {"features": graph.tensor(feature_layer, "feature_layer")}
    pixels = Pixels(
        graph.input.shape,
        pixel_type=graph.input.dtype,
        input_range=input_range or graph.input_range(),
        name="pixels",
    )
    if level_layers is None:
        level_layers = graph.find_levels(picked["features"])
    if "mean_direction" in graph.outputs:
        picked["mean_direction"] = graph.outputs["mean_direction"]
    for name in level_layers:
        tensor = picked[f"{_LEVEL}{name}"] = graph.tensor(name, "level_layers")
        if len(tensor.shape) not in (3, 4) or tensor.shape[-1] is None:
            raise UserError(
                f"level_layers={name} has the shape {_words(tensor.shape)}: name layers with maps "
                "[N, H, W, C] or tokens [N, T, C]"
            )
    trunk = keras.Model(graph.input, picked, name="trunk")
    for layer in all_layers(trunk):
        if isinstance(layer, layers.BatchNormalization):
            layer.synchronized = True  # statistics of the global batch, as in `BatchNorm`
    images = keras.Input((None, None, 3), name="images")
    outputs = dict(trunk(pixels(images)))
    for name, value in outputs.items():
        if name in VECTORS:
            outputs[name] = _vectors(value, name, graph.where, ranks)
        elif len(value.shape) == 3 and _prefix(value):
            outputs[name] = layers.Cropping1D((_prefix(value), 0))(value)
    return Backbone(
        keras.Model(images, outputs, name="backbone"),
        feature_layer=feature_layer,
        input_range=pixels.input_range,
        level_layers=tuple(level_layers),
        original=network,
    )


def freeze_stages(backbone: Backbone, count: int) -> None:
    """Freezes the first `count` stages (layers up to the end of a level), in inference mode."""
    if not count:
        return
    model = backbone.model if backbone.built_in else backbone.model.get_layer("trunk")
    ends = [f"{_LEVEL}{name}" for name in backbone.level_layers]
    ends = ends or [name for name in model.output if name not in VECTORS]
    if not ends:
        raise UserError(f"freeze_stages={count}: {backbone.model.name} has no stages")
    if count >= len(ends):
        model.trainable = False
        return
    for operation in Graph(model, model.name).ancestors(model.output[ends[count - 1]]):
        if isinstance(operation, keras.Layer):
            operation.trainable = False


def declared_input(spec: str, kind: str) -> tuple[int | None, str]:
    """The image size (None: any) and pixel range that a network's files declare; builds nothing."""
    path, shape, pixel_type = pathlib.Path(spec).expanduser(), None, "float32"
    if kind == "saved_model":
        shape = input_shape(path)
    elif kind == "keras" and zipfile.is_zipfile(path):
        found = _find_input(json.loads(_keras_config(path)))
        shape, pixel_type = found.get("batch_shape"), str(found.get("dtype"))
    elif kind == "hub":
        config = json.loads(files.read_text(path / "config.json") or "{}")
        shape = [None, *(config.get("config", {}).get("image_shape") or ())]
    square = shape is not None and len(shape) == 4 and shape[1] == shape[2]
    size = shape[1] if shape is not None and square else None
    return size, "0..255" if "int" in pixel_type else "0..1"


def resources(encoder: keras.Model) -> list[tf.Variable]:
    """Variables inside an encoder that Keras does not track: those of SavedModels."""
    saved = (layer for layer in all_layers(encoder) if isinstance(layer, SavedFunction))
    return [variable for layer in saved for variable in layer.function.variables]


class Graph:
    """Tensors of a network with one input by output or layer name; messages call it `where`."""

    def __init__(self, model: keras.Model, where: str) -> None:
        inputs = getattr(model, "inputs", None) if getattr(model, "built", False) else None
        if not inputs or len(inputs) != 1:
            raise UserError(
                f"{where} must be a functional or sequential model with one input, of images: "
                "export any other model as a SavedModel (model.export)"
            )
        self.where, self.input = where, inputs[0]
        self.declared = dict(getattr(model, "pyramid_outputs", {}))  # KerasHub's levels
        if isinstance(model, keras.Sequential):  # its `output` raises
            self.outputs = {model.layers[-1].name: model.outputs[0]}
            model = keras.Model(model.inputs, model.outputs)
        elif isinstance(model.output, dict):
            self.outputs = dict(model.output)
        else:
            self.outputs = dict(zip(model.output_names, model.outputs, strict=True))
        self.operations = list(model.operations)
        self._makers = {
            id(tensor): operation
            for operation in self.operations
            if not isinstance(operation, keras.Model)  # its output belongs to its own graph
            for tensor in keras.tree.flatten(operation.output)
        }

    def tensor(self, name: str, setting: str) -> keras.KerasTensor:
        """The tensor of the output or layer `name`; `setting` is the setting that names it."""
        known = {**self.declared, **self.outputs}
        if name in known:
            return known[name]
        found = [operation for operation in self.operations if operation.name == name]
        if not found:
            saved = any(isinstance(operation, SavedFunction) for operation in self.operations)
            more = " (a SavedModel does not show its layers)" if saved else ""
            names = [op.name for op in self.operations if not isinstance(op, layers.InputLayer)]
            names = [*self.outputs, *(() if saved else (*names, *self.declared))]
            raise UserError(
                f"{setting}={name}: {self.where} has no such output or layer: it has "
                f"{_listed(names, near=name)}{more}"
            )
        if isinstance(found[0], keras.Model):
            problem = f"{self.where} has a whole model of this name: name one of the other layers"
            raise UserError(f"{setting}={name}: {problem}")
        if not isinstance(found[0].output, keras.KerasTensor):
            raise UserError(f"{setting}={name}: the layer has several outputs")
        return found[0].output

    def ancestors(self, tensor: keras.KerasTensor) -> list[Any]:
        """The operations that compute a tensor, in the order of the network."""
        found, waiting = set(), [tensor]
        while waiting:
            operation = self._makers.get(id(waiting.pop()))
            if operation is not None and operation not in found:
                found.add(operation)
                waiting += keras.tree.flatten(operation.input)
        return [operation for operation in self.operations if operation in found]

    def obvious_features(self) -> str:
        """Name of the output or layer with the features if none is chosen."""
        names = list(self.outputs)
        if len(names) > 1:
            names = [name for name in VECTORS if name in self.outputs]
        if not names:
            raise UserError(
                f"{self.where} has the outputs {_listed(list(self.outputs))}: choose one with "
                "feature_layer=NAME"
            )
        operation = self._makers.get(id(self.outputs[names[0]]))
        activation = getattr(operation, "activation", None)
        softmax = activation is keras.activations.softmax
        if not softmax and not isinstance(operation, layers.Softmax):
            return names[0]
        # Class probabilities are not features: use the input of the last layer.
        shapes = layers.Flatten | layers.Reshape
        ignored, linear = layers.Softmax | layers.Activation | layers.Dropout | shapes, 1
        while isinstance(operation, ignored) or (
            linear and isinstance(operation, layers.Dense | layers.Conv2D)
        ):
            linear -= isinstance(operation, layers.Dense | layers.Conv2D)
            operation = self._makers.get(id(operation.input))
        if operation is None:
            raise UserError(
                f"{self.where} outputs class probabilities: name the layer before its "
                "classifier with feature_layer=NAME"
            )
        return operation.name

    def input_range(self) -> str:
        """The pixel range that the first layers expect, or the usual one for the input's type."""
        for operation in self.operations:
            first = any(x is self.input for x in keras.tree.flatten(operation.input))
            if first and isinstance(operation, layers.Rescaling):
                return "0..255" if np.max(operation.scale) < 0.02 else "0..1"
            if first and isinstance(operation, layers.Normalization):
                return "0..255" if np.max(operation.mean) > 2.0 else "0..1"
        if "int" in self.input.dtype:
            return "0..255"
        return self._range_of_statistics() or "0..1"

    def _range_of_statistics(self) -> str:
        """The range in which natural images have the statistics of the first batch norm.

        For EfficientNet-Lite0, the distance below is 0.7 for -1..1 and 1.6 for torch, the next one.
        "" if the network does not begin with a convolution and a trained batch norm.
        """
        norms = [op for op in self.operations if isinstance(op, layers.BatchNormalization)]
        conv = self._makers.get(id(norms[0].input)) if norms else None
        before = None if conv is None else self._makers.get(id(conv.input))
        if isinstance(before, layers.ZeroPadding2D):
            before = self._makers.get(id(before.input))
        if not isinstance(conv, layers.Conv2D) or not isinstance(before, layers.InputLayer):
            return ""
        mean, variance = norms[0].moving_mean.numpy(), norms[0].moving_variance.numpy() + 1e-6
        linear = conv.activation is keras.activations.linear
        if not linear or self.input.shape[3] != 3 or not mean.any():
            return ""
        distances = {}
        for name in INPUT_RANGES:
            made = conv(Pixels((None, None, None, 3), input_range=name)(_natural_images())).numpy()
            shift = np.abs(made.mean(axis=(0, 1, 2)) - mean) / np.sqrt(variance)
            scale = np.abs(np.log((made.var(axis=(0, 1, 2)) + 1e-6) / variance))
            distances[name] = np.median(scale) + np.minimum(shift, 3.0).mean()
        return min(distances, key=lambda name: distances[name])

    def find_levels(self, features: keras.KerasTensor) -> tuple[str, ...]:
        """Names of the last block of each resolution, or of four depths of a transformer.

        The last block of a resolution ends where branches meet for the last time. Without branches,
        it is the last of the narrowest layers, because blocks that expand channels end by reducing.
        """
        if self.declared:
            tokens = [name for name, value in self.declared.items() if len(value.shape) == 3]
            return tuple(self.declared) if not tokens else _evenly(tokens[1:] or tokens)
        size = self.input.shape[1] or USUAL_SIZE
        made = [op for op in self.ancestors(features) if isinstance(op.output, keras.KerasTensor)]
        made = [op for op in made if not isinstance(op, layers.InputLayer | layers.ZeroPadding2D)]
        if not made or any(isinstance(operation, SavedFunction) for operation in made):
            return ()
        trial = keras.KerasTensor((1, size, size, self.input.shape[3]), dtype=self.input.dtype)
        function = keras.Function([self.input], [operation.output for operation in made])
        octaves: dict[int, list[tuple[str, int, bool]]] = {}
        tokens = []
        for operation, found in zip(made, function.compute_output_spec([trial]), strict=True):
            # Compared by name, because `x + y` makes an operation of another class than the layer.
            merges = type(operation).__name__ in ("Add", "Concatenate")
            merges = merges and len(keras.tree.flatten(operation.input)) > 1
            shape = found.shape
            if len(shape) == 3 and merges and shape[1] > 1:
                tokens.append(operation.name)
            if len(shape) == 4 and shape[1] > 1 and shape[3] > 3:
                octave = round(math.log2(size / shape[1]))
                octaves.setdefault(octave, []).append((operation.name, shape[3], merges))
        if tokens:  # a transformer, whose only map is that of the patches
            return _evenly(tokens)
        levels = []
        for _, members in sorted(octaves.items()):
            narrowest = min(channels for _, channels, _ in members)
            blocks = [name for name, _, merges in members if merges]
            levels.append((blocks or [name for name, c, _ in members if c == narrowest])[-1])
        return tuple(levels)


def _natural_images() -> np.ndarray:
    """Noise [8, 48, 48, 3] in [0, 1] with the 1/f spectrum, mean and spread of photographs."""
    rng, frequencies = np.random.default_rng(0), np.fft.fftfreq(48)
    radius = np.maximum(np.hypot(frequencies[:, None], frequencies), 1 / 48)
    noise = rng.normal(size=(8, 3, 48, 48)) + 3.0 * rng.normal(size=(8, 1, 48, 48))  # mostly gray
    waves = np.moveaxis(np.fft.ifft2(np.fft.fft2(noise) / radius).real, 1, 3)
    images = np.array([0.485, 0.456, 0.406]) + 0.27 * waves / waves.std()
    return np.clip(images, 0.0, 1.0).astype(np.float32)


def _evenly(names: list[str]) -> tuple[str, ...]:
    """At most four evenly spaced names, including the last."""
    count = min(_TOKEN_LEVELS, len(names))
    return tuple(names[len(names) * (i + 1) // count - 1] for i in range(count))


def _vectors(
    value: keras.KerasTensor, name: str, where: str, ranks: tuple[int, ...]
) -> keras.KerasTensor:
    """Vectors [B, F] in float32, from vectors, maps [B, H, W, F] or tokens [B, T, F]."""
    shape = value.shape
    if len(shape) not in ranks or shape[-1] is None or shape[-1] < 2:
        raise UserError(
            f"{where}: its {name} have the shape {_words(shape)}: expected vectors [N, F], maps "
            "[N, H, W, F] or tokens [N, T, F], F at least 2; choose others with feature_layer=NAME"
        )
    if len(shape) == 2:
        return layers.Activation("linear", name=f"{name}_vectors", dtype="float32")(value)
    if len(shape) == 3 and _prefix(value):
        value = layers.Cropping1D((0, shape[1] - 1), name=f"{name}_class_token")(value)
    pool = layers.GlobalAveragePooling2D if len(shape) == 4 else layers.GlobalAveragePooling1D
    return pool(name=f"{name}_pool", dtype="float32")(value)


def _prefix(tokens: keras.KerasTensor) -> int:
    """Number of tokens [B, T, C] before the patches of a square image: T = side * side + prefix."""
    count = tokens.shape[1]
    return 0 if count is None else count - math.isqrt(count) ** 2


def _words(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join(['N', *('?' if side is None else str(side) for side in shape[1:])])}]"


def _listed(names: list[str], near: str = "") -> str:
    """A limited list of names for a message; names similar to `near` come first."""
    unique = list(dict.fromkeys([*difflib.get_close_matches(near, names), *names]))
    more = f", ... ({len(unique)} in all)" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more if unique else "none"


@keras.saving.register_keras_serializable(package="tfvmf")
class Pixels(layers.Layer):
    """Converts images [B, H, W, 3] in [0, 1] to the size, pixel range and type of a network.

    Args:
        expected: Shape [B, h, w, c] of the input. Images are resized (bilinear) if h and w are
            known; c is 3, or 1 for gray.
        pixel_type: Type of the input; integers are whole gray levels.
        input_range: One of `INPUT_RANGES`; "" for 0..1, or 0..255 for an integer type.
    """

    def __init__(
        self,
        expected: tuple[int | None, ...],
        *,
        pixel_type: str = "float32",
        input_range: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **options})
        whole = "int" in pixel_type
        self.expected, self.pixel_type = tuple(expected), pixel_type
        self.input_range = input_range or ("0..255" if whole else "0..1")
        shape, problem = list(self.expected), ""
        if len(shape) != 4 or shape[3] not in (1, 3):
            problem = f"the model's input has the shape {shape}: expected images, [N, H, W, 3] or "
            problem += "[N, H, W, 1]"
        elif shape[0] is not None:
            problem = f"the model takes batches of {shape[0]} only: save it for any batch size"
        elif (shape[1] is None) != (shape[2] is None):
            problem = f"the model's input {shape} fixes one side only"
        elif self.input_range not in INPUT_RANGES:
            problem = f"input_range={input_range} is unknown: use one of {', '.join(INPUT_RANGES)}"
        elif whole and self.input_range != "0..255":
            problem = f"input_range={input_range}: the model's input is {pixel_type}: use 0..255"
        if problem:
            raise UserError(problem)

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Resizes, converts to gray, scales and casts as needed."""
        _, height, width, channels = self.expected
        if height is not None:
            images = tf.image.resize(images, [height, width])
        if channels == 1:
            images = tf.image.rgb_to_grayscale(images)
        limits = INPUT_RANGES[self.input_range]
        if limits is None:  # caffe or torch: ImageNet's constants per channel
            pixels = keras.applications.imagenet_utils.preprocess_input(
                images * 255.0, data_format="channels_last", mode=self.input_range
            )
        else:
            pixels = images * (limits[1] - limits[0]) + limits[0]
        if "int" in self.pixel_type:
            pixels = tf.round(pixels)
        return tf.cast(pixels, self.pixel_type)

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        own = {name: getattr(self, name) for name in ("expected", "pixel_type", "input_range")}
        return {**super().get_config(), **own}


def load_keras(path: pathlib.Path, advice: str = "") -> Any:
    """A `.keras` file, loaded in safe mode; `advice` ends the error message."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is damaged, or not a Keras file (model.save('name.keras'))")
    if b'"keras_hub' in _keras_config(path):
        _keras_hub(str(path))
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # the classes in the file can raise anything
        raise UserError(f"{path} cannot be loaded by Keras ({str(error)[:160]}){advice}") from error


def _load_keras(path: pathlib.Path) -> keras.Model:
    """A `.keras` file of a network that computes in float32."""
    model = load_keras(path, ": export the model as a SavedModel (model.export) instead")
    own = {layer.compute_dtype for layer in all_layers(model)} & {"float16", "bfloat16", "float64"}
    if own and isinstance(model, keras.Model):
        raise UserError(
            f"{path} computes in {', '.join(sorted(own))}: save it with layers of float32 "
            "(keras.config.set_dtype_policy)"
        )
    return model


def _load_saved(path: pathlib.Path, trust_model: bool) -> keras.Model:
    """A SavedModel: its signature `serving_default`, its only signature, or its call."""
    layer = SavedFunction(path, trust_model=trust_model, name="saved_function")
    inputs = keras.Input(batch_shape=tuple(layer.spec.shape), dtype=layer.spec.dtype.name)
    return keras.Model(inputs, layer(inputs), name="saved_model")


def _load_application(name: str, weights: str) -> tuple[keras.Model, np.ndarray | None]:
    """A network of Keras Applications without classifier, and the black and white it expects."""
    known = [key for key in dir(keras.applications) if key[0].isupper()]
    if name not in known:
        raise UserError(f"applications:{name} is unknown: Keras has {_listed(known, near=name)}")
    weights = weights or "imagenet"
    file = pathlib.Path(weights).expanduser()
    if weights not in ("none", "imagenet") and not file.is_file():
        raise UserError(f"weights={weights}: expected none, imagenet or a .weights.h5 file")
    build = getattr(keras.applications, name)
    try:
        model = build(include_top=False, weights=None if weights == "none" else str(file))
    except Exception as error:  # a failed download, or a file with other weights
        url = re.search(r"https?://\S+?/([^/\s:]+)(?=[\s:]|$)", str(error))
        if url is None:
            problem = str(error)[:160]
            raise UserError(f"applications:{name}, weights={weights}: {problem}") from error
        raise UserError(
            f"applications:{name}: its weights cannot be downloaded: put {url.group(1)} into "
            "~/.keras/models, or use weights=none or weights=/path.weights.h5"
        ) from error
    module = getattr(keras.applications, build.__module__.rpartition(".")[2])
    return model, module.preprocess_input(255.0 * _ENDS)[0, 0]


def _load_hub(preset: str, weights: str) -> tuple[keras.Model, np.ndarray | None]:
    """An image backbone of KerasHub, and the black and white of its preset, if defined."""
    hub, where = _keras_hub(f"hub:{preset}"), f"hub:{preset}"
    if weights not in ("", "none"):
        raise UserError(f"weights={weights}: {where} has its own; use none for random ones")
    try:
        model = hub.models.Backbone.from_preset(preset, load_weights=not weights)
    except Exception as error:  # a failed download, or an unknown preset
        raise UserError(
            f"{where} cannot be loaded ({str(error)[:160]}): use the name of a KerasHub preset, "
            "or a local folder that save_to_preset wrote"
        ) from error
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
        takes = ", ".join(f"{x.name} {_words(x.shape)}" for x in model.inputs)
        raise UserError(f"{where} is not an image backbone: it takes {takes}")
    try:
        converter = hub.layers.ImageConverter.from_preset(preset)
    except Exception:  # a preset of a backbone alone has no preprocessor
        return model, None
    scale, offset = converter.scale, converter.offset
    ends = 255.0 * _ENDS[0, 0] * (1.0 if scale is None else np.asarray(scale))
    return model, ends + (0.0 if offset is None else np.asarray(offset))


def _range_of(ends: np.ndarray, where: str) -> str:
    """The pixel range in which black and white are `ends` [2, 3]."""
    for name in INPUT_RANGES:
        made = Pixels((None, None, None, 3), input_range=name)(_ENDS)[0, 0]
        if np.allclose(made, ends, atol=0.02):
            return name
    raise UserError(f"{where} takes pixels from {ends[0]} to {ends[1]}: choose an input_range")


def _keras_hub(where: str) -> Any:
    try:
        return importlib.import_module("keras_hub")
    except ImportError as error:
        raise UserError(f"{where} needs KerasHub: pip install 'tfvmf[hub]'") from error


def _keras_config(path: pathlib.Path) -> bytes:
    """The configuration in a `.keras` file, JSON."""
    with zipfile.ZipFile(path) as file:
        return file.read("config.json") if "config.json" in file.namelist() else b"{}"


def _find_input(config: Any) -> dict[str, Any]:
    """The configuration of the first input of a Keras model, {} if there is none."""
    if isinstance(config, dict) and config.get("class_name") == "InputLayer":
        return config["config"]
    inside = config.values() if isinstance(config, dict) else config
    found = (_find_input(value) for value in inside if isinstance(value, dict | list))
    return next(filter(None, found), {})


@keras.saving.register_keras_serializable(package="tfvmf")
class SavedFunction(layers.Layer):
    """A function of a SavedModel as a layer that is not trained: pixels in, {name: tensor} out.

    `keras.layers.TFSMLayer` keeps an unused second copy of every weight, and does not report the
    input of the function (here: `spec`). A file with this layer refers to the directory `path`.
    """

    def __init__(
        self, path: str | pathlib.Path, *, trust_model: bool = False, **options: Any
    ) -> None:
        super().__init__(**{"dtype": "float32", **options, "trainable": False})
        self._saved_path = str(path)
        self._loaded = load_saved_model(path, trust_model=trust_model)  # keeps variables alive
        self.function = _function(self._loaded, path)
        leaves = tf.nest.flatten(self.function.structured_input_signature)
        specs = [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]
        if len(specs) != 1 or specs[0].shape.rank != 4:
            raise UserError(
                f"{path} takes {', '.join(str(spec.shape) for spec in specs) or 'nothing'}: "
                "expected one input of images, [N, H, W, 3]"
            )
        self.spec: tf.TensorSpec = specs[0]

    def call(self, pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        """All outputs of the function, by name."""
        args, keywords = tf.nest.map_structure(
            lambda leaf: pixels if isinstance(leaf, tf.TensorSpec) else leaf,
            self.function.structured_input_signature,
        )
        outputs = self.function(*args, **keywords)
        if isinstance(outputs, dict):
            return outputs
        return {f"output_{i}": value for i, value in enumerate(tf.nest.flatten(outputs))}

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`, without trust in the SavedModel."""
        return {**super().get_config(), "path": self._saved_path}


def _function(loaded: Any, path: str | pathlib.Path) -> Any:
    """The concrete function to call, which knows the shapes of its inputs and outputs."""
    signatures = dict(getattr(loaded, "signatures", {}))
    if "serving_default" in signatures:
        return signatures["serving_default"]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    # A function saved as the object's call; no other attribute describes its inputs.
    called = getattr(loaded, "__call__", None)  # noqa: B004
    for function in getattr(called, "concrete_functions", []):
        # The function traced for inference, if there is one for training too.
        if not any(leaf is True for leaf in tf.nest.flatten(function.structured_input_signature)):
            return function
    raise UserError(
        f"{path} has neither the signature serving_default nor a call: it has "
        f"{_listed(list(signatures))}"
    )
