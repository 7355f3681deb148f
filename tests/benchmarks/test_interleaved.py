import contextlib

import pytest

from benchmarks.side_by_side.interleaved import (
    QUICK,
    Effort,
    Times,
    Worker,
    WorkerFailed,
    interleave,
)

SLEEP, BROKEN = "tests.benchmarks.sleepers:sleep", "tests.benchmarks.sleepers:broken"


class Fake:
    """Candidates with a clock of their own."""

    def __init__(self, **seconds):
        self.calls = []
        self.runs = {name: self.candidate(name, each) for name, each in seconds.items()}

    def candidate(self, name, seconds):
        def run(count):
            self.calls.append((name, count))
            return count * seconds

        return run


def test_candidates_take_turns():
    fake = Fake(a=1.0, b=2.0)
    times = interleave(fake.runs, Effort(seconds=0.0, least=4, turn=0.5, pause=0.0))
    assert fake.calls == [("a", 1), ("b", 1)] * 5  # the first builds graphs
    assert times.seconds == {"a": [1.0] * 4, "b": [2.0] * 4}
    assert times.ratio("b", "a") == 2.0
    assert times.ranked(["b", "a"]) == ["a", "b"]


def test_a_turn_is_as_long_as_asked_for():
    fake = Fake(fast=0.01, slow=3.0)
    times = interleave(fake.runs, Effort(seconds=0.0, least=2, turn=0.5, pause=0.0))
    assert fake.calls[4:] == [("fast", 50), ("slow", 1)] * 2
    assert times.seconds["fast"] == pytest.approx([0.01] * 2)


def test_rounds_end_with_the_time_or_at_the_most():
    fake = Fake(a=1.0)
    times = interleave(fake.runs, Effort(seconds=100.0, least=1, most=7, pause=0.0))
    assert len(times.seconds["a"]) == 7
    assert len(interleave(fake.runs, QUICK).seconds["a"]) == 1


def test_a_ratio_is_of_the_same_round():
    # The machine is three times as slow in the middle: for both.
    times = Times({"a": [1.0, 3.0, 9.0, 1.0, 1.0], "b": [2.0, 6.0, 18.0, 2.0, 2.0]})
    assert times.ratio("a", "b") == 0.5
    times = Times({"a": [1.0, 3.0, 9.0], "b": [2.0, 6.0, 6.0]})
    assert times.ratio("a", "b") == 0.5
    rounds = [1.0, 3.0, 9.0]
    assert times.summary()["a"] == {"median": 3.0, "least": 1.0, "most": 9.0, "rounds": rounds}


def test_a_worker_measures_inside_its_process_and_sleeps_otherwise(tmp_path):
    candidates = {"short": (SLEEP, {"seconds": 0.05}), "long": (SLEEP, {"seconds": 0.2})}
    with contextlib.closing(Worker("sleeper", candidates, directory=tmp_path)) as worker:
        assert 0.05 <= worker.run("short") < 0.2
        assert worker.runs["long"](1) >= 0.2
        assert worker.run("short", 3) >= 0.15
        interleave(worker.runs, Effort(seconds=0.0, least=2, turn=0.0, pause=0.2))
        assert worker.idle < 0.1
        assert worker.peak > 1.0


def test_a_worker_that_fails_says_why(tmp_path):
    reasons = {
        "broken": ((BROKEN, {"message": "out of luck"}), "ended with 1: ValueError: out of luck"),
        "missing": (("no.such:thing", {}), "ended with 1: .*No module named 'no'"),
    }
    for name, (candidate, reason) in reasons.items():
        with (
            contextlib.closing(Worker(name, {name: candidate}, directory=tmp_path)) as worker,
            pytest.raises(WorkerFailed, match=f"{name}.log {reason}"),
        ):
            worker.run(name)
