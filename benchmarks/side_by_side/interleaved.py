"""Candidates that are measured in turn, A B A B, each in a process that sleeps while others run."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

_PATIENCE = 10.0  # seconds in which a worker should end

Runs = dict[str, Callable[[int], float]]  # candidate -> function of a count that gives the seconds


class WorkerFailed(Exception):
    """A worker has ended before its time; the message has the last line that it wrote."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long is measured.

    Attributes:
        seconds: How long rounds continue, ...
        least: ... but the least number of rounds, ...
        most: ... and the greatest.
        turn: A turn repeats its candidate until it should take this many seconds.
        pause: Seconds before every turn, in which threads of the last one fall asleep.
    """

    seconds: float = 10.0
    least: int = 3
    most: int = 40
    turn: float = 0.5
    pause: float = 0.05


QUICK = Effort(seconds=0.0, least=1, most=1, turn=0.0, pause=0.0)


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one run of each candidate, a value a round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Seconds of one run of a candidate."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """Seconds of a candidate over those of another: both of the same round, then the median."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def ranked(self, names: Sequence[str]) -> list[str]:
        """Candidates, the one with the smallest median first."""
        return sorted(names, key=self.median)

    def summary(self) -> dict[str, Any]:
        """For the JSON file: medians, extremes and the values of all rounds."""
        return {
            name: {
                "median": statistics.median(values),
                "least": min(values),
                "most": max(values),
                "rounds": values,
            }
            for name, values in self.seconds.items()
        }


def interleave(runs: Mapping[str, Callable[[int], float]], effort: Effort) -> Times:
    """Measures all candidates in turn, round after round.

    The first run of each builds its graphs and is not counted. The second says how often it fits
    into a turn; where that is once, it is a round as good as any.
    """
    for run in runs.values():
        run(1)
    first = {name: _after_pause(run, 1, effort) for name, run in runs.items()}
    counts = {name: max(1, math.ceil(effort.turn / seconds)) for name, seconds in first.items()}
    kept = max(counts.values()) == 1
    seconds = {name: [value] if kept else [] for name, value in first.items()}
    start = time.perf_counter()
    rounds = int(kept)
    while rounds < effort.least or (
        rounds < effort.most and time.perf_counter() - start < effort.seconds
    ):
        for name, run in runs.items():
            seconds[name].append(_after_pause(run, counts[name], effort))
        rounds += 1
    return Times(seconds)


def _after_pause(run: Callable[[int], float], count: int, effort: Effort) -> float:
    time.sleep(effort.pause)
    return run(count) / count


class Worker:
    """A process that holds candidates and runs them when it is told to.

    Starts at once and does not wait: several get ready side by side. `close` ends it,
    and its temporary files with it.

    Args:
        name: Of its log file.
        candidates: Name -> (`module:maker`, keywords of the maker). A maker gives a function of a
            count (`worker.py`).
        directory: Of the log file.
        threads: Of the process, for TensorFlow and PyTorch alike.
        environment: More variables.
    """

    def __init__(
        self,
        name: str,
        candidates: Mapping[str, tuple[str, dict[str, Any]]],
        *,
        directory: pathlib.Path,
        threads: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.candidates = list(candidates)
        self.peak = 0.0  # MiB
        self._waited = self._burnt = 0.0
        self._ready = False
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / f"{name}.log"
        self._scratch = tempfile.TemporaryDirectory(prefix="tfvmf-bench-")
        threads_of = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.side_by_side.worker", json.dumps(candidates)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                cwd=ROOT,
                env={
                    **os.environ,
                    **dict.fromkeys(threads_of, str(threads)),
                    "TMPDIR": self._scratch.name,
                    **(environment or {}),
                },
            )

    @property
    def runs(self) -> Runs:
        """Its candidates as functions of a count."""
        return {name: functools.partial(self.run, name) for name in self.candidates}

    @property
    def idle(self) -> float:
        """The share of a core that it burnt while it waited."""
        return self._burnt / self._waited if self._waited else 0.0

    def run(self, name: str, count: int = 1) -> float:
        """Runs a candidate so many times; returns the seconds that it took inside the process."""
        if not self._ready:
            self._answer()
            self._ready = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer says why
            self._process.stdin.write(json.dumps([name, count]) + "\n")
        answer = self._answer()
        self._waited += answer["waited"]
        self._burnt += answer["burnt"]
        self.peak = answer["peak"]
        return answer["seconds"]

    def close(self) -> None:
        """Ends the process: by itself, with all that it has started, or else by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._scratch.cleanup()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            written = self._log.read_text(errors="replace").split("\n")
            last = next((text for text in reversed(written) if text.strip()), "")
            raise WorkerFailed(f"{self._log} ended with {code}: {last.strip()}")
        return json.loads(line)
