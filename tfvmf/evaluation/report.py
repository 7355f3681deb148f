"""All results about a subject on one HTML page that needs no network and no other files.

The page is made from the files of the suites (`results.json`, pictures). `compare` puts several
runs side by side, without their encoders and without TensorFlow.
"""

from __future__ import annotations

import io
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from tfvmf import pages
from tfvmf.config import flatten
from tfvmf.errors import UserError
from tfvmf.evaluation.suites import SUITES, Results, at_step, count_images, headlines
from tfvmf.evaluation.tables import Table
from tfvmf.files import read_text, write_text

if TYPE_CHECKING:
    from tfvmf.evaluation.subject import Subject

_IDENTITY = ("data", "method", "step", "checkpoint")


def write_report(subject: Subject) -> pathlib.Path:
    """Writes `<directory>/report.html` with all results about this subject; returns its path."""
    if subject.directory is None:
        raise ValueError("a report needs a subject with a directory")
    directory = pathlib.Path(subject.directory).expanduser()
    measured, notes = _about(directory, subject.identity())
    write_text(directory / "report.html", render(subject, directory, measured, notes))
    return directory / "report.html"


def render(
    subject: Subject,
    directory: pathlib.Path,
    measured: Mapping[str, Results],
    notes: Sequence[str] = (),
) -> str:
    """The page as HTML. All values are text: the template escapes them."""
    counts = filter(None, map(count_images, measured.values()))
    facts = {
        "run directory": subject.workdir,
        "checkpoint": subject.facts.get("checkpoint"),
        "training images": f"{subject.train.name} ({subject.train.split})",
        "test images": f"{subject.test.name} ({subject.test.split})",
    }
    lead = [subject.description, at_step(subject.identity()), next(counts, "")]
    return pages.render(
        "report.html.j2",
        title=f"{subject.name} on {subject.test.name}",
        lead=", ".join(filter(None, lead)),
        runs=[subject.name],
        notes=notes,
        sections=_sections([directory], [measured]),
        facts={name: value for name, value in facts.items() if value is not None},
        settings=subject.settings,
    )


def compare(runs: Sequence[str | pathlib.Path], *, output: str | pathlib.Path = "") -> pathlib.Path:
    """Writes a page with the results of several runs side by side; returns its path.

    Args:
        runs: Run directories, whose `eval` is read or, if it is empty, the newest `eval/sampleN`;
            or directories of results.
        output: Directory of `compare.html`; by default the first run's directory of results.
    """
    places = [pathlib.Path(run).expanduser() for run in runs]
    if len(set(places)) < 2 or len(set(places)) < len(places):
        listed = ",".join(map(str, runs))
        expected = "expected two or more different runs, like runs/a,runs/b"
        raise UserError(f"compare={listed}: {expected}")
    directories, measured, notes = [], [], []
    for place in places:
        samples = sorted(place.glob("eval/sample*"), key=lambda path: -path.stat().st_mtime)
        own = [path for path in (place / "eval", place, *samples) if any(_results(path).values())]
        if not own:
            advice = f"`tfvmf evaluate {place}` first"
            raise UserError(f"compare={place}: there are no results: {advice}")
        # If the results are about several checkpoints or data, use those with the newest.
        readable = {name: each for name, each in _results(own[0]).items() if each}
        newest = max(readable, key=lambda name: (own[0] / name / "results.json").stat().st_mtime)
        identity = {key: value for key, value in readable[newest].items() if key in _IDENTITY}
        found, left_out = _about(own[0], identity)
        directories.append(own[0])
        measured.append(found)
        notes += [f"{place}: {line}" for line in left_out]
    facts, names = [next(iter(found.values())) for found in measured], _names(places)
    if len({fact["data"] for fact in facts}) > 1:
        notes.append("The runs were measured on different data: their numbers are not comparable.")
    about = (filter(None, (f"{x['method']} on {x['data']}", at_step(x))) for x in facts)
    page = pages.render(
        "report.html.j2",
        title="Runs compared: " + ", ".join(names),
        lead="; ".join(map("{}: {}".format, names, map(", ".join, about))),
        runs=names,
        notes=notes,
        sections=_sections(directories, measured, names),
        facts=Table(columns=["", *names], rows=_differences(places, facts)),
        settings={},
    )
    path = (pathlib.Path(output).expanduser() if output else directories[0]) / "compare.html"
    write_text(path, page)
    return path


