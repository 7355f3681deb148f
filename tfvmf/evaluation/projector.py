"""The test embeddings with kappa, to be turned and searched in TensorBoard's projector."""

import math
from typing import Any

import numpy as np
from PIL import Image
from tensorboard.plugins import projector

from tfvmf.evaluation.run import Evaluation
from tfvmf.files import replacing, write_text

_LIMIT = 2000  # images: more make a browser slow
_SPRITE = 4096  # pixels: the largest side that every browser draws


def run(evaluation: Evaluation) -> dict[str, Any]:
    """Writes directions, labels, kappa and thumbnails; `tensorboard --logdir` shows them."""
    source = evaluation.test
    directions = evaluation.test_embeddings["mean_direction"][:_LIMIT]
    size = len(directions)
    values = evaluation.main_score(source, evaluation.test_embeddings)[:size]
    directory = evaluation.directory("projector")
    lines = ["\t".join(f"{x:.6g}" for x in row) for row in directions]
    write_text(directory / "directions.tsv", "\n".join(lines) + "\n")

    columns = {"image": [str(row) for row in range(size)]}
    columns[evaluation.score.title] = [f"{value:.6g}" for value in values]
    if source.labels is not None:
        names = source.class_names
        columns["label"] = [names[y] if names else str(y) for y in source.labels[:size]]
    rows = zip(*columns.values(), strict=True)
    text = "\n".join(["\t".join(columns), *("\t".join(row) for row in rows)])
    write_text(directory / "metadata.tsv", text + "\n")

    sheet, side = _sprite(source.images(0, size))
    with replacing(directory / "sprite.png") as file:
        Image.fromarray(sheet).save(file, format="PNG")
    config = projector.ProjectorConfig()
    embedding = config.embeddings.add()
    embedding.tensor_name = "mean direction"
    embedding.tensor_path = "directions.tsv"
    embedding.metadata_path = "metadata.tsv"
    embedding.sprite.image_path = "sprite.png"
    embedding.sprite.single_image_dim.extend(side)
    write_text(directory / "projector_config.pbtxt", str(config))
    return {"images": size, "open": f"tensorboard --logdir={directory}"}


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
