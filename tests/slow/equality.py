"""Do N replicas compute what one device would? Every method, on every layout, beside one device.

    .venv/bin/python -m tests.slow.equality [--cases=byol,swav] [--layouts=mirrored_2] [--double]

Prints a Markdown table: for each layout the greatest relative difference from one device, of the
losses of 5 steps, |a - b| / max(|b|, 1), and of the weights after them, max|a - b| / max|b| a
tensor (moving statistics, target network and queue are weights too; a tensor of zeros and rounding
errors, below 1e-6, is compared with 1). Exits with 1 above 1e-5.

What to hold the numbers against: `1 device, nudged` is what comes of changing every weight at the
start by 1e-7 of its size, a unit in the last place or two; `moved` is how far training itself
went, the median over trained tensors of max|w5 - w1| / max|w5|.

- The optimizer is SGD with momentum: Adam divides by the gradient's size and so makes rounding
  errors as large as steps.
- Scales and offsets start away from 1 and 0, as those of a trained network. A tensor that starts at
  0 is nothing but gradients, and in float32 these have two or three digits on any layout: in a
  million units a few are within rounding of ReLU's kink, and a unit that is on here and off there
  is a jump of the gradient.
- The network is a ResNet-18 of width 8 (heads of 64) on 8x8 digits, the learning rate 1e-4, where a
  nudge stays a nudge: at 0.1 it becomes 1e-3 within 5 steps, on one device too.
- So that nothing hides behind rounding, `--double` trains at a rate of 0.05 with a copy of the
  package in which float32 is float64 (batch norm without its fused kernel, which knows no float64,
  and ResNet-10, for the time). What differs then by more than 1e-8 is a mistake.

Each layout is a process of its own, since a process can have one strategy only. About 15 minutes on
2 idle cores, and again for `--double`.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import app, flags

import tfvmf
from tfvmf.config import default_config

STEPS = 5
MOST, MOST_DOUBLE = 1e-5, 1e-8
REFERENCE = "one"
TRAINED = "optimizer/_trainable_variables/"
PLAIN = (
    "simclr", "simclr_vmf", "simsiam", "simsiam_vmf", "byol", "byol_vmf", "swav", "swav_vmf",
    "mc_infonce", "vi_simsiam", "supervised",
)  # fmt: skip
# At the others' rate its loss moves by 0.1 a step, and rounding errors grow to 1.4e-5.
GENTLE = {"method": "swav_vmf", "optimizer.learning_rate": 2e-5}
CASES: dict[str, dict[str, Any]] = {name: {"method": name} for name in PLAIN} | {
    "swav_vmf": GENTLE,
    "swav_vmf, queue": {"method": "swav_vmf", "swav.queue_length": 552},
    "swav_vmf, local views": {
        "method": "swav_vmf",
        "swav.num_local_views": 2,
        "swav.local_size": 8,
    },
    "byol_vmf, dropout": {"method": "byol_vmf", "model.dropout": 0.1},
    "simclr_vmf, exact penalty": {"method": "simclr_vmf", "concentration.regularizer": "vmf"},
}
TINY = {
    "epochs": 1,
    "batch_size": 276,  # 5 steps over the 1397 digits, and 4 devices can share it
    "data.image_size": 8,
    "model.width": 8,
    "model.dimension": 16,
    "model.hidden": 64,
    "swav.num_prototypes": 16,
    # The method's paper has 0.05: exp(z / epsilon) multiplies rounding errors by 1 / epsilon.
    "swav.sinkhorn_epsilon": 0.05,
    "swav.freeze_epochs": 0.4,
    "mc_infonce.num_samples": 4,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 1e-4,
    "optimizer.warmup_epochs": 0.0,
    "monitor.every_epochs": 0.0,
    "checkpoint.every_epochs": 0.2,
    "checkpoint.keep": STEPS,
    "log_every_steps": 1,
}
DOUBLE = {"optimizer.learning_rate": 0.05, "model.backbone": "resnet10"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a batch is spread."""

    title: str
    strategy: str
    devices: int = 0
    processes: int = 1
    nudge: float = 0.0  # of every weight at the start


LAYOUTS = {
    REFERENCE: Layout("1 device", "default"),
    "nudged": Layout("1 device, nudged", "default", nudge=1e-7),
    "mirrored_2": Layout("2 devices", "mirrored", devices=2),
    "mirrored_4": Layout("4 devices", "mirrored", devices=4),
    "workers_2": Layout("2 processes", "multi_worker", processes=2),
}

_CASES = flags.DEFINE_list("cases", list(CASES), "which methods")
_LAYOUTS = flags.DEFINE_list("layouts", list(LAYOUTS), "which layouts beside one device")
_DOUBLE = flags.DEFINE_bool("double", False, "compute in float64")
_DIRECTORY = flags.DEFINE_string("directory", "", "keep the runs here")
_TRAIN = flags.DEFINE_string("train", "", "train on this layout and stop (internal)")


def directory_of(root: pathlib.Path, layout: str, case: str) -> pathlib.Path:
    """The run directory of a case on a layout."""
    return root / layout / case.replace(", ", "-").replace(" ", "_")


