"""Class names and paths are text, whatever they hold: in pages, tables, plots and on terminals."""

import csv
import dataclasses
import os
import shutil
import subprocess

import numpy as np
import pytest
from helpers.subjects import full_subject
from PIL import Image

from tfvmf import evaluation
from tfvmf.data import load_source
from tfvmf.programs import cli
from tfvmf.progress import Progress, printable

NAMES = [
    "<script>document.title='owned'<",  # a file name has no slash: the tag is left open
    "<img src=x onerror=document.title='owned'>",
    "=cmd|' C calc'!A0",
    "@SUM(A1)",
    "+1+1",
    "-1+1",
    "new\nline",
    "tab\there",
    "pipe | `code` **bold**",
    "$\\frac{$ %x",
    "\x1b[2Jclear\x07 \x9b31m",
    "\u202etxt.exe",
    os.fsdecode(b"\xff\xfe"),
    "quote\"'",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of such classes, in a folder that has such a name, and what `evaluate` printed."""
    root = tmp_path_factory.mktemp("place") / f"$\\frac$ <b> \x1b[31m|{NAMES[0]}"
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in NAMES:
            (root / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    source = f"folder:{root}"
    train, test = (load_source(source, split, image_size=12) for split in ("train", "test"))
    assert sorted(test.class_names) == sorted(NAMES)
    subject = full_subject(
        root.parent / "eval", settings={"data.source": source}, description=source
    )
    return dataclasses.replace(subject, train=train, test=test, name=NAMES[0])


@pytest.fixture(scope="module")
def page(hostile):
    names = ("images", "probe", "failure", "projector", "ood")
    options = evaluation.Options(ood_sources=("digits",), max_images=len(NAMES) * 4)
    for name in names:
        evaluation.SUITES[name](hostile, options)
    return evaluation.write_report(hostile)


def test_nothing_printed_controls_the_terminal(hostile, capfd):
    evaluation.evaluate(hostile, "probe")
    with Progress(1, description=NAMES[10]) as progress:
        progress.note(NAMES[10])
        progress.update()
    cli.complain("tfvmf", NAMES[10])
    shown = "".join(capfd.readouterr())
    assert all(c.isprintable() or c in "\n\r" for c in shown)
    assert r"\x1b[31m|" in shown
    assert shown.count(r"\x1b[2Jclear\x07 \x9b31m") >= 3


def test_printable_keeps_what_can_be_seen():
    assert printable("caf\u00e9 \u4e2d 1 \\ '\"") == "caf\u00e9 \u4e2d 1 \\ '\""
    assert printable("a\nb\t\x00\udcff\u202e") == r"a\nb\t\x00\udcff\u202e"


def test_the_projector_has_a_line_and_a_cell_for_each(hostile, page):
    text = (page.parent / "projector" / "metadata.tsv").read_text(encoding="utf-8")
    head, *lines = text.rstrip("\n").split("\n")
    assert len(lines) == len(NAMES) * 4 == hostile.test.size
    cells = [line.split("\t") for line in lines]
    titles = head.split("\t")
    assert {len(row) for row in cells} == {len(titles)}
    labels = {row[titles.index("label")] for row in cells}
    assert len(labels) == len(NAMES)
    assert not [label for label in labels if label.startswith(tuple("=+-@"))]
    assert all(label.isprintable() for label in labels)


def test_tables_stay_tables(page):
    for path in page.parent.rglob("*.csv"):
        rows = list(csv.reader(path.open(newline="", encoding="utf-8")))
        assert len({len(row) for row in rows}) == 1
        for cell in (cell for row in rows for cell in row):
            assert not cell.startswith(("=", "@", "+")), cell
    for path in page.parent.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert "<script" not in text.replace("\\<", "")
        assert all(c.isprintable() or c == "\n" for c in text)


def test_no_browser_runs_what_is_in_a_name(page, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs a browser: apt install chromium")
    text, policy = page.read_text(encoding="utf-8"), "Content-Security-Policy"
    assert policy in text
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command += ["--disable-sync", "--virtual-time-budget=3000", "--dump-dom"]

    def shown(name, content):
        (tmp_path / name).write_text(content, encoding="utf-8")
        result = subprocess.run(
            [*command, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / name).as_uri()],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return result.stdout

    # Escaping alone suffices, and so does the policy alone.
    assert "<title>owned" not in shown("escaped.html", text.replace(policy, "unused"))
    script = "<script>document.title = 'owned'</script></body>"
    assert "<title>owned" not in shown("guarded.html", text.replace("</body>", script))
    both = text.replace(policy, "unused").replace("</body>", script)
    assert "<title>owned" in shown("open.html", both)  # the test can fail
