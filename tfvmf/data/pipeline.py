"""The batches of a training run, in an order that depends only on (seed, step)."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfvmf.data.base import Source
from tfvmf.errors import UserError

Batch = dict[str, tf.Tensor]
Reader = Callable[[tf.Tensor], Batch]  # indices [B] -> the batch of these examples


def steps_per_epoch(size: int, batch_size: int, *, name: str) -> int:
    """Whole batches in one pass over `size` examples; the remainder is dropped."""
    if size < 2:
        raise UserError(f"{name} has {size} image(s): training needs at least 2")
    if batch_size > size:
        found = f"--config.batch_size={batch_size} is larger than the {size} images of {name}"
        raise UserError(f"{found}: use at most {size}")
    return size // batch_size


def check_shares(batch_size: int, replicas: int) -> None:
    """Raises UserError if the replicas cannot share a batch equally."""
    if batch_size % replicas:
        raise UserError(
            f"--config.batch_size={batch_size} cannot be shared equally by {replicas} replicas: "
            f"use a multiple of {replicas}"
        )


def training_batches(
    read: Reader,
    *,
    size: int,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    stop_step: int,
    replicas: int = 1,
    first_replica: int = 0,
    local_replicas: int = 1,
) -> tf.data.Dataset:
    """The output of `read` for the indices of the steps `start_step` ... `stop_step - 1`.

    Each epoch is a permutation of the examples that depends only on (seed, epoch). A step's batch
    is cut into `replicas` shares. This pipeline delivers the shares of `local_replicas` replicas,
    from `first_replica` on, so that any number of replicas sees the same batch.
    """
    check_shares(batch_size, replicas)
    epoch_steps, share = size // batch_size, batch_size // replicas

    def epoch_indices(epoch: tf.Tensor) -> tf.data.Dataset:
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(tf.range(size), seed=key)
        order = tf.reshape(order[: epoch_steps * batch_size], [epoch_steps, replicas, share])
        mine = order[:, first_replica : first_replica + local_replicas]
        return tf.data.Dataset.from_tensor_slices(tf.reshape(mine, [-1, share]))

    first_epoch, skipped = divmod(start_step, epoch_steps)
    last_epoch = -(-stop_step // epoch_steps)
    dataset = tf.data.Dataset.range(first_epoch, last_epoch).flat_map(epoch_indices)
    dataset = dataset.skip(skipped * local_replicas)
    dataset = dataset.take((stop_step - start_step) * local_replicas)
    dataset = dataset.map(read, num_parallel_calls=2, deterministic=True)
    options = tf.data.Options()
    # Already sharded by replica: TensorFlow must not shard again.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(2).with_options(options)


def image_reader(source: Source) -> Reader:
    """A reader of `image` uint8 [B, H, W, 3] and `label` int32 [B] (-1 if unlabeled)."""
    labels = source.labels if source.labels is not None else np.full(source.size, -1)
    label_table = tf.constant(labels, tf.int32)
    with tf.device("/cpu:0"):
        array = source.array  # a copy, for a subset
        image_table = None if array is None else tf.constant(array)

    def read(indices: tf.Tensor) -> Batch:
        if image_table is not None:
            image = tf.gather(image_table, indices)
        else:
            image = tf.numpy_function(source.take, [indices], tf.uint8, stateful=False)
            image = tf.ensure_shape(image, [None, *source.image_shape])
        return {"image": image, "label": tf.gather(label_table, indices)}

    return read
