"""`tfvmf evaluate --compare`: results of runs side by side, without their encoders."""

import html.parser
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tfvmf import programs
from tfvmf.errors import UserError
from tfvmf.evaluation import report

NASTY = "<script>alert(1)</script>"


def write_run(place, accuracy, *, step=7, data="digits", suites=("probe", "images"), seed=0):
    """A run directory with a configuration and results, as `evaluate` writes them."""
    for name in suites:
        folder = place / "eval" / name
        folder.mkdir(parents=True, exist_ok=True)
        gallery = {"Least certain": [["3.1", NASTY], ["3.2", "b.png"]]} if name == "images" else {}
        if gallery:
            Image.fromarray(np.full((16, 8, 3), 90, np.uint8)).save(folder / "sprite.png")
        else:
            Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / "plot.png")
        table = {"columns": ["k", "accuracy"], "rows": [[5, accuracy]]}
        page = {
            "title": f"{name} {NASTY}",
            "blocks": ["A paragraph.", table],
            "headlines": [[f"{name} accuracy", accuracy, ".3f", None, ""]],
            "gallery": gallery,
        }
        results = {"verdict": f"{name} reaches {accuracy}", "page": page, "images": 400}
        results |= {"of_images": 400, "data": data, "method": "simclr_vmf", "step": step}
        (folder / "results.json").write_text(json.dumps(results))
    config = {"config": {"method": "simclr_vmf", "seed": seed, "optimizer": {"name": "adam"}}}
    (place / "config.json").write_text(json.dumps(config))
    return place


class Parser(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.cells, self.addresses = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)
        if self.tags and self.tags[-1] in ("td", "th"):
            self.cells.append(data.strip())


def test_runs_stand_side_by_side(tmp_path):
    first = write_run(tmp_path / "a", 0.91)
    second = write_run(tmp_path / "b", 0.85, step=9, suites=("probe",), seed=3)
    path = report.compare([first, second])
    assert path == first / "eval" / "compare.html"
    page = Parser(path.read_text())
    words = " ".join(" ".join(page.words).split())
    assert "a : probe reaches 0.91 b : probe reaches 0.85" in words  # verdicts on top
    assert "b : not measured" in words
    cells = [cell for cell in page.cells if cell]
    place = cells.index("probe accuracy")
    assert cells[place : place + 3] == ["probe accuracy", "0.910", "0.850"]
    place = cells.index("seed")
    assert cells[place : place + 3] == ["seed", "0", "3"]
    assert "optimizer.name" not in cells  # the same in both
    assert cells[cells.index("step") + 1 :][:2] == ["7", "9"]
    # Tables are folded, pictures enlarge, names are text, and nothing else is needed.
    assert page.tags.count("details") == 3
    pictures = [a for a in page.addresses if a.startswith("data:image/png;base64,")]
    assert len(pictures) == page.tags.count("img") == 2 + 2
    assert page.tags.count("input") == 4
    assert all(a.startswith(("data:", "#")) for a in page.addresses)
    assert "script" not in page.tags
    assert NASTY in words


def test_directories_of_results_and_their_own_output(tmp_path):
    first, second = (write_run(tmp_path / name / "run", 0.5) for name in "ab")
    other = write_run(tmp_path / "c", 0.2, data="mnist")
    path = report.compare([first / "eval", second, other], output=tmp_path / "out")
    assert path == tmp_path / "out" / "compare.html"
    text = path.read_text()
    assert "different data: their numbers are not comparable" in text
    assert "a/run/eval" in text  # as much of the paths as tells them apart


def test_results_of_a_sample_are_compared_where_there_are_no_others(tmp_path):
    runs = [write_run(tmp_path / name, accuracy) for name, accuracy in (("a", 0.5), ("b", 0.7))]
    for run, sizes in zip(runs, ((200, 2000), (2000,)), strict=True):
        whole = (run / "eval").rename(run / "whole")
        for number, size in enumerate(sizes):
            place = run / "eval" / f"sample{size}"
            shutil.copytree(whole, place)
            os.utime(place, (1e9 + number, 1e9 + number))
    cells = [cell for cell in Parser(report.compare(runs).read_text()).cells if cell]
    place = cells.index("probe accuracy")
    assert cells[place : place + 3] == ["probe accuracy", "0.500", "0.700"]
    assert (runs[0] / "eval" / "sample2000" / "compare.html").exists()  # the newest


def test_results_of_another_checkpoint_are_left_out(tmp_path):
    first, second = (write_run(tmp_path / name, 0.5) for name in "ab")
    write_run(second, 0.6, step=20, suites=("probe",))
    os.utime(second / "eval" / "probe" / "results.json", (2e9, 2e9))
    text = report.compare([first, second]).read_text()
    assert (
        "since measured at another checkpoint, with other data, or by another version: images"
        in (text)
    )


@pytest.mark.parametrize("given", ["a", "a,a", "a,none", "a,empty"])
def test_what_cannot_be_compared_is_one_line(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(pathlib.Path("a"), 0.5)
    (tmp_path / "empty" / "eval" / "probe").mkdir(parents=True)
    (tmp_path / "empty" / "eval" / "probe" / "results.json").write_text("damaged")
    assert programs.main(["evaluate", f"--compare={given}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--compare=" in error
    with pytest.raises(UserError):
        report.compare(given.split(","))


def test_the_program_needs_no_tensorflow(tmp_path):
    runs = [str(write_run(tmp_path / name, 0.5)) for name in "ab"]
    code = (
        "import sys; from tfvmf import programs; code = programs.main(sys.argv[1:]); "
        "print('tensorflow' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "evaluate", f"--compare={','.join(runs)}"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(report.__file__).parents[2])},
    )
    assert done.stdout.splitlines() == [f"report: {runs[0]}/eval/compare.html", "False"]
    assert programs.main(["evaluate", runs[0], f"--compare={','.join(runs)}"]) == 2
