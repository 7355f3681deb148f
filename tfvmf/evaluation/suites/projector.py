"""Which images are close? Test embeddings with kappa and thumbnails for TensorBoard's projector."""

import math
import shlex
import shutil
import sys
from typing import Any

import numpy as np
from tensorboard.plugins import projector as plugin

from tfvmf.evaluation import plots
from tfvmf.evaluation.scores import JUDGED
from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Measured, Options
from tfvmf.evaluation.tables import one_line
from tfvmf.files import csv_text, write_text

_LIMIT = 2000  # images; more would make a browser slow
_SPRITE = 4096  # pixels; the largest side that all browsers draw


def measure(subject: Subject, options: Options) -> Measured:
    """Writes directions, labels, kappa and thumbnails; `tensorboard --logdir` shows them."""
    source, embeddings = subject.test, subject.embed(subject.test)
    directions = embeddings["mean_direction"][:_LIMIT]
    size = len(directions)
    values = subject.main_score(source, embeddings, options)[:size]
    columns = {"image": [csv_text(one_line(source.file(row))) for row in range(size)]}
    columns[subject.score(options).title] = [f"{value:.6g}" for value in values]
    for name in (*JUDGED, "accept"):
        if name in embeddings and name not in columns:
            columns[name] = [f"{value:.6g}" for value in embeddings[name][:size]]
    if source.labels is not None:
        labels = map(source.class_name, source.labels[:size])
        columns["label"] = [csv_text(one_line(label)) for label in labels]
    sheet, side = _sprite(source.images(0, size))
    config = plugin.ProjectorConfig()
    embedding = config.embeddings.add()
    embedding.tensor_name = "mean direction"
    embedding.tensor_path = "directions.tsv"
    embedding.metadata_path = "metadata.tsv"
    embedding.sprite.image_path = "sprite.png"
    embedding.sprite.single_image_dim.extend(side)
    results: dict[str, Any] = {"shown": size}
    directory = subject.directory_for("projector")
    if directory is not None:
        # The command, or the module if its folder is not on the PATH.
        found = shutil.which("tensorboard")
        command = ["tensorboard"] if found else [sys.executable, "-m", "tensorboard.main"]
        results["open"] = shlex.join([*command, f"--logdir={directory}"])
    rows = ["\t".join(f"{x:.6g}" for x in row) for row in directions]
    table = ["\t".join(columns), *("\t".join(row) for row in zip(*columns.values(), strict=True))]
    return Measured(
        verdict=f"{size:,} directions, for a view in three dimensions",
        results=results,
        files={
            "directions.tsv": lambda path: write_text(path, "\n".join(rows) + "\n"),
            "metadata.tsv": lambda path: write_text(path, "\n".join(table) + "\n"),
            "sprite.png": lambda path: plots.save_pixels(sheet, path),
            "projector_config.pbtxt": lambda path: write_text(path, str(config)),
        },
    )


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
