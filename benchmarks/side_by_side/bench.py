"""What every section is given: how long to measure, where to write, how to start workers."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.side_by_side.interleaved import QUICK, Effort, Times, Worker, interleave
from benchmarks.side_by_side.problem import Problem

Candidate = tuple[str, dict[str, Any]]
Candidates = dict[str, Candidate]


def our_step(sizes: Problem, **settings: Any) -> Candidate:
    """Our train step as a candidate; `settings` are further keywords of `tfvmf_step.train_step`."""
    return "benchmarks.side_by_side.tfvmf_step:train_step", {**sizes.settings(), **settings}


@dataclasses.dataclass
class Bench:
    """One run of `make bench`.

    Attributes:
        directory: For logs, plots and what PyTorch compiles.
        note: Says what is being done, in a line.
        threads: Of each worker.
        quick: Tiny networks and one round: does everything run?
        effort: How long each group of candidates is measured.
        details: What the JSON file has beside the rows.
    """

    directory: pathlib.Path
    note: Callable[[str], None]
    threads: int = 2
    quick: bool = False
    effort: Effort = dataclasses.field(default_factory=Effort)
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    def worker(
        self,
        name: str,
        candidates: Candidates,
        environment: Mapping[str, str] | None = None,
    ) -> contextlib.AbstractContextManager[Worker]:
        """Starts a process with candidates, which ends with the context."""
        logs = self.directory / "logs"
        return contextlib.closing(
            Worker(name, candidates, directory=logs, threads=self.threads, environment=environment)
        )

    def interleave(
        self, title: str, *workers: Worker, share: float = 1.0, turn: float = Effort.turn
    ) -> Times:
        """Measures all candidates of workers in turn.

        Args:
            title: In progress lines and in the JSON file.
            *workers: Whose candidates.
            share: Of the seconds of `effort`: more where a small difference matters.
            turn: As of `Effort`.
        """
        chosen = dataclasses.replace(self.effort, seconds=share * self.effort.seconds, turn=turn)
        chosen = QUICK if self.quick else chosen
        runs = {name: run for worker in workers for name, run in worker.runs.items()}
        self.note(f"{title}: {', '.join(runs)}")
        times = interleave(runs, chosen)
        self.details[title] = {
            "seconds": times.summary(),
            "workers": [
                {"candidates": worker.candidates, "idle": worker.idle, "peak_mib": worker.peak}
                for worker in workers
            ],
        }
        return times
