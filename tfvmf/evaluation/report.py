"""All results about a subject on one page that opens from disk: no network, no other files."""

import base64
import importlib.resources
import io
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jinja2
import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from tfvmf.evaluation.subject import Subject
from tfvmf.evaluation.suites import Headline, Options, Results, Suite
from tfvmf.evaluation.suites.probe import linear_probe
from tfvmf.evaluation.tables import Page
from tfvmf.files import write_text

_SHOWN = 18  # images in a strip


class Section(NamedTuple):
    """What the page shows of a suite.

    Attributes:
        title: Its heading.
        anchor: Its address on the page.
        plots: (name, address that holds the PNG), in the order of their names.
        page: Its text and tables.
        command: What opens the files that it wrote for another program.
    """

    title: str
    anchor: str
    plots: list[tuple[str, str]]
    page: Page | None
    command: str


class Picture(NamedTuple):
    """A test image on the page: an address that holds its PNG, what is written below, a hint."""

    address: str
    caption: str
    hint: str


Gallery = dict[str, list[Picture]]


def write(
    subject: Subject, measured: Sequence[tuple[Suite, Results]], options: Options
) -> pathlib.Path:
    """Writes `<directory>/report.html`; returns its path.

    Args:
        subject: What was measured.
        measured: Suites and what they returned, in the order of the page. Their plots are taken
            from their directories.
        options: How it was measured.
    """
    if subject.directory is None:
        raise ValueError("a report needs a subject with a directory")
    path = pathlib.Path(subject.directory).expanduser() / "report.html"
    write_text(path, render(subject, measured, options))
    return path


def render(subject: Subject, measured: Sequence[tuple[Suite, Results]], options: Options) -> str:
    """The page, as HTML. All values are text: the template escapes them."""
    # Strict: a name that the template misspells is an error, not a blank.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = importlib.resources.files("tfvmf.evaluation") / "report.html.j2"
    source = subject.test
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        title=f"{subject.name} on {source.name}",
        lead=_lead(subject, options),
        headlines=[
            _tile(line)
            for suite, results in measured
            for line in suite.headlines(results)
            if line.value is not None
        ],
        gallery=choose_images(subject, options),
        sections=[_section(subject, suite, results) for suite, results in measured],
        facts=_facts(subject, options),
        settings=subject.settings,
    )


def choose_images(subject: Subject, options: Options, *, shown: int = _SHOWN) -> Gallery:
    """Headings with test images that are worth looking at.

    Always the most and the least certain; with labels, the mistakes of the linear probe that the
    encoder was surest of.
    """
    source, score = subject.test, subject.score(options)
    embeddings = subject.embed(source, limit=options.max_images)
    values = subject.main_score(source, embeddings, options)
    order = np.argsort(score.uncertainty(values), kind="stable")
    names = _class_names(subject)

    def pictures(rows: np.ndarray, said: np.ndarray | None = None) -> list[Picture]:
        chosen = []
        for row in rows:
            caption, hint = f"{values[row]:.3g}", f"image {row}"
            if said is not None:
                caption += f", said {names[said[row]]}"
            if names and source.labels is not None:
                hint += f", {names[source.labels[row]]}"
                if said is not None:
                    caption += f", is {names[source.labels[row]]}"
            chosen.append(Picture(_png(source.images(row, row + 1)[0]), caption, hint))
        return chosen

    chosen = {
        f"Most certain ({score.title} below each)": pictures(order[:shown]),
        "Least certain": pictures(order[::-1][:shown]),
    }
    if names:
        predicted = linear_probe(subject).predict(embeddings["features"])
        _, labels = subject.labels("report", limit=options.max_images)
        surest = order[(predicted != labels)[order]][:shown]
        heading = f"Worst failures: the probe is wrong where {score.title} is surest"
        chosen[heading] = pictures(surest, predicted)
    return chosen


def _class_names(subject: Subject) -> list[str]:
    """Names of the classes; [] without labels."""
    train, test = subject.train, subject.test
    if train.labels is None or test.labels is None:
        return []
    return test.class_names or [str(number) for number in range(int(train.labels.max()) + 1)]


def _lead(subject: Subject, options: Options) -> str:
    size = subject.test.size
    parts = [
        subject.description,
        f"step {subject.facts['step']:,}" if "step" in subject.facts else "",
        f"{min(options.max_images or size, size):,} test images",
    ]
    return ", ".join(filter(None, parts))


def _tile(line: Headline) -> tuple[str, str]:
    """The number and the words of a headline; the paper's number beside where it prints one."""
    printed = "" if line.printed is None else f" (paper: {line.printed:{line.form}})"
    return format(line.value, line.form), f"{line.words}{printed}"


def _section(subject: Subject, suite: Suite, results: Results) -> Section:
    directory = subject.directory_for(suite.name)
    command = results.get("open", "")
    plots = sorted(directory.glob("*.png")) if directory and not command else []
    return Section(
        title=suite.title,
        anchor=re.sub(r"\W+", "-", suite.title.lower()),
        plots=[(path.stem, _address(path.read_bytes())) for path in plots],
        page=suite.page(results) if suite.page else None,
        command=command,
    )


def _facts(subject: Subject, options: Options) -> dict[str, Any]:
    train, test = subject.train, subject.test
    facts = {
        "run directory": subject.workdir,
        "checkpoint": subject.facts.get("checkpoint"),
        "training images": f"{train.size:,} of {train.name}",
        "test images": f"{test.size:,} of {test.name} ({test.split})",
        "score": subject.score(options).title,
        "tensorflow, keras": f"{tf.__version__}, {keras.__version__}",
    }
    return {name: value for name, value in facts.items() if value is not None}


def _png(image: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return _address(file.getvalue())


def _address(content: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
