"""What a suite is, and all of them by name. A new suite is a file here and a line in `SUITES`.

Nothing here imports TensorFlow: a program knows the names before it takes seconds to start.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tfvmf.errors import UserError
from tfvmf.evaluation.scores import check_known, check_scores
from tfvmf.evaluation.tables import Page, Table
from tfvmf.files import write_json, write_text, writing
from tfvmf.lazy import Registry
from tfvmf.progress import printable

if TYPE_CHECKING:
    from tfvmf.data import Source
    from tfvmf.evaluation.subject import Subject

Results = dict[str, Any]  # what JSON can hold


class NotApplicable(UserError):
    """A suite has nothing to measure here; `all` continues without it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure. Each suite reads what concerns it.

    Attributes:
        max_images: Number of test images that are measured, and of foreign ones: a seeded sample,
            stratified where there are labels; 0 for all.
        scores: Names of measures of uncertainty (`evaluation.SCORES`), the main one first; () for
            the one that suits the subject.
        num_passes: Forward passes of the score `dropout`.
        num_views: Augmented views of the score and the suite `agreement`.
        corruptions: `generate`, or `tfds` for the data set cifar10_corrupted.
        corrupted_dir: Directory of corrupted images in CIFAR-10-C's layout, used if given.
        cache_corrupted: Whether to write what is missing there first.
        in_source: Familiar data of the suite ood, as `data.load_source` takes it; "" for the
            subject's own.
        ood_sources: Foreign data of the suites ood and agreement: sources, or as
            `data.load_source` takes them.
        supervised: A model trained with labels on the same data; the suite ood measures distances
            in its features.
    """

    max_images: int = 0
    scores: Sequence[str] = ()
    num_passes: int = 16
    num_views: int = 8
    corruptions: str = "generate"
    corrupted_dir: str | pathlib.Path = ""
    cache_corrupted: bool = False
    in_source: str = ""
    ood_sources: Sequence[str | Source] = ()
    supervised: Subject | None = None

    def __post_init__(self) -> None:
        for name in ("scores", "ood_sources"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ValueError(f"{name}={value!r}: expected a sequence, like ({value!r},)")
        check_scores(self.scores)


class Headline(NamedTuple):
    """A number that matters: for the terminal and for the top of the report.

    Attributes:
        words: What it is, and which way is right.
        value: The number; None where it could not be measured.
        form: How it is written, as `format` takes it.
        printed: The paper's number, if it prints one.
        note: What a reader must know before believing it.
    """

    words: str
    value: float | None
    form: str = ".3f"
    printed: float | None = None
    note: str = ""

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


class Measured(NamedTuple):
    """What a suite found.

    Attributes:
        results: Its numbers.
        files: Further files by name, each with a function that writes it to a path.
    """

    results: Results
    files: Mapping[str, Callable[[pathlib.Path], object]] = {}


class Tile(NamedTuple):
    """An image in a gallery: its place in the suite's `sprite.png`, what is below it, a hint."""

    place: int
    caption: str
    hint: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Suite:
    """A function of a subject that returns numbers, and what others need to know about it.

        results = suite(subject, max_images=1000)

    Where the subject has a directory, it writes `<directory>/<name>/`: its files, `table.csv`,
    `table.md` and, last, `results.json`. Results also say of which method and data they are, at
    which step, and on how many (`images`) of how many (`of_images`) test images.

    Attributes:
        name: In flags and paths.
        title: In the report and above its tables.
        measure: Does the work.
        verdict: From results to one sentence that says how good they are.
        headlines: From results to the three to five numbers that matter.
        blocks: From results to the paragraphs and tables that people read.
        table: From results to the table for programs.
        gallery: From results to rows of images by their heading.
        among_all: Whether `all` includes it; a suite that takes long should not be.
        uses_images: Whether it looks at the test images.
    """

    name: str
    title: str
    measure: Callable[[Subject, Options], Measured]
    verdict: Callable[[Results], str] = lambda results: ""
    headlines: Callable[[Results], Sequence[Headline]] = lambda results: ()
    blocks: Callable[[Results], Sequence[str | Table]] = lambda results: ()
    table: Callable[[Results], Table] | None = None
    gallery: Callable[[Results], Mapping[str, Sequence[Tile]]] = lambda results: {}
    among_all: bool = True
    uses_images: bool = True

    def __call__(self, subject: Subject, options: Options | None = None, **changes: Any) -> Results:
        """Measures a subject.

        Args:
            subject: What to measure.
            options: How; the defaults if left out.
            **changes: Fields of `Options` that replace these.
        """
        options = dataclasses.replace(options or Options(), **changes)
        subject = subject.sample(options.max_images)
        directory = subject.directory_for(self.name)
        results, files = self.measure(subject, options)
        results |= subject.identity()
        if self.uses_images:
            sizes = {"images": subject.test.size, "of_images": subject.test.whole_size}
            results = sizes | results  # a suite of other data has its own
        if directory is None:
            return results
        with writing(directory):
            directory.mkdir(exist_ok=True)
            for name, write in files.items():
                write(directory / name)
        if self.table:
            write_text(directory / "table.csv", self.table(results).csv())
        page = self.page(results)
        if page.blocks:
            write_text(directory / "table.md", page.markdown())
        write_json(directory / "results.json", results)
        return results

    def page(self, results: Results) -> Page:
        """What people read: the verdict, what was measured, and the suite's blocks."""
        blocks = list(self.blocks(results))
        if blocks:
            known = filter(None, (count_images(results), at_step(results)))
            lead = [f"{', '.join(known)}."] if self.uses_images else []
            blocks = [*filter(None, [self.verdict(results)]), *lead, *blocks]
        return Page(f"{self.title}: {results['method']} on {results['data']}", blocks)


