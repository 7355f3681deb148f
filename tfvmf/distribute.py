"""The number of replicas that a computation runs on, and exchange of tensors among them.

Outside `strategy.run`, and with a single replica, every function is the identity, so code that
calls them computes the same numbers on one device as on many.
"""

from collections.abc import Callable

import keras
import tensorflow as tf


def num_replicas() -> int:
    """Number of replicas in the current replica context (1 outside)."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def replica_id() -> tf.Tensor | int:
    """Index of this replica, 0 with a single one."""
    if num_replicas() == 1:
        return 0
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def gather(tensor: tf.Tensor) -> tf.Tensor:
    """Concatenates [B, ...] of every replica, in order, to [replicas * B, ...]; exact gradient."""
    if num_replicas() == 1:
        return tensor
    gathered = tf.distribute.get_replica_context().all_gather(tensor, axis=0)
    rows = None if tensor.shape[0] is None else tensor.shape[0] * num_replicas()
    return tf.ensure_shape(gathered, [rows, *tensor.shape[1:]])  # all_gather loses the static shape


def stack(tensor: tf.Tensor) -> tf.Tensor:
    """Stacks a small tensor [...] of every replica to [replicas, ...]; the gradient is exact.

    A sum in which each replica fills its row: a smaller graph than `gather`, but more bytes.
    """
    row = tf.one_hot(replica_id(), num_replicas(), dtype=tensor.dtype)
    rows = tf.reshape(row, [-1] + [1] * tensor.shape.rank) * tensor[None]
    if num_replicas() == 1:
        return rows
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, rows)


def update(
    variable: keras.Variable,
    function: Callable[..., tf.Tensor],
    *others: keras.Variable | tf.Tensor,
) -> None:
    """Sets a variable to function(variable, *others) on each replica, outside `strategy.run`."""

    def assign(copy: tf.Variable, *values: tf.Tensor) -> tf.Tensor:
        return copy.assign(function(copy, *values))

    arguments = tuple(x.value if isinstance(x, keras.Variable) else x for x in others)
    tf.distribute.get_strategy().extended.update(variable.value, assign, args=arguments)
