"""Checkpoints of a run: saving, resuming from the newest undamaged one, and loading.

A checkpoint `step-9` is `step-9.index` and one or more `step-9.data-*`. The index is renamed into
place last and removed first, so a process that is killed at any moment leaves either a whole
checkpoint or none. `tf.train.CheckpointManager` writes in place, does not verify what it restores
and does not fall back to an earlier checkpoint. A shipped run has `weights.npz` instead.
"""

import contextlib
import math
import operator
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfvmf.errors import UserError
from tfvmf.files import arrays, literal, reading, write_text, writing
from tfvmf.methods import METHODS, Method, build_method, building
from tfvmf.training import run_directory

PACKED = "weights.npz"
# Exceptions that TensorFlow raises for a damaged checkpoint.
_UNREADABLE = (ArithmeticError, LookupError, OSError, RuntimeError, ValueError, tf.errors.OpError)
_NAME = re.compile(r"step-(\d+)(?:\.index|\.data-.*|_temp)?")


class Checkpoints:
    """Saves and restores a method and its optimizer under `<workdir>/checkpoints`.

    Keeps the newest `keep`. All workers must call `save`; only the `chief` writes to the run
    directory, the others write to a temporary one.
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
        self._workdir, self._keep, self._chief = workdir, keep, chief
        self._method, self._optimizer = method, optimizer
        self._state = tf.train.Checkpoint(optimizer=optimizer, **method.models)

    def restore(self) -> int:
        """Restores the checkpoint found by `latest`, if any; returns the step to continue from."""
        path = latest(self._workdir, report=self._chief)
        if path is None:
            return 0
        try:
            with _literal(path) as place:
                self._state.read(place).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:  # not damaged, but of another network
            raise UserError(
                f"--workdir={self._workdir}: {pathlib.Path(path).name} holds the weights of "
                "another network or optimizer: choose another --workdir"
            ) from error
        return int(self._optimizer.iterations.numpy())

    def save(self) -> None:
        """Saves the current state under its step, atomically."""
        step = int(self._optimizer.iterations.numpy())
        for variable in variables_of(self._method):
            if not np.isfinite(variable.numpy()).all():  # a run could not continue from this
                raise UserError(
                    f"the weights {variable.path} are not finite after step {step}: lower "
                    "--config.optimizer.learning_rate or lengthen its warm-up (this state is not "
                    "saved)"
                )
        if not self._chief:
            with tempfile.TemporaryDirectory(prefix="tfvmf-worker-") as scratch:
                self._state.write(os.path.join(scratch, "step"))
            return
        place = directory(self._workdir)
        then = " (earlier checkpoints are kept), then run the same command to continue"
        with writing(f"{place}: the checkpoint of step {step}", then=then):
            partial = place / ".partial"
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
            partial.mkdir(parents=True)
            try:
                self._state.write(str(partial / f"step-{step}"))
                self._publish(place, step)
            finally:
                shutil.rmtree(partial, ignore_errors=True)

    def _publish(self, place: pathlib.Path, step: int) -> None:
        """Moves the checkpoint from `.partial` into place, and deletes old ones."""
        by_kind = operator.attrgetter("suffix")  # `.data-*` before `.index`
        written = sorted((place / ".partial").iterdir(), key=by_kind)
        for path in written:
            _to_disk(path)
        (place / f"step-{step}.index").unlink(missing_ok=True)
        for path in written:
            path.replace(place / path.name)
        _to_disk(place)
        # Later checkpoints are deleted: the run would have started from them if they were intact.
        steps = [found for found in map(step_of, paths(self._workdir)) if found <= step]
        kept = [f"step-{found}" for found in steps[-self._keep :]]
        # For TensorFlow's own tools (`tf.train.latest_checkpoint`); nothing here reads it.
        lines = [f'model_checkpoint_path: "{kept[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{name}"' for name in kept]
        write_text(place / "checkpoint", "\n".join(lines) + "\n")
        for path in sorted(place.iterdir(), key=by_kind, reverse=True):
            if step_of(path) >= 0 and f"step-{step_of(path)}" not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def directory(workdir: pathlib.Path) -> pathlib.Path:
    """The directory of a run's checkpoints."""
    return workdir / "checkpoints"


def paths(workdir: pathlib.Path) -> list[str]:
    """Paths of all checkpoints of a run, oldest first."""
    place = directory(workdir)
    with reading(place):
        try:
            names = os.listdir(place)
        except FileNotFoundError:
            if place.is_symlink():  # to a disk that is not mounted
                raise
            return []
    steps = sorted(step_of(name) for name in names if name.endswith(".index"))
    return [str(place / f"step-{step}") for step in steps if step >= 0]


