"""Arguments of the von Mises-Fisher functions: converted, and refused when they make no sense.

Values that are known (eager tensors, constants, NumPy, Python) are always checked and raise
ValueError. Symbolic ones are checked in the graph only when `validate_args` is true, as in TFP:
each check returns the assertions to wait for.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

# How far from 1 the length of a direction may be: bfloat16 inputs, normalized before they were
# rounded, are off by up to 4e-3.
_UNIT_TOLERANCE = 5e-3
_MOST_DIMENSIONS = 8192


def to_common_float(*values: Any) -> list[tf.Tensor]:
    """Tensors of the widest floating type among the values; Python numbers follow the others."""
    known = [tf.as_dtype(value.dtype) for value in values if hasattr(value, "dtype")]
    floats = [dtype for dtype in known if dtype.is_floating]
    dtype = max(floats, key=lambda dtype: dtype.size, default=tf.float32)
    return [
        tf.cast(value, dtype) if hasattr(value, "dtype") else tf.convert_to_tensor(value, dtype)
        for value in values
    ]


def check_concentration(kappa: tf.Tensor, name: str, validate_args: bool) -> list[tf.Operation]:
    """Refuse a concentration that is negative, infinite or NaN."""
    return _check(
        kappa,
        lambda value: (value >= 0) & (value < np.inf),
        f"{name} must be finite and at least 0",
        validate_args,
    )


def check_resultant(r: tf.Tensor, name: str, validate_args: bool) -> list[tf.Operation]:
    """Refuse a mean resultant length outside [0, 1)."""
    return _check(
        r,
        lambda value: (value >= 0) & (value < 1),
        f"{name} must be at least 0 and below 1",
        validate_args,
    )


def check_dimension(dim: tf.Tensor, name: str, validate_args: bool) -> list[tf.Operation]:
    """Refuse a dimension that is not whole, or outside of the range that was measured."""
    return _check(
        dim,
        lambda value: (value >= 2) & (value <= _MOST_DIMENSIONS) & (value % 1 == 0),
        f"{name} must be an integer from 2 to {_MOST_DIMENSIONS}",
        validate_args,
    )


def check_direction(mu: tf.Tensor, name: str, validate_args: bool) -> list[tf.Operation]:
    """Refuse directions, [..., d], that have d < 2 or a length other than 1."""
    if mu.shape.rank == 0:
        raise ValueError(f"{name} must be a vector or a batch of vectors, got a scalar")
    assertions = check_dimension(last_axis(mu), f"the last axis of {name}", validate_args)
    value = tf.get_static_value(mu)
    if value is not None:
        length = np.linalg.norm(value.astype(float), axis=-1)
    elif validate_args:
        length = tf.norm(tf.cast(mu, tf.float32), axis=-1)
    else:
        return assertions
    return assertions + _check(
        length,
        lambda length: abs(length - 1) <= _UNIT_TOLERANCE,
        f"{name} must have length 1",
        validate_args,
    )


def last_axis(mu: tf.Tensor) -> tf.Tensor:
    """The size of the last axis, constant if it is known."""
    static = mu.shape[-1] if mu.shape.rank else None
    return tf.shape(mu)[-1] if static is None else tf.constant(static)


def after(assertions: list[tf.Operation], tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, once the assertions hold."""
    if not assertions:
        return tensor
    with tf.control_dependencies(assertions):
        return tf.identity(tensor)


def _check(
    given: Any, is_valid: Callable[[Any], Any], requirement: str, validate_args: bool
) -> list[tf.Operation]:
    value = tf.get_static_value(given) if tf.is_tensor(given) else given
    if value is not None:
        value = np.asarray(value)
        valid = is_valid(value)
        if not np.all(valid):
            raise ValueError(f"{requirement}, got {value[np.logical_not(valid)][0]}")
        return []
    if not validate_args:
        return []
    return [tf.debugging.Assert(tf.reduce_all(is_valid(given)), [f"{requirement}, got", given], 8)]
