"""Files that are written whole or not at all."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A file that takes its name once it is written, and vanishes if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a JSON file."""
    write_text(path, json.dumps(content, indent=2) + "\n")
