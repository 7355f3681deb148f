"""Optimizers by name, with warm-up, cosine decay and weight decay where it belongs."""

from typing import Any

import keras
import ml_collections
import tensorflow as tf


def make_optimizer(
    config: ml_collections.ConfigDict,
    variables: list[keras.Variable],
    *,
    steps_per_epoch: int,
    total_steps: int,
    cycles: int = 1,
) -> keras.optimizers.Optimizer:
    """Builds the optimizer that `config` (a run's section `optimizer`) describes.

    The learning rate rises linearly from 0 over the warm-up and falls to 0 along a cosine, once or,
    for snapshots, in each of several cycles.
    Weight decay leaves out everything of one dimension: biases and the scales of norms.
    """
    cycle = total_steps // cycles
    warmup = min(round(config.warmup_epochs * steps_per_epoch), cycle - 1)
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup else config.learning_rate,
        decay_steps=cycle - warmup,
        warmup_target=config.learning_rate if warmup else None,
        warmup_steps=warmup,
    )
    if cycles > 1:
        schedule = Cycles(schedule, cycle)
    decay = config.weight_decay or None
    if config.name == "adam":
        optimizer = keras.optimizers.Adam(schedule, weight_decay=decay)
    else:
        optimizer = keras.optimizers.SGD(schedule, momentum=config.momentum, weight_decay=decay)
    optimizer.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer


@keras.saving.register_keras_serializable(package="tfvmf")
class Cycles(keras.optimizers.schedules.LearningRateSchedule):
    """Repeats the first `length` steps of a schedule.

    Keras's CosineDecayRestarts has no warm-up.
    """

    def __init__(self, schedule: Any, length: int) -> None:
        self.schedule = schedule
        self.length = length

    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate of a step."""
        return self.schedule(keras.ops.mod(step, self.length))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the schedule again."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "length": self.length}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Cycles":
        """Builds the schedule again."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["length"])
