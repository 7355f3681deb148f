"""What a run reports: JSON lines, events for TensorBoard, and lines in the terminal."""

import contextlib
import json
import pathlib
import time

import numpy as np
import tensorflow as tf

from tfvmf.files import read_text, write_text, writing
from tfvmf.methods import Method


class MetricsWriter:
    """Appends to `metrics.jsonl` and to TensorBoard events in a run directory.

    Args:
        directory: The run directory.
        step: The step at which the run (re)starts. Lines of later steps, left by a run that was
            killed after its last checkpoint, are dropped: they will be written again.
    """

    def __init__(self, directory: pathlib.Path, *, step: int) -> None:
        self.path = directory / "metrics.jsonl"
        kept = [line for line in read_metrics(directory) if line["step"] <= step]
        with self._writing():
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
            self._file = self.path.open("a", encoding="utf-8")
            _mark_restart(directory / "tensorboard", step)
            self._events = tf.summary.create_file_writer(str(directory / "tensorboard"))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes one line, and one event per value."""
        with self._writing():
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
            with self._events.as_default(step=step):
                for name, value in values.items():
                    tf.summary.scalar(name, value)

    def close(self) -> None:
        """Flushes both."""
        with self._writing():
            self._file.close()
            self._events.close()

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(self.path, then=", then the same command continues from the last checkpoint")


def _mark_restart(directory: pathlib.Path, step: int) -> None:
    """Tells TensorBoard to forget the events after `step`: they will be written again."""
    if not directory.exists():
        return
    now, kinds = time.time(), tf.compat.v1
    # Files are read in the order of their names: two dots, to come before the next one's host.
    path = directory / f"events.out.tfevents.{int(now)}..restart"
    log = kinds.SessionLog(status=kinds.SessionLog.START)
    started = kinds.Event(wall_time=now, step=step + 1, session_log=log)
    version = kinds.Event(wall_time=now, file_version="brain.Event:2")
    with tf.io.TFRecordWriter(str(path)) as file:
        for event in (version, started, started):  # the first start that is seen forgets nothing
            file.write(event.SerializeToString())


def read_metrics(directory: str | pathlib.Path) -> list[dict[str, float]]:
    """The lines of a run's `metrics.jsonl`, [] if it has none.

    A last line cut short by a kill is left out, and so is a damaged one among the others.
    """
    path = pathlib.Path(directory).expanduser() / "metrics.jsonl"
    lines = []
    for text in (read_text(path) or "").split("\n"):
        with contextlib.suppress(RecursionError, ValueError):
            line = json.loads(text)
            values = line.values() if isinstance(line, dict) else [None]
            numbers = all(type(v) is float or (type(v) is int and v < 2**53) for v in values)
            if numbers and type(line.get("step")) is int and line["step"] > 0:
                lines.append(line)
    return lines


def describe(
    method: Method,
    description: str,
    *,
    replicas: int,
    start: int,
    total_steps: int,
    workdir: pathlib.Path,
) -> None:
    """Says in two lines what is about to be trained, on what."""
    weights = sum(int(np.prod(v.shape)) for v in method.trainable_variables)
    encoder = f"{method.describe_encoder()}, {weights:,} weights, {replicas} replica(s)"
    print(f"{method.config.method} on {description}, {encoder}")
    if choices := method.describe_choices():
        print(choices)
    where = f"from step {start}" if start else "from the start"
    print(f"{total_steps} steps ({method.config.epochs} epochs) {where}, in {workdir}", flush=True)


def summary(values: dict[str, float], term_names: tuple[str, ...]) -> str:
    """The most important values, on one line; a narrow terminal cuts off its end."""
    shown = {
        "loss": "loss {loss:.3f}",
        "kappa": "kappa {kappa:.2f}±{kappa_std:.2f}",
        "knn_accuracy": "k-NN {knn_accuracy:.3f}",
        "eval_error": "error {eval_error:.3f} of cosine {eval_cosine:.3f}",
        "direction_std": "spread {direction_std:.2f}",
        "images_per_second": "{images_per_second:.0f} images/s",
        **{name: f"{name} {{{name}:.3f}}" for name in (*term_names, "alignment", "penalty")},
    }
    return ", ".join(text.format(**values) for name, text in shown.items() if name in values)
