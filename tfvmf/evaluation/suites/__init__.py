"""All suites by name, and their common form. A new suite is a file here and a line in `SUITES`.

This module does not import TensorFlow, so that programs that list the names start fast.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tfvmf.errors import UserError
from tfvmf.evaluation.scores import SCORES, check_known
from tfvmf.evaluation.tables import Page, Table
from tfvmf.files import write_text, writing
from tfvmf.progress import printable

if TYPE_CHECKING:
    from tfvmf.data import Source
    from tfvmf.evaluation.subject import Subject

Results = dict[str, Any]  # JSON values


class NotApplicable(UserError):
    """The suite cannot measure this subject; `all` skips it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure. Each suite reads the options that concern it.

    Attributes:
        max_images: Size of a seeded, stratified sample of test and foreign images; 0 for all.
        scores: Names from `evaluation.SCORES`, the main one first; () for the subject's own.
        num_passes: Forward passes of the score `dropout`.
        num_views: Augmented views for the score and the suite `agreement`.
        corruptions: `generate`, or `tfds` for the data set cifar10_corrupted.
        corrupted_dir: Directory of corrupted images in CIFAR-10-C's layout, used if given.
        in_source: Familiar data for the suite ood; "" for the subject's own.
        ood_sources: Foreign data: sources, or specs for `data.load_source`.
        supervised: A model trained with labels on the same data, whose features ood uses.
        alpha: Share of familiar images that decision may reject; None for the judge's own.
        max_error: decision finds the smallest alpha with fewer errors among accepted images.
    """

    max_images: int = 0
    scores: Sequence[str] = ()
    num_passes: int = 16
    num_views: int = 8
    corruptions: str = "generate"
    corrupted_dir: str | pathlib.Path = ""
    in_source: str = ""
    ood_sources: Sequence[str | Source] = ()
    supervised: Subject | None = None
    alpha: float | None = None
    max_error: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("scores", self.scores), ("ood_sources", self.ood_sources)):
            if isinstance(value, str):
                raise ValueError(f"{name}={value!r}: expected a sequence, like ({value!r},)")
        for name, share in (("alpha", self.alpha), ("max_error", self.max_error)):
            if share is not None and not 0.0 < share < 1.0:
                raise UserError(f"{name}={share:g}: expected a share between 0 and 1, like 0.05")
        check_known("score", self.scores, SCORES)


class Headline(NamedTuple):
    """An important number, for the terminal and the top of the report."""

    words: str  # what it is, and which direction is good
    value: float | None  # None if it could not be measured
    form: str = ".3f"  # a format specification
    printed: float | None = None  # the paper's number, if there is one
    note: str = ""  # a caveat for the reader

    @property
    def number(self) -> str:
        """The value as text."""
        return format(self.value, self.form)

    @property
    def beside(self) -> str:
        """The paper's number and the note, in brackets; "" if there are none."""
        paper = "" if self.printed is None else f"paper: {self.printed:{self.form}}"
        text = "; ".join(filter(None, (paper, self.note)))
        return f"({text})" if text else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The results of a suite."""

    verdict: str  # one sentence on how good the results are
    results: Mapping[str, Any]  # the numbers, for programs
    headlines: Sequence[Headline] = ()  # the three to five most important numbers
    blocks: Sequence[str | Table] = ()  # paragraphs and tables; the first table is `table.csv`
    lines: Sequence[str] = ()  # further lines for the terminal
    # Rows of images by heading, each with a caption and a hint; stacked in `sprite.png`.
    gallery: Mapping[str, Sequence[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    # Further files by name, each with a function that writes it to a path.
    files: Mapping[str, Callable[[pathlib.Path], object]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Suite:
    """A function that measures a subject: `results = suite(subject, max_images=1000)`.

    Results hold the suite's numbers, its `verdict`, the subject's identity, the number of test
    images measured (`images`) and available (`of_images`), and the `page` to read. A subject's
    `<directory>/<name>/` gets the suite's files, `table.csv`, `table.md` and, last, `results.json`.
    """

    name: str  # in flags and paths; the module of this name has the function `measure`
    title: str  # heading in the report and above its tables
    question: str  # for the help
    _: dataclasses.KW_ONLY
    among_all: bool = True  # whether `all` includes it; False for slow suites
    uses_images: bool = True  # whether it uses the test images

    def __call__(self, subject: Subject, options: Options | None = None, **changes: Any) -> Results:
        """Measures a subject; `changes` replace fields of `options` (default: `Options()`)."""
        options = dataclasses.replace(options or Options(), **changes)
        subject = subject.sample(options.max_images)
        directory = subject.directory_for(self.name)
        module = importlib.import_module(f"{__name__}.{self.name}")
        found: Measured = module.measure(subject, options)
        results: Results = {"verdict": found.verdict}
        if self.uses_images:  # suites on other data report their own sizes
            results |= {"images": subject.test.size, "of_images": subject.test.whole_size}
        results |= {**found.results, **subject.identity()}
        blocks = list(found.blocks)
        if blocks:
            lead = ", ".join(filter(None, (count_images(results), at_step(results))))
            blocks[:0] = [found.verdict, *([f"{lead}."] if lead else [])]
        page = Page(f"{self.title}: {results['method']} on {results['data']}", blocks)
        shown = {name: getattr(found, name) for name in ("headlines", "lines", "gallery")}
        shown |= dataclasses.asdict(page)
        text = json.dumps(results | {"page": shown}, indent=2, default=lambda array: array.tolist())
        if directory is not None:
            with writing(directory):
                directory.mkdir(exist_ok=True)
                for name, write in found.files.items():
                    write(directory / name)
            for table in [block for block in found.blocks if isinstance(block, Table)][:1]:
                write_text(directory / "table.csv", table.csv())
            if blocks:
                write_text(directory / "table.md", page.markdown())
            write_text(directory / "results.json", text + "\n")
        return json.loads(text)


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("images", "Images", "which images is the encoder sure of, and which not?"),
        Suite("curves", "Training", "how did training go?", uses_images=False),
        Suite("probe", "What the features know", "what do the features know of the classes?"),
        Suite("failure", "Failures", "does the score tell wrong predictions from correct ones?"),
        Suite("ood", "Foreign images", "does the score detect foreign images?"),
        Suite("decision", "Accept or reject", "can its decisions be trusted?"),
        Suite("cifar10c", "Corruptions", "does kappa fall as corruption grows?"),
        Suite("projector", "Projector", "which images are close?"),
        Suite(
            "agreement",
            "Agreement of views",
            "how far is kappa from the agreement of views that it estimates (slow, only by name)?",
            among_all=False,
        ),
        Suite(
            "along_training",
            "Corruptions along training",
            "cifar10c at every kept checkpoint (slow, only by name)",
            among_all=False,
        ),
    )
}


def check_names(names: str) -> list[str]:
    """The suites in a comma-separated list; ["all"] for all that are not slow."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if chosen != ["all"]:
        check_known("suite", chosen or [names], SUITES)
    return chosen


