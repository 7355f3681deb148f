"""What fit-kappa and the decision cost beside the bare forward pass of an encoder.

    tfvmf fit-kappa MODEL DATA --workdir=RUN
    .venv/bin/python benchmarks/frozen.py --run=RUN [--data_dir=DIR] [--images=2000] [--rounds=3]

Three rates on the images of a fitted run, in turn, and the median of the rounds: the network alone
on a batch that is ready in memory; the views that `fit-kappa` embeds (reading, enlarging and
augmenting images, writing vectors); and what an export computes, with and without familiarity and
the decision.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli

_RUN = flags.DEFINE_string("run", "", "a run that fit-kappa made")
_DATA_DIR = flags.DEFINE_string("data_dir", "", "where TFDS finds prepared data sets")
_IMAGES = flags.DEFINE_integer("images", 2000, "images whose views are embedded", lower_bound=250)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "measurements of each, in turn", lower_bound=1)

_BATCH, _BATCHES = 250, 8
_SERVED = 32  # images of a request


def main() -> None:
    """Prints the rates and their quotients."""
    if not _RUN.value:
        raise UserError("--run is missing: a run directory that tfvmf fit-kappa made")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFVMF_CACHE"] = folder
        measure()


def measure() -> None:
    """Measures all in turn, and prints."""
    import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
    import tensorflow as tf

    from tfvmf import models, training
    from tfvmf.posthoc import cached, judge
    from tfvmf.posthoc.method import FitKappa

    config, method, _ = training.load_method(_RUN.value)
    if _DATA_DIR.value:
        config.data.data_dir = _DATA_DIR.value
    if not isinstance(method, FitKappa):
        raise UserError(f"--run={_RUN.value} was not made by tfvmf fit-kappa")
    source = training.load_source(config, config.data.source, config.data.train_split)
    judged = judge.load(_RUN.value, encoder=method.encoder)
    if judged is None:
        raise UserError(f"--run={_RUN.value} is not calibrated: fit it with --config.data.reserve")
    rows = np.random.default_rng(0).permutation(source.size)
    images = tf.constant(source.take(rows[:_BATCH]), tf.float32) / 255.0
    frozen, levels = models.frozen_outputs(method.encoder), models.with_levels(method.encoder)
    views = config.fit_kappa.cache_views
    wide = views if config.concentration.view_kind == "wide" else 0

    bare = tf.function(lambda x: frozen(x, training=False))
    plain = tf.function(lambda x: levels(x, training=False))

    @tf.function
    def full(x: tf.Tensor) -> dict[str, tf.Tensor]:
        found = levels(x, training=False)
        return {**found, **judged(found)}

    def of_batches(graph: Callable, batch: tf.Tensor) -> float:
        start = time.perf_counter()
        for _ in range(_BATCHES):
            graph(batch)["mean_direction"].numpy()
        return _BATCHES * len(batch) / (time.perf_counter() - start)

    def of_views(number: int) -> float:
        part = source.subset(np.sort(np.roll(rows, -number * _IMAGES.value)[: _IMAGES.value]))
        start = time.perf_counter()
        cached.embed_views(method, part, views, wide)
        return (1 + views + wide) * _IMAGES.value / (time.perf_counter() - start)

    served = images[:_SERVED]
    measured: dict[str, list[float]] = {}
    candidates: dict[str, Callable[[int], float]] = {
        "the network alone": lambda _: of_batches(bare, images),
        "views of fit-kappa": of_views,
        "an export without decision": lambda _: of_batches(plain, images),
        "an export with it": lambda _: of_batches(full, images),
        f"without, {_SERVED} images": lambda _: of_batches(plain, served),
        f"with it, {_SERVED} images": lambda _: of_batches(full, served),
    }
    for measure_one in candidates.values():
        if measure_one is not of_views:
            measure_one(0)  # which builds the graph
    for number in range(_ROUNDS.value):
        for name, measure_one in candidates.items():
            measured.setdefault(name, []).append(measure_one(number))
    medians = {name: statistics.median(values) for name, values in measured.items()}
    for name, value in medians.items():
        rounds = ", ".join(f"{rate:.0f}" for rate in measured[name])
        print(f"{name:28} {value:7.0f} images/s   ({rounds})")
    alone, embedded, *pairs = medians.values()
    print(f"fit-kappa: {embedded / alone:.0%} of the network alone")
    for text, without, with_it in ((_BATCH, *pairs[:2]), (_SERVED, *pairs[2:])):
        print(f"the decision costs {without / with_it - 1:.1%} of a pass of {text} images")


if __name__ == "__main__":
    cli.run(main)
