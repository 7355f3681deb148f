"""Which recipe makes the best encoder of CIFAR-10 in the same minutes on 2 CPU cores?

    .venv/bin/python -m studies.recipe.search --data_dir=DIR --recipes=muon,muon_wide [--minutes=15]
    .venv/bin/python -m studies.recipe.search --table

Trains each named recipe of `recipes.py` for a budget and writes one JSON into `lines/` when it is
finished; a line that is there is not run again, so the same command continues a search. The budget
is *processor time of this process*: 15 minutes are 2 x 15 CPU minutes, whatever else the machine
does meanwhile. Only training steps count, not building graphs nor measuring. The learning rate
follows a cosine over the budget itself.

Choices are made on 5,000 training images that nothing else sees: a k-NN classifier (k = 20, one
pass at 32 px, the other 45,000 images vote) and a linear probe. Along the way, and at the end of
budgets below 8 minutes, which only screen, 10,000 images vote. A recipe is stopped where its curve
is more than `--margin` below that of the best finished line of the same budget. The test set is not
read, unless `--test` says so for the final line.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import keras
import numpy as np
import tensorflow as tf
from absl import flags

from studies.recipe import networks, objectives, optimizers, teacher
from studies.recipe.recipes import RECIPES, Recipe
from tfvmf import counter_random, data, neighbors
from tfvmf.posthoc.probe import fit_linear

_FLAGS = flags.FlagValues()  # of its own: tests import this beside other programs
flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10", flag_values=_FLAGS)
flags.DEFINE_list("recipes", [], "names of recipes, in this order", flag_values=_FLAGS)
flags.DEFINE_float("minutes", 15.0, "of 2 cores: twice the CPU time", flag_values=_FLAGS)
flags.DEFINE_integer("seed", 0, "of weights, order and views", 0, flag_values=_FLAGS)
flags.DEFINE_float("margin", 0.03, "below the best line is hopeless; 0: never", flag_values=_FLAGS)
flags.DEFINE_bool("test", False, "measure on the test set: the final line", flag_values=_FLAGS)
flags.DEFINE_bool("table", False, "print the table of lines and stop", flag_values=_FLAGS)
flags.DEFINE_string(
    "lines", str(pathlib.Path(__file__).parent / "lines"), "of the JSONs", flag_values=_FLAGS
)

CORES = 2
_HELD_OUT = 5000
_MARKS = (0.2, 0.4, 2 / 3)  # shares of the budget at which the curve is measured
_FEW = 10_000  # voters of the curve
_SCREENING = 8.0  # shorter budgets, in minutes, are measured like a point of the curve alone


@dataclasses.dataclass(frozen=True)
class Images:
    """Images uint8 [N, 32, 32, 3] with labels: those to train on, which vote, and others."""

    train: np.ndarray
    train_labels: np.ndarray
    others: np.ndarray
    other_labels: np.ndarray


def load(data_dir: str, *, test: bool = False) -> Images:
    """CIFAR-10's training images but 5,000, and these 5,000 (or, in their place, the test set)."""

    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        source = data.load_source("cifar10", split, data_dir=data_dir, image_size=32)
        return source.take(np.arange(source.size)), np.asarray(source.labels)

    images, labels = read("train")
    order = np.random.default_rng(2026).permutation(len(images))
    held_out, train = np.split(order, [_HELD_OUT])
    others = read("test") if test else (images[held_out], labels[held_out])
    return Images(images[train], labels[train], *others)


