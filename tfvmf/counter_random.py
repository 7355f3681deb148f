"""Random numbers that are a pure function of counters: same seed, same numbers, on every layout.

The numbers of an example depend only on its own seed. So N replicas draw what one device would, a
resumed run repeats itself, and a batch may be split anywhere. TensorFlow's stateless generators
take one seed per call, so every example would need a call of its own, which is slower. Here a
whole batch is hashed with integer operations, which are exact on every device.
"""

import math

import numpy as np
import tensorflow as tf

_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: its multiples are spread evenly over 32 bits
_LANES = 16  # float32s in the widest vector register (AVX-512)


def example_seeds(
    seed: int | tf.Tensor, step: int | tf.Tensor, positions: tf.Tensor, view: int | tf.Tensor
) -> tf.Tensor:
    """Seeds of the examples of a batch, from their position in a run: int32 [B, 2].

    Two words are hashed from different starts. Within a batch the first word alone distinguishes
    examples (each round is a bijection); between two calls a collision has probability 2^-64.

    `seed` is the seed of the run, `step` the step of the optimizer, `positions` [B] are indices in
    the *global* batch, and `view` is 0, 1, ... The low 32 bits of each are used.
    """
    positions = tf.convert_to_tensor(positions)
    words = tf.constant([[0x243F6A88, 0x85A308D3]], tf.uint32)  # the first digits of pi
    for value in (seed, step, positions[:, tf.newaxis], view):
        if isinstance(value, int):
            value &= 0xFFFFFFFF
        words = _mix(tf.bitwise.bitwise_xor(words, tf.cast(value, tf.uint32)) + _GOLDEN)
    return tf.bitcast(words, tf.int32)


def uniforms(seeds: tf.Tensor, count: int) -> tf.Tensor:
    """Draws from [0, 1) in steps of 2^-23, float32 [B, count]: column j depends on seed and j."""
    return _to_unit_interval(_words(seeds, np.arange(1, count + 1, dtype=np.uint32))) - 1.0


def normals(seeds: tf.Tensor, count: int) -> tf.Tensor:
    """Independent standard normal draws for seeds [B, 2], by Box and Muller: float32 [B, count]."""
    # Eigen computes log, sin and cos of the last few numbers of an array, which do not fill a
    # vector register, with other code, whose last bit differs. Whole registers for every example
    # keep the result independent of how a batch is split.
    pairs = math.ceil(count / 2 / _LANES) * _LANES
    # Counter 0 makes a key that `uniforms` never returns. Mixing it with the hashed counters takes
    # one round per number; `_words` would take two.
    key = _words(seeds, np.zeros(1, np.uint32))
    counters = _mix(tf.constant(np.arange(1, 2 * pairs + 1, dtype=np.uint32)))
    unit = _to_unit_interval(_mix(tf.bitwise.bitwise_xor(key, counters)))
    radius = tf.sqrt(-2.0 * tf.math.log(2.0 - unit[:, :pairs]))  # 2 - [1, 2) is never 0
    angle = (2.0 * math.pi) * unit[:, pairs:]
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)[:, :count]


def _words(seeds: tf.Tensor, counters: np.ndarray) -> tf.Tensor:
    """Hashes both words of a seed with each of n uint32 counters: uint32 [B, n]."""
    seeds = tf.bitcast(tf.cast(seeds, tf.int32), tf.uint32)
    words = _mix(tf.bitwise.bitwise_xor(seeds[:, :1], _mix(tf.constant(counters))))
    return _mix(tf.bitwise.bitwise_xor(words, seeds[:, 1:]))


def _mix(words: tf.Tensor) -> tf.Tensor:
    """MurmurHash3's finalizer, a bijection; flipping a bit flips each output bit with odds 1/2."""
    words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, 16))
    words *= 0x85EBCA6B
    words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, 13))
    words *= 0xC2B2AE35
    return tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, 16))


def _to_unit_interval(words: tf.Tensor) -> tf.Tensor:
    """Float32 in [1, 2): the upper 23 bits become the fraction, without rounding or casting."""
    fraction = tf.bitwise.right_shift(words, 9)
    return tf.bitcast(tf.bitwise.bitwise_or(fraction, 0x3F800000), tf.float32)
