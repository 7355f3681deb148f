"""README, docs/ and the files of a release: short, linked, with numbers that were measured."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys

import nbformat
import numpy as np
import pytest
import yaml
from helpers.commands import ROOT

import tfvmf
from tools import notebooks

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "studies").glob("*/README.md")),
]
README = (ROOT / "README.md").read_text("utf-8")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What made earlier versions hard to read; American spelling.
ODD = re.compile(
    r"\b(needed (is|are) (an?|one|at)|foretold|mend(s|ed|ing)?|anew|bit by bit|normalis\w+|"
    r"reparameteris\w+|colours?|neighbours?|labelled|unlabelled|licence|behaviour|"
    r"(images|views|pairs) a second|"
    r"a (line|row|number|label|pass|panel) an? (image|row|kappa|member|corruption|view))\b",
    re.IGNORECASE,
)


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return found


def anchors(page):
    """The anchors of a page's headings, as MkDocs and GitHub make them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def numbers():
    spec = importlib.util.spec_from_file_location("numbers", ROOT / "docs" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150
    assert max(len(block(language).splitlines()) for language in ("shell", "python")) <= 11


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_heading(page):
    text = FENCE.sub("", page.read_text("utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_on_the_site_and_in_the_readme():
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in site
        assert f"](docs/{page.name})" in README


def test_the_results_are_those_of_the_json_files(numbers):
    shown = README.partition(numbers.BEGIN)[2].partition(numbers.END)[0]
    assert shown == numbers.table(), "run `python docs/results.py --write`"
    assert "| k-NN accuracy" in shown
    page = (ROOT / "docs" / "kappa.md").read_text("utf-8")
    assert page.partition(numbers.BEGIN)[2].partition(numbers.END)[0] == numbers.heads()


def test_the_papers_page_is_made_of_the_json_files(numbers, tmp_path):
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    made = page.partition(numbers.BEGIN)[2].partition(numbers.END)[0]
    assert made == numbers.paper(tmp_path), "run `python docs/results.py --write`"
    assert "## Figure 1" in made
    for picture in tmp_path.glob("*.png"):
        assert (ROOT / "docs" / "paper" / picture.name).is_file()


def test_a_number_without_a_meaning_is_refused(numbers, monkeypatch):
    found = {"x.json": {"title": "x", "commands": [], "numbers": {"invented": 1.0}}}
    monkeypatch.setattr(numbers, "results", lambda: found)
    with pytest.raises(SystemExit, match="invented"):
        numbers.table()


def test_the_list_names_pages_and_programs_that_exist(numbers):
    for page, entries in numbers.PAGES.items():
        assert (ROOT / "docs" / page).is_file()
        for _, command in entries:
            words = command.split()
            if words[0] == "python":
                path = words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1]
                assert (ROOT / path).is_file(), command


def test_words_are_plain():
    rooms = ("tfvmf", "configs", "bin", "examples", "tools", "benchmarks", "studies")
    files = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    for path in (*PAGES, *files, ROOT / "Makefile"):
        text = path.read_text("utf-8").replace('"monitor.neighbours"', "")  # a setting of 0.1
        found = ODD.search(text)
        assert not found, f"{path.relative_to(ROOT)}: {found[0]}"


def test_the_version_is_in_one_place():
    command = [sys.executable, "setup.py", "--version"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.split()[-1] == tfvmf.__version__
    (newest, *_) = re.findall(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert newest == tfvmf.__version__
    for path in ("setup.py", "pyproject.toml", "CITATION.cff", "README.md"):
        assert tfvmf.__version__ not in (ROOT / path).read_text("utf-8")


def test_the_citation_names_the_paper_and_the_software():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["license"], citation["type"]) == ("Apache-2.0", "software")
    (paper,) = citation["references"]
    assert paper["title"] in re.sub(r"\s+", " ", README)
    assert [author["family-names"] for author in paper["authors"]][:2] == ["Li", "Ouyang"]
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")


def test_the_python_snippet_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "README.md", "exec"), names)
    for line in printed.getvalue().splitlines():
        name, clean, foggy = line.split()
        assert float(foggy) < float(clean), name
    kappa = names["clean"]["concentration"]
    assert np.array_equal(names["least_certain"], names["images"][np.argsort(kappa)[:10]])


@pytest.mark.slow
def test_the_shell_snippet_runs(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-euxc", block("shell")]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=1200)
    for name in ("out.parquet", "uncertain.csv", "duplicates.csv", "explore.html", "digits.csv"):
        assert (tmp_path / name).stat().st_size > 0
    assert len((tmp_path / "uncertain.csv").read_text("utf-8").splitlines()) == 21
    assert (tmp_path / "models" / "digits" / "1" / "saved_model.pb").exists()
    assert (tmp_path / "runs" / "digits" / "eval" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    assert any(cell.get("outputs") for cell in stored.cells), "run `python tools/notebooks.py`"
    executed = notebooks.run(path, tmp_path)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_is_valid_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in shown if output.output_type == "error"]
    assert path.stat().st_size < 250_000
