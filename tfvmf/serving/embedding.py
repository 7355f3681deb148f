"""All images of a folder, or of another source, to one file of embeddings."""

import os
import pathlib
from collections.abc import Callable

import numpy as np

from tfvmf.data import load_source
from tfvmf.data.contact_sheet import TILE, write_ranked
from tfvmf.data.folder import EXTENSIONS, find_images
from tfvmf.data.images import read_image
from tfvmf.data.sources import parse
from tfvmf.errors import UserError
from tfvmf.files import replacing
from tfvmf.serving.loader import Embeddings, load
from tfvmf.settings import MAX_PIXELS


def embed_data(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    split: str = "all",
    data_dir: str | os.PathLike[str] = "",
    download: bool = False,
    sort: str = "",
    batch_size: int = 64,
    max_pixels: int = MAX_PIXELS,
    trust_model: bool = False,
) -> Embeddings:
    """Embeds all images of a source.

    Args:
        model: A run directory, an export or a `.keras` file (see `load`).
        data: What `tfvmf.data.load_source` takes, or the path of a folder.
        output: The `.npz` file: what `EmbeddingModel.embed` returns, and `names` [N]. For a folder
            these are the files, see `embed_folder`; for other sources the positions in the source,
            and with labels, there is also `labels` [N].
        split: Part of a source that is not a folder; a folder is embedded whole.
        data_dir: Where TFDS data sets are prepared.
        download: Download and prepare a TFDS data set that is not there.
        sort: `kappa` also draws the images from the least to the most certain, to the same name
            with `.png`.
        batch_size: Images per forward pass.
        max_pixels: Larger images are refused.
        trust_model: See `load`.

    Returns:
        What was written.
    """
    data = os.fspath(data)
    folder = data.removeprefix("folder:")
    if folder != data or os.path.isdir(os.path.expanduser(data)):
        return embed_folder(
            model,
            folder,
            output,
            sort=sort,
            batch_size=batch_size,
            max_pixels=max_pixels,
            trust_model=trust_model,
        )
    output = _checked(output)
    parse(data)  # before the model is loaded
    loaded = load(model, trust_model=trust_model)
    size = loaded.card["image_size"]
    if size is None:
        raise UserError(f"{loaded.path} does not tell the size of its images: expected a run")
    source = load_source(
        data,
        split,
        data_dir=data_dir,
        download=download,
        image_size=size,
        max_pixels=max_pixels,
    )
    embeddings = loaded.embed(source, batch_size=batch_size)
    embeddings["names"] = np.arange(source.size).astype(np.str_)
    if source.labels is not None:
        embeddings["labels"] = source.labels
    _write(embeddings, output, sort, lambda index: source.images(index, index + 1)[0])
    return embeddings


def embed_folder(
    model: str | os.PathLike[str],
    images: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    sort: str = "",
    batch_size: int = 64,
    max_pixels: int = MAX_PIXELS,
    trust_model: bool = False,
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
        max_pixels: Larger images are refused.
        trust_model: See `load`.

    Returns:
        What was written.
    """
    root, output = pathlib.Path(images).expanduser(), _checked(output)
    if not root.is_dir():
        raise UserError(f"images={os.fspath(images)}: there is no such folder")
    names = find_images(root)
    if not names:
        raise UserError(f"images={os.fspath(images)}: no images below it ({' '.join(EXTENSIONS)})")
    paths = [str(root / name) for name in names]
    loaded = load(model, trust_model=trust_model)
    embeddings = loaded.embed(paths, batch_size=batch_size, max_pixels=max_pixels)
    embeddings["names"] = np.array(names)
    _write(
        embeddings,
        output,
        sort,
        lambda index: read_image(paths[index], TILE, max_pixels=max_pixels),
    )
    return embeddings


def _checked(output: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(output).expanduser()
    if path.suffix != ".npz" or not path.parent.is_dir():
        raise UserError(f"output={path}: expected a name that ends in .npz, in an existing folder")
    return path


def _write(
    embeddings: Embeddings,
    output: pathlib.Path,
    sort: str,
    image: Callable[[int], np.ndarray],
) -> None:
    try:
        with replacing(output) as file:
            np.savez(file, **embeddings)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"output={output} cannot be written: {error.strerror}") from error
    if sort:
        write_ranked(image, embeddings["concentration"], output.with_suffix(".png"))
