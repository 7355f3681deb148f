"""All results about a subject on one page that opens from disk: no network, no other files.

The page is made of what suites wrote (`results.json`, pictures): every call of `evaluate` writes it
again from all that is there about the same checkpoint, data and sample.
"""

import base64
import importlib.resources
import io
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from PIL import Image

from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import SUITES, Results, at_step, count_images, headlines
from tfvmf.evaluation.tables import Page, Table
from tfvmf.files import read_text, write_text


def write(subject: Subject) -> pathlib.Path:
    """Writes `<directory>/report.html` from the results there; returns its path."""
    if subject.directory is None:
        raise ValueError("a report needs a subject with a directory")
    directory = pathlib.Path(subject.directory).expanduser()
    measured: dict[str, Results] = {}
    others = []  # about another subject, or cannot be read
    for name in SUITES:
        text = read_text(directory / name / "results.json")
        if text is None:
            continue
        try:
            results = json.loads(text)
            same = subject.identity().items() <= results.items() and "page" in results
        except (AttributeError, TypeError, ValueError):
            same = False
        if same:
            measured[name] = results
        else:
            others.append(name)
    write_text(directory / "report.html", render(subject, directory, measured, others))
    return directory / "report.html"


def render(
    subject: Subject,
    directory: pathlib.Path,
    measured: Mapping[str, Results],
    others: Sequence[str] = (),
) -> str:
    """The page, as HTML. All values are text: the template escapes them."""
    # Strict: a name that the template misspells is an error, not a blank.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = importlib.resources.files("tfvmf.evaluation") / "report.html.j2"
    counts = (count_images(results) for results in measured.values() if "of_images" in results)
    facts = {
        "run directory": subject.workdir,
        "checkpoint": subject.facts.get("checkpoint"),
        "training images": f"{subject.train.name} ({subject.train.split})",
        "test images": f"{subject.test.name} ({subject.test.split})",
    }
    lead = [subject.description, at_step(subject.identity()), next(counts, "")]
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        title=f"{subject.name} on {subject.test.name}",
        lead=", ".join(filter(None, lead)),
        others=", ".join(others),
        sections=[_section(directory / name, name, each) for name, each in measured.items()],
        facts={name: value for name, value in facts.items() if value is not None},
        settings=subject.settings,
    )


def _section(directory: pathlib.Path, name: str, results: Results) -> dict[str, Any]:
    """What the page shows of a suite; pictures are addresses that hold them."""
    title, page, command = SUITES[name].title, results["page"], results.get("open", "")
    images = iter(_cut(directory / "sprite.png", sum(map(len, page["gallery"].values()))))
    plots = [] if command or page["gallery"] else sorted(directory.glob("*.png"))
    blocks = [block if isinstance(block, str) else Table(**block) for block in page["blocks"]]
    return {
        "title": title,
        "anchor": re.sub(r"\W+", "-", title.lower()),
        "verdict": results["verdict"],
        "headlines": headlines(results),
        "gallery": {
            heading: [
                {"caption": caption, "hint": hint, "address": next(images)}
                for caption, hint in tiles
            ]
            for heading, tiles in page["gallery"].items()
        },
        "plots": [(path.stem, _address(path.read_bytes())) for path in plots],
        "page": Page(page["title"], blocks),
        "command": command,
    }


def _cut(sprite: pathlib.Path, count: int) -> list[str]:
    """The addresses of `count` images that a picture holds one below the other."""
    if not count:
        return []
    addresses = []
    with Image.open(sprite) as whole:
        width, height = whole.size[0], whole.size[1] // count
        for place in range(count):
            file = io.BytesIO()
            part = whole.crop((0, place * height, width, (place + 1) * height))
            part.save(file, format="PNG")
            addresses.append(_address(file.getvalue()))
    return addresses


def _address(content: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