def train(root: pathlib.Path, layout: str, cases: Sequence[str]) -> None:
    """Trains all cases on one layout, in this process."""
    from tfvmf import training
    from tfvmf.training import loop

    loop.build_method = prepared(loop.build_method, LAYOUTS[layout].nudge)
    for case in cases:
        config = default_config()
        config.update_from_flattened_dict({**TINY, **CASES[case]})
        config.strategy = LAYOUTS[layout].strategy
        if _DOUBLE.value:
            config.update_from_flattened_dict(DOUBLE)
        directory = directory_of(root, layout, case)
        training.train(config, directory, logical_devices=LAYOUTS[layout].devices)


def prepared(build: Callable[..., Any], nudge: float) -> Callable[..., Any]:
    """Builds methods with scales and offsets as of a trained network, and nudges their weights."""

    def build_prepared(*arguments: Any, **keywords: Any) -> Any:
        method = build(*arguments, **keywords)
        offsets, signs = np.random.default_rng(0), np.random.default_rng(1)
        for variable in method.trainable_variables:
            value = variable.numpy()
            if value.ndim == 1:
                value = value + offsets.uniform(0.0, 0.3, value.shape)
            variable.assign(value * (1.0 + nudge * signs.choice([-1.0, 1.0], value.shape)))
        return method

    return build_prepared


def in_double(root: pathlib.Path) -> pathlib.Path:
    """A copy of the package that computes in float64; returns the directory to import it from."""
    package = root / "double" / "tfvmf"
    shutil.copytree(pathlib.Path(tfvmf.__file__).parent, package, dirs_exist_ok=True)
    for room in ("models", "losses", "methods", "config.py"):
        path = package / room
        for file in path.glob("*.py") if path.is_dir() else [path]:
            file.write_text(file.read_text().replace("float32", "float64"))
    norm = package / "models" / "batch_norm.py"
    fused = "if training and distribute.num_replicas() > 1:"
    assert fused in norm.read_text()
    norm.write_text(norm.read_text().replace(fused, "if training:"))
    return package.parent


def start(root: pathlib.Path, layout: str, cases: Sequence[str], package: pathlib.Path) -> None:
    """Trains all cases on one layout, in as many new processes as it has."""
    command = [sys.executable, __file__, f"--train={layout}", f"--directory={root}"]
    command += ["--cases=" + ",".join(f'"{case}"' for case in cases)]
    command += ["--double"] if _DOUBLE.value else []
    if LAYOUTS[layout].processes > 1:
        launcher = pathlib.Path(__file__).parents[2] / "examples" / "multi_worker.py"
        workers = [f"--workers={LAYOUTS[layout].processes}", f"--logs={root}"]
        command = [sys.executable, str(launcher), *workers, *command]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(package)}
    with open(root / f"{layout}.log", "w") as log:
        code = subprocess.call(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    if code:
        sys.exit(f"{layout} failed with {code}: see {log.name}")


def read(directory: pathlib.Path, step: int = STEPS) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The losses of a run, and its weights after a step."""
    import tensorflow as tf

    from tfvmf.training import read_metrics

    losses = [line["loss"] for line in read_metrics(directory) if "loss" in line]
    reader = tf.train.load_checkpoint(str(directory / "checkpoints" / f"step-{step}"))
    weights = {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        # TensorFlow finds a weight through the optimizer first, and so names it after it.
        if name.startswith(TRAINED)
        or not name.startswith(("optimizer/", "save_counter", "_CHECKPOINTABLE"))
    }
    return np.array(losses), weights


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|a - b| / max|b|; of a tensor that is zero, against 1."""
    scale = float(np.abs(theirs).max())
    return float(np.abs(ours - theirs).max()) / (scale if scale > 1e-6 else 1.0)


def compare(root: pathlib.Path, layout: str, case: str) -> tuple[float, float]:
    """Greatest relative differences of losses and of weights from one device."""
    losses, weights = read(directory_of(root, layout, case))
    expected_losses, expected = read(directory_of(root, REFERENCE, case))
    assert len(losses) == len(expected_losses) == STEPS
    assert weights.keys() == expected.keys()
    worst = max(difference(weights[name], expected[name]) for name in expected)
    scale = np.maximum(np.abs(expected_losses), 1.0)  # SimSiam's starts at 0
    return float((np.abs(losses - expected_losses) / scale).max()), worst


def moved(root: pathlib.Path, case: str) -> float:
    """How far the weights of one device went, the median over all tensors."""
    directory = directory_of(root, REFERENCE, case)
    first, last = read(directory, 1)[1], read(directory, STEPS)[1]
    trained = [name for name in last if name.startswith(TRAINED)]
    return float(np.median([difference(first[name], last[name]) for name in trained]))


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
            greatest = greatest if LAYOUTS[layout].nudge else max(greatest, *pair)
            cells.append("{:.1e} / {:.1e}".format(*pair))
        print(f"| {case} | " + " | ".join(cells) + f" | {moved(root, case):.1e} |")
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
        package = in_double(root) if _DOUBLE.value else pathlib.Path(tfvmf.__file__).parents[1]
        for layout in [REFERENCE, *layouts]:
            start(root, layout, _CASES.value, package)
        greatest = table(root, layouts, _CASES.value)
    most = MOST_DOUBLE if _DOUBLE.value else MOST
    print(f"\ngreatest difference {greatest:.1e} (at most {most})")
    sys.exit(greatest > most)


if __name__ == "__main__":
    app.run(main)
