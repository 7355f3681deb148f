"""Latency of an exported model, by both signatures, beside the Keras model that it came from.

    tfvmf export RUN --output=DIR
    .venv/bin/python benchmarks/serving.py --workdir=RUN --model=DIR [--repeats=200]

No server and no network: what TensorFlow itself takes. `keras` calls the encoder as Python would,
operation by operation; `keras in a graph` inside a tf.function, as evaluation does; `openvino`
reads the same SavedModel. All get images of the training size, the bytes as JPEG.
"""

import io
import os
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import app, flags
from PIL import Image

from tfvmf import inference, serving, training

_WORKDIR = flags.DEFINE_string("workdir", "runs/demo", "the trained run")
_MODEL = flags.DEFINE_string("model", "runs/demo/export", "what tfvmf export made of it")
_REPEATS = flags.DEFINE_integer("repeats", 200, "measurements, interleaved", lower_bound=2)
_BATCHES = (1, 8, 64)


def candidates() -> dict[str, Callable[[np.ndarray, np.ndarray], object]]:
    """What is measured: functions of images and of the same images as JPEG."""
    _, method, _ = training.load_method(pathlib.Path(_WORKDIR.value))
    graph = inference.Embedder(method.encoder, batch_size=max(_BATCHES))
    path = serving.load(_MODEL.value).path
    signatures = tf.saved_model.load(str(path)).signatures
    chosen: dict[str, Callable[[np.ndarray, np.ndarray], object]] = {
        "keras": lambda images, _: method.encoder(images / np.float32(255), training=False),
        "keras in a graph": lambda images, _: graph(images),
        "serving_default": lambda images, _: signatures["serving_default"](images=images),
        "serving_bytes": lambda _, files: signatures["serving_bytes"](image_bytes=files),
    }
    try:
        import openvino
    except ImportError:
        return chosen
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    chosen["openvino"] = lambda images, _: compiled(images)
    return chosen


def jpegs(images: np.ndarray) -> np.ndarray:
    """The images as JPEG files: object [N]."""
    files = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return np.array(files, object)


def main(argv: Sequence[str]) -> None:
    """Measures in turn, so that a noisy machine is noisy for all; prints a Markdown table."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    config, _, _ = training.load_method(pathlib.Path(_WORKDIR.value))
    source = training.load_source(config, config.data.source, config.data.eval_split)
    functions = candidates()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before")
    print("\n| batch | | p50 ms | p99 ms | images/s |\n| --- | --- | --- | --- | --- |")
    for batch in _BATCHES:
        images = np.ascontiguousarray(source.take(np.arange(batch) % source.size))
        files = jpegs(images)
        seconds: dict[str, list[float]] = {name: [] for name in functions}
        for repeat in range(-3, _REPEATS.value):  # three to warm up
            for name, function in functions.items():
                start = time.perf_counter()
                function(images, files)
                if repeat >= 0:
                    seconds[name].append(time.perf_counter() - start)
        for name, times in seconds.items():
            p50, p99 = np.percentile(times, [50, 99])
            speed = batch / p50
            print(f"| {batch} | {name} | {1e3 * p50:.1f} | {1e3 * p99:.1f} | {speed:,.0f} |")
    print(f"\nload average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    app.run(main)
