"""Optimizers by name, with warm-up, cosine decay, and weight decay of matrices only."""

import math
from typing import Any

import keras
import tensorflow as tf
from ml_collections import ConfigDict

_LONG = 1.5  # ratio of sides from which Muon iterates on the smaller, square matrix


def make_optimizer(
    config: ConfigDict,
    variables: list[keras.Variable],
    *,
    steps_per_epoch: int,
    total_steps: int,
    cycles: int = 1,
) -> keras.optimizers.Optimizer:
    """Builds the optimizer that `config` (a run's section `optimizer`) describes.

    In each cycle, the learning rate rises linearly from 0 over the warm-up and falls to 0 along a
    cosine. Weight decay excludes one-dimensional variables: biases and the scales of norms.
    """
    cycle = total_steps // cycles
    warmup = min(round(config.warmup_epochs * steps_per_epoch), cycle - 1)
    kind = Cycles if cycles > 1 else keras.optimizers.schedules.CosineDecay
    schedule = kind(
        initial_learning_rate=0.0 if warmup else config.learning_rate,
        decay_steps=cycle - warmup,
        warmup_target=config.learning_rate if warmup else None,
        warmup_steps=warmup,
    )
    decay = config.weight_decay or None
    if config.name == "adam":
        optimizer = keras.optimizers.Adam(schedule, weight_decay=decay)
    elif config.name == "muon":
        optimizer = Muon(schedule, momentum=config.momentum, matrix_decay=config.weight_decay)
    else:
        optimizer = keras.optimizers.SGD(schedule, momentum=config.momentum, weight_decay=decay)
    optimizer.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer


@keras.saving.register_keras_serializable(package="tfvmf")
class Cycles(keras.optimizers.schedules.CosineDecay):
    """Repeated warm-up and decay; Keras's CosineDecayRestarts has no warm-up."""

    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate at a step."""
        return super().__call__(keras.ops.mod(step, self.warmup_steps + self.decay_steps))


@keras.saving.register_keras_serializable(package="tfvmf")
class Muon(keras.optimizers.Muon):
    """Keras's Muon (Jordan et al., 2024), also for convolution filters and on several replicas.

    A filter [h, w, C, K] is a matrix [h w C, K]. With M = U S V' the Nesterov momentum of its
    gradient, and U V' from five Newton-Schulz iterations, the step is

        W <- (1 - rate decay) W - rate sqrt(max(1, K / (h w C))) U V'

    One-dimensional variables are updated by Adam, at a tenth of the rate. `matrix_decay` is the
    weight decay of matrices: Keras's own arguments for it assign to variables in a way that fails
    with several replicas.
    """

    def __init__(
        self, learning_rate: Any = 0.03, *, matrix_decay: float = 0.0, **kwargs: Any
    ) -> None:
        own = {"weight_decay": None, "adam_weight_decay": None, "adam_lr_ratio": 0.1}
        super().__init__(learning_rate, **{**own, **kwargs})
        self.matrix_decay = matrix_decay

    def build(self, var_list: list[keras.Variable]) -> None:
        """Creates the moments; variables with a second moment are updated by Adam."""
        super().build(var_list)
        for position, variable in enumerate(var_list):
            if len(variable.shape) > 1:
                self.adam_velocities[position] = None

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: tf.Tensor) -> None:
        """Updates one variable."""
        rate = tf.cast(learning_rate, variable.dtype)
        if self.matrix_decay and len(variable.shape) > 1:
            self.assign_sub(variable, rate * self.matrix_decay * variable)
        super().update_step(tf.cast(gradient, variable.dtype), variable, rate)

    def zeropower_via_newtonschulz5(self, x: tf.Tensor, steps: int) -> tf.Tensor:
        """U V' of a matrix, or of a filter as a matrix.

        Every iterate is M times a polynomial of M'M. For a long matrix, only the polynomial is
        iterated, which is small and square: M itself is multiplied twice instead of ten times. The
        result is the same up to rounding (0.1 %).
        """
        matrix = tf.reshape(x, [-1, x.shape[-1]])
        rows, columns = matrix.shape
        if max(rows, columns) < _LONG * min(rows, columns):
            return tf.reshape(super().zeropower_via_newtonschulz5(matrix, steps), x.shape)
        matrix /= tf.norm(matrix) + 1e-7
        tall = rows > columns
        gram = tf.matmul(matrix, matrix, transpose_a=tall, transpose_b=not tall)
        product = identity = tf.eye(min(rows, columns), dtype=matrix.dtype)
        for step in range(steps):
            factor = self.muon_a * identity + self.muon_b * gram
            factor += self.muon_c * tf.matmul(gram, gram)
            product = tf.matmul(factor, product) if step else factor
            if step < steps - 1:
                gram = tf.matmul(factor, tf.matmul(factor, gram))
        result = tf.matmul(matrix, product) if tall else tf.matmul(product, matrix)
        return tf.reshape(result, x.shape)

    def lr_adjust(self, x: tf.Tensor) -> tf.Tensor:
        """Scales the update so that its entries have the same size for every shape."""
        rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
        return x * math.sqrt(max(1.0, columns / rows))

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`."""
        return {**super().get_config(), "matrix_decay": self.matrix_decay}
