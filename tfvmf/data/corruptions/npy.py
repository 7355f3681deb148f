"""Files of NumPy arrays, written in one piece or not at all, read without being loaded."""

import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tfvmf.errors import UserError
from tfvmf.files import replacing


def write_rows(
    path: pathlib.Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunks: Iterable[npt.NDArray[Any]],
) -> None:
    """Writes an .npy file chunk by chunk.

    By plain writes, not through a memory map: when the disk is full a write raises an error, a
    map kills the process.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk).data)


def map_rows(path: pathlib.Path) -> npt.NDArray[Any]:
    """Maps the array of an .npy file, read-only; UserError if there is none."""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a directory: it should hold {path.name}")
    if not path.is_file():
        raise UserError(f"{path} is missing: the directory needs the .npy files of CIFAR-10-C")
    try:
        # Refuses pickled objects: a map holds plain numbers only.
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a complete .npy file of numbers ({error})") from error
