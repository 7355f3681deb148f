"""The long checks, in part: N replicas against one device, runs killed at random, the same bits."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def check(name, *flags):
    command = [sys.executable, "-m", f"tests.slow.{name}", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("layouts", ["mirrored_4", "workers_2"])
def test_replicas_compute_what_one_device_does(layouts):
    methods = "simclr_vmf,simsiam_vmf,byol_vmf,swav_vmf,mc_infonce,vi_simsiam,supervised"
    result = check("equality", f"--layouts={layouts}", "--double", f"--cases={methods}")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing():
    result = check("kills", "--kills=3", "--cases=byol_vmf,swav_vmf")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kills, 3 identical results" in result.stdout


@pytest.mark.slow
def test_every_command_gives_the_same_bits():
    result = check("determinism", "--runs=2")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_a_step_of_every_method_taken_again_gives_the_same_bits():
    result = check("determinism", "--repeats=100")
    assert result.returncode == 0, result.stdout + result.stderr
