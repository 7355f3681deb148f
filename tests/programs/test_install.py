"""What the wheel holds, and that it works without the clone."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from helpers.commands import ROOT

import tfvmf

TINY = [
    "--config.epochs=1",
    "--config.batch_size=349",
    "--config.data.image_size=8",
    "--config.model.backbone=resnet10",
    "--config.model.width=2",
    "--config.model.dimension=8",
    "--config.model.hidden=8",
]


def without_clone():
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools leaves its traces, and takes up those of an earlier build."""
    place = tmp_path_factory.mktemp("wheel")
    clone = place / "clone"
    clone.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("tfvmf", "configs"):
        shutil.copytree(
            ROOT / name, clone / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, f"--wheel-dir={place}", str(clone)], check=True, cwd=place)
    (path,) = place.glob("tfvmf-*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_configs_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "tfvmf = tfvmf.programs:main" in archive.read(points).decode()
        (license,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(license) == (ROOT / "LICENSE").read_bytes()
        (facts,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        assert f"\nVersion: {tfvmf.__version__}\n" in archive.read(facts).decode()
        for path in (ROOT / "configs").glob("*.py"):
            assert archive.read(f"tfvmf/configs/{path.name}") == path.read_bytes()
    assert {name.split("/")[0] for name in names} == {"tfvmf"}
    files = {
        str(path.relative_to(ROOT))
        for folder in ("tfvmf", "tfvmf/configs")  # a symbolic link, which glob does not follow
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(names) == files


@pytest.mark.slow
def test_the_wheel_trains_evaluates_and_exports_in_an_environment_of_its_own(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python, tfvmf = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "tfvmf"
    environment = without_clone()

    def run(*command):
        result = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    # The requirements of this environment, but not its tfvmf: that hangs on a .pth file of its own.
    site = pathlib.Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import tfvmf; print(tfvmf.__file__)")
    assert where.startswith(str(tmp_path))
    assert "trained: runs/digits-simclr_vmf" in run(tfvmf, "train", *TINY)
    assert "k-NN accuracy (20 neighbors)" in run(
        tfvmf, "evaluate", "--suite=probe", "--max_images=20"
    )
    assert "exported: models/1" in run(tfvmf, "export", "--output=models")
    assert "budget digits" in run(tfvmf, "reproduce", "table3", "--dry_run")
    assert (tmp_path / "models" / "1" / "saved_model.pb").exists()
