"""`tfvmf reproduce` as a user meets it: typed commands, exit codes, lines on the screen."""

import pathlib
import subprocess
import sys

import pytest

from tfvmf.reproduction.experiments import EXPERIMENTS

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        [ROOT / "bin" / "reproduce", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_help_answers_at_once_without_tensorflow():
    result = run("--help")
    assert result.returncode == 0
    assert "--dry_run" in result.stdout
    assert all(name in result.stdout for name in EXPERIMENTS)
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", ROOT / "bin" / "reproduce", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tfvmf.reproduction" in imported.stderr
    assert "tensorflow" not in imported.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "table1, table2, table3"),
        (["table9"], "figure4"),
        (["table1", "table2"], "table2"),
        (["table1", "--budget=gpu"], "digits, cpu, paper"),
        (["table1", "--max_images=-1"], "max_images"),
        (["table1", "--seed=-1"], "seed"),
        (["table1", "--dry"], "dry"),
        (["table1", "--reference_encoder=/no/such.keras"], "/no/such.keras"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_2(arguments, message, tmp_path):
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())


def test_a_dry_run_as_typed(tmp_path):
    result = run("table3", "--budget=digits", "--dry_run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "budget digits" in result.stdout
    assert "runs/reproduce/digits" in result.stdout
    for name in ("simclr_vmf", "simsiam_vmf", "byol_vmf", "swav_vmf"):
        assert name in result.stdout
    assert "Total:" in result.stdout
    assert "port.cc" not in result.stderr  # TensorFlow's own chatter
    assert not list(tmp_path.iterdir())
