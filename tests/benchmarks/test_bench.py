import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.sections import SECTIONS, growth
from benchmarks.side_by_side.table import Row, markdown

ROOT = pathlib.Path(__file__).parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def bench(*flags):
    command = [sys.executable, "-m", "benchmarks.bench", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def row(**changes):
    return Row(**{"section": "a", "what": "b", "ours": 1.0, "unit": "s", **changes})


def test_goals():
    assert row().met is None
    assert row(goal="< 2").met is True
    assert row(ours=2.0, goal="< 2").met is False
    assert row(ratio=1.3, goal=">= 1.3").met is True
    assert row(ours=9.0, ratio=1.2, goal=">= 1.3").met is False
    assert row(ratio=1.03, goal="<= 1.03").met is True
    assert row(ratio=1.03, goal="<= 1.03", noisy=True).met is None


def test_table():
    rows = [
        row(ours=12345.6, theirs=0.01234, ratio=1.234, goal=">= 1.3"),
        row(ours=0.5, goal="< 2"),
        row(ours=0.5, goal="< 2", noisy=True),
    ]
    assert markdown(rows).splitlines()[2:] == [
        "| a | b | 12,346 | 0.0123 | s | 1.23 | >= 1.3 | **no** |",
        "| a | b | 0.5 |  | s |  | < 2 | yes |",
        "| a | b | 0.5 |  | s |  | < 2 | noisy |",
    ]


def test_plot(tmp_path):
    points = [growth.Point("64", 0.1, 900.0), growth.Point("128", 0.2, 1200.0)]
    panels = {axis.title: points for axis in growth.axes(quick=True)}
    growth.draw(tmp_path / "growth.png", panels, Problem())
    assert (tmp_path / "growth.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--sections=speed",
            "--sections=speed is unknown: use some of train_step, trunk",
        ),
        ("--sections=", "--sections is empty"),
        ("--seconds=-1", "--seconds"),
        ("--threads=0", "--threads"),
        ("--out=README.md/x", "--out=README.md/x cannot be made"),
    ],
)
def test_a_bad_flag_is_one_line_and_code_2(flag, message):
    result = bench(flag, *([] if "sections" in flag else ["--sections=limit"]))
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_quick_section_is_printed_and_written(tmp_path):
    result = bench("--quick", "--sections=limit", f"--out={tmp_path}")
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert {row["section"] for row in rows} == {"limit"}
    assert (tmp_path / "bench.md").read_text() in result.stdout
    assert "[1/1] limit" in result.stderr


@pytest.mark.slow
def test_every_section_runs(tmp_path):
    names = [name for name in SECTIONS if HAS_TORCH or name not in ("train_step", "trunk")]
    result = bench("--quick", f"--sections={','.join(names)}", f"--out={tmp_path}")
    assert result.returncode == 0, result.stderr
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["section"] for row in content["rows"]] == sorted(
        (row["section"] for row in content["rows"]), key=names.index
    )
    assert {row["section"] for row in content["rows"]} == {*names}
    assert all(row["ours"] > 0 for row in content["rows"])
    assert (tmp_path / "growth.png").exists()
