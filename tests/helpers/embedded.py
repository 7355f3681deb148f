"""A table as `tfvmf embed` writes it, of pictures on disk, without a model."""

import pathlib

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from tfvmf.embedding import table

CLASSES = ("cat", "dog", "<img src=x onerror=alert(1)>")
ODD_NAME = "a<b>&'\"</script><script>alert(1)</script>.png"  # "/" becomes a folder


def write_embedded(folder, count=60, *, width=8, columns=None, seed=0, broken=1, unknown=1):
    """Writes `count` pictures and their table; returns its path and its columns, as arrays.

    The last `broken` rows have an error and the `unknown` rows before them a NaN in their vector.
    Rows 0 and 1 have one direction, and so have 2, 3 and 4. `columns` are the outputs to keep.
    """
    rng = np.random.default_rng(seed)
    folder = pathlib.Path(folder)
    files = [str(folder / f"{row:04}.png") for row in range(count)]
    files[5] = str(folder / ODD_NAME)
    classes = rng.integers(0, len(CLASSES), count)
    for row, file in enumerate(files):
        pixels = np.full((20, 30, 3), rng.integers(0, 200, 3), np.uint8)
        pixels[:, :, classes[row]] = 250
        pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    directions = rng.normal(size=(len(CLASSES), width))[classes] + 0.5 * rng.normal(
        size=(count, width)
    )
    directions[1], directions[3:5] = directions[0], directions[2]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    guesses = np.where(rng.random(count) < 0.8, classes, (classes + 1) % len(CLASSES))
    names = np.array(CLASSES, object)
    confidence = (rng.integers(1, 101, count) / 100).astype(np.float32)
    values = {
        "features": 3 * directions.astype(np.float32),
        "mean_direction": directions.astype(np.float32),
        "concentration": rng.gamma(5.0, 1.0, count).astype(np.float32),
        "familiarity": rng.normal(size=count).astype(np.float32),
        "confidence": confidence,
        "accept": confidence > np.float32(0.05),
        "class": names[guesses],
        "class_probability": rng.random(count).astype(np.float32),
    }
    values = {n: each for n, each in values.items() if columns is None or n in columns}
    good = count - broken
    for name in ("features", "mean_direction"):
        if name in values:
            values[name][good - unknown : good, 0] = np.nan
    texts = {"file": files, "error": [""] * good + ["broken image"] * broken}
    texts["label"] = list(names[classes])
    schema = table.table_schema(values, labels=True)
    rows = table.to_arrow(schema, texts, {name: each[:good] for name, each in values.items()})
    path = folder / "table.parquet"
    pq.write_table(rows, path)
    kept = good - unknown
    arrays = {name: np.asarray(each)[:kept] for name, each in (texts | values).items()}
    return path, arrays