def evaluate(
    subject: Subject, suites: str = "all", options: Options | None = None, **changes: Any
) -> dict[str, Results]:
    """Runs suites one after another, prints the important numbers and writes the report.

    `suites` are comma-separated names. `all` runs every suite that is not slow, and skips those
    that do not apply. `changes` replace fields of the options.
    """
    from tfvmf.evaluation.report import write_report

    names = check_names(suites)
    options = dataclasses.replace(options or Options(), **changes)
    everything = names == ["all"]
    if everything:
        names = [name for name in SUITES if SUITES[name].among_all]
    # In this order: `decision` computes all scores of corrupted images that `cifar10c` needs.
    names = [name for name in SUITES if name in names]
    if options.scores:
        subject.uncertainty(options)  # raises now, before measuring, if something is missing
    subject = subject.sample(options.max_images)
    found: dict[str, Results] = {}
    for name in names:
        try:
            found[name] = SUITES[name](subject, options)
        except NotApplicable as error:
            if not everything:
                raise
            print("\n".join(["", *_wrapped(f"{name}: left out, {error}", "  ")]))
            continue
        print("\n".join(["", *map(printable, summarize(name, found[name]))]), flush=True)
    if subject.directory is not None:
        print(f"\nreport: {printable(str(write_report(subject)))}")
    return found


def summarize(name: str, results: Results) -> Iterator[str]:
    """The lines printed about a suite: the verdict, and aligned numbers."""
    count = count_images(results)
    yield from _wrapped(f"{name}{count and f' ({count})'}: {results['verdict']}", "  ")
    lines = headlines(results)
    width = max((len(line.words) for line in lines), default=0)
    for line in lines:
        yield f"  {line.words:{width}}  {line.number:>9}  {line.beside}".rstrip()
    for text in results["page"]["lines"]:
        yield from _wrapped(f"  {text}", "    ")
    if "open" in results:
        yield f"  open it with: {results['open']}"


def _wrapped(text: str, indent: str) -> list[str]:
    """Lines for a terminal; file names are not broken."""
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(printable(text), 100, subsequent_indent=indent, **whole)


def headlines(results: Results) -> list[Headline]:
    """The important numbers, without those that could not be measured."""
    lines = [Headline(*line) for line in results["page"]["headlines"]]
    return [line for line in lines if line.value is not None]


def count_images(results: Results) -> str:
    """The number of test images: `a sample of 1,000 of 10,000 images`; "" if none were used."""
    if "of_images" not in results:
        return ""
    images, whole = results["images"], results["of_images"]
    return f"{whole:,} images" if images == whole else f"a sample of {images:,} of {whole:,} images"


def at_step(results: Results) -> str:
    """`step 7` for a sentence about a run's results; "" if there were no steps."""
    return f"step {results['step']}" if "step" in results else ""
