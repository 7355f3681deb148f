"""The programs as a user meets them: typed commands, exit codes, lines on the screen."""

import json
import os
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest
from helpers.foreign import foreign_cnn
from helpers.untrained import make_run
from PIL import Image

from tfvmf import posthoc
from tfvmf.programs import main

ROOT = pathlib.Path(__file__).parents[2]
TINY = [
    "--config.batch_size=349",
    "--config.data.image_size=8",
    "--config.model.backbone=resnet10",
    "--config.model.width=2",
    "--config.model.dimension=8",
    "--config.model.hidden=8",
]


def run(program, *flags, cwd=ROOT):
    return subprocess.run(
        [ROOT / "bin" / program, *flags], capture_output=True, text=True, cwd=cwd, check=False
    )


# Mistakes that only the library can find; all others are in test_command.py.
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "/no/such/run"], "/no/such/run"),
        (["export", "/no/such/run", "--output=models"], "/no/such/run"),
        (["export", "--output=models", "--alpha=5"], "alpha"),
        (["fit-kappa", "/no/such.keras"], "/no/such.keras"),
        (["embed", ".", "folder:/no/such", "--output=out.npz"], "/no/such"),
        (["embed", ".", ".", "--output=out.txt"], "--output=out.txt"),
        (["embed", "/no/such/model", ".", "--output=out.npz"], "images"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_2(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_mistake_as_typed(tmp_path):
    result = run("train", "folder:/no/such/folder", cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "/no/such/folder" in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())


def test_train_then_evaluate_then_export_as_typed(tmp_path):
    result = run(
        "train", "--method=simclr_vmf", "--strategy=mirrored", "--config.epochs=1", *TINY,
        cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for word in ("loss", "contrastive", "alignment", "penalty", "kappa", "k-NN", "images/s"):
        assert word in result.stderr
    assert "port.cc" not in result.stderr  # TensorFlow's own chatter
    workdir = tmp_path / "runs" / "digits-simclr_vmf"
    assert (workdir / "metrics.jsonl").exists()
    result = run("evaluate", "--max_images=20", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "of 18 corruptions" in result.stdout
    assert (workdir / "eval" / "sample20" / "cifar10c" / "table.md").exists()
    result = run("export", "--output=models", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("calibrated on 140 images of digits (train): alpha=0.05\n")
    assert "\nexported: models/1 (for TensorFlow Serving" in result.stdout
    assert "port.cc" not in result.stderr
    assert "util.cc" not in result.stderr


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def called(*command):
        code = main(list(command))
        return code, *capsys.readouterr()

    return called


def test_fit_kappa_to_a_keras_file(call, tmp_path):
    foreign_cnn().save(tmp_path / "cnn.keras")
    small = [flag for flag in TINY if "image_size" not in flag]  # the model has its own
    small += ["--config.monitor.query_images=50", "--config.monitor.bank_images=50"]
    flags = ["fit-kappa", "cnn.keras", "--input_range=0..255", *small]
    for mistake, message in (
        ([], "feature_layer=NAME"),
        (["--feature_layer=boxes"], "has no such output or layer"),
        (["--feature_layer=avg", "--level_layers=stem,steam"], "level_layers=steam"),
        (["--feature_layer=avg", "--level_layers=none", "--levels=all"], "level_layers=a,b,c"),
        (["--feature_layer=avg", "--image_size=16"], "images of 24x24 only"),
    ):
        code, _, errors = call(*flags, *mistake)
        assert code == 2, errors
        assert message in errors
        assert errors.count("\n") == 1, errors
        assert not (tmp_path / "runs").exists()
    code, output, errors = call(*flags, "--feature_layer=avg", "--cache_views=2", "--epochs=2")
    assert code == 0, errors
    assert "next: tfvmf evaluate runs/cnn-kappa" in output
    assert "images 24x24, pixels 0..255, features avg, levels depthwise\n" in output
    assert "warning" not in errors  # of a collapse, which nobody could prevent
    code, _, errors = call(*flags, "--feature_layer=avg", "--epochs=3")
    assert (code, errors.count("\n")) == (2, 1)
    assert "other settings" in errors
    assert "choose another --workdir, such as runs/cnn-kappa-2" in errors
    (tmp_path / "cnn.keras").unlink()
    for command in (
        ["evaluate", "--workdir=runs/cnn-kappa", "--suite=probe", "--max_images=20"],
        ["export", "runs/cnn-kappa", "--output=models"],
    ):
        code, _, errors = call(*command)
        assert code == 0, errors
    assert (tmp_path / "models" / "1" / "saved_model.pb").exists()


def test_fit_kappa_to_features(call, tmp_path, rng):
    np.savez(tmp_path / "mine.npz", features=rng.normal(size=(60, 3, 5)).astype(np.float32))
    code, output, errors = call("fit-kappa", "mine.npz", "--config.batch_size=20", "--epochs=1")
    assert code == 0, errors
    assert "tfvmf export runs/mine-kappa" in output
    code, output, errors = call("fit-kappa", "mine.npz", "--config.batch_size=20", "--workdir=long")
    assert code == 0, errors
    assert "400 steps (200 epochs)" in output  # enough, however few images there are
    code, _, errors = call("evaluate", "runs/mine-kappa")
    assert (code, errors.count("\n")) == (2, 1)
    assert "images to measure" in errors
    code, _, errors = call("export", "runs/mine-kappa", "--output=models")
    assert code == 0, errors


def test_every_program_that_opens_images_refuses_those_of_more_than_max_pixels(call, tmp_path):
    make_run(tmp_path / "run", **{"data.source": f"folder:{tmp_path}/a", "data.max_pixels": 7000})
    for name in ("train/a.png", "test/a.png"):
        (tmp_path / "a" / name).parent.mkdir(parents=True)
        Image.new("RGB", (90, 80)).save(tmp_path / "a" / name)
    views = [*TINY, "--draw_views=views.png"]
    for command in (
        ["train", "folder:a", *views, "--max_pixels=7000"],
        ["train", "folder:a", *views, "--config.data.max_pixels=7000"],
        ["evaluate", "run", "--suite=failure"],
        ["export", "run", "--output=models", "--calibrate_on=test"],
        ["fit-kappa", "run", "--workdir=fitted", "--max_pixels=7000"],
    ):
        code, _, errors = call(*command)
        assert code == 2, errors
        assert "a.png: 90 x 80 pixels, more than max_pixels=7000" in errors
        assert errors.count("\n") == 1, errors
    for limit, broken in ((7000, 2), (7200, 0)):
        code, output, errors = call(
            "embed", "run", "a", "--output=out.npz", f"--max_pixels={limit}"
        )
        assert code == 0, errors
        assert f"broken {broken}" in output


def test_export_then_embed(call, tmp_path):
    make_run(tmp_path / "run", **{"data.reserve": 0.2})
    posthoc.fit_judge(tmp_path / "run")
    flags = ["--output=models", "--alpha=0.1"]
    code, output, errors = call("export", "run", *flags)
    assert code == 0, errors
    assert "\nexported: models/1 (for TensorFlow Serving" in output
    (tmp_path / "pictures").mkdir()
    for level in range(0, 250, 50):
        Image.new("RGB", (20, 30), (level, 9, 9)).save(tmp_path / "pictures" / f"{level}.jpg")
    (tmp_path / "pictures" / "broken.jpg").write_text("no image")
    sort = "--sort=concentration"
    code, output, errors = call("embed", "models", "pictures", "--output=out.npz", sort)
    assert code == 0, errors
    assert "images 6: embedded 5, broken 1, rejected" in output
    assert "out.png" in output
    with np.load(tmp_path / "out.npz") as written:
        assert written["mean_direction"].shape == (6, 8)
        assert np.isfinite(written["confidence"]).sum() == 5
        assert (np.diff(written["concentration"][:5]) >= 0).all()
    assert (tmp_path / "out.png").exists()
    code, output, errors = call("embed", "models", "pictures/50.jpg")
    assert code == 0, errors
    assert output.startswith("file: pictures/50.jpg\nconcentration: ")
    assert "\naccept: " in output
    code, output, errors = call("embed", "run", "digits", "--output=digits.npz")
    assert code == 0, errors
    with np.load(tmp_path / "digits.npz") as written:
        assert len(written["concentration"]) == len(written["label"]) == 1797


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(tmp_path):
    command = [ROOT / "bin" / "train", "--workdir=run", "--config.epochs=200", *TINY]
    command += ["--config.log_every_steps=1", "--config.monitor.every_epochs=0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped and saved" in errors.splitlines()[-1]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*.index"))


def results(path):
    (found,) = path.rglob("probe/results.json")  # in sample20/ where there are more images
    return json.loads(found.read_text())


def test_evaluate_on_data_that_the_run_did_not_have(call, tmp_path, rng):
    make_run(tmp_path / "run")
    images = rng.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(60) % 3)
    probe = ["--suite=probe", "--max_images=20"]
    for command in (
        ["evaluate", "run", *probe],
        ["evaluate", "run", "npz:mine.npz", *probe],
        ["evaluate", "--workdir=run", "--data=npz:mine.npz", "--output=elsewhere", *probe],
    ):
        code, _, errors = call(*command)
        assert code == 0, errors
    own, other = results(tmp_path / "run" / "eval"), results(tmp_path / "run" / "eval-mine")
    assert own["train_images"] != other["train_images"]
    assert other == results(tmp_path / "elsewhere")


def test_evaluate_an_encoder_without_its_run(call, tmp_path):
    make_run(tmp_path / "run")
    assert call("export", "run", "--output=models", "--keras")[0] == 0
    encoder = "models/1/assets.extra/encoder.keras"
    probe = ["--suite=probe", "--max_images=20"]
    code, _, errors = call("evaluate", encoder, "digits", "--output=results", *probe)
    assert code == 0, errors
    assert call("evaluate", "run", *probe)[0] == 0
    alone, in_run = results(tmp_path / "results"), results(tmp_path / "run" / "eval")
    for name in ("knn_20_accuracy", "linear_accuracy"):
        assert alone[name] == pytest.approx(in_run[name])
    for model, message in ((encoder, "--data is missing"), ("models", "load the run")):
        code, _, errors = call("evaluate", model, *probe)
        assert (code, errors.count("\n")) == (2, 1)
        assert message in errors
