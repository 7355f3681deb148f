"""Does the same command give the same bits, in fresh processes on a busy machine?

    .venv/bin/python -m tests.slow.determinism [--cases=simclr_vmf,evaluate] [--runs=5]

Starts each command so often, in new processes and new directories, while other processes keep the
cores busy: which thread is done first differs from run to run. Compares everything that was
computed: all tensors of all checkpoints (weights, moments, queue), every line of metrics.jsonl, and
all results (JSON, CSV, TSV, Markdown, figures), except how long it took. Prints a Markdown table,
one line per case; exits with 1 unless all runs of each case are equal. About 15 s per run on an
idle core.

`--repeats=100` instead takes one step of training so often from the same state, in one process:
threads that race for the order of an addition show there sooner than in whole runs.

The directions have the default dimension, 128. That matters: TensorFlow adds three gradients in an
order that depends on which of them may be overwritten, and slices of a tensor may not where d * 4
bytes are a multiple of 64. Without `tfvmf.losses.copies`, 23 of 200 steps differed in their last
bits (31 of 200 with the exact penalty), and 1 of 8 runs of 22 steps.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 127,  # 11 steps per epoch
    "data.image_size": 16,
    "model.backbone": "resnet10",
    "model.width": 8,
    "monitor.every_epochs": 1.0,
    "checkpoint.every_epochs": 1.0,
    "log_every_steps": 1,
}
METHODS = (
    "simclr", "simclr_vmf", "simsiam", "simsiam_vmf", "byol", "byol_vmf", "swav", "swav_vmf",
    "mc_infonce", "vi_simsiam", "supervised",
)  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {method: {"method": method} for method in METHODS} | {
    "simclr_vmf-exact_penalty": {"method": "simclr_vmf", "concentration.regularizer": "vmf"},
    "swav_vmf-queue": {
        "method": "swav_vmf",
        "swav.queue_length": 254,
        "swav.num_local_views": 2,
        "swav.local_size": 8,
    },
}
BASE = "../base/run"  # a run of simclr_vmf
SUITES = "curves,probe,failure,cifar10c,projector,agreement"


def training_command(settings: Mapping[str, Any]) -> list[str]:
    """The arguments of `tfvmf` that train with these settings."""
    given = [f"--config.{name}={value}" for name, value in {**SMALL, **settings}.items()]
    return ["train", "--workdir=run", *given]


COMMANDS = {name: training_command(settings) for name, settings in RUNS.items()} | {
    "fit-kappa": ["fit-kappa", BASE, "--workdir=run", "--epochs=1"],
    "fit-kappa-cached": ["fit-kappa", BASE, "--workdir=run", "--cache_views=4"],
    "evaluate": ["evaluate", BASE, "--output=eval", "--max_images=50", f"--suite={SUITES}"],
    "figure2": ["reproduce", "figure2", "--workdir=reproduced"],
}


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps so many cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(arguments: Sequence[str], directory: pathlib.Path) -> None:
    """Runs a command of `tfvmf`, which must succeed, in a new process and a new directory."""
    directory.mkdir(parents=True)
    with open(directory / "log.txt", "w") as log:
        code = subprocess.call(
            [sys.executable, "-m", "tfvmf", *arguments],
            cwd=directory,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if code:
        text = (directory / "log.txt").read_text(errors="replace")
        raise RuntimeError(f"tfvmf {' '.join(arguments)} failed with {code}: {text[-2000:]}")


def timeless(text: str) -> str:
    """JSON without the values that say how long something took."""
    values = json.loads(text)
    for name in ("seconds", "images_per_second"):
        values.pop(name, None)
    return json.dumps(values)


def results(directory: pathlib.Path) -> dict[str, str]:
    """Hashes of all that a command has computed, by file and tensor."""
    import tensorflow as tf

    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.suffix == ".index":
            reader = tf.train.load_checkpoint(str(path.with_suffix("")))
            for tensor in sorted(reader.get_variable_to_shape_map()):
                if not tensor.startswith("_CHECKPOINTABLE"):  # a description, not a value
                    value = reader.get_tensor(tensor)
                    content = value if isinstance(value, bytes) else value.tobytes()
                    found[f"{name}: {tensor}"] = hashlib.sha256(content).hexdigest()
        elif path.name == "metrics.jsonl":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found[f"{name}: line {number:4}"] = timeless(line)
        elif path.suffix == ".json":
            found[name] = timeless(path.read_text())
        elif path.suffix in (".csv", ".tsv", ".md", ".png"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found, f"nothing to compare in {directory}"
    return found


def compare(case: str, runs: int, root: pathlib.Path, *, beside: int = 2) -> tuple[int, str]:
    """Runs a case so often; returns how many runs are equal, and what was compared or differs.

    Args:
        case: One of COMMANDS.
        runs: How often.
        root: Where; also where the base run is, if the case needs it.
        beside: Runs at a time.
    """
    directories = [root / f"{case}-{number}" for number in range(runs)]
    with ThreadPoolExecutor(beside) as pool:
        list(pool.map(lambda directory: run(COMMANDS[case], directory), directories))
    found = [results(directory) for directory in directories]
    common, equal = collections.Counter(map(json.dumps, found)).most_common(1)[0]
    expected = json.loads(common)
    differing = {
        name
        for hashes in found
        for name in {*hashes, *expected}
        if hashes.get(name) != expected.get(name)
    }
    if differing:
        return equal, f"DIFFERENT: {', '.join(sorted(differing, reverse=True)[:3])}, ..."
    return equal, f"{len(expected)} values, {hashlib.sha256(common.encode()).hexdigest()[:12]}"


def repeat(case: str, times: int) -> collections.Counter[str]:
    """Takes a step of training so often from the same state: hashes of all weights after it."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfvmf.config import default_config
    from tfvmf.methods import build_method
    from tfvmf.training.inputs import image_inputs
    from tfvmf.training.optimizers import make_optimizer
    from tfvmf.training.step import make_train_step

    tf.config.experimental.enable_op_determinism()
    config = default_config()
    config.update_from_flattened_dict({**SMALL, **RUNS[case], "optimizer.warmup_epochs": 0.0})
    keras.utils.set_random_seed(0)
    inputs = image_inputs(config)
    method = build_method(config, num_classes=inputs.num_classes)
    length = {"steps_per_epoch": 11, "total_steps": 22}
    optimizer = make_optimizer(config.optimizer, method.trainable_variables, cycles=1, **length)
    strategy, views = tf.distribute.get_strategy(), inputs.views(method)
    step = make_train_step(strategy, method, optimizer, views, seed=0, steps_per_epoch=11)
    shape = (config.batch_size, config.data.image_size, config.data.image_size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    batch = {"image": images, "label": np.arange(config.batch_size, dtype=np.int32) % 10}
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    step(batches)  # so that the moments are not zero
    variables = [v for model in method.models.values() for v in model.variables]
    variables += optimizer.variables
    start = [variable.numpy() for variable in variables]
    found: collections.Counter[str] = collections.Counter()
    for _ in range(times):
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        step(batches)
        content = b"".join(variable.numpy().tobytes() for variable in variables)
        found[hashlib.sha256(content).hexdigest()[:12]] += 1
    return found


def main(argv: Sequence[str]) -> None:
    """Runs what is asked for, compares, prints."""
    del argv
    known = RUNS if _REPEATS.value else COMMANDS
    cases = _CASES.value or list(known)
    unknown = {*cases} - {*known}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    count = _REPEATS.value or _RUNS.value
    print("| case | equal | compared | seconds |\n| --- | ---: | --- | ---: |", flush=True)
    failed = False
    with (
        tempfile.TemporaryDirectory(prefix="tfvmf-determinism-") as scratch,
        busy(_BUSY.value),
    ):
        root = pathlib.Path(_DIRECTORY.value or scratch)
        if any(BASE in known[case] for case in cases):
            run(COMMANDS["simclr_vmf"], root / "base")
        for case in cases:
            clock = time.perf_counter()
            if _REPEATS.value:
                (text, equal), *_ = repeat(case, count).most_common()
            else:
                equal, text = compare(case, count, root, beside=_BESIDE.value)
            failed |= equal < count
            seconds = time.perf_counter() - clock
            print(f"| {case} | {equal} of {count} | {text} | {seconds:.0f} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    _CASES = flags.DEFINE_list("cases", [], "which commands, by default all")
    _RUNS = flags.DEFINE_integer("runs", 5, "of each case", lower_bound=2)
    _REPEATS = flags.DEFINE_integer("repeats", 0, "of one step, instead of runs", lower_bound=0)
    _BESIDE = flags.DEFINE_integer("beside", 2, "runs at a time", lower_bound=1)
    _BUSY = flags.DEFINE_integer("busy", 1, "processes that only keep cores busy", lower_bound=0)
    _DIRECTORY = flags.DEFINE_string("directory", "", "keep the runs here")
    app.run(main)
