"""What MC-InfoNCE costs: its train step beside SimCLR's, in time and in memory.

    .venv/bin/python benchmarks/mc_infonce.py [--batch=256] [--num_samples=64] [--repeats=15]

The network is that of configs/cifar10_cpu_resnet.py. Steps alternate (A B A B ...) in one process,
so that a noisy machine slows both; peak memory is each method's own process's. Exits with 1 if the
step takes more than 1.5 times SimCLR's or a GiB more memory.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfvmf.config import default_config
from tfvmf.data import Augmentation
from tfvmf.methods import build_method
from tfvmf.training.optimizers import make_optimizer
from tfvmf.training.step import make_train_step

_BATCH = flags.DEFINE_integer("batch", 256, "image pairs", lower_bound=2)
_SAMPLES = flags.DEFINE_integer("num_samples", 64, "samples of each distribution", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 15, "measured steps of each", lower_bound=1)
_ONLY = flags.DEFINE_string("only", "", "measure the memory of this method alone (internal)")

METHODS = ("simclr", "mc_infonce")
MOST_TIME, MOST_MEMORY = 1.5, 1024.0


def make_step(method_name: str) -> Callable[[], float]:
    """A function that trains one step of a method on one batch of noise."""
    config = default_config()
    config.method = method_name
    config.model.width = 16
    config.mc_infonce.num_samples = _SAMPLES.value
    method = build_method(config)
    optimizer = make_optimizer(
        config.optimizer, method.trainable_variables, steps_per_epoch=10, total_steps=1000
    )
    strategy = tf.distribute.get_strategy()
    step = make_train_step(
        strategy, method, optimizer, [(Augmentation(), 2)], seed=0, steps_per_epoch=1
    )
    images = np.random.default_rng(0).integers(0, 256, (_BATCH.value, 32, 32, 3), np.uint8)
    batch = {"image": images, "label": np.zeros(_BATCH.value, np.int32)}
    batches: Iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: float(step(batches)["loss"])


def peak_memory(method_name: str) -> float:
    """MiB that a process needs for three steps of a method."""
    command = [sys.executable, __file__, f"--only={method_name}"]
    command += [f"--batch={_BATCH.value}", f"--num_samples={_SAMPLES.value}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def main(argv: Sequence[str]) -> None:
    """Measures and prints one table."""
    del argv
    if _ONLY.value:
        step = make_step(_ONLY.value)
        for _ in range(3):
            step()
        print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    memory = {name: peak_memory(name) for name in METHODS}
    steps = {name: make_step(name) for name in METHODS}
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for repeat in range(_REPEATS.value + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= 2:  # the first build their graphs
                seconds[name].append(time.perf_counter() - start)
    print(f"batch {_BATCH.value}, {_SAMPLES.value} samples, d = 128, ResNet-18 of width 16")
    print(f"{'method':12}{'step, ms':>10}{'peak, MiB':>11}")
    for name in METHODS:
        print(f"{name:12}{1000 * statistics.median(seconds[name]):10.0f}{memory[name]:11.0f}")
    ratio = statistics.median(
        b / a for a, b in zip(seconds["simclr"], seconds["mc_infonce"], strict=True)
    )
    more = memory["mc_infonce"] - memory["simclr"]
    print(f"mc_infonce / simclr: {ratio:.2f} of the time (at most {MOST_TIME}),")
    print(f"                     {more:+.0f} MiB (at most +{MOST_MEMORY:.0f})")
    sys.exit(ratio > MOST_TIME or more > MOST_MEMORY)


if __name__ == "__main__":
    app.run(main)
