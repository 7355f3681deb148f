"""What the loss over a global batch costs one replica, as batch and replicas grow.

    .venv/bin/python benchmarks/global_loss.py [--batches=256,8192] [--replicas=1,8] [--repeats=3]

NT-Xent and its gradient on random unit vectors, d = 128. A replica of N has 1/N of the images and
compares their views with those of the whole batch. Time is that of all cores together, which a busy
machine does not stretch. Each line is a process of its own; its peak memory includes TensorFlow
itself, which the line "none" shows alone. Prints a Markdown table, with the bytes that a ring of N
replicas sends and receives for the loss (`docs/scaling.md` says how they are counted). Exits with 1
if a batch of 8192 on one replica takes more than 1.5 GiB.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from absl import app, flags

_BATCHES = flags.DEFINE_list("batches", ["256", "512", "1024", "2048", "4096", "8192"], "images")
_REPLICAS = flags.DEFINE_list("replicas", ["1", "8"], "replicas that share a batch")
_REPEATS = flags.DEFINE_integer("repeats", 3, "measured times, of which the median", lower_bound=1)
_ONLY = flags.DEFINE_string("only", "", "batch,replicas: measure this line and stop (internal)")

DIMENSION = 128
MIB = 2**20
MOST = 1.5 * 1024  # MiB, for 8192 images on one replica


def measure(batch: int, replicas: int) -> tuple[float, float]:
    """CPU seconds of the loss with its gradient, and this process's peak memory in MiB."""
    import numpy as np
    import tensorflow as tf

    from tfvmf import losses

    rng = np.random.default_rng(0)
    views = rng.normal(size=(2, max(batch, 2), DIMENSION)).astype(np.float32)
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    rows = max(batch // replicas, 1)

    @tf.function
    def loss_and_gradient(first: tf.Tensor, second: tf.Tensor) -> list[tf.Tensor]:
        loss = losses.nt_xent(first[:rows], second[:rows], candidates_1=first, candidates_2=second)
        return [loss, *tf.gradients(loss, [first, second])]

    first, second = tf.constant(views[0]), tf.constant(views[1])
    seconds = []
    for _ in range(_REPEATS.value + 1 if batch else 0):
        start = time.process_time()
        loss_and_gradient(first, second)[0].numpy()
        seconds.append(time.process_time() - start)
    median = statistics.median(seconds[1:]) if batch else 0.0  # the first builds the graph
    return median, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(batch: int, replicas: int) -> tuple[float, float]:
    """`measure` in a new process."""
    command = [sys.executable, __file__, f"--only={batch},{replicas}"]
    command.append(f"--repeats={_REPEATS.value}")
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, memory = json.loads(output.splitlines()[-1])
    return seconds, memory


def traffic(batch: int, replicas: int) -> float:
    """MiB that a replica sends, and receives, for the loss of a step.

    Both views of the batch are gathered, (N - 1) / N of them over the wire; their gradients are
    summed over all replicas, which in a ring takes twice that.
    """
    both = 2 * batch * DIMENSION * 4
    return 3 * both * (replicas - 1) / replicas / MIB


def main(argv: Sequence[str]) -> None:
    """Measures and prints the table."""
    del argv
    if _ONLY.value:
        print(json.dumps(measure(*map(int, _ONLY.value.split(",")))))
        return
    print("| batch | replicas | loss and gradient, CPU ms | peak, MiB | sent, MiB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    print(f"| none | | | {in_process(0, 1)[1]:.0f} | |", flush=True)
    worst = 0.0
    for replicas in map(int, _REPLICAS.value):
        for batch in map(int, _BATCHES.value):
            seconds, memory = in_process(batch, replicas)
            if (batch, replicas) == (8192, 1):
                worst = memory
            sent = traffic(batch, replicas)
            cells = f"{batch} | {replicas} | {1000 * seconds:.1f} | {memory:.0f} | {sent:.1f}"
            print(f"| {cells} |", flush=True)
    if worst:
        print(f"\n8192 images on one replica: {worst:.0f} MiB (at most {MOST:.0f})")
    sys.exit(worst > MOST)


if __name__ == "__main__":
    app.run(main)
