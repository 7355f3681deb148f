"""Do N replicas compute what one device would? Every method, on every layout, beside one device.

    .venv/bin/python benchmarks/equality.py [--cases=byol,swav_queue] [--layouts=mirrored_2]

Prints a Markdown table: for each layout the greatest relative difference from one device, of the
losses of 5 steps, |a - b| / |b|, and of the weights after them, max|a - b| / max|b| a tensor
(moving statistics, target network and queue are weights too). Exits with 1 above 1e-5.

The optimizer is SGD with momentum: Adam divides by the gradient's size and so makes rounding errors
as large as steps. `moved` tells that the weights did go somewhere: the median over tensors of
max|w5 - w1| / max|w5|. The network is a ResNet-18 of width 2 on 8x8 digits. Each layout is a process
of its own, since a process can have one strategy only. About 10 minutes on 2 idle cores.
"""

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, flags

from tfvmf.config import default_config

STEPS = 5
MOST = 1e-5
REFERENCE = "one"
PLAIN = (
    "simclr", "simclr_vmf", "simsiam", "simsiam_vmf", "byol", "byol_vmf", "swav", "swav_vmf",
    "mc_infonce", "supervised",
)  # fmt: skip
CASES: dict[str, dict[str, Any]] = {name: {"method": name} for name in PLAIN} | {
    "swav_vmf, queue": {"method": "swav_vmf", "swav.queue": 552},
    "swav_vmf, local views": {"method": "swav_vmf", "swav.local_views": 2, "swav.local_size": 8},
    "byol_vmf, dropout": {"method": "byol_vmf", "model.dropout": 0.1},
    "simclr_vmf, exact penalty": {"method": "simclr_vmf", "concentration.regularizer": "vmf"},
}
TINY = {
    "epochs": 1,
    "batch_size": 276,  # 5 steps over the 1397 digits, and 4 devices can share it
    "data.image_size": 8,
    "model.width": 2,
    "model.dimension": 8,
    "model.hidden": 8,
    "swav.prototypes": 16,
    "swav.freeze_epochs": 0.4,
    "mc_infonce.n_samples": 4,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.1,
    "optimizer.warmup_epochs": 0.0,
    "monitor.every_epochs": 0.0,
    "checkpoint.every_epochs": 0.2,
    "checkpoint.keep": STEPS,
    "log_every_steps": 1,
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a batch is spread."""

    title: str
    strategy: str
    devices: int = 0
    processes: int = 1


LAYOUTS = {
    REFERENCE: Layout("1 device", "default"),
    "mirrored_2": Layout("2 devices", "mirrored", devices=2),
    "mirrored_4": Layout("4 devices", "mirrored", devices=4),
    "workers_2": Layout("2 processes", "multi_worker", processes=2),
}

_CASES = flags.DEFINE_list("cases", list(CASES), "which methods")
_LAYOUTS = flags.DEFINE_list("layouts", list(LAYOUTS), "which layouts beside one device")
_DIRECTORY = flags.DEFINE_string("directory", "", "keep the runs here")
_TRAIN = flags.DEFINE_string("train", "", "train on this layout and stop (internal)")


def directory_of(root: pathlib.Path, layout: str, case: str) -> pathlib.Path:
    """The run directory of a case on a layout."""
    return root / layout / case.replace(", ", "-").replace(" ", "_")


def train(root: pathlib.Path, layout: str, cases: Sequence[str]) -> None:
    """Trains all cases on one layout, in this process."""
    from tfvmf import training

    for case in cases:
        config = default_config()
        config.update_from_flattened_dict({**TINY, **CASES[case]})
        config.strategy = LAYOUTS[layout].strategy
        directory = directory_of(root, layout, case)
        training.train(config, directory, logical_devices=LAYOUTS[layout].devices)


def start(root: pathlib.Path, layout: str, cases: Sequence[str]) -> None:
    """Trains all cases on one layout, in as many new processes as it has."""
    command = [sys.executable, __file__, f"--train={layout}", f"--directory={root}"]
    command.append("--cases=" + ",".join(f'"{case}"' for case in cases))
    count = LAYOUTS[layout].processes
    processes = []
    for number, environment in enumerate(environments(count)):
        with open(root / f"{layout}.{number}.log", "w") as log:
            processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"{layout} failed with {codes}: see {root}/{layout}.*.log")


def environments(count: int) -> list[dict[str, str]]:
    """The environment of each of so many workers on this machine."""
    base = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    base.pop("TF_CONFIG", None)
    if count == 1:
        return [base]
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    workers = [f"localhost:{place.getsockname()[1]}" for place in sockets]
    for place in sockets:
        place.close()
    task = {"cluster": {"worker": workers}}
    return [
        {**base, "TF_CONFIG": json.dumps({**task, "task": {"type": "worker", "index": index}})}
        for index in range(count)
    ]


def read(directory: pathlib.Path, step: int = STEPS) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The losses of a run, and its weights after a step."""
    import tensorflow as tf

    from tfvmf.training import read_metrics

    losses = [line["loss"] for line in read_metrics(directory) if "loss" in line]
    reader = tf.train.load_checkpoint(str(directory / "checkpoints" / f"step-{step}"))
    weights = {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if not name.startswith(("optimizer/", "save_counter", "_CHECKPOINTABLE"))
    }
    return np.array(losses), weights


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|a - b| / max|b|."""
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def compare(root: pathlib.Path, layout: str, case: str) -> tuple[float, float]:
    """Greatest relative differences of losses and of weights from one device."""
    losses, weights = read(directory_of(root, layout, case))
    expected_losses, expected = read(directory_of(root, REFERENCE, case))
    assert len(losses) == len(expected_losses) == STEPS
    assert weights.keys() == expected.keys()
    worst = max(difference(weights[name], expected[name]) for name in expected)
    return float(np.abs(losses / expected_losses - 1.0).max()), worst


def moved(root: pathlib.Path, case: str) -> float:
    """How far the weights of one device went, the median over all tensors."""
    directory = directory_of(root, REFERENCE, case)
    first, last = read(directory, 1)[1], read(directory, STEPS)[1]
    return float(np.median([difference(first[name], last[name]) for name in last]))


def table(root: pathlib.Path, layouts: Sequence[str], cases: Sequence[str]) -> float:
    """Prints the table; returns the greatest difference in it."""
    titles = [LAYOUTS[layout].title for layout in layouts]
    print("| loss / weights | " + " | ".join(titles) + " | moved |")
    print("| --- |" + " ---: |" * (len(layouts) + 1))
    greatest = 0.0
    for case in cases:
        cells = []
        for layout in layouts:
            pair = compare(root, layout, case)
            greatest = max(greatest, *pair)
            cells.append("{:.1e} / {:.1e}".format(*pair))
        print(f"| {case} | " + " | ".join(cells) + f" | {moved(root, case):.2f} |")
    return greatest


def main(argv: Sequence[str]) -> None:
    """Trains what is asked for, compares, prints."""
    del argv
    unknown = {*_CASES.value} - {*CASES} | {*_LAYOUTS.value} - {*LAYOUTS}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {[*CASES]}, {[*LAYOUTS]}")
    layouts = [layout for layout in _LAYOUTS.value if layout != REFERENCE]
    with tempfile.TemporaryDirectory(prefix="tfvmf-equality-") as scratch:
        root = pathlib.Path(_DIRECTORY.value or scratch)
        root.mkdir(parents=True, exist_ok=True)
        if _TRAIN.value:
            train(root, _TRAIN.value, _CASES.value)
            return
        for layout in [REFERENCE, *layouts]:
            start(root, layout, _CASES.value)
        greatest = table(root, layouts, _CASES.value)
    print(f"\ngreatest difference {greatest:.1e} (at most {MOST})")
    sys.exit(greatest > MOST)


if __name__ == "__main__":
    app.run(main)
