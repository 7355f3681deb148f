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
from collections.abc import Callable, Sequence

import numpy as np
from absl import app, flags

_RUN = flags.DEFINE_string("run", None, "a run that fit-kappa made", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "where TFDS finds prepared data sets")
_IMAGES = flags.DEFINE_integer("images", 2000, "images whose views are embedded", lower_bound=250)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "measurements of each, in turn", lower_bound=1)

_BATCH, _BATCHES = 250, 8
_SERVED = 32  # images of a request


def main(argv: Sequence[str]) -> None:
    """Prints the rates and their quotients."""
    del argv
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
    assert isinstance(method, FitKappa)
    source = training.load_source(config, config.data.source, config.data.train_split)
    judged = judge.load(_RUN.value, encoder=method.encoder)
    assert judged is not None, "the run has no judge"
    rows = np.random.default_rng(0).permutation(source.size)
    images = tf.constant(source.take(rows[:_BATCH]), tf.float32) / 255.0
    frozen, levels = models.frozen_outputs(method.encoder), models.with_levels(method.encoder)
    views = config.fit_kappa.cache_views
    wide = views if config.concentration.view_kind == "wide" else 0
    method.native_size = source.native_size

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
    for graph, batch in ((bare, images), (plain, images), (full, images), (plain, served)):
        of_batches(graph, batch)  # which builds the graph
    of_batches(full, served)
    for number in range(_ROUNDS.value):
        values = {
            "the network alone": of_batches(bare, images),
            "views of fit-kappa": of_views(number),
            "an export without decision": of_batches(plain, images),
            "an export with it": of_batches(full, images),
            f"without, {_SERVED} images": of_batches(plain, served),
            f"with it, {_SERVED} images": of_batches(full, served),
        }
        for name, value in values.items():
            measured.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    for name, value in medians.items():
        print(
            f"{name:28} {value:7.0f} images/s   ({', '.join(f'{v:.0f}' for v in measured[name])})"
        )
    alone, embedded, *pairs = medians.values()
    print(f"fit-kappa: {embedded / alone:.0%} of the network alone")
    for text, without, with_it in ((_BATCH, *pairs[:2]), (_SERVED, *pairs[2:])):
        print(f"the decision costs {without / with_it - 1:.1%} of a pass of {text} images")


if __name__ == "__main__":
    app.run(main)
