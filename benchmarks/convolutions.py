"""Where is Winograd's method faster than a direct convolution on this processor?

    .venv/bin/python benchmarks/convolutions.py [--seconds=0.5]

Forward and backward of one 3x3 convolution, interleaved, in ms; the constants of
`tfvmf/models/layers.py` follow from it.
"""

import pathlib
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import tfvmf  # isort: skip # noqa: F401 # before TensorFlow: it says which kernels to use
import numpy as np
import tensorflow as tf
from absl import app, flags

from tfvmf.models.layers import winograd

_SECONDS = flags.DEFINE_float("seconds", 0.5, "of each candidate and shape")
_SHAPES = (  # maps, and channels out
    # ResNets at 32 px
    *((512, 32, 32, 16, 16), (512, 16, 16, 32, 32), (512, 8, 8, 64, 64), (512, 4, 4, 128, 128)),
    *((64, 32, 32, 64, 64), (64, 16, 16, 128, 128), (64, 8, 8, 256, 256), (64, 4, 4, 512, 512)),
    # convnet8 on views of 24 px, of width 16 and 24
    *((512, 24, 24, 16, 32), (512, 12, 12, 32, 32), (512, 12, 12, 32, 128)),
    *((512, 6, 6, 128, 128), (512, 6, 6, 128, 256), (512, 3, 3, 256, 256)),
    *((512, 24, 24, 24, 48), (512, 12, 12, 48, 48), (512, 12, 12, 48, 192)),
    *((512, 6, 6, 192, 192), (512, 6, 6, 192, 384), (512, 3, 3, 384, 384)),
)


def main(argv: list[str]) -> None:
    """Prints a Markdown table."""
    del argv
    ways = {
        "direct": lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME"),
        "Winograd": winograd,
    }
    print(f"| maps | channels out | direct | Winograd | ratio |\n| --- |{' ---: |' * 4}")
    for *shape, filters in _SHAPES:
        x = tf.random.normal(shape)
        kernel = tf.random.normal((3, 3, shape[-1], filters)) / 3
        steps = {name: _step(way) for name, way in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for step in steps.values():
            step(x, kernel)
        while sum(times["direct"]) < _SECONDS.value or len(times["direct"]) < 5:
            for name, step in steps.items():
                start = time.perf_counter()
                step(x, kernel)[0].numpy()
                times[name].append(time.perf_counter() - start)
        direct, other = (1000 * float(np.median(each)) for each in times.values())
        numbers = f"{direct:.1f} | {other:.1f} | {direct / other:.2f}"
        print(f"| {shape} | {filters} | {numbers} |", flush=True)


def _step(way: Callable) -> tf.types.experimental.GenericFunction:
    @tf.function
    def step(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            loss = tf.reduce_sum(tf.square(way(x, kernel)))
        return tuple(tape.gradient(loss, [x, kernel]))

    return step


if __name__ == "__main__":
    app.run(main)