def damage(path: str) -> str:
    """How a checkpoint is damaged, or ""; reads every tensor and verifies its checksum."""
    place = pathlib.Path(path).parent
    for name in os.listdir(place):
        if step_of(name) == step_of(path):
            with reading(place / name), open(place / name, "rb") as file:
                file.read(1)
    try:
        with _literal(path) as readable:
            reader = tf.train.load_checkpoint(readable)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except _UNREADABLE as error:
        return " ".join(str(getattr(error, "message", error)).split())[:120]
    return ""


@contextlib.contextmanager
def _literal(path: str) -> Iterator[str]:
    """A path that TensorFlow can open, even if the directory's name looks like a pattern."""
    with literal(os.path.dirname(path)) as place:
        yield os.path.join(place, os.path.basename(path))


def latest(workdir: pathlib.Path, *, report: bool = False) -> str | None:
    """Path of the newest undamaged checkpoint, None if there is none; `report` prints damage."""
    found = paths(workdir)
    while found:
        path = found.pop()
        reason = damage(path)
        if not reason:
            return path
        if not found:
            raise UserError(
                f"{workdir}: every checkpoint is damaged ({reason}): restore {directory(workdir)} "
                "from a copy, or train in another directory"
            )
        if report:
            earlier = os.path.basename(found[-1])
            print(f"{path} is damaged ({reason}): trying {earlier}", file=sys.stderr)
    return None


def step_of(path: str | os.PathLike[str]) -> int:
    """The step of a checkpoint, or of one of its files; -1 for any other path."""
    match = _NAME.fullmatch(pathlib.Path(path).name)
    return int(match.group(1)) if match else -1


def _to_disk(path: pathlib.Path) -> None:
    """Flushes a file or directory to disk, so that a name never outlives its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_method(
    workdir: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] = "",
    trust_model: bool = False,
) -> tuple[ConfigDict, Method, int]:
    """Loads a run: its configuration, the method with trained weights, and their step.

    `checkpoint` is `step-110`, `110` or a path; by default, the newest that is not damaged.
    """
    workdir, checkpoint = pathlib.Path(workdir).expanduser(), os.fspath(checkpoint)
    config, facts = run_directory.read(workdir)
    path = _find(workdir, checkpoint) if checkpoint else latest(workdir, report=True)
    packed = path is None and (workdir / PACKED).is_file()
    if path is None and config.ensemble.num_members > 1:
        raise UserError(
            f"{workdir} is an ensemble: name one of its members, {run_directory.member(workdir, 0)}"
        )
    if path is None and not packed:
        raise UserError(f"{workdir} has no checkpoint: train it first (`tfvmf train`)")
    METHODS[config.method].locate(config, workdir, trust_model=trust_model)
    with building(seed=config.seed):  # in float32, whatever the training precision
        method = build_method(config, num_classes=facts.get("num_classes", 0))
    if path is None:
        return config, method, _unpack(workdir / PACKED, method)
    try:
        with _literal(path) as place:
            state = tf.train.Checkpoint(**method.models).read(place)
            state.assert_existing_objects_matched().expect_partial()
    except (AssertionError, LookupError, RuntimeError, ValueError, tf.errors.OpError) as error:
        name = f"--checkpoint={checkpoint}" if checkpoint else pathlib.Path(path).name
        raise UserError(f"{workdir}: {name} is damaged or from another run") from error
    return config, method, step_of(path)


def variables_of(method: Method) -> list[keras.Variable]:
    """All weights of a method, in the order of `weights.npz`."""
    return [variable for _, model in sorted(method.models.items()) for variable in model.variables]


def _unpack(path: pathlib.Path, method: Method) -> int:
    """Assigns the weights written by `tools/ship.py`; returns their step."""
    with arrays(path) as found:
        large = np.ascontiguousarray(found["planes"].T).view(">f4").ravel()
        for is_large, part in ((True, large), (False, found["small"])):
            chosen = [v for v in variables_of(method) if (len(v.shape) > 1) == is_large]
            ends = np.cumsum([math.prod(v.shape) for v in chosen])
            if part.shape != (ends[-1] if chosen else 0,):
                raise ValueError("it holds the weights of another network")
            for variable, values in zip(chosen, np.split(part, ends[:-1]), strict=True):
                variable.assign(values.reshape(variable.shape).astype(variable.dtype))
        return int(found["step"])


def _find(workdir: pathlib.Path, checkpoint: str) -> str:
    """The path of a run's checkpoint given as `step-110`, `110` or a path."""
    path = checkpoint.removesuffix(".index")
    name = f"step-{path}" if path.isdecimal() else path
    for found in (str(directory(workdir) / name), path):
        if os.path.exists(f"{found}.index"):
            return found
    there = ", ".join(os.path.basename(each) for each in paths(workdir)) or "none"
    raise UserError(f"checkpoint={checkpoint}: {workdir} has no such checkpoint; it has {there}")
