"""A folder of images to one file of embeddings."""

import os
import pathlib

import numpy as np

from tfvmf.data.folder import EXTENSIONS, find_images
from tfvmf.errors import UserError
from tfvmf.files import replacing
from tfvmf.serving.loader import Embeddings, load
from tfvmf.serving.sheet import draw_sheet


def embed_folder(
    model: str | os.PathLike[str],
    images: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    sort: str = "",
    batch_size: int = 64,
) -> Embeddings:
    """Embeds all images below a folder.

    Args:
        model: A run directory, an export or a `.keras` file (see `load`).
        images: The folder.
        output: The `.npz` file: what `EmbeddingModel.embed` returns, and `names` [N], the files
            relative to the folder, sorted.
        sort: `kappa` also draws the images from the least to the most certain, to the same name
            with `.png`.
        batch_size: Images per forward pass.

    Returns:
        What was written.
    """
    root, output = pathlib.Path(images).expanduser(), pathlib.Path(output).expanduser()
    if not root.is_dir():
        raise UserError(f"images={os.fspath(images)}: there is no such folder")
    if output.suffix != ".npz" or not output.parent.is_dir():
        raise UserError(
            f"output={output}: expected a name that ends in .npz, in an existing folder"
        )
    names = find_images(root)
    if not names:
        raise UserError(f"images={os.fspath(images)}: no images below it ({' '.join(EXTENSIONS)})")
    paths = [str(root / name) for name in names]
    embeddings = load(model).embed(paths, batch_size=batch_size)
    embeddings["names"] = np.array(names)
    try:
        with replacing(output) as file:
            np.savez(file, **embeddings)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"output={output} cannot be written: {error.strerror}") from error
    if sort:
        draw_sheet(paths, embeddings["concentration"], output=output.with_suffix(".png"))
    return embeddings
