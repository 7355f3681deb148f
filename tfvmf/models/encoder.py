"""The encoder: maps an image to features, a mean direction and its concentration."""

import math
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tfvmf import distribute
from tfvmf.errors import UserError
from tfvmf.models.backbones import VECTORS, Backbone, adapt, load_backbone
from tfvmf.models.layers import BatchNorm, Dropout
from tfvmf.pixels import check_pixels
from tfvmf.settings import LEVELS

OUTPUTS = ("features", "mean_direction", "concentration")


@keras.saving.register_keras_serializable(package="tfvmf")
class Encoder(keras.Model):
    """A functional model that scales uint8 images, and rejects floats outside [0, 1] if eager."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> dict[str, tf.Tensor]:
        """Images [B, H, W, 3], uint8 or float in [0, 1], to a dictionary of outputs."""
        if tf.executing_eagerly() and not isinstance(inputs, keras.KerasTensor):
            check_pixels(inputs)
        if "uint8" in str(getattr(inputs, "dtype", "")):
            inputs = keras.ops.cast(inputs, "float32") / 255.0
        return super().call(inputs, training=training, mask=mask)


def build_encoder(
    backbone: str | keras.Model | keras.Layer | Backbone = "resnet18",
    *,
    width: int = 64,
    stem: str = "cifar",
    dimension: int | None = 128,
    hidden: int = 512,
    hidden_layers: int = 1,
    output_norm: bool = False,
    dropout: float = 0.0,
    concentration: bool = True,
    initial_concentration: float = math.log(2.0),
    concentration_levels: str = "last",
) -> keras.Model:
    """Builds an encoder: a backbone with a head for the direction and one for the concentration.

    Args:
        backbone: A name or spec (`load_backbone`); a Keras model or layer from images to features,
            which are vectors, maps or tokens (see `adapt` for choosing layers); or the result of
            these functions.
        width: Channels of the first stage, for a named backbone (`resnet.build_backbone`).
        stem: `cifar` or `imagenet`, for a named backbone.
        dimension: Length d of the mean direction. None: no direction head, the mean direction is
            the backbone's own or its normalized features (for encoders trained with labels).
        hidden: Width of the hidden layers of both heads.
        hidden_layers: Hidden layers of the direction head (`build_direction_head`).
        output_norm: Batch norm at the end of the direction head (`build_direction_head`).
        dropout: Probability of dropping a unit in a named backbone and in the heads (`Dropout`).
        concentration: Whether there is a concentration head; without one, `concentration` is 1.
        initial_concentration: Scale of kappa, see `build_concentration_head`.
        concentration_levels: Input of the concentration head: the `last` features, as in the
            paper, or pooled means and deviations of `all` levels of the backbone (`Levels`).

    Returns:
        A Keras model from float images [B, H, W, 3] in [0, 1] to a dictionary of float32
        `features` [B, F], `mean_direction` [B, d] of unit length and `concentration` [B].
        Its parts are `get_layer("direction_head")`, `get_layer("concentration_head")` and a layer
        named after the backbone (`backbone` if that is not built in).
    """
    if concentration_levels not in LEVELS:
        raise ValueError(f"concentration_levels must be last or all, not {concentration_levels!r}")
    if hidden < 1:
        raise ValueError(f"hidden must be at least 1, not {hidden}")
    if dimension is not None and dimension < 2:
        raise ValueError(f"dimension must be at least 2 (a circle), not {dimension}")
    if isinstance(backbone, str):
        backbone = load_backbone(backbone, width=width, stem=stem, dropout=dropout)
    elif not isinstance(backbone, Backbone):
        backbone = adapt(backbone)
    given = backbone.model.input
    inputs = keras.Input(given.shape[1:], name=given.name)
    outputs = backbone.model(inputs)
    features = outputs["features"]
    if dimension is None:
        own = outputs.get("mean_direction", features)
        direction = layers.UnitNormalization(name="mean_direction", dtype="float32")(own)
    else:
        direction = build_direction_head(
            features.shape[-1],
            dimension=dimension,
            hidden=hidden,
            hidden_layers=hidden_layers,
            output_norm=output_norm,
            dropout=dropout,
        )(features)
    if concentration:
        head_inputs, everything = features, concentration_levels == "all"
        if everything:
            maps = {key: x for key, x in outputs.items() if key not in VECTORS}
            if not maps:
                raise UserError(
                    "concentration levels=all: the backbone has no level maps: name layers with "
                    "level_layers=a,b,c, or use levels=last"
                )
            head_inputs = Levels(name="levels", dtype="float32")(maps)
        kappa = build_concentration_head(
            head_inputs.shape[-1],
            hidden=hidden,
            initial=initial_concentration,
            dropout=dropout,
            # The scale of external features is unknown.
            input_norm=everything or not backbone.built_in,
        )(head_inputs)
    else:
        kappa = ConstantConcentration(name="concentration")(features)
    made = {"features": features, "mean_direction": direction, "concentration": kappa}
    kind = Encoder if len(inputs.shape) == 4 else keras.Model
    return kind(inputs, made, name="encoder")


def with_projection(encoder: keras.Model) -> keras.Model:
    """The same encoder with shared weights, and the unnormalized `projection` [B, d]."""
    head = encoder.get_layer("direction_head")
    divided = head.get_layer("mean_direction")
    both = keras.Model(
        head.input, {"projection": divided.input, "mean_direction": divided.output}, name=head.name
    )
    features, kappa = encoder.output["features"], encoder.output["concentration"]
    outputs = {"features": features, "concentration": kappa, **both(features)}
    return keras.Model(encoder.input, outputs, name=encoder.name)


def without_concentration(encoder: keras.Model) -> keras.Model:
    """The same encoder with shared weights, without running its concentration head."""
    outputs = {name: value for name, value in encoder.output.items() if name != "concentration"}
    return keras.Model(encoder.input, outputs, name=encoder.name)


def with_levels(encoder: keras.Model) -> keras.Model:
    """The same encoder with shared weights, and its `levels` [B, L] if it has any (`Levels`)."""
    names = [layer.name for layer in encoder.layers]
    if "levels" in names:
        outputs = {**encoder.output, "levels": encoder.get_layer("levels").output}
        return keras.Model(encoder.input, outputs, name=encoder.name)
    networks = [layer for layer in encoder.layers if isinstance(layer, keras.Model)]
    network = next((layer for layer in networks if isinstance(layer.output, dict)), None)
    if network is None or set(network.output) <= set(VECTORS):
        return encoder
    # The maps belong to the backbone's own graph, so the few layers after it are called again.
    maps = dict(network(encoder.input))
    features, own = maps.pop("features"), maps.pop("mean_direction", None)
    made = {"features": features, "levels": Levels(name="levels", dtype="float32")(maps)}
    kappa = "concentration_head" if "concentration_head" in names else "concentration"
    made["concentration"] = encoder.get_layer(kappa)(features)
    if "direction_head" in names:
        made["mean_direction"] = encoder.get_layer("direction_head")(features)
    else:
        direction = encoder.get_layer("mean_direction")
        made["mean_direction"] = direction(features if own is None else own)
    return keras.Model(encoder.input, made, name=encoder.name)


def copy_without_concentration(encoder: keras.Model) -> keras.Model:
    """An encoder of the same structure with its own weights, and concentration 1."""
    outputs = dict(encoder.output)
    outputs["concentration"] = ConstantConcentration(name="concentration")(outputs["features"])
    return keras.models.clone_model(keras.Model(encoder.input, outputs, name=encoder.name))


def frozen_outputs(encoder: keras.Model) -> keras.Model:
    """Images -> `mean_direction` [B, d] and the concentration head's `head_inputs` [B, F]."""
    levels = [layer.output for layer in encoder.layers if layer.name == "levels"]
    outputs = {
        "mean_direction": encoder.output["mean_direction"],
        "head_inputs": (levels or [encoder.output["features"]])[0],
    }
    return keras.Model(encoder.input, outputs, name="frozen_outputs")


