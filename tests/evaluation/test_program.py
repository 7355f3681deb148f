"""`tfvmf evaluate` in this process: what it hands to suites, and what it says of mistakes."""

import pytest
from helpers.subjects import plain_encoder
from helpers.untrained import make_run

from tfvmf import programs, serving


def evaluate(*arguments):
    return programs.main(["evaluate", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def keras_file(run, tmp_path_factory):
    path = serving.export_model(run, tmp_path_factory.mktemp("export"), keras_file=True)
    return path / "assets.extra" / "encoder.keras"


def test_a_keras_file_has_the_numbers_of_its_run(keras_file, run, tmp_path, capsys):
    options = ["--suite=probe", "--max_images=20"]
    assert evaluate(keras_file, "digits", *options, f"--output={tmp_path}") == 0
    beside = tmp_path / "sample20" / "probe"
    out = capsys.readouterr().out
    assert "probe (a sample of 20 of 400 images): k-NN 0." in out
    assert f"report: {tmp_path / 'sample20' / 'report.html'}" in out
    assert evaluate(run, *options) == 0
    table = (run / "eval" / "sample20" / "probe" / "table.md").read_text().splitlines()
    assert [line for line in table if line.startswith("|")] == [
        line for line in (beside / "table.md").read_text().splitlines() if line.startswith("|")
    ]


def test_mistakes_are_one_line(keras_file, run, tmp_path, capsys):
    plain_encoder().save(tmp_path / "plain.keras")
    for arguments, message in (
        ([keras_file], "--data is missing"),
        ([keras_file.parents[1], "digits"], "is an export"),
        ([tmp_path / "plain.keras", "digits"], "image_size"),
        ([run, "--suite=prob"], "did you mean probe"),
        ([run, "--score=kapa"], "score=kapa is unknown: did you mean kappa"),
        ([run, "--score=familiarity"], "the score familiarity needs a calibrated run"),
        ([run, "--suite=decision"], "decision needs a calibrated run"),
        (
            [run, "--suite=probe", "--max_error=0.1"],
            "--max_error=0.1: only used by --suite",
        ),
        ([run, "--max_error=1.5"], "--max_error=1.5: expected a share between 0 and 1"),
        ([run, "--alpha=0"], "--alpha=0: expected a share between 0 and 1"),
        ([run, "--score=ensemble"], "needs at least 2 members"),
        ([run, "--supervised_workdir=/no/such/run"], "--supervised_workdir: "),
    ):
        assert evaluate(*arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
