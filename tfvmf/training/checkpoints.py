"""Checkpoints of a run: all that training needs to go on, and how to get an encoder back."""

import pathlib
import tempfile

import keras
import ml_collections
import tensorflow as tf

from tfvmf.errors import UserError
from tfvmf.methods import Method, build_method
from tfvmf.training import run_directory


class Checkpoints:
    """Saves and restores a method and its optimizer under `<workdir>/checkpoints`.

    Args:
        workdir: The run directory.
        method: Its models are saved.
        optimizer: Its moments and its step count are saved.
        keep: How many of the newest stay on disk.
        chief: Whether this process owns the directory. Every worker must take part in a save, so
            the others write theirs to a temporary place.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        method: Method,
        optimizer: keras.optimizers.Optimizer,
        *,
        keep: int,
        chief: bool = True,
    ) -> None:
        self._optimizer = optimizer
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, **method.models)
        self._reader = tf.train.CheckpointManager(
            checkpoint, str(workdir / "checkpoints"), max_to_keep=keep, checkpoint_name="step"
        )
        self._writer = self._reader
        if not chief:
            self._scratch = tempfile.TemporaryDirectory(prefix="tfvmf-worker-")
            self._writer = tf.train.CheckpointManager(
                checkpoint, self._scratch.name, max_to_keep=1, checkpoint_name="step"
            )

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one; returns the step to go on from."""
        self._reader.restore_or_initialize()
        return int(self._optimizer.iterations.numpy())

    def save(self) -> None:
        """Saves the present state under the number of its step."""
        step = int(self._optimizer.iterations.numpy())
        if self._writer.latest_checkpoint is None or not self._writer.latest_checkpoint.endswith(
            f"-{step}"
        ):
            self._writer.save(checkpoint_number=step)


def latest(workdir: pathlib.Path) -> str | None:
    """Path of a run's newest checkpoint, None before the first."""
    return tf.train.latest_checkpoint(str(workdir / "checkpoints"))


def paths(workdir: pathlib.Path) -> list[str]:
    """Paths of all checkpoints that a run keeps, the oldest first."""
    state = tf.train.get_checkpoint_state(str(workdir / "checkpoints"))
    return list(state.all_model_checkpoint_paths) if state else []


def load_method(
    workdir: pathlib.Path, *, checkpoint: str = ""
) -> tuple[ml_collections.ConfigDict, Method, int]:
    """Builds a trained run's method again.

    Args:
        workdir: The run directory.
        checkpoint: Path of one of its checkpoints; the newest by default.

    Returns:
        The run's configuration, its method with the trained weights, and the step of the weights.
    """
    config, facts = run_directory.read(workdir)
    path = checkpoint or latest(workdir)
    if path is None and config.ensemble.members > 1:
        raise UserError(
            f"--workdir={workdir} is an ensemble: name one of its members, "
            f"{run_directory.member(workdir, 0)}"
        )
    if path is None or not tf.io.gfile.glob(f"{path}.index"):
        raise UserError(
            f"--workdir={workdir} has no checkpoint{' ' + checkpoint if checkpoint else ''}: "
            "train it first (bin/train)"
        )
    method = build_method(config, num_classes=facts["num_classes"])
    try:
        state = tf.train.Checkpoint(**method.models).restore(path)
        state.assert_existing_objects_matched().expect_partial()
        step = tf.train.load_variable(path, "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE")
    except (AssertionError, IndexError, ValueError, tf.errors.OpError) as error:
        name = f"--checkpoint={checkpoint}" if checkpoint else "its newest checkpoint"
        raise UserError(f"--workdir={workdir}: {name} is damaged or of another run") from error
    return config, method, int(step)
