#!/usr/bin/env python3
"""Trains all self-supervised methods with the same settings and prints a table.

  .venv/bin/python benchmarks/methods.py
  .venv/bin/python benchmarks/methods.py --config=cifar10_cpu_resnet --methods=byol_vmf \
      --train="--data_dir=DIR --config.epochs=5"

Runs that are already finished are only read. Prints a Markdown table.
"""

import pathlib
import shlex
import subprocess
import sys

from absl import app, flags

from tfvmf import training

ROOT = pathlib.Path(__file__).parent.parent
NAMES = ("simclr", "simsiam", "byol", "swav")

CONFIG = flags.DEFINE_string("config", "configs/digits.py", "settings of all runs")
METHODS = flags.DEFINE_list("methods", [n + v for n in NAMES for v in ("", "_vmf")], "which")
WORKDIR = flags.DEFINE_string("workdir", "runs/methods", "parent of the run directories")
TRAIN = flags.DEFINE_string("train", "", "more flags for tfvmf train")


def main(_: list[str]) -> None:
    """Trains, then prints."""
    print("| method | k-NN | spread | effective rank | kappa | minutes |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for method in METHODS.value:
        workdir = pathlib.Path(WORKDIR.value) / method
        command = [sys.executable, str(ROOT / "bin" / "train"), f"--config={CONFIG.value}"]
        command += [f"--method={method}", f"--workdir={workdir}", *shlex.split(TRAIN.value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = training.read_metrics(workdir)
        seen = [line for line in lines if "knn_accuracy" in line][-1]
        logged = [line for line in lines if "loss" in line]
        kappa = f"{seen['eval_kappa']:.2f}" if "kappa" in logged[-1] else ""
        # From the rates: a run that was resumed, or read again, has no start and end of its own.
        seconds, previous = 0.0, logged[0]["step"]
        for line in logged[1:]:
            images = (line["step"] - previous) * _batch_size(workdir)
            seconds += images / line["images_per_second"]
            previous = line["step"]
        print(
            f"| {method} | {seen['knn_accuracy']:.3f} | {seen['direction_std']:.2f} "
            f"| {seen['effective_rank']:.0f} | {kappa} | {seconds / 60:.1f} |",
            flush=True,
        )


def _batch_size(workdir: pathlib.Path) -> int:
    from tfvmf.training import run_directory

    return run_directory.read(workdir)[0].batch_size


if __name__ == "__main__":
    app.run(main)
