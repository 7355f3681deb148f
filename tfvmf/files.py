"""Files that are written whole or not at all."""

import json
import os
import pathlib
from typing import Any


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file under a temporary name and renames it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a JSON file."""
    write_text(path, json.dumps(content, indent=2) + "\n")