SUITES: Registry[Suite] = Registry(
    images="tfvmf.evaluation.suites.images:images",
    curves="tfvmf.evaluation.suites.curves:curves",
    probe="tfvmf.evaluation.suites.probe:probe",
    failure="tfvmf.evaluation.suites.failure:failure",
    ood="tfvmf.evaluation.suites.ood:ood",
    cifar10c="tfvmf.evaluation.suites.cifar10c:cifar10c",
    projector="tfvmf.evaluation.suites.projector:projector",
    agreement="tfvmf.evaluation.suites.agreement:agreement",
)


def check_names(names: str) -> list[str]:
    """The suites that a comma-separated list names; ["all"] for all that are not slow."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if chosen != ["all"]:
        check_known("suite", chosen or [names], SUITES)
    return chosen


def describe_suites() -> dict[str, str]:
    """What each suite asks, by name. Imports none of them."""
    return {name: _question(SUITES.unloaded(name)) for name in SUITES}


def evaluate(
    subject: Subject, suites: str = "all", options: Options | None = None, **changes: Any
) -> dict[str, Results]:
    """Runs suites one after another, prints what matters and writes the report.

    Args:
        subject: What to measure.
        suites: Names, separated by commas. `all` is every suite that is not slow, and leaves out
            those that have nothing to measure.
        options: How to measure; the defaults if left out.
        **changes: Fields of `Options` that replace these.

    Returns:
        The results of each suite, by name.
    """
    names = check_names(suites)
    options = dataclasses.replace(options or Options(), **changes)
    everything = names == ["all"]
    if everything:
        names = [name for name in SUITES if SUITES[name].among_all]
    if options.scores:
        subject.uncertainty(options)  # what it lacks for them shows before anything is measured
    subject = subject.sample(options.max_images)
    found: dict[str, Results] = {}
    for name in names:
        try:
            found[name] = SUITES[name](subject, options)
        except NotApplicable as error:
            if not everything:
                raise
            print(f"\n{name}: left out, {printable(str(error))}")
            continue
        print("\n".join(["", *map(printable, summarize(SUITES[name], found[name]))]), flush=True)
    if subject.directory is not None:
        print(f"\nreport: {printable(str(write_report(subject)))}")
    return found


def write_report(subject: Subject) -> pathlib.Path:
    """Writes `<directory>/report.html`, one page with all results there; returns its path.

    Results of another checkpoint, method or data, which may lie in the same directory, are left
    out.
    """
    from tfvmf.evaluation import report

    return report.write(subject)


def summarize(suite: Suite, results: Results) -> Iterator[str]:
    """The lines that are printed about a suite: the verdict, and aligned numbers."""
    count = f" ({count_images(results)})" if suite.uses_images else ""
    verdict = printable(f"{suite.name}{count}: {suite.verdict(results) or suite.title}")
    # Names of files are as long as they are.
    yield from textwrap.wrap(
        verdict, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    lines = [line for line in suite.headlines(results) if line.value is not None]
    width = max((len(line.words) for line in lines), default=0)
    for line in lines:
        yield f"  {line.words:{width}}  {line.number:>9}  {line.beside}".rstrip()
    if "open" in results:
        yield f"  open it with: {results['open']}"


def count_images(results: Results) -> str:
    """How many test images results are about: `a sample of 1,000 of 10,000 images`."""
    images, whole = results["images"], results["of_images"]
    return f"{whole:,} images" if images == whole else f"a sample of {images:,} of {whole:,} images"


def at_step(results: Results) -> str:
    """`step 7` for a sentence about results of a run; "" where there were no steps."""
    return f"step {results['step']}" if "step" in results else ""


def _question(entry: Suite | str) -> str:
    """The first sentence of a suite's docstring, or of its module's."""
    if isinstance(entry, Suite):
        text = entry.measure.__doc__ or entry.title
    else:
        spec = importlib.util.find_spec(entry.partition(":")[0])
        assert spec is not None
        assert spec.origin is not None
        source = pathlib.Path(spec.origin).read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source)) or ""
    return re.split(r"(?<=[?.])\s", text, maxsplit=1)[0]
