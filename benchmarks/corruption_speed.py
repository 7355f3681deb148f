"""Measures how fast corruptions are generated, and what the whole cifar10c suite would take.

    python benchmarks/corruption_speed.py

Prints images per second for each corruption over the five severities, and the time for 18
corruptions x 5 severities x 10,000 images. For comparison: the published program makes about 230
images per second on one core.
"""

import os
import time
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from tfvmf.data import corruptions

_IMAGES = flags.DEFINE_integer("images", 2000, "Images per corruption and severity.")
_SIDE = flags.DEFINE_integer("side", 32, "Side of the images in pixels.")

_SUITE_IMAGES = 10_000
PUBLISHED_RATE = 230
_PUBLISHED_SIDE = 32


def main(_: list[str]) -> None:
    """Prints the table."""
    images = natural_like(_IMAGES.value, _SIDE.value)
    print(
        f"{len(images)} images of {_SIDE.value} x {_SIDE.value}, {os.cpu_count()} cores, ", end=""
    )
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'corruption':20}{'images/s':>10}")
    suite = 0.0
    for name in corruptions.ALL_CORRUPTIONS:
        corrupt_all(images[:2], [name])  # tables and textures are made on the first call
        start = time.perf_counter()
        corrupt_all(images, [name])
        seconds = time.perf_counter() - start
        each = seconds / (len(images) * len(corruptions.SEVERITIES))
        print(f"{name:20}{1 / each:10,.0f}", flush=True)
        if name in corruptions.CORRUPTIONS:
            suite += each * len(corruptions.SEVERITIES) * _SUITE_IMAGES
    count = len(corruptions.CORRUPTIONS) * len(corruptions.SEVERITIES) * _SUITE_IMAGES
    print(f"suite of {count:,} images: {suite:.0f} s, {count / suite:,.0f} images/s")
    if _SIDE.value == _PUBLISHED_SIDE:
        print(f"{count / suite / PUBLISHED_RATE:.0f} times the published program on one core")


def corrupt_all(images: np.ndarray, names: Sequence[str] = corruptions.CORRUPTIONS) -> None:
    """Makes what the suite measures: every corruption at every severity."""
    for name in names:
        for severity in corruptions.SEVERITIES:
            corruptions.corrupt(images, name, severity)


def natural_like(count: int, side: int) -> np.ndarray:
    """Images with the 1 / f spectrum of photographs: JPEG's time depends on the detail."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]) * side
    spectrum = np.fft.rfft2(rng.standard_normal((count, side, side, 3)), axes=(1, 2))
    fields = np.fft.irfft2(spectrum / np.maximum(frequency, 1)[..., None], (side, side), (1, 2))
    fields = 128 + 60 * fields / fields.std(axis=(1, 2, 3), keepdims=True)
    return np.clip(fields, 0, 255).astype(np.uint8)


if __name__ == "__main__":
    app.run(main)
