"""How much memory a run will need at least, estimated before any of it is allocated."""

import contextlib
import importlib
import math
import os
import pathlib

import keras
import ml_collections
import tensorflow as tf

from tfvmf.config import view_size
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, building
from tfvmf.settings import BACKBONES

_GIB = 2**30
# Weights per width^2, and outputs of layers per width and pixel, more than any network has here
# (ResNet-50: 5,900 and 180): what fits by these needs no closer look.
_MOST_WEIGHTS, _MOST_OUTPUTS = 8_000, 250
# Measured peak of ResNet-18 against all outputs of its layers, kept for the gradient as float32:
# 0.75 at batch 690 and width 16, 0.97 at 128 and 32.
_KEPT = 0.7
_NARROW = 8  # the width of the network that is looked at


def check_memory(config: ml_collections.ConfigDict, *, workers: int = 1) -> None:
    """Refuses a batch and a network that cannot fit into this machine's memory.

    Weights, their gradients and two moments of Adam, and what the layers of the backbone put out
    for a worker's share of a batch: at least so much is needed. TensorFlow watches a GPU's memory.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    size, width = view_size(config), config.model.width
    images = METHODS[config.method].num_views * config.batch_size / workers
    there = available()
    needed = _needed(width**2 * _MOST_WEIGHTS, images * width * size**2 * _MOST_OUTPUTS)
    if config.model.backbone not in BACKBONES:  # nothing is known of it but the images it gets
        needed = _needed(0, images * 3 * size**2)
    elif needed > there:
        weights, outputs = _footprint(config.model.backbone, config.model.stem, size, width)
        needed = _needed(weights, images * outputs)
    if needed > there:
        raise UserError(
            f"--config.batch_size={config.batch_size}, model.width={width} and views of "
            f"{size}x{size} pixels need at least {needed / _GIB:,.0f} GiB of memory, and this "
            f"machine has {there / _GIB:,.0f} GiB: make one of them smaller"
        )


def _footprint(backbone: str, stem: str, size: int, width: int) -> tuple[float, float]:
    """Weights of a network, and numbers that its layers put out for an image; from a narrow one."""
    with building(seed=0):
        module = importlib.import_module(BACKBONES[backbone])
        narrow = module.build_backbone(backbone, width=_NARROW, stem=stem)
        sized = keras.models.clone_model(narrow, input_tensors=keras.Input((size, size, 3)))
    outputs = sum(
        math.prod(tensor.shape[1:])
        for layer in sized.layers
        for tensor in tf.nest.flatten(layer.output)
    )
    return narrow.count_params() * (width / _NARROW) ** 2, outputs * width / _NARROW


def available() -> float:
    """Bytes of memory that this process may use."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            total = min(total, float(pathlib.Path(limit).read_text(encoding="ascii")))
    return total


def _needed(weights: float, outputs: float) -> float:
    return 4 * (4 * weights + _KEPT * outputs)
