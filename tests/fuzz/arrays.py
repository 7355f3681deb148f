"""Can a damaged or hostile npz file do harm?

Arrays are changed before they are put into the zip file, whose checksums are then right, or the
file is changed as a whole.
"""

import io
import pathlib
import random
import tempfile
import zipfile
from typing import Any

import numpy as np
from fuzz.hunt import NUMBERS, hunt, mutate

from tfvmf.data import sources

SIZE = 16
LIMIT = 2**28  # bytes in memory
TYPES = (
    "|u1",
    "<u2",
    ">i4",
    "<i8",
    "<f4",
    "<f8",
    "|b1",
    "|O",
    "<U5",
    "|S3",
    "<c8",
    "<M8[s]",
    "|V9",
)
NAMES = (
    "x_train", "y_train", "images", "labels", "class_names", "train_images", "../x", "x_train.npy",
)  # fmt: skip


def save(arrays: dict[str, np.ndarray], chance: random.Random) -> dict[str, bytes]:
    """The arrays as npy files, by name."""
    found = {}
    for name, values in arrays.items():
        file = io.BytesIO()
        order = "F" if chance.random() < 0.1 else "C"
        np.lib.format.write_array(file, np.asarray(values, order=order))
        found[name] = file.getvalue()
    return found


def change_header(content: bytes, chance: random.Random) -> bytes:
    """An npy file whose header promises another type or shape."""
    length = int.from_bytes(content[8:10], "little")
    header: dict[str, Any] = dict(eval(content[10 : 10 + length]))
    shape = list(header["shape"])
    match chance.randrange(4):
        case 0:
            header["descr"] = chance.choice(TYPES)
        case 1 if shape:
            shape[chance.randrange(len(shape))] = chance.choice((*NUMBERS, -1, 2**62, 10**30))
        case 2:
            shape += [chance.choice((0, 1, 3))] * chance.randrange(1, 40)
        case 3:
            header["descr"] = [("a", chance.choice(TYPES)), ("b", "<f4", (2**31,))]
    header["shape"] = tuple(shape)
    text = repr(header).encode() + b"\n"
    return content[:8] + len(text).to_bytes(2, "little") + text + content[10 + length :]


def damaged(arrays: dict[str, np.ndarray], chance: random.Random) -> bytes:
    """An npz file of the arrays in which something is wrong, most often with the right checksum."""
    files = save(arrays, chance)
    name = chance.choice(sorted(files))
    values = arrays[name]
    match chance.randrange(6):
        case 0:
            files[name] = mutate(files[name], chance)
        case 1:
            files[chance.choice((*NAMES, *files))] = files.pop(name)
        case 2 | 3:
            files[name] = change_header(files[name], chance)
        case 4:
            number = chance.choice((*NUMBERS, -1, 2**62, np.nan, np.inf, -1e30, 1e300))
            files |= save({name: np.full(values.shape or 12, number)}, chance)
        case 5:
            one = np.array(values)
            numbers = {"f": (0.0, -1.0, 1e4, np.nan, np.inf, -np.inf), "i": (-1, 0, 10**9)}
            if one.size and one.dtype.kind in numbers:
                one.reshape(-1)[chance.randrange(one.size)] = chance.choice(numbers[one.dtype.kind])
            files |= save({name: one}, chance)
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", chance.choice(methods)) as archive:
        for each, content in files.items():
            archive.writestr(f"{each}.npy", content)
    return mutate(packed.getvalue(), chance) if chance.random() < 0.3 else packed.getvalue()


def fuzz_npz(*, count: int, seed: int, seconds: float = float("inf")) -> list[str]:
    """Archives of images and labels, opened as `npz:/path`."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 9, 9, 3), dtype=np.uint8)
    labels = np.arange(12) % 3
    sets = [
        {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels},
        {"images": images[..., 0] / 255.0, "labels": labels.astype(np.uint8)},
        {"images": images, "labels": np.array(["a", "b", "c"])[labels]},
        {"x": images.astype(np.int64), "y": labels, "class_names": np.array([b"a", b"b", b"c"])},
    ]
    with tempfile.TemporaryDirectory(prefix="tfvmf-fuzz-") as scratch:
        path = pathlib.Path(scratch) / "arrays.npz"

        def case(chance: random.Random) -> None:
            path.write_bytes(damaged(chance.choice(sets), chance))
            split = chance.choice(("train", "test", "all"))
            source = sources.load(f"npz:{path}", split, image_size=SIZE, memory_limit=LIMIT)
            assert source.images().shape == (source.size, SIZE, SIZE, 3)

        return hunt("npz", case, count=count, seed=seed, seconds=seconds)
