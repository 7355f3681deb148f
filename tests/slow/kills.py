"""Does a run that is killed at a random moment, and started again, end with the same bits?

    .venv/bin/python -m tests.slow.kills [--kills=20] [--cases=swav_vmf] [--seed=0]

Trains each case once without interruption. Then, for every kill, starts the same command in a new
directory, ends it with SIGKILL at a random moment of a random step (a checkpoint is saved after
every step, so many are hit in the middle of a save), starts it again and compares all that the last
checkpoint holds, bit for bit: weights, moments of the optimizer, target network, queue. Prints a
Markdown table, one line per kill; exits with 1 unless all are identical. A minute per kill on 2
cores.
"""

import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = [
    "--config.epochs=6",
    "--config.data.reserve=0",  # all 1,397 digits: 4 steps per epoch
    "--config.batch_size=349",
    "--config.data.image_size=8",
    "--config.model.width=2",
    "--config.model.dimension=8",
    "--config.model.hidden=8",
    "--config.optimizer.warmup_epochs=1",
    "--config.monitor.every_epochs=3",
    "--config.checkpoint.every_epochs=0.25",
    "--config.log_every_steps=1",
]
STEPS = 24
# Between them: a target network with dropout, a queue, drawn samples, momentum and Adam.
CASES = {
    "simclr_vmf": ["--method=simclr_vmf"],
    "byol_vmf": ["--method=byol_vmf", "--config.model.dropout=0.1"],
    "swav_vmf": [
        "--method=swav_vmf", "--config.swav.queue_length=698", "--config.swav.num_prototypes=16",
        "--config.swav.num_local_views=1", "--config.swav.local_size=8",
        "--config.optimizer.name=sgd",
    ],
    "mc_infonce": ["--method=mc_infonce", "--config.mc_infonce.num_samples=4"],
}  # fmt: skip

_KILLS = flags.DEFINE_integer("kills", 20, "how many, spread over the cases", lower_bound=1)
_CASES = flags.DEFINE_list("cases", list(CASES), "which methods")
_SEED = flags.DEFINE_integer("seed", 0, "of the moments")


def start(case: str, workdir: pathlib.Path) -> subprocess.Popen[str]:
    """Starts a run, or continues it."""
    command = [str(ROOT / "bin" / "train"), f"--workdir={workdir}", *TINY, *CASES[case]]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=workdir.parent
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Waits for a run that must succeed."""
    errors = process.communicate()[1]
    if process.returncode:
        sys.exit(f"training failed with {process.returncode}: {errors}")


def lines(workdir: pathlib.Path) -> int:
    """Lines in a run's metrics: at least one a step."""
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def kill(case: str, workdir: pathlib.Path, after: int, pause: float) -> int:
    """Starts a run and kills it some seconds after so many lines; returns the lines it wrote."""
    process = start(case, workdir)
    while lines(workdir) < after and process.poll() is None:
        time.sleep(0.005)
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        sys.exit(f"the run ended with {process.returncode} before it was killed")
    return lines(workdir)


def state(workdir: pathlib.Path) -> dict[str, bytes]:
    """All that the last checkpoint holds, as bytes."""
    import numpy as np
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(workdir / "checkpoints" / f"step-{STEPS}"))
    names = reader.get_variable_to_shape_map()
    return {
        name: np.asarray(reader.get_tensor(name)).tobytes()
        for name in names
        if not name.startswith("_CHECKPOINTABLE")  # a description, not a value
    }


def main(argv: Sequence[str]) -> None:
    """Trains, kills, compares, prints."""
    del argv
    unknown = {*_CASES.value} - {*CASES}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    chance = random.Random(_SEED.value)
    identical = 0
    print(
        "| run | killed after | newest checkpoint then | final state |\n| --- | --- | --- | --- |"
    )
    with tempfile.TemporaryDirectory(prefix="tfvmf-kills-") as scratch:
        expected = {}
        for number in range(_KILLS.value):
            case = _CASES.value[number % len(_CASES.value)]
            if case not in expected:
                whole = pathlib.Path(scratch) / case
                finish(start(case, whole))
                expected[case] = state(whole)
            workdir = pathlib.Path(scratch) / f"{case}-{number}"
            # Not in the last steps: the run might end before it is killed.
            written = kill(case, workdir, chance.randrange(STEPS - 6), chance.uniform(0.0, 0.2))
            found = workdir.glob("checkpoints/step-*.index")
            newest = max((int(p.stem.removeprefix("step-")) for p in found), default=0)
            finish(start(case, workdir))
            same = state(workdir) == expected[case]
            identical += same
            verdict = "identical" if same else "DIFFERENT"
            print(f"| {case} | line {written} | step {newest} | {verdict} |", flush=True)
    print(f"\n{_KILLS.value} kills, {identical} identical results")
    sys.exit(identical < _KILLS.value)


if __name__ == "__main__":
    app.run(main)
