"""Dropout whose masks come from seeds, for training and for Monte Carlo passes alike."""

import contextlib
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfvmf import counter_random

_active = threading.local()  # replicas build their graphs in threads of their own


@contextlib.contextmanager
def dropout_masks(seeds: tf.Tensor) -> Iterator[None]:
    """Switches on every `Dropout` of the models that are called inside.

    It says nothing of `training`: with `training=False`, batch norm keeps its moving statistics
    and a pass is one draw of Monte Carlo dropout.

    Args:
        seeds: int32 [B, 2], one a row of the batch (`counter_random.example_seeds`). Rows with
            the same seed drop the same units.
    """
    before = getattr(_active, "seeds", None)
    _active.seeds = seeds
    try:
        yield
    finally:
        _active.seeds = before


@keras.saving.register_keras_serializable(package="tfvmf")
class Dropout(keras.layers.Layer):
    """Sets units to zero with probability `rate` and scales the rest by 1 / (1 - rate).

    Of a feature map [B, H, W, C] whole channels are dropped: neighboring pixels say the same.
    Outside of `dropout_masks` the layer is the identity. Masks are a function of the seeds and of
    the layer's name, so N replicas and a resumed run drop what one uninterrupted device would.

    Args:
        rate: Probability of dropout_masks a unit, in [0, 1).
        **kwargs: As of every Keras layer; the name must be unique in its model.
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"rate must be in [0, 1), not {rate}")
        self.rate = rate

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Drops units of [B, C] or channels of [B, H, W, C]."""
        seeds = getattr(_active, "seeds", None)
        if seeds is None or self.rate == 0.0:
            return inputs
        salt = tf.bitcast(tf.constant(zlib.crc32(self.name.encode()), tf.uint32), tf.int32)
        channels = inputs.shape[-1]
        drawn = counter_random.uniforms(tf.bitwise.bitwise_xor(seeds, salt), channels)
        mask = tf.cast(drawn >= self.rate, inputs.dtype) / (1.0 - self.rate)
        if inputs.shape.rank == 4:
            mask = mask[:, None, None, :]
        return inputs * mask

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the layer again."""
        return {**super().get_config(), "rate": self.rate}


def has_dropout(model: keras.Model) -> bool:
    """Whether a layer of the model, or of a model inside it, drops units."""
    return any(
        has_dropout(layer) if isinstance(layer, keras.Model) else isinstance(layer, Dropout)
        for layer in model.layers
    )
