"""How long a user waits: for help, for the first step, for an exported model."""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench
from benchmarks.side_by_side.interleaved import ROOT, WorkerFailed
from benchmarks.side_by_side.table import Row

_PATIENCE = 300.0  # seconds until the first step
_LOAD = """
import json, sys, time
import tensorflow
start = time.perf_counter()
import tfvmf
tfvmf.load(sys.argv[1])
print(json.dumps(time.perf_counter() - start))
"""


def measure(bench: Bench) -> list[Row]:
    """Seconds, in turn, each in new processes; `import tensorflow` stands beside."""
    rounds = 1 if bench.quick else 2
    tiny = problem.QUICK.config_changes() if bench.quick else {}
    flags = [f"--config.{key}={value}" for key, value in tiny.items()]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tfvmf-bench-") as scratch:
        place = pathlib.Path(scratch)
        steps: dict[str, Callable[[int], float]] = {
            "help": lambda number: _timed(["bin/train", "--help"]),
            "import": lambda number: _timed([sys.executable, "-c", "import tensorflow"]),
            "first step": lambda number: first_step(place / str(number), flags),
            "load": lambda number: _load(place / "0", place / "export"),
        }
        for number in range(rounds):
            for name, step in steps.items():
                bench.note(f"{name}, {number + 1} of {rounds}")
                seconds.setdefault(name, []).append(step(number))
    bench.details["startup"] = seconds
    median = {name: statistics.median(values) for name, values in seconds.items()}

    def row(what: str, name: str, *, beside: bool = True, goal: str = "") -> Row:
        other = median["import"] if beside else None
        ratio = median[name] / other if other else None
        return Row(
            section="startup",
            what=what,
            ours=median[name],
            theirs=other,
            unit="s",
            ratio=ratio,
            goal=goal,
        )

    return [
        row("tfvmf train --help", "help", beside=False, goal="< 2"),
        row("tfvmf train to its first step, against import tensorflow", "first step"),
        row("tfvmf.load of an export, against import tensorflow", "load"),
    ]


def first_step(workdir: pathlib.Path, flags: list[str]) -> float:
    """Seconds from the command to the end of its first step; the run is then stopped and saved."""
    start = time.perf_counter()
    with _running([str(ROOT / "bin" / "train"), f"--workdir={workdir}", *flags]) as process:
        metrics = workdir / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None or time.perf_counter() - start > _PATIENCE:
                raise WorkerFailed(f"bin/train ended with {process.poll()} before its first step")
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE)
    return seconds


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def _load(workdir: pathlib.Path, export: pathlib.Path) -> float:
    """Seconds of `tfvmf.load`, TensorFlow imported; exports the run if that was not yet done."""
    if not export.exists():
        _timed(["bin/export", str(workdir), f"--output={export}"])
    return float(json.loads(_output([sys.executable, "-c", _LOAD, str(export)]).split("\n")[-2]))


def _timed(command: list[str]) -> float:
    start = time.perf_counter()
    _output(command)
    return time.perf_counter() - start


def _output(command: list[str]) -> str:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [""])[-1]
        raise WorkerFailed(f"{' '.join(command[:2])} ended with {result.returncode}: {last}")
    return result.stdout
