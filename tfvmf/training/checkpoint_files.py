"""The files of checkpoints: found, checked, published whole, and cleared away.

A checkpoint `step-9` is `step-9.index` and one or more `step-9.data-*`. It is there once its index
is: the index is renamed into place last and removed first, so a process that is killed at any
moment leaves either a whole checkpoint or none.
"""

import os
import pathlib
import re
import shutil
import sys

import tensorflow as tf

from tfvmf.errors import UserError
from tfvmf.files import write_text

_NAME = re.compile(r"step-(\d+)(?:\.index|\.data-.*|_temp)")


def directory(workdir: pathlib.Path) -> pathlib.Path:
    """Where a run keeps its checkpoints."""
    return workdir / "checkpoints"


def paths(workdir: pathlib.Path) -> list[str]:
    """Paths of all checkpoints that a run keeps, the oldest first."""
    steps = sorted(_step(index) for index in directory(workdir).glob("step-*.index"))
    return [str(directory(workdir) / f"step-{step}") for step in steps if step >= 0]


def damage(path: str) -> str:
    """What is wrong with a checkpoint, in a few words; empty if all of it can be read.

    Reads every tensor, against the checksums that TensorFlow stores with them.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (ArithmeticError, LookupError, OSError, RuntimeError, ValueError) as error:
        return _reason(error)
    except tf.errors.OpError as error:
        return _reason(error)
    return ""


def newest_intact(workdir: pathlib.Path, *, report: bool = False) -> str | None:
    """Path of the newest checkpoint that can be read; None before the first.

    Args:
        workdir: The run directory.
        report: Whether to tell people, in a line, of each damaged one that is passed over.

    Raises:
        UserError: There are checkpoints, and none of them can be read.
    """
    found = paths(workdir)
    for position in reversed(range(len(found))):
        reason = damage(found[position])
        if not reason:
            return found[position]
        if report and position:
            before = pathlib.Path(found[position - 1]).name
            print(f"{found[position]} is damaged ({reason}): taking {before}", file=sys.stderr)
    if found:
        raise UserError(
            f"--workdir={workdir}: its newest checkpoint is damaged, and there is no earlier one "
            f"that is not ({reason}): remove {directory(workdir)} and train again"
        )
    return None


def partial(workdir: pathlib.Path) -> pathlib.Path:
    """An empty directory in which a checkpoint is written before it is published."""
    path = directory(workdir) / ".partial"
    shutil.rmtree(path, ignore_errors=True)  # of a run that was killed
    path.mkdir(parents=True)
    return path


def publish(workdir: pathlib.Path, step: int, *, keep: int) -> None:
    """Moves the checkpoint in `partial` to its place, and removes what is no longer kept.

    Args:
        workdir: The run directory.
        step: The checkpoint's.
        keep: How many of the newest stay. Those of later steps go: they are damaged, or the run
            would have started from them.
    """
    place = directory(workdir)
    written = [path for path in (place / ".partial").iterdir() if _step(path) == step]
    for path in written:
        _to_disk(path)
    (place / f"step-{step}.index").unlink(missing_ok=True)
    for path in sorted(written, key=_is_index):
        path.replace(place / path.name)
    _to_disk(place)
    names = [pathlib.Path(path).name for path in paths(workdir)]
    kept = [name for name in names if int(name.removeprefix("step-")) <= step][-keep:]
    # For TensorFlow's own tools (`tf.train.latest_checkpoint`); nothing here reads it.
    lines = [f'model_checkpoint_path: "{kept[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in kept]
    write_text(place / "checkpoint", "\n".join(lines) + "\n")
    for path in sorted(place.iterdir(), key=_is_index, reverse=True):
        if _step(path) >= 0 and f"step-{_step(path)}" not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _step(path: pathlib.Path) -> int:
    """The step of a checkpoint's file; -1 for another."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def _is_index(path: pathlib.Path) -> bool:
    return path.suffix == ".index"


def _to_disk(path: pathlib.Path) -> None:
    """Waits until a file or directory is on the disk: a name must not outlive its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    """The first line of an error, short."""
    text = " ".join(str(getattr(error, "message", error)).split())
    return text if len(text) <= 120 else text[:117] + "..."
