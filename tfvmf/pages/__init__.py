"""HTML pages that open from disk, load nothing from the network and escape all values."""

import base64
import hashlib
import pathlib
from typing import Any

import jinja2
import markupsafe

_HERE = pathlib.Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """A page as HTML, from a template of this folder; Jinja2 escapes all values."""
    # Strict: a misspelled name in a template is an error, not a blank.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["script"] = _script
    environment.globals["script_hash"] = _script_hash
    return environment.get_template(template).render(**values)


def address(content: bytes) -> str:
    """A PNG file as a data URL."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _script(name: str) -> markupsafe.Markup:
    """A script of this folder, from us or a library, never from data."""
    return markupsafe.Markup((_HERE / name).read_text(encoding="utf-8"))


def _script_hash(name: str) -> str:
    """The hash by which a page's policy permits only this script."""
    digest = hashlib.sha256(_script(name).encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
