"""How long until an encoder is good? Minutes of training until a k-NN accuracy of 0.50 and 0.57.

    .venv/bin/python -m benchmarks.time_to_quality --data_dir=DIR --directory=RUNS
        [--minutes=120] [--programs=cifar10_cpu,cifar10_cpu_resnet,pytorch]

Three programs on CIFAR-10, one after another: two configs of tfvmf, and the paper's program in
PyTorch, a ResNet-18 of width 16 with the losses of its appendix, Adam at a constant rate of 1e-3
and batches of 256, run as --variant says. Its views are made by tfvmf in another process while
PyTorch trains, so that all see the same ones.

All are measured alike, every epoch: 2,000 test images by a vote of their 20 nearest of 10,000
training images. Only training counts, not measuring. The crossing is on the run's own curve,
interpolated. Curves are kept in RUNS/curves.json, and a program that is there is not run again; a
run of tfvmf that was interrupted continues. Draws RUNS/time_to_quality.png.
"""

import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from absl import flags
from matplotlib.figure import Figure

from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.variants import VARIANTS
from tfvmf.files import write_json
from tfvmf.programs import cli

PROGRAMS = ("cifar10_cpu", "cifar10_cpu_resnet", "pytorch")

_FLAGS = flags.FlagValues()  # of its own: tests import this beside other programs
flags.DEFINE_string("data_dir", None, "where TFDS finds CIFAR-10", flag_values=_FLAGS)
flags.DEFINE_string("directory", None, "for runs and results", flag_values=_FLAGS)
flags.DEFINE_float("minutes", 120.0, "of PyTorch's training, at most", flag_values=_FLAGS)
flags.DEFINE_list("programs", [*PROGRAMS], "which", flag_values=_FLAGS)
flags.register_validator(
    "programs",
    lambda names: set(names) <= set(PROGRAMS),
    f"expected some of {', '.join(PROGRAMS)}",
    flag_values=_FLAGS,
)
flags.DEFINE_enum("variant", "channels_last", [*VARIANTS], "how PyTorch is run", flag_values=_FLAGS)
flags.DEFINE_integer("threads", 2, "of PyTorch", flag_values=_FLAGS)
flags.mark_flags_as_required(["data_dir", "directory"], flag_values=_FLAGS)

# TensorFlow is imported by what needs it: PyTorch's process imports this module too.
GOALS = (0.50, 0.57)
PROBLEM = Problem(backbone="resnet18", width=16, batch=256)
Curve = list[tuple[float, float]]  # minutes of training, k-NN accuracy


def main() -> None:
    """Runs what is missing, prints a Markdown table, draws the curves."""
    directory = pathlib.Path(_FLAGS.directory)
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / "curves.json"
    curves: dict[str, Curve] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in _FLAGS.programs:
        if name not in curves:
            curves[name] = of_pytorch() if name == "pytorch" else of_config(name, directory / name)
            write_json(kept, curves)
    print(f"| program | {' | '.join(f'k-NN {goal:.2f}' for goal in GOALS)} | best | whole run |")
    print(f"| --- |{' ---: |' * (len(GOALS) + 2)}")
    for name, curve in curves.items():
        cells = [
            f"{m:.1f} min" if (m := crossing(curve, goal)) else "not reached" for goal in GOALS
        ]
        best, last = max(accuracy for _, accuracy in curve), curve[-1][0]
        print(f"| {name} | {' | '.join(cells)} | {best:.3f} | {last:.0f} min |")
    draw(curves, directory / "time_to_quality.png")


def crossing(curve: Curve, goal: float) -> float | None:
    """Minutes at which a curve first reaches an accuracy, or None."""
    before, low = 0.0, 0.0
    for minutes, accuracy in curve:
        if accuracy >= goal:
            return before + (minutes - before) * (goal - low) / max(accuracy - low, 1e-9)
        before, low = minutes, accuracy
    return None


def of_config(name: str, workdir: pathlib.Path) -> Curve:
    """The curve of a run of tfvmf, which is trained to its end."""
    command = [sys.executable, "-m", "tfvmf", "train", f"--config={name}", f"--workdir={workdir}"]
    command += [f"--data_dir={_FLAGS.data_dir}", "--config.monitor.every_epochs=1"]
    subprocess.run(command, check=True)
    return curve_of(workdir)