def _names(places: Sequence[pathlib.Path]) -> list[str]:
    """Short names of directories: as many of their last parts as distinguish them."""
    for parts in range(1, max(len(place.parts) for place in places)):
        names = ["/".join(place.parts[-parts:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]


def _differences(places: Sequence[pathlib.Path], facts: Sequence[Results]) -> list[list[str]]:
    """The runs and the settings in which they differ: one row each, its name first."""
    settings = []
    for place in places:
        files = [each / "config.json" for each in (place, place.parent)]
        text = next((read_text(file) for file in files if file.is_file()), None)
        try:
            settings.append(flatten(json.loads(text or "{}")["config"]))
        except (AttributeError, KeyError, TypeError, ValueError):  # results without a run
            settings.append({})
    rows = {"directory": list(map(str, places))}
    for name in (*_IDENTITY, "images", "of_images"):
        if any(name in fact for fact in facts):
            rows[name] = [str(fact.get(name, "")) for fact in facts]
    for name in dict.fromkeys(key for each in settings for key in each):
        values = [str(each.get(name, "")) for each in settings]
        rows |= {name: values} if len(set(values)) > 1 else {}
    return [[name, *values] for name, values in rows.items()]


def _results(directory: pathlib.Path) -> dict[str, Results]:
    """The results in a directory by suite; {} for what cannot be read."""
    found: dict[str, Results] = {}
    for name in SUITES:
        text = read_text(directory / name / "results.json")
        if text is not None:
            try:
                found[name] = json.loads(text)
                found[name]["page"], found[name]["verdict"]  # older versions did not write these
            except (KeyError, TypeError, ValueError):
                found[name] = {}
    return found


def _about(
    directory: pathlib.Path, identity: Mapping[str, Any]
) -> tuple[dict[str, Results], list[str]]:
    """A directory's results about one subject, and notes on those that are left out."""
    found = _results(directory)
    measured = {n: each for n, each in found.items() if each and identity.items() <= each.items()}
    others = ", ".join(name for name in found if name not in measured)
    why = "Not shown, since measured at another checkpoint, with other data, or by another version"
    return measured, [f"{why}: {others}."] if others else []


def _sections(
    directories: Sequence[pathlib.Path],
    measured: Sequence[Mapping[str, Results]],
    names: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The page's content for each suite: one part per run, None if it was not measured."""
    sections = []
    for name in [name for name in SUITES if any(name in found for found in measured)]:
        parts = [
            _part(directory / name, found[name]) if name in found else None
            for directory, found in zip(directories, measured, strict=True)
        ]
        rows: dict[str, list[str]] = {}
        for place, part in enumerate(parts):
            for line in part["headlines"] if part else []:
                row = rows.setdefault(line.words, [""] * len(parts))
                row[place] = f"{line.number} {line.beside}".strip()
        cells = [[words, *row] for words, row in rows.items()]
        title = SUITES[name].title
        sections.append(
            {
                "title": title,
                "anchor": re.sub(r"\W+", "-", title.lower()),
                "parts": parts,
                "table": Table(columns=["", *names], rows=cells) if names and cells else None,
            }
        )
    return sections


def _part(directory: pathlib.Path, results: Results) -> dict[str, Any]:
    """The page's content for a suite's results; pictures are data URLs."""
    page, command = results["page"], results.get("open", "")
    tiles = [(heading, *tile) for heading, row in page["gallery"].items() for tile in row]
    gallery: dict[str, list[dict[str, str]]] = {heading: [] for heading in page["gallery"]}
    if tiles:
        with Image.open(directory / "sprite.png") as whole:  # they are stacked vertically
            width, height = whole.size[0], whole.size[1] // len(tiles)
            for place, (heading, caption, hint) in enumerate(tiles):
                file = io.BytesIO()
                box = (0, place * height, width, (place + 1) * height)
                whole.crop(box).save(file, format="PNG")
                tile = {"caption": caption, "hint": hint, "address": pages.address(file.getvalue())}
                gallery[heading].append(tile)
    plots = [] if command or gallery else sorted(directory.glob("*.png"))
    blocks = [block if isinstance(block, str) else Table(**block) for block in page["blocks"]]
    return {
        "verdict": results["verdict"],
        "headlines": headlines(results),
        "gallery": gallery,
        "plots": [(path.stem, pages.address(path.read_bytes())) for path in plots],
        "title": page["title"],
        "blocks": blocks,
        "command": command,
    }
