"""Files that are written whole or not at all."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that takes its name once it is written, and vanishes if that fails."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file; bytes of file names that are no text are written as their codes."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Writes a JSON file."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copies a file or a directory, in place of what the target was."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    if source.is_file():
        with source.open("rb") as reading, replacing(target) as writing:
            shutil.copyfileobj(reading, writing)
        return
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        shutil.copytree(source, pathlib.Path(scratch) / "new")
        shutil.rmtree(target, ignore_errors=True)
        (pathlib.Path(scratch) / "new").replace(target)


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A hash of a file, or of all files of a directory with their names."""
    path = pathlib.Path(path)
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        name = file.relative_to(path).as_posix()
        digest.update(f"{name}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


# A spreadsheet takes text that starts so for a formula.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def csv_text(text: str) -> str:
    """A text as a cell of a CSV file: never a formula. `csv_text_back` is the inverse."""
    started = text.replace("'", " ").lstrip().startswith(_FORMULA)
    return f"'{text}" if started and not is_number(text) else text


def csv_text_back(cell: str) -> str:
    """The text that `csv_text` made a cell of."""
    return cell[1:] if cell.startswith("'") and csv_text(cell[1:]) == cell else cell


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