def curve_of(workdir: pathlib.Path) -> Curve:
    """A run's curve: its time is the number of images between two lines over their rate."""
    from tfvmf.training import read_metrics

    batch = json.loads((workdir / "config.json").read_text())["config"]["batch_size"]
    curve: Curve = []
    seconds = step = rate = 0.0
    for line in read_metrics(workdir):
        rate = line.get("images_per_second", rate)
        if rate:
            seconds += (line["step"] - step) * batch / rate
            step = line["step"]
        if "knn_accuracy" in line:
            curve.append((seconds / 60, line["knn_accuracy"]))
    return curve


def of_pytorch() -> Curve:
    """The curve of the paper's program, until it reaches the last goal or its time is over."""
    from benchmarks.side_by_side import torch_simclr

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    settings = PROBLEM.settings()
    arguments = (there, _FLAGS.threads, _FLAGS.variant, settings)
    child = context.Process(target=torch_simclr.serve, args=arguments, daemon=True)
    child.start()
    there.close()
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(_FLAGS.threads)
    curve: Curve = []
    try:
        seconds, epochs = 0.0, _Epochs()
        while seconds < 60 * _FLAGS.minutes and (not curve or curve[-1][1] < GOALS[-1]):
            start, pending = time.perf_counter(), False
            for views in epochs.next():  # made while the last ones are trained on
                if pending:
                    here.recv()
                here.send(views)
                pending = True
            loss = here.recv()
            seconds += time.perf_counter() - start
            curve.append((seconds / 60, epochs.accuracy(here)))
            print(f"{curve[-1][0]:.1f} min: loss {loss:.3f}, k-NN {curve[-1][1]:.3f}", flush=True)
    finally:
        here.close()
        child.join(10)
    return curve


def draw(curves: dict[str, Curve], path: pathlib.Path) -> None:
    """Accuracy over minutes, with the goals."""
    from tfvmf.evaluation.plots import BLUE, GREEN, ORANGE

    colors = dict(zip(PROGRAMS, (BLUE, GREEN, ORANGE), strict=True))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), color=colors[name], label=name, marker=".")
    for goal in GOALS:
        axes.axhline(goal, color="#bbbbbb", linewidth=0.8)
    axes.set(xlabel="minutes of training on 2 cores", ylabel="k-NN accuracy", xscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


class _Epochs:
    """Views and measurements of CIFAR-10, as the config `cifar10_cpu_resnet` has them."""

    def __init__(self) -> None:
        from tfvmf.configs import cifar10_cpu_resnet
        from tfvmf.training import inputs

        config = cifar10_cpu_resnet.get_config()
        config.data.data_dir = _FLAGS.data_dir
        self._train, self._bank, self._queries = inputs.load_sources(config)
        self._augment = inputs.augmentation_from_config(config)
        self._number = 0

    def next(self) -> Iterator[list[np.ndarray]]:
        """The pairs of views of an epoch."""
        from tfvmf.counter_random import example_seeds

        order = np.random.default_rng(self._number).permutation(self._train.size).astype(np.int32)
        for rows in np.array_split(order, self._train.size // PROBLEM.batch):
            images = self._train.take(rows)
            views = [example_seeds(0, self._number, rows, view) for view in range(2)]
            yield [self._augment(images, seeds).numpy() for seeds in views]
        self._number += 1

    def accuracy(self, connection: multiprocessing.connection.Connection) -> float:
        """The k-NN accuracy of the model behind a connection."""
        from tfvmf import neighbors
        from tfvmf.training.monitor import evenly

        found, labels = [], []
        for source, count in ((self._bank, 10_000), (self._queries, 2_000)):
            rows, features = evenly(source.size, count), []
            for part in np.array_split(rows, len(rows) // 500):
                images = source.take(part).astype(np.float32) / 255.0
                connection.send([images])
                features.append(connection.recv())
            found.append(np.concatenate(features))
            labels.append(np.asarray(source.labels)[rows])
        predicted = neighbors.classify(found[1], found[0], labels[0], k=20)
        return float((predicted == labels[1]).mean())


if __name__ == "__main__":
    cli.run(main, _FLAGS)
