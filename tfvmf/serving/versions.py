"""Directories of versions, as TensorFlow Serving watches them: whole or not there."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from tfvmf.errors import UserError


def versions(directory: pathlib.Path) -> list[int]:
    """The versions in a directory, ascending: its entries whose names are whole numbers."""
    if not directory.is_dir():
        return []
    # ASCII digits only: int() would also read other scripts, and "1_0" as 10.
    names = [entry.name for entry in directory.iterdir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


@contextlib.contextmanager
def new_directory(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """A place to write a version that no server looks at; removed in the end, with all in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(prefix=".export-", dir=directory)
    except OSError as error:
        raise UserError(f"--output_dir={directory} cannot be written: {error.strerror}") from error
    try:
        yield pathlib.Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(written: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Renames a complete version to the next free number, in one step; returns its new path."""
    while True:
        version = (versions(directory) or [0])[-1] + 1
        path = directory / str(version)
        try:
            os.rename(written, path)
        except OSError:
            if not path.exists():
                raise
        else:  # where it failed, another export was faster: the next number
            return path
