"""One training step as one graph, on every replica: augment, encode, loss, gradient, update."""

from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfvmf import data, distribute
from tfvmf.methods import Method, StepContext
from tfvmf.methods.base import ViewKind, view_seeds

TrainStep = Callable[[Iterator], dict[str, tf.Tensor]]


def views_of(method: Method, augmentation: data.Augmentation) -> list[ViewKind]:
    """The kinds of views that a method trains on, and how many of each to make at once."""
    kinds = method.view_kinds(augmentation)
    if method.config.model.one_pass:
        return kinds
    # One at a time, so that a pass can start as soon as its view is made.
    return [(make, 1) for make, count in kinds for _ in range(count)]


def make_views(
    images: tf.Tensor, kinds: Sequence[ViewKind], seed: tf.Tensor | tuple[int, int]
) -> list[tf.Tensor]:
    """The views of one replica's share [B, H, W, 3] of a batch; `seed` is (seed, step)."""
    made: list[tf.Tensor] = []
    for augmentation, count in kinds:
        seeds = view_seeds(seed, images, range(len(made), len(made) + count))
        # All views at once: one large batch per operation is faster than several small ones.
        made += tf.split(augmentation(tf.concat([images] * count, axis=0), seeds), count)
    return made


def update(
    method: Method,
    optimizer: keras.optimizers.Optimizer,
    views: list[tf.Tensor],
    labels: tf.Tensor | None,
    context: StepContext,
) -> dict[str, tf.Tensor]:
    """Loss, gradient and update on one replica; returns the loss terms of its share."""
    variables = method.trainable_variables
    with tf.GradientTape() as tape:
        terms = method.loss(views, labels, context)
        # The optimizer sums gradients over replicas: divided, they are those of the mean loss.
        share = optimizer.scale_loss(terms["loss"] / distribute.num_replicas())
    optimizer.apply(tape.gradient(share, variables), variables)
    return terms


def make_train_step(
    strategy: tf.distribute.Strategy,
    method: Method,
    optimizer: keras.optimizers.Optimizer,
    views: list[ViewKind],
    *,
    seed: int,
    steps_per_epoch: int,
    backbone_rate: float = 1.0,
) -> TrainStep:
    """Builds the `tf.function` that trains on an iterator's next batch and returns mean terms.

    `backbone_rate` scales updates of the backbone. Build everything in the strategy's scope.
    """
    slow: list[keras.Variable] = []
    if backbone_rate != 1.0:
        slow = method.encoder.get_layer(method.backbone.model.name).trainable_variables

    def replica_step(batch: dict[str, tf.Tensor], context: StepContext) -> dict[str, tf.Tensor]:
        made = make_views(batch["image"], views, context.seed)
        return update(method, optimizer, made, batch["label"], context)

    @tf.function
    def train_step(iterator: Iterator) -> dict[str, tf.Tensor]:
        context = step_context(optimizer.iterations, seed, steps_per_epoch)
        before = [tf.identity(variable.value) for variable in slow]
        terms = strategy.run(replica_step, args=(next(iterator), context))
        with strategy.scope():
            for variable, old in zip(slow, before, strict=True):
                distribute.update(variable, lambda new, old: old + backbone_rate * (new - old), old)
            method.after_step(context)
        return {
            name: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)
            for name, value in terms.items()
        }

    return train_step


def step_context(step: keras.Variable, seed: int, steps_per_epoch: int) -> StepContext:
    """The context of the next step after `step` steps."""
    step = tf.cast(step, tf.int32)
    return StepContext(tf.stack([seed, step]), tf.cast(step, tf.float32) / steps_per_epoch)
