"""One training step, as one graph: augment, encode, loss, gradient, update; on every replica."""

from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from tfvmf import distribute
from tfvmf.counter_random import example_seeds
from tfvmf.data.augment import Augmentation
from tfvmf.methods import Method

TrainStep = Callable[[Iterator], dict[str, tf.Tensor]]


def make_train_step(
    strategy: tf.distribute.Strategy,
    method: Method,
    optimizer: keras.optimizers.Optimizer,
    augmentation: Augmentation,
    *,
    seed: int,
) -> TrainStep:
    """Builds the function that takes the next batch of an iterator and trains on it.

    All randomness comes from (seed, step, position in the global batch, view): the step computes
    the same whatever the number of replicas, and again when it is repeated after a restart.

    Returns:
        A `tf.function` from the iterator to the loss terms, averaged over the replicas.
    """
    variables = method.trainable_variables

    def replica_step(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        rows = tf.shape(batch["image"])[0]
        positions = distribute.replica_id() * rows + tf.range(rows)
        seeds = [
            example_seeds(seed, optimizer.iterations, positions, view)
            for view in range(method.num_views)
        ]
        step_seed = tf.stack([seed, tf.cast(optimizer.iterations, tf.int32)])
        # All views at once: one large batch of each operation beats several small ones.
        images = tf.concat([batch["image"]] * method.num_views, axis=0)
        views = tf.split(augmentation(images, tf.concat(seeds, axis=0)), method.num_views)
        with tf.GradientTape() as tape:
            terms = method.loss(views, batch["label"], seed=step_seed)
            share = terms["loss"] / strategy.num_replicas_in_sync
        # The optimizer adds the replicas' gradients: those of the shares make the mean loss's.
        optimizer.apply(tape.gradient(share, variables), variables)
        return terms

    @tf.function
    def train_step(iterator: Iterator) -> dict[str, tf.Tensor]:
        terms = strategy.run(replica_step, args=(next(iterator),))
        return {
            name: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)
            for name, value in terms.items()
        }

    return train_step
