"""Checkpoints of a run: all that training needs to go on, and how to get an encoder back."""

import importlib
import os
import pathlib
import shutil
import tempfile

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf.errors import UserError
from tfvmf.methods import Method, build_method
from tfvmf.training import checkpoint_files, run_directory
from tfvmf.training.checkpoint_files import newest_intact, paths

__all__ = ["Checkpoints", "latest", "load_method", "paths"]


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
        self._workdir = workdir
        self._models = method.models
        self._optimizer = optimizer
        self._keep = keep
        self._chief = chief
        self._state = tf.train.Checkpoint(optimizer=optimizer, **method.models)

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one; returns the step to go on from.

        A damaged one is reported, and the one before it is taken.
        """
        path = newest_intact(self._workdir, report=self._chief)
        if path is None:
            return 0
        try:
            self._state.read(path).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:  # whole, and of other weights
            raise UserError(
                f"--workdir={self._workdir}: {pathlib.Path(path).name} holds the weights of "
                "another network or optimizer: choose another --workdir"
            ) from error
        return int(self._optimizer.iterations.numpy())

    def save(self) -> None:
        """Saves the present state under the number of its step, whole or not at all."""
        step = int(self._optimizer.iterations.numpy())
        self._check_finite(step)
        if not self._chief:
            with tempfile.TemporaryDirectory(prefix="tfvmf-worker-") as scratch:
                self._state.write(os.path.join(scratch, "step"))
            return
        partial = None
        try:
            partial = checkpoint_files.partial(self._workdir)
            self._state.write(str(partial / f"step-{step}"))
            checkpoint_files.publish(self._workdir, step, keep=self._keep)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "message", error)
            raise UserError(
                f"{checkpoint_files.directory(self._workdir)}: the checkpoint of step {step} "
                f"cannot be written: {reason}: make room (earlier checkpoints are as they were), "
                "then the same command goes on from the last"
            ) from error
        finally:
            if partial:
                shutil.rmtree(partial, ignore_errors=True)

    def _check_finite(self, step: int) -> None:
        """Refuses to save what no run could go on from."""
        for model in self._models.values():
            for variable in model.variables:
                if not np.isfinite(variable.numpy()).all():
                    raise UserError(
                        f"the weights {variable.path} are not finite after step {step}: lower "
                        "--config.optimizer.learning_rate or lengthen its warm-up (this state is "
                        "not saved)"
                    )


def latest(workdir: pathlib.Path) -> str | None:
    """Path of a run's newest checkpoint that is not damaged, None before the first."""
    return newest_intact(workdir)


def load_method(
    workdir: pathlib.Path, *, checkpoint: str = ""
) -> tuple[ml_collections.ConfigDict, Method, int]:
    """Builds a trained run's method again.

    Args:
        workdir: The run directory.
        checkpoint: Path of one of its checkpoints; by default the newest, or the one before if
            that is damaged.

    Returns:
        The run's configuration, its method with the trained weights, and the step of the weights.
    """
    config, facts = run_directory.read(workdir)
    path = checkpoint or newest_intact(workdir, report=True)
    if path is None and config.ensemble.num_members > 1:
        raise UserError(
            f"--workdir={workdir} is an ensemble: name one of its members, "
            f"{run_directory.member(workdir, 0)}"
        )
    if path is None or not os.path.exists(f"{path}.index"):
        raise UserError(
            f"--workdir={workdir} has no checkpoint{' ' + checkpoint if checkpoint else ''}: "
            "train it first (bin/train)"
        )
    if config.method == "fit_kappa":
        importlib.import_module("tfvmf.posthoc").FitKappa.locate(config, workdir)
    method = build_method(config, num_classes=facts["num_classes"])
    try:
        state = tf.train.Checkpoint(**method.models).read(path)
        state.assert_existing_objects_matched().expect_partial()
        step = tf.train.load_variable(path, "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE")
    except (AssertionError, LookupError, RuntimeError, ValueError, tf.errors.OpError) as error:
        name = f"--checkpoint={checkpoint}" if checkpoint else pathlib.Path(path).name
        raise UserError(f"--workdir={workdir}: {name} is damaged or of another run") from error
    return config, method, int(step)
