"""What does each strategy of `tfvmf select` find among real images, 200 of which were planted?

    .venv/bin/python -m studies.selection.story --model=MODEL --data_dir=DIR

10,000 files in one folder: 9,800 test images of CIFAR-10; 70 near-duplicates of some of them
(shifted by 2 pixels, JPEG of quality 75); 70 MNIST digits; and of the 200 test images that are left
out 30 with noise and 30 with blur of severity 5 (CIFAR-10-C protocol, generated). `tfvmf embed
--with_levels` makes the table, unless it is there already; each strategy selects 400 (`duplicates`
at most: what is kept is not listed). Chance finds 4 %.

A near-duplicate is found by `duplicates` when it is listed as one of its original, or the original
as one of it; by all other strategies when it is listed. Where the model was never calibrated,
`--reference` is a table of its training images, see `tfvmf select --help`.
"""

import io
import pathlib
import re
import shutil
import sys

import numpy as np
from absl import flags
from PIL import Image

from tfvmf import embedding, selection
from tfvmf.data import Source, load_source
from tfvmf.data.corruptions import corrupt
from tfvmf.errors import UserError

_FLAGS = flags.FlagValues()  # of its own: tests import this beside other programs
flags.DEFINE_string("model", "", "a run directory, an export or a .keras file", flag_values=_FLAGS)
flags.DEFINE_string("data_dir", "", "where TFDS finds CIFAR-10 and MNIST", flag_values=_FLAGS)
flags.DEFINE_string("directory", "runs/story", "of images and tables", flag_values=_FLAGS)
flags.DEFINE_string("reference", "", "a table of in-distribution images", flag_values=_FLAGS)
flags.DEFINE_integer("count", 400, "how many each strategy selects", 1, flag_values=_FLAGS)

KINDS = {"copy": 70, "digit": 70, "noise": 30, "blur": 30}
NOISE = ("gaussian_noise", "shot_noise", "impulse_noise")
BLUR = ("defocus_blur", "motion_blur", "zoom_blur")
STRATEGIES = (
    *("uncertain", "foreign", "duplicates", "diverse", "typical"),
    *("foreign:1,uncertain:1", "diverse:1,uncertain:0.5"),
)


def shifted(image: np.ndarray, rng: np.random.Generator) -> bytes:
    """A JPEG file of the image [H, W, 3], moved by 2 pixels; the edge is repeated."""
    axis, by = int(rng.integers(2)), int(rng.choice([-2, 2]))
    places = np.clip(np.arange(image.shape[axis]) + by, 0, image.shape[axis] - 1)
    file = io.BytesIO()
    Image.fromarray(np.take(image, places, axis)).save(file, "JPEG", quality=75)
    return file.getvalue()


def plant(folder: pathlib.Path, test: Source, digits: Source, seed: int = 0) -> None:
    """Writes the files; their names tell what they are."""
    rng = np.random.default_rng(seed)
    damaged = KINDS["noise"] + KINDS["blur"]
    planted = damaged + KINDS["copy"] + KINDS["digit"]
    order = rng.permutation(test.size)
    left_out, kept = order[:planted], np.sort(order[planted:])

    def save(name: str, image: np.ndarray) -> None:
        Image.fromarray(image).save(folder / f"{name}.png")

    for rows in np.array_split(kept, 20):
        for row, image in zip(rows, test.take(rows), strict=True):
            save(f"test_{row:05}", image)
    originals = np.sort(rng.permutation(kept)[: KINDS["copy"]])
    for row, image in zip(originals, test.take(originals), strict=True):
        (folder / f"copy_{row:05}.jpg").write_bytes(shifted(image, rng))
    some = np.sort(rng.permutation(digits.size)[: KINDS["digit"]])
    for row, image in zip(some, digits.take(some), strict=True):
        save(f"digit_{row:05}", image)
    chosen = np.sort(left_out[:damaged])
    images = test.take(chosen)
    for place, (row, image) in enumerate(zip(chosen, images, strict=True)):
        kind, names = ("noise", NOISE) if place < KINDS["noise"] else ("blur", BLUR)
        name = names[place % len(names)]
        save(f"{kind}_{row:05}_{name}", corrupt(image[None], name, 5, first_index=int(row))[0])


def kind(name: str) -> str:
    """What a file is: test, copy, digit, noise or blur."""
    return pathlib.PurePath(name).name.partition("_")[0]


def shares(chosen: selection.Selection) -> dict[str, float]:
    """The share of each kind among what was selected."""
    found: dict[str, set[str]] = {name: set() for name in KINDS}
    for name, reason in zip(chosen.columns["file"], chosen.columns["reason"], strict=True):
        other = re.search(r" to (.*), which is kept$", reason)
        if other is None:
            if kind(name) in found:
                found[kind(name)].add(name)
            continue
        # The pair, whichever of both is the more certain one.
        pair = [pathlib.PurePath(each).name for each in (name, other[1])]
        numbers = {re.findall(r"_(\d{5})", each)[0] for each in pair}
        if {kind(name), kind(other[1])} == {"copy", "test"} and len(numbers) == 1:
            found["copy"].update(numbers)
        elif kind(name) in found and kind(name) != "copy":
            found[kind(name)].add(name)
    return {name: len(files) / KINDS[name] for name, files in found.items()}


def main() -> None:
    """Plants, embeds, selects, prints the table."""
    if not _FLAGS.model:
        raise UserError("--model is missing: a run directory, an export or a .keras file")
    place = pathlib.Path(_FLAGS.directory)
    folder = place / "images"
    if not folder.exists():
        partial = place / "images.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        test, digits = (
            load_source(name, "test", data_dir=_FLAGS.data_dir, image_size=32)
            for name in ("cifar10", "mnist")
        )
        plant(partial, test, digits)
        partial.rename(folder)
    table = place / f"{pathlib.Path(_FLAGS.model).name}.parquet"
    if not table.exists():
        embedding.embed(_FLAGS.model, folder, table, with_levels=True)
    print(f"| {table.stem}, first {_FLAGS.count} | near-duplicates | digits | noise | blur |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for by in STRATEGIES:
        reference = _FLAGS.reference if "foreign" in by else ""
        chosen = selection.select(table, by=by, count=_FLAGS.count, reference=reference)
        found = " | ".join(f"{share:.0%}" for share in shares(chosen).values())
        print(f"| {by} | {found} |", flush=True)


if __name__ == "__main__":
    _FLAGS(sys.argv)
    main()
