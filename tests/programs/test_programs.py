"""The programs as a user meets them: typed commands, exit codes, lines on the screen."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.foreign import foreign_cnn
from helpers.untrained import make_run
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
# Each with a flag that its help must name.
PROGRAMS = {
    "train": "--workdir",
    "evaluate": "--workdir",
    "export": "--output",
    "embed": "--model",
    "fit_kappa": "--model",
}
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


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_answers_at_once_without_tensorflow(program):
    result = run(program, "--help")
    assert result.returncode == 0
    assert PROGRAMS[program] in result.stdout
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", ROOT / "bin" / program, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "| tfvmf" in imported.stderr.replace(" ", "").replace("|tfvmf", "| tfvmf")
    assert "tensorflow" not in imported.stderr


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        ("train", ["--config=nosuch.py"], "nosuch.py"),
        ("train", ["--config.optimizer.learning_rat=1"], "--config.optimizer.learning_rate"),
        ("train", ["--config.nonsense=1"], "nonsense"),
        ("train", ["--config.batch_size=many"], "batch_size"),
        ("train", ["--config.optimizer.learning_rate=fast"], "learning_rate"),
        ("train", ["--nosuchflag"], "nosuchflag"),
        ("train", ["--logical_devices=-1"], "logical_devices"),
        ("train", ["digits", "cifar10"], "cifar10"),
        ("train", ["--method=simclr2"], "simclr_vmf"),
        ("train", ["--ensemble=1"], "ensemble"),
        ("train", ["--ensemble=2", "--ensemble_kind=bag"], "snapshot"),
        (
            "train",
            ["--method=swav", "--config.swav.queue_length=5"],
            "--config.swav.queue_length=5",
        ),
        ("train", ["--strategy=tpu"], "multi_worker"),
        ("train", ["--config.data.source=folder:/no/such/folder"], "/no/such/folder"),
        ("evaluate", ["--workdir=/no/such/run"], "/no/such/run"),
        ("evaluate", ["--suite=imagenetc"], "cifar10c"),
        ("evaluate", ["--max_images=-1"], "max_images"),
        ("evaluate", ["--score=dropout", "--num_passes=0"], "num_passes"),
        ("export", [], "--output"),
        ("export", ["--output=models", "--model=/no/such/run"], "/no/such/run"),
        ("export", ["--output=models", "--reject_below=0.1"], "--calibrate_on"),
        ("export", ["--output=models", "--reject_below=much"], "reject_below"),
        (
            "export",
            ["--output=models", "--calibrate_on=test", "--reject_below=5"],
            "--reject_below=5",
        ),
        ("fit_kappa", [], "--model"),
        ("fit_kappa", ["--model=/no/such.keras"], "/no/such.keras"),
        ("fit_kappa", ["--model=/no/such.npz", "--view_kind=broad"], "view_kind"),
        ("fit_kappa", ["--model=.", "--cache_views=-1"], "cache_views"),
        ("fit_kappa", ["--model=.", "--config.data.sauce=x"], "--config.data.source"),
        ("embed", ["--data=.", "--output=out.npz"], "--model"),
        ("embed", ["--model=.", "--output=out.npz"], "--data"),
        ("embed", ["--model=.", "--data=."], "--output"),
        ("embed", ["--model=.", "--data=/no/such", "--output=out.npz"], "/no/such"),
        ("embed", ["--model=.", "--data=.", "--output=out.txt"], "out.txt"),
        ("embed", ["--model=m", "--data=.", "--output=o.npz", "--sort=size"], "kappa"),
        ("embed", ["--model=m", "--data=.", "--output=o.npz", "--batch_size=0"], "batch_size"),
    ],
)
def test_mistakes_give_one_line_and_exit_code_2(program, flags, message, tmp_path):
    result = run(program, *flags, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())


def test_a_config_file_that_invents_settings_is_refused(tmp_path):
    config = tmp_path / "mine.py"
    config.write_text(
        "from tfvmf.config import default_config\n"
        "def get_config():\n"
        "    config = default_config()\n"
        "    with config.unlocked():\n"
        "        config.model.color = 'red'\n"
        "    return config\n"
    )
    result = run("train", f"--config={config}", cwd=tmp_path)
    assert (result.returncode, "model.color" in result.stderr) == (2, True)


def test_train_then_evaluate_as_typed(tmp_path):
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
    assert "mean_spearman" in result.stdout
    assert (workdir / "eval" / "cifar10c" / "table.md").exists()


@pytest.mark.slow
def test_fit_kappa_to_a_keras_file_as_typed(tmp_path):
    foreign_cnn().save(tmp_path / "cnn.keras")
    small = [*TINY, "--config.monitor.query_images=50", "--config.monitor.bank_images=50"]
    flags = ["--model=cnn.keras", "--input_range=0..255", *small]
    for mistake, message in (
        ([], "feature_layer=NAME"),
        (["--feature_layer=boxes"], "has no such output or layer"),
        (["--feature_layer=avg", "--level_layers=stem,steam"], "level_layers=steam"),
        (["--feature_layer=avg", "--levels=all"], "level_layers=a,b,c"),
    ):
        result = run("fit_kappa", *flags, *mistake, cwd=tmp_path)
        assert result.returncode == 2, result.stderr
        assert message in result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        assert not (tmp_path / "runs").exists()
    result = run(
        "fit_kappa", *flags, "--feature_layer=avg", "--cache_views=2", "--epochs=2", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "next: tfvmf evaluate runs/cnn-kappa" in result.stdout
    (tmp_path / "cnn.keras").unlink()
    evaluated = ["--workdir=runs/cnn-kappa", "--suite=probe", "--max_images=20"]
    for program, given in (
        ("evaluate", evaluated),
        ("export", ["--model=runs/cnn-kappa", "--output=models"]),
    ):
        result = run(program, *given, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "models" / "1" / "saved_model.pb").exists()


@pytest.mark.slow
def test_fit_kappa_to_features_as_typed(tmp_path, rng):
    np.savez(tmp_path / "mine.npz", features=rng.normal(size=(60, 3, 5)).astype(np.float32))
    flags = ["--model=mine.npz", "--config.batch_size=20", "--epochs=1"]
    result = run("fit_kappa", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tfvmf export runs/mine-kappa" in result.stdout
    result = run("evaluate", "--workdir=runs/mine-kappa", cwd=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "no images to measure" in result.stderr
    result = run("export", "--model=runs/mine-kappa", "--output=models", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_export_then_embed_as_typed(tmp_path):
    make_run(tmp_path / "run")
    flags = ["--model=run", "--output=models", "--calibrate_on=test", "--reject_below=0.1"]
    result = run("export", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("exported: models/1\n")
    assert "port.cc" not in result.stderr  # TensorFlow's own chatter
    assert "util.cc" not in result.stderr
    (tmp_path / "pictures").mkdir()
    for level in range(0, 250, 50):
        Image.new("RGB", (20, 30), (level, 9, 9)).save(tmp_path / "pictures" / f"{level}.jpg")
    flags = ["--model=models", "--data=pictures", "--output=out.npz", "--sort=kappa"]
    result = run("embed", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "images 5, kappa" in result.stdout
    assert "out.png" in result.stdout
    with np.load(tmp_path / "out.npz") as written:
        assert written["mean_direction"].shape == (5, 8)
        assert written["confidence"].shape == (5,)
    assert (tmp_path / "out.png").exists()


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
    assert "all saved" in errors.splitlines()[-1]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*.index"))
