"""A folder of images to one file of embeddings."""

import pathlib

import numpy as np

from tfvmf.data.folder import EXTENSIONS, find_images
from tfvmf.errors import UserError
from tfvmf.files import replacing
from tfvmf.serving.loader import Embeddings, load
from tfvmf.serving.sheet import draw_sheet


def embed_folder(
    model: str | pathlib.Path,
    images: str | pathlib.Path,
    output: str | pathlib.Path,
    *,
    sort: str = "",
    batch_size: int = 64,
) -> Embeddings:
    """Embeds all images below a folder.

    Args:
        model: An exported model (see `load`).
        images: The folder.
        output: The `.npz` file: what `ServedModel.embed` returns, and `names` [N], the files
            relative to the folder, sorted.
        sort: `kappa` also draws the images from the least to the most certain, to the same name
            with `.png`.
        batch_size: Images a forward pass.

    Returns:
        What was written.
    """
    root, output = pathlib.Path(images).expanduser(), pathlib.Path(output)
    if not root.is_dir():
        raise UserError(f"--images={images}: there is no such folder")
    if output.suffix != ".npz" or not output.parent.is_dir():
        raise UserError(f"--output={output}: name a file .npz in a folder that is there")
    names = find_images(root)
    if not names:
        raise UserError(f"--images={images}: no images in this folder ({' '.join(EXTENSIONS)})")
    paths = [str(root / name) for name in names]
    embeddings = load(model).embed(paths, batch_size=batch_size)
    embeddings["names"] = np.array(names)
    _write(output, embeddings)
    if sort:
        draw_sheet(paths, embeddings["concentration"], output=output.with_suffix(".png"))
    return embeddings


def _write(path: pathlib.Path, arrays: Embeddings) -> None:
    """Writes the file whole or not at all."""
    try:
        with replacing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"--output={path} cannot be written: {error.strerror}") from error
