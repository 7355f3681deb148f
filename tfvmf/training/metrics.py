"""The reports of a run: JSON lines, TensorBoard events, and lines in the terminal."""

import contextlib
import json
import pathlib
import time

import tensorflow as tf

from tfvmf.files import read_text, write_text, writing


class MetricsWriter:
    """Appends to `metrics.jsonl` and TensorBoard events; drops lines after the first `step`."""

    def __init__(self, directory: pathlib.Path, *, step: int) -> None:
        self.path = directory / "metrics.jsonl"
        kept = [line for line in read_metrics(directory) if line["step"] <= step]
        with self._writing():
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
            self._file = self.path.open("a", encoding="utf-8")
            if (directory / "tensorboard").exists():
                # Tells TensorBoard to drop the events after `step`. Files are read in the order
                # of their names: two dots sort before the host name of the next file.
                now, kinds = time.time(), tf.compat.v1
                path = directory / "tensorboard" / f"events.out.tfevents.{int(now)}..restart"
                log = kinds.SessionLog(status=kinds.SessionLog.START)
                started = kinds.Event(wall_time=now, step=step + 1, session_log=log)
                version = kinds.Event(wall_time=now, file_version="brain.Event:2")
                with tf.io.TFRecordWriter(str(path)) as file:
                    for event in (version, started, started):  # the first start drops nothing
                        file.write(event.SerializeToString())
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
        """Closes both files."""
        with self._writing():
            self._file.close()
            self._events.close()

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(self.path, then=", then run the same command to continue")


def read_metrics(directory: str | pathlib.Path) -> list[dict[str, float]]:
    """The undamaged lines of a run's `metrics.jsonl`; [] if there is none."""
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


def summary(values: dict[str, float], term_names: tuple[str, ...]) -> str:
    """The main values on one line, the most important first."""
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
