"""A picture of what training will see, to look at before hours are spent on it."""

import os

import ml_collections
import numpy as np

from tfvmf.config import validate
from tfvmf.data.contact_sheet import contact_sheet
from tfvmf.errors import UserError
from tfvmf.training.inputs import augmentation_from_config, load_source

_ROWS = 10


def draw_views(config: ml_collections.ConfigDict, path: str | os.PathLike[str]) -> None:
    """Writes a PNG with a few training images, each beside views of it."""
    validate(config)
    augmentation = augmentation_from_config(config)
    source = load_source(config, config.data.source, config.data.train_split)
    rows = np.unique(np.linspace(0, source.size - 1, _ROWS).astype(np.int64))
    try:
        contact_sheet(source.take(rows), augmentation, path=path, seed=config.seed)
    except (OSError, ValueError) as error:  # Pillow: an unknown ending is a ValueError
        raise UserError(f"--draw_views={os.fspath(path)} cannot be written: {error}") from error