class Trainer:
    """The networks of a recipe, its steps and its features."""

    def __init__(self, recipe: Recipe, images: np.ndarray, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self.recipe, self.seed = recipe, seed
        self.trunk = networks.build_trunk(
            recipe.channels,
            depth=recipe.depth,
            residual=recipe.residual,
            activation=recipe.activation,
            features=recipe.features,
            whitening=networks.whitening_filters(images) if recipe.whitening else None,
        )
        self.projector = networks.build_projector(
            self.trunk.output.shape[-1], hidden=recipe.hidden, dimension=recipe.dimension
        )
        self._variables = self.trunk.trainable_variables + self.projector.trainable_variables
        self._optimizer = optimizers.Optimizer(
            recipe.optimizer,
            self._variables,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self._images = tf.constant(images)
        queue = np.random.default_rng(seed).normal(size=(recipe.queue or 1, recipe.dimension))
        queue /= np.linalg.norm(queue, axis=1, keepdims=True)
        self._queue = tf.Variable(queue.astype(np.float32), trainable=False)
        start = time.process_time()
        taught = "teacher" in recipe.loss
        self._teacher = tf.constant(teacher.features(images, seed=seed) if taught else [[0.0]])
        self.spent = time.process_time() - start  # CPU seconds of the budget before the first step
        self._steps: dict[int, Callable[..., tf.Tensor]] = {}  # by the size of global views

        @tf.function(reduce_retracing=True)
        def features(pixels: tf.Tensor) -> tf.Tensor:
            return self.trunk(tf.cast(pixels, tf.float32) / 255.0, training=False)

        self._features = features

    def step(self, rows: np.ndarray, number: int, share: float) -> float:
        """Trains on these images; `share` of the budget is spent. Returns the loss."""
        size = self.recipe.size_at(share)
        if size not in self._steps:
            self._steps[size] = self._build(size)
        rate = tf.constant(self.recipe.rate_at(share), tf.float32)
        return float(self._steps[size](tf.constant(rows, tf.int32), tf.constant(number), rate))

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Features of whole images."""
        starts = range(0, len(images), 500)
        return np.concatenate([self._features(images[i : i + 500]).numpy() for i in starts])

    def _build(self, size: int) -> Callable[..., tf.Tensor]:
        recipe = self.recipe
        kinds = [(recipe.augmentation(size), recipe.global_views)]
        if recipe.local_views:
            kinds.append((recipe.local_augmentation(), recipe.local_views))

        @tf.function
        def step(rows: tf.Tensor, number: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
            images = tf.ensure_shape(tf.gather(self._images, rows), [recipe.batch, 32, 32, 3])
            pictures, made = [], 0
            for augmentation, count in kinds:
                seeds = [
                    counter_random.example_seeds(self.seed, number, tf.range(recipe.batch), view)
                    for view in range(made, made + count)
                ]
                copies = tf.concat([images] * count, axis=0)
                pictures.append(augmentation(copies, tf.concat(seeds, axis=0)))
                made += count
            with tf.GradientTape() as tape:  # all views of one size in one pass
                projected = [
                    tf.split(self.projector(self.trunk(views, training=True), training=True), count)
                    for views, (_, count) in zip(pictures, kinds, strict=True)
                ]
                locals_ = projected[1] if recipe.local_views else []
                loss = self._loss(projected[0], locals_, rows)
            self._optimizer.apply(tape.gradient(loss, self._variables), rate)
            return loss

        return step

    def _loss(
        self, globals_: list[tf.Tensor], locals_: list[tf.Tensor], rows: tf.Tensor
    ) -> tf.Tensor:
        """The recipe's loss of projections; several names with + are their mean."""
        recipe = self.recipe
        contrast = functools.partial(
            objectives.multi_positive_nt_xent, temperature=recipe.temperature
        )
        known: dict[str, Callable[..., tf.Tensor]] = {
            "nt_xent": contrast,
            "dcl": functools.partial(contrast, decoupled=True),
            "nnclr": functools.partial(
                objectives.nearest_neighbor_nt_xent,
                temperature=recipe.temperature,
                queue=self._queue,
            ),
            "vicreg": objectives.vicreg,
            "coding_rate": functools.partial(objectives.coding_rate, weight=recipe.invariance),
            "teacher": functools.partial(
                objectives.taught,
                temperature=recipe.temperature,
                teacher=lambda: tf.gather(self._teacher, rows),
            ),
        }
        parts = [known[name](globals_, locals_) for name in recipe.loss.split("+")]
        return tf.add_n(parts) / len(parts)


def knn(voters: np.ndarray, labels: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> float:
    """Accuracy of 20 nearest neighbors."""
    return round(float(np.mean(neighbors.classify(queries, voters, labels, k=20) == truth)), 4)


def run(
    recipe: Recipe,
    images: Images,
    *,
    minutes: float,
    seed: int = 0,
    hopeless: dict[str, float] | None = None,
    test: Images | None = None,
) -> dict[str, Any]:
    """Trains a recipe for a budget and measures it.

    Args:
        recipe: What is trained.
        images: What on, and what it is measured with.
        minutes: The budget, on `CORES` cores.
        seed: Of weights, order and views.
        hopeless: {mark of the curve: k-NN accuracy below which the run is stopped}.
        test: The test set, for the final line.
    """
    budget, screening = CORES * minutes * 60.0, minutes < _SCREENING
    marks = [0.5] if screening else list(_MARKS)
    few = slice(_FEW)
    trainer, draw = Trainer(recipe, images.train, seed), np.random.default_rng(seed)
    spent, wall, step, stopped = trainer.spent, 0.0, 0, False
    rows = np.empty(0, np.int64)
    curve: dict[str, dict[str, float]] = {}
    losses: list[float] = []
    built: set[int] = set()
    while spent < budget and not stopped:
        if len(rows) < recipe.batch:
            rows = draw.permutation(len(images.train))
        batch, rows = np.split(rows, [recipe.batch])
        size, start = recipe.size_at(spent / budget), (time.process_time(), time.perf_counter())
        losses.append(trainer.step(batch, step, spent / budget))
        if size in built:  # the first step of each builds its graph
            spent += time.process_time() - start[0]
            wall += time.perf_counter() - start[1]
        built.add(size)
        step += 1
        stopped = not math.isfinite(losses[-1])
        if marks and spent >= marks[0] * budget:
            mark = f"{marks.pop(0):.2g}"
            voters, queries = trainer.embed(images.train[few]), trainer.embed(images.others)
            accuracy = knn(voters, images.train_labels[few], queries, images.other_labels)
            curve[mark] = {
                "knn": accuracy,
                "cpu_minutes": round(spent / 60, 2),
                "step": step,
                "loss": round(float(np.mean(losses[-50:])), 4),
            }
            print(f"  {mark} of the budget: {curve[mark]}, load {os.getloadavg()[0]:.0f}")
            stopped = stopped or accuracy < (hopeless or {}).get(mark, 0.0)
    line: dict[str, Any] = {
        "minutes": minutes,
        "seed": seed,
        "settings": dataclasses.asdict(recipe),
        "stopped": stopped,
        "curve": curve,
        "steps": step,
        "epochs": round(step * recipe.batch / len(images.train), 2),
        "cpu_minutes": round(spent / 60, 2),
        "wall_minutes": round(wall / 60, 2),
        "images_per_cpu_second": round(step * recipe.batch / max(spent, 1e-9), 1),
        "load_average": round(os.getloadavg()[2], 2),
    }
    if stopped:
        return line
    voters = trainer.embed(images.train[few] if screening else images.train)
    queries = trainer.embed(images.others)
    line["knn_few"] = knn(voters[few], images.train_labels[few], queries, images.other_labels)
    if screening:
        return line
    line["knn"] = knn(voters, images.train_labels, queries, images.other_labels)
    probe = fit_linear(voters, images.train_labels)
    line["linear"] = round(float(np.mean(probe.predict(queries) == images.other_labels)), 4)
    if test:
        queries = trainer.embed(test.others)
        line["test_knn"] = knn(voters, images.train_labels, queries, test.other_labels)
        line["test_linear"] = round(float(np.mean(probe.predict(queries) == test.other_labels)), 4)
    return line


def read_lines(directory: pathlib.Path) -> list[dict[str, Any]]:
    """All finished lines: long budgets first, the best of each first."""
    lines = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    return sorted(lines, key=lambda line: (-line["minutes"], -line.get("knn_few", 0.0)))


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as Markdown."""
    rows = [
        "| recipe | minutes | epochs | images/CPU s | k-NN, 10,000 voters | k-NN | linear |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for line in lines:
        curve = [f"{point['knn']:.3f}" for point in line["curve"].values()]
        curve.append("stopped" if line["stopped"] else f"**{line['knn_few']:.3f}**")
        ends = [f"{line[key]:.3f}" if key in line else "" for key in ("knn", "linear")]
        rows.append(
            f"| {line['recipe']} | {line['minutes']:g} | {line['epochs']:.1f} "
            f"| {line['images_per_cpu_second']:.0f} | {', '.join(curve)} | {' | '.join(ends)} |"
        )
    return "\n".join(rows)


def main(argv: list[str]) -> None:
    """Runs the named recipes, or prints the table."""
    try:
        _FLAGS(argv)
    except flags.Error as error:
        sys.exit(f"{error}\n{_FLAGS.get_help()}")
    directory = pathlib.Path(_FLAGS.lines)
    if _FLAGS.table:
        print(table(read_lines(directory)))
        return
    unknown = [name for name in _FLAGS.recipes if name not in RECIPES]
    if unknown or not _FLAGS.recipes:
        sys.exit(f"--recipes: expected some of {', '.join(RECIPES)}")
    minutes, seed = _FLAGS.minutes, _FLAGS.seed
    images = load(_FLAGS.data_dir)
    test = load(_FLAGS.data_dir, test=True) if _FLAGS.test else None
    directory.mkdir(parents=True, exist_ok=True)
    for name in _FLAGS.recipes:
        path = directory / f"{name}-{minutes:g}-{seed}.json"
        if path.exists():
            print(f"{path.name} is there: not run again")
            continue
        lines = [line for line in read_lines(directory) if line["minutes"] == minutes]
        curves = [line["curve"] for line in lines if not line["stopped"]] or [{}]
        hopeless = {
            mark: point["knn"] - _FLAGS.margin for mark, point in curves[0].items() if _FLAGS.margin
        }
        print(f"{name}: {RECIPES[name]}")
        line = run(RECIPES[name], images, minutes=minutes, seed=seed, hopeless=hopeless, test=test)
        command = f"python -m studies.recipe.search --data_dir=DIR --recipes={name}"
        command += f" --minutes={minutes:g} --seed={seed}" + (" --test" if test else "")
        path.write_text(json.dumps({"recipe": name, "command": command, **line}, indent=1) + "\n")
        print(table(read_lines(directory)))


if __name__ == "__main__":
    main(sys.argv)
