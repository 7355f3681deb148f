"""What lies near what? Test embeddings with kappa and thumbnails, for TensorBoard's projector."""

import math
import pathlib
import shlex
import shutil
import sys

import numpy as np
from PIL import Image
from tensorboard.plugins import projector as plugin

from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Measured, Options, Results, Suite
from tfvmf.evaluation.tables import one_line
from tfvmf.files import csv_text, replacing, write_text

_LIMIT = 2000  # images: more make a browser slow
_SPRITE = 4096  # pixels: the largest side that every browser draws


def _measure(subject: Subject, options: Options) -> Measured:
    """Writes directions, labels, kappa and thumbnails; `tensorboard --logdir` shows them."""
    source, embeddings = subject.test, subject.embed(subject.test)
    directions = embeddings["mean_direction"][:_LIMIT]
    size = len(directions)
    values = subject.main_score(source, embeddings, options)[:size]
    columns = {"image": [csv_text(one_line(source.file(row))) for row in range(size)]}
    columns[subject.score(options).title] = [f"{value:.6g}" for value in values]
    if source.labels is not None:
        names = source.class_names
        labels = [names[y] if names else str(y) for y in source.labels[:size]]
        columns["label"] = [csv_text(one_line(label)) for label in labels]
    sheet, side = _sprite(source.images(0, size))
    config = plugin.ProjectorConfig()
    embedding = config.embeddings.add()
    embedding.tensor_name = "mean direction"
    embedding.tensor_path = "directions.tsv"
    embedding.metadata_path = "metadata.tsv"
    embedding.sprite.image_path = "sprite.png"
    embedding.sprite.single_image_dim.extend(side)
    results: Results = {"shown": size}
    directory = subject.directory_for("projector")
    if directory is not None:
        results["open"] = shlex.join([*_tensorboard(), f"--logdir={directory}"])
    rows = ["\t".join(f"{x:.6g}" for x in row) for row in directions]
    table = ["\t".join(columns), *("\t".join(row) for row in zip(*columns.values(), strict=True))]
    return Measured(
        results,
        {
            "directions.tsv": lambda path: write_text(path, "\n".join(rows) + "\n"),
            "metadata.tsv": lambda path: write_text(path, "\n".join(table) + "\n"),
            "sprite.png": lambda path: _write_png(path, sheet),
            "projector_config.pbtxt": lambda path: write_text(path, str(config)),
        },
    )


def _tensorboard() -> list[str]:
    """The command, or what stands for it where its folder is not on the PATH."""
    if shutil.which("tensorboard"):
        return ["tensorboard"]
    return [sys.executable, "-m", "tensorboard.main"]


def _write_png(path: pathlib.Path, pixels: np.ndarray) -> None:
    with replacing(path) as file:
        Image.fromarray(pixels).save(file, format="PNG")


def _sprite(images: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """Thumbnails in a square grid, row by row; the width and height of one."""
    columns = math.ceil(math.sqrt(len(images)))
    stride = max(1, math.ceil(columns * max(images.shape[1:3]) / _SPRITE))
    images = images[:, ::stride, ::stride]
    _, height, width, _ = images.shape
    grid = np.zeros((columns * columns, height, width, 3), np.uint8)
    grid[: len(images)] = images
    grid = grid.reshape(columns, columns, height, width, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(columns * height, columns * width, 3), (width, height)


projector = Suite(
    name="projector",
    title="Projector",
    measure=_measure,
    verdict=lambda results: f"{results['shown']:,} directions, to be turned in three dimensions",
)
