"""What a run writes of itself: JSON lines for programs, events for TensorBoard."""

import json
import pathlib

import tensorflow as tf

from tfvmf.files import write_text


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
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = self.path.open("a", encoding="utf-8")
        self._events = tf.summary.create_file_writer(str(directory / "tensorboard"))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes one line and one event a value."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        with self._events.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._events.close()


def read_metrics(directory: pathlib.Path) -> list[dict[str, float]]:
    """The lines of a run's `metrics.jsonl`; a last line cut short by a kill is left out."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines
