"""`tfvmf embed --engine=ray` beside the local program: images per second, and peak memory.

    tfvmf export cifar10 --output=DIR
    .venv/bin/python benchmarks/ray_embedding.py --model=DIR --place=PLACE [--data_dir=DIR]
    .venv/bin/python benchmarks/ray_embedding.py --model=DIR --place=PLACE --memory

Images are those of CIFAR-10, or smooth noise without --data_dir: enlarged to one megapixel and with
noise as of a sensor, as JPEG files of 0.3 MB that are linked to several names; or as small PNG
files. All are read once before, and the engines change their order every round. The time of a
command with one image is its start. The rate is that of the other images:
(N - 1) / (seconds of N - seconds of 1). Memory is the sum over all processes of the command of
their shares (PSS), sampled every half second.
"""

import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
import psutil
from absl import app, flags
from PIL import Image

from tfvmf.data import load_source

_MODEL = flags.DEFINE_string("model", None, "what is embedded with", required=True)
_PLACE = flags.DEFINE_string("place", None, "folder for images and tables", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10; noise by default")
_FILES = flags.DEFINE_integer("files", 1500, "JPEG files of one megapixel")
_LINKS = flags.DEFINE_integer("links", 6, "names of each")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "measurements of each engine, in turn")
_ACTORS = flags.DEFINE_integer("actors", 2, "processes of Ray")
_MEMORY = flags.DEFINE_boolean("memory", False, "measure memory instead, of small images")
_COUNTS = flags.DEFINE_list("counts", ["5000", "50000"], "small images")


def make_images(folder: pathlib.Path, count: int, size: int, suffix: str, links: int = 1) -> None:
    """Writes images, unless they are there."""
    if folder.exists():
        return
    rng = np.random.default_rng(0)
    if _DATA_DIR.value:
        small = load_source("cifar10", "train", data_dir=_DATA_DIR.value).images(0, count)
    else:
        small = rng.integers(256, size=(count, 8, 8, 3), dtype=np.uint8)
    grain = rng.normal(0, 6, (size, size, 1)).astype(np.float32)
    for number, pixels in enumerate(small):
        image = Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC)
        if suffix == "jpg":
            grainy = np.asarray(image) + np.roll(grain, number, axis=0)
            image = Image.fromarray(grainy.clip(0, 255).astype(np.uint8))
        for link in range(links):
            path = folder / str(link) / f"{number:06}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if link:
                os.link(folder / "0" / path.name, path)
            else:
                image.save(path, quality=90)


def embed(data: pathlib.Path, engine: str) -> tuple[float, float]:
    """Seconds of a command, and the most MiB that its processes held together."""
    place = tempfile.mkdtemp(dir=_PLACE.value)
    output = pathlib.Path(place, "out" if engine == "ray" else "out.parquet")
    command = [
        sys.executable,
        "-m",
        "tfvmf",
        "embed",
        _MODEL.value,
        str(data),
        f"--output={output}",
    ]
    command += ["--engine=ray", f"--actors={_ACTORS.value}"] if engine == "ray" else []
    start, most = time.perf_counter(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if not _MEMORY.value:
            process.wait()
            break
        held = 0
        with contextlib.suppress(psutil.Error):
            for each in (own := psutil.Process(process.pid), *own.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    held += each.memory_full_info().pss
        most = max(most, held / 2**20)
        time.sleep(0.5)
    seconds = time.perf_counter() - start
    shutil.rmtree(place)
    if process.returncode:
        raise SystemExit(f"{command} failed: {process.returncode}")
    return seconds, most


def main(argv: Sequence[str]) -> None:
    """Measures in turn, prints Markdown tables."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    place = pathlib.Path(_PLACE.value)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before")
    if _MEMORY.value:
        print("\n| images | engine | seconds | peak, MiB |\n| ---: | --- | ---: | ---: |")
        for count in map(int, _COUNTS.value):
            make_images(place / f"small-{count}", count, 32, "png")
            for engine in ("local", "ray"):
                seconds, most = embed(place / f"small-{count}", engine)
                print(f"| {count:,} | {engine} | {seconds:.0f} | {most:,.0f} |", flush=True)
    else:
        make_images(place / "one", 1, 1000, "jpg")
        make_images(place / "many", _FILES.value, 1000, "jpg", _LINKS.value)
        count = _FILES.value * _LINKS.value
        rates: dict[str, list[float]] = {"local": [], "ray": []}
        print("\n| engine | start, s | all, s | images/s | load |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for path in (place / "many" / "0").iterdir():  # no engine is the first to read the disk
            path.read_bytes()
        for number in range(_ROUNDS.value):
            for engine in list(rates)[:: -1 if number % 2 else 1]:
                start, whole = (embed(place / name, engine)[0] for name in ("one", "many"))
                rates[engine].append((count - 1) / (whole - start))
                told = f"{start:.1f} | {whole:.1f} | {rates[engine][-1]:.0f}"
                print(f"| {engine} | {told} | {os.getloadavg()[0]:.1f} |", flush=True)
        local, ray = (statistics.median(found) for found in rates.values())
        print(f"\nmedians: local {local:.0f}, ray {ray:.0f} images/s: {ray / local:.2f}")
    print(f"\nload average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    app.run(main)
