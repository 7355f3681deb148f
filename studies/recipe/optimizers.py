"""Muon and LARS for the search; Adam and SGD are Keras's."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class Optimizer:
    """One step: variables and gradients in, learning rate given from outside.

    Args:
        name: `adam`, `sgd`, `lars` or `muon`.
        variables: What is trained. Those of one dimension (norms, biases) get no weight decay; with
            `muon` Adam moves them, with `lars` their rate is not adapted.
        momentum: Of sgd, lars and muon, by Nesterov's rule.
        weight_decay: Decoupled for adam and muon (times the rate), added to the gradient otherwise.
        small_rate: With `muon`, Adam's rate for what is not a matrix, relative to the rate.
    """

    def __init__(
        self,
        name: str,
        variables: Sequence[keras.Variable],
        *,
        momentum: float,
        weight_decay: float,
        small_rate: float = 0.1,
    ) -> None:
        self.name, self.momentum, self.decay = name, momentum, weight_decay
        self.small_rate = small_rate
        self.variables = [v.value for v in variables]
        self.first = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.variables]
        adaptive = name == "adam"
        self.second = [
            tf.Variable(tf.zeros_like(v), trainable=False)
            if adaptive or (name == "muon" and len(v.shape) < 2)
            else None
            for v in self.variables
        ]
        self.steps = tf.Variable(0.0, trainable=False)

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> None:
        """Moves the variables."""
        self.steps.assign_add(1.0)
        for v, g, m, s in zip(self.variables, gradients, self.first, self.second, strict=True):
            matrix = len(v.shape) >= 2
            if s is not None:  # Adam
                m.assign(0.9 * m + 0.1 * g)
                s.assign(0.999 * s + 0.001 * tf.square(g))
                unbiased = tf.sqrt(1.0 - 0.999**self.steps) / (1.0 - 0.9**self.steps)
                scale = rate if self.name == "adam" else rate * self.small_rate
                decayed = v * (1.0 - rate * self.decay) if matrix else v
                v.assign(decayed - scale * unbiased * m / (tf.sqrt(s) + 1e-8))
                continue
            if self.name == "muon":
                m.assign(self.momentum * m + g)
                update = orthogonalized(g + self.momentum * m)
                v.assign(v * (1.0 - rate * self.decay) - rate * update)
                continue
            if matrix:
                g = g + self.decay * v
                if self.name == "lars":
                    ratio = tf.norm(v) / (tf.norm(g) + 1e-9)
                    g = g * tf.where(ratio > 0, ratio, 1.0)
            m.assign(self.momentum * m + g)
            v.assign(v - rate * (g + self.momentum * m))


def orthogonalized(update: tf.Tensor, *, iterations: int = 5) -> tf.Tensor:
    """The nearest matrix with equal singular values, by Newton and Schulz; filters by columns."""
    columns = update.shape[-1]
    x = tf.reshape(update, [-1, columns])
    rows = x.shape[0]
    turned = rows > columns
    x = tf.transpose(x) if turned else x
    x = x / (tf.norm(x) + 1e-7)
    for _ in range(iterations):
        gram = tf.matmul(x, x, transpose_b=True)
        x = 3.4445 * x + tf.matmul(-4.7750 * gram + 2.0315 * tf.matmul(gram, gram), x)
    x = tf.transpose(x) if turned else x
    # All entries then have about the same size whatever the shape.
    return tf.reshape(x, update.shape) * max(1.0, columns / rows) ** 0.5