@keras.saving.register_keras_serializable(package="tfvmf", name="Certain")  # its name in 0.1
class ConstantConcentration(layers.Layer):
    """Features [B, F] -> ones [B]: the concentration of an encoder that does not learn one."""

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Returns ones [B]."""
        return keras.ops.ones_like(inputs[:, 0], dtype="float32")


def build_direction_head(
    features: int,
    *,
    dimension: int = 128,
    hidden: int = 512,
    hidden_layers: int = 1,
    output_norm: bool = False,
    dropout: float = 0.0,
) -> keras.Model:
    """Builds features [B, features] -> mean direction mu [B, dimension], |mu| = 1.

    As in the paper: linear without bias, batch norm, ReLU, linear to the projection v; then the
    layer `mean_direction` computes mu = v / |v|. SimSiam has two `hidden_layers` of width `hidden`,
    and `output_norm`: batch norm of v without scale and offset.
    """
    inputs = keras.Input((features,), name="features")
    x = _hidden(inputs, hidden, count=hidden_layers)
    if dropout:
        x = Dropout(dropout, dtype="float32", name="direction_head_dropout")(x)
    bias = not output_norm  # the norm would remove it
    x = layers.Dense(dimension, use_bias=bias, dtype="float32", name="output")(x)
    if output_norm:
        x = BatchNorm(affine=False, dtype="float32", name="output_norm")(x)
    outputs = layers.UnitNormalization(name="mean_direction", dtype="float32")(x)
    return keras.Model(inputs, outputs, name="direction_head")


def build_concentration_head(
    features: int,
    *,
    hidden: int = 512,
    initial: float = math.log(2.0),
    dropout: float = 0.0,
    input_norm: bool = False,
) -> keras.Model:
    """Builds features [B, features] -> concentration kappa [B], kappa = s softplus(v) >= 0.

    The scale s = initial / softplus(0) makes `initial` the kappa of v = 0, the center of an
    untrained head. The default is the paper's head, s = 1. `input_norm` normalizes inputs of very
    different scales (batch norm without scale and offset).
    """
    if initial <= 0.0:
        raise ValueError(f"initial must be positive, not {initial}")
    x = inputs = keras.Input((features,), name="features")
    if input_norm:
        x = BatchNorm(affine=False, dtype="float32", name="input_norm")(x)
    x = _hidden(x, hidden)
    if dropout:
        x = Dropout(dropout, dtype="float32", name="concentration_head_dropout")(x)
    x = layers.Dense(1, dtype="float32", name="output")(x)
    x = layers.Activation("softplus", name="softplus", dtype="float32")(x)
    x = layers.Rescaling(initial / math.log(2.0), name="scale", dtype="float32")(x)
    outputs = layers.Reshape((), name="concentration", dtype="float32")(x)
    return keras.Model(inputs, outputs, name="concentration_head")


def build_predictor(dimension: int, *, hidden: int) -> keras.Model:
    """Builds projection [B, dimension] -> predicted direction, |.| = 1, by one hidden layer."""
    inputs = keras.Input((dimension,), name="projection")
    x = _hidden(inputs, hidden)
    x = layers.Dense(dimension, dtype="float32", name="output")(x)
    outputs = layers.UnitNormalization(name="prediction", dtype="float32")(x)
    return keras.Model(inputs, outputs, name="predictor")


def _hidden(x: keras.KerasTensor, units: int, count: int = 1) -> keras.KerasTensor:
    """`count` times linear without bias, batch norm, ReLU; in float32 under any precision."""
    for suffix in [*(f"_{number}" for number in range(1, count)), ""]:
        x = layers.Dense(units, use_bias=False, dtype="float32", name=f"hidden{suffix}")(x)
        x = BatchNorm(dtype="float32", name=f"norm{suffix}")(x)
        x = layers.ReLU(dtype="float32", name=f"relu{suffix}")(x)
    return x


@keras.saving.register_keras_serializable(package="tfvmf")
class Levels(keras.layers.Layer):
    """Maps {name: [B, H, W, C] or [B, T, C]} -> [B, 2 * sum of C]: channels' mean and deviation.

    Unlike the last features, the first levels show whether an image is noisy, flat or filtered.
    """

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Pools over space, with the maps sorted by name."""
        parts = []
        for name in sorted(inputs):
            maps = tf.cast(inputs[name], tf.float32)
            mean, variance = tf.nn.moments(maps, list(range(1, maps.shape.rank - 1)))
            parts += [mean, tf.sqrt(variance + 1e-6)]
        return tf.concat(parts, axis=1)


