"""Can a damaged or hostile run directory do harm?

    .venv/bin/python -m tests.fuzz.runs [--kinds=config,metrics,checkpoint] [--cases=2000]

Changes one file of a run, loads the run as `tfvmf evaluate` does, again and again. A case fails if
it raises anything but a UserError, takes more than 10 s, or gives other weights than were saved.
Prints one line per failed case and a summary; exits with 1 if there was a failure.
"""

import contextlib
import dataclasses
import faulthandler
import io
import json
import os
import pathlib
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import numpy as np
from absl import app, flags
from helpers.untrained import make_run

from tfvmf import evaluation
from tfvmf.errors import UserError
from tfvmf.settings import flatten
from tfvmf.training import read_metrics

SECONDS = 10
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 0.5, -0.0, 7, 10**6, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "x",
        "\0",
        "\ud800",
        "\n",
        "../../x",
        "folder:/proc",
        "npz:/dev/null",
        "[x]",
        "x" * 10**5,
    ),
    *([], [1], [[]], {}, {"a": 1}, {"": {}}),
]


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Content with a few bytes changed, lost, repeated or moved."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        start = chance.randrange(len(found) + 1)
        stop = min(len(found), start + chance.choice((1, 1, 2, 16, 300)))
        part = found[start:stop]
        other = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0:
                found[start:stop] = bytes(byte ^ (1 << chance.randrange(8)) for byte in part)
            case 1:
                del found[start:stop]
            case 2:
                found[other:other] = part
            case 3:
                found[start:stop] = bytes(len(part))
            case 4:
                found[start:stop] = chance.randbytes(len(part))
            case 5:
                found[start:stop] = str(chance.choice(VALUES))[:400].encode(errors="replace")
        if not found:
            break
    return bytes(found)


def mutate_config(content: bytes, chance: random.Random) -> bytes:
    """A config.json with other bytes, or with another value in one of its fields."""
    if chance.random() < 0.3:
        return mutate(content, chance)
    stored = json.loads(content)
    places = [(stored, key) for key in stored]
    for parent in (stored["facts"], stored["config"], *stored["config"].values()):
        if isinstance(parent, dict):
            places += [(parent, key) for key in parent]
    parent, key = chance.choice(places)
    swapped = list(flatten(stored["config"]).values())
    match chance.randrange(8):
        case 0:
            del parent[key]
        case 1:
            parent[f"{key}_"] = parent.pop(key)
        case 2:
            parent[key] = chance.choice(swapped)
        case _:
            parent[key] = chance.choice(VALUES)
    return json.dumps(stored).encode()


class Target:
    """A run directory, and what a reader does with it."""

    def __init__(self, workdir: pathlib.Path) -> None:
        self.workdir = make_run(workdir, **{"model.width": 2, "data.image_size": 8})
        lines = [
            {"step": step, "epoch": step / 4, "loss": 1.0, "kappa": 2.0, "kappa_std": 0.1}
            for step in range(1, 9)
        ]
        lines.append({"step": 8, "eval_kappa": 1.5, "knn_accuracy": 0.5})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (workdir / "metrics.jsonl").write_text(text)
        self.subject = evaluation.subject_from_run(workdir)
        self.weights = self.subject.encoder.get_weights()

    def config(self) -> None:
        """Loads the run and its data."""
        subject = evaluation.subject_from_run(self.workdir)
        assert subject.test.size

    def metrics(self) -> None:
        """Draws the curves."""
        found = read_metrics(self.workdir)
        evaluation.curves(dataclasses.replace(self.subject, metrics=found))

    def checkpoint(self) -> None:
        """Loads the run: with the weights that were saved, or not at all."""
        subject = evaluation.subject_from_run(self.workdir)
        for found, saved in zip(subject.encoder.get_weights(), self.weights, strict=True):
            np.testing.assert_array_equal(found, saved)


def fuzz(kind: str, *, cases: int, seed: int, seconds: float = float("inf")) -> list[str]:
    """Runs cases of a kind, at most so many and so long; returns what failed, and prints it."""
    failures, refused, done, started = [], 0, 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tfvmf-fuzz-") as scratch:
        target = Target(pathlib.Path(scratch) / "run")
        check: Callable[[], None] = getattr(target, kind)
        names = {
            "config": "config.json",
            "metrics": "metrics.jsonl",
            "checkpoint": "checkpoints/step-*",
        }
        originals = {path: path.read_bytes() for path in target.workdir.glob(names[kind])}
        for number in range(cases):
            if time.perf_counter() - started > seconds:
                break
            chance = random.Random(f"{kind} {seed} {number}")
            path = chance.choice(sorted(originals))
            path.write_bytes(
                (mutate_config if kind == "config" else mutate)(originals[path], chance)
            )
            faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
            clock, failure = time.perf_counter(), ""
            try:
                with (
                    contextlib.redirect_stdout(io.StringIO()),
                    contextlib.redirect_stderr(io.StringIO()),
                ):
                    check()
            except UserError as error:
                refused += 1
                if "Traceback" in str(error):
                    failure = f"message {error}"
            except Exception as error:
                failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if time.perf_counter() - clock > SECONDS:
                failure = failure or f"took {time.perf_counter() - clock:.0f} s"
            if failure:
                failures.append(f"{kind} --seed={seed}, case {number}: {failure}")
                print(failures[-1], flush=True)
            faulthandler.cancel_dump_traceback_later()
            path.write_bytes(originals[path])
            done += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(
        f"{kind}: {done} cases, {refused} refused, {len(failures)} failed, "
        f"{time.perf_counter() - started:.0f} s, peak {peak:.0f} MiB",
        flush=True,
    )
    return failures


def main(argv: Sequence[str]) -> None:
    """Runs all kinds that are asked for."""
    del argv
    failures = []
    for kind in _KINDS.value:
        failures += fuzz(kind, cases=_CASES.value, seed=_SEED.value)
    sys.exit(bool(failures))


if __name__ == "__main__":
    _KINDS = flags.DEFINE_list("kinds", ["config", "metrics", "checkpoint"], "which files")
    _CASES = flags.DEFINE_integer("cases", 2000, "of each kind", lower_bound=1)
    _SEED = flags.DEFINE_integer("seed", 0, "of the changes")
    app.run(main)