@keras.saving.register_keras_serializable(package="tfvmf")
class Prototypes(keras.layers.Layer):
    """Directions [B, d] -> cosines [B, count] with learned unit vectors, and a queue per view."""

    def __init__(self, count: int, *, queue_length: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        self.count, self.queue_length = count, queue_length

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the prototypes [d, K], random unit vectors, and an empty queue [2, L, d]."""
        dimension = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel", shape=(dimension, self.count), initializer="random_normal"
        )
        self.kernel.assign(tf.math.l2_normalize(self.kernel, axis=0))
        if self.queue_length:
            self.queue = self.add_weight(
                name="queue",
                shape=(2, self.queue_length, dimension),
                initializer="zeros",
                trainable=False,
                aggregation="only_first_replica",  # every replica pushes the same global batch
            )

    def call(self, inputs: tf.Tensor, learn: tf.Tensor | bool = True) -> tf.Tensor:
        """The cosines; if `learn` is false, no gradient reaches the prototypes."""
        return tf.matmul(inputs, tf.where(learn, self.kernel, tf.stop_gradient(self.kernel)))

    def normalize(self) -> None:
        """Restores unit length after an optimizer step."""
        distribute.update(self.kernel, lambda kernel: tf.math.l2_normalize(kernel, axis=0))

    def push(self, view: int, directions: tf.Tensor) -> None:
        """Adds a batch [B, d] at the front of a view's queue and drops the oldest directions."""
        past = self.queue[view, : self.queue_length - tf.shape(directions)[0]]
        queues = tf.unstack(self.queue)
        queues[view] = tf.concat([tf.stop_gradient(directions), past], axis=0)
        self.queue.assign(tf.ensure_shape(tf.stack(queues), self.queue.shape))

    def is_full(self, view: int) -> tf.Tensor:
        """Whether a view's queue has been filled."""
        return tf.reduce_any(tf.not_equal(self.queue[view, -1], 0.0))

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        return {**super().get_config(), "count": self.count, "queue_length": self.queue_length}
