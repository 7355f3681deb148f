"""N replicas compute what one device would, and refuse what they cannot."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.states import assert_equal_weights, weights
from helpers.tiny import tiny_config

from tfvmf import training
from tfvmf.config import default_config
from tfvmf.data import pipeline
from tfvmf.errors import UserError
from tfvmf.models import resnet
from tfvmf.training import loop, strategies

ROOT = pathlib.Path(__file__).parents[2]
TRAIN = [
    str(ROOT / "bin" / "train"),
    "--strategy=multi_worker",
    "--config.batch_size=348",
    "--config.data.image_size=8",
    "--config.model.backbone=resnet10",
    "--config.model.width=2",
    "--config.model.dimension=8",
    "--config.model.hidden=8",
    "--config.monitor.every_epochs=0",
    "--config.log_every_steps=1",
]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        # Wide enough that no image has dead units only: a direction of length 0 has no gradient.
        ("byol_vmf", {"model.dropout": 0.2, "model.hidden": 64, "model.width": 8}),
        (
            "swav_vmf",
            {
                "swav.queue_length": 348,
                "swav.num_local_views": 1,
                "swav.local_size": 8,
                "swav.sinkhorn_epsilon": 0.05,  # exp(z / epsilon) multiplies what rounding does
                "model.hidden": 64,
                "model.width": 8,
            },
        ),
    ],
)
@pytest.mark.slow
def test_two_replicas_compute_what_one_does(method, changes, tmp_path, two_replicas, monkeypatch):
    """Target network, dropout, queue and local views; `tests/slow/equality.py` does the rest."""
    # Two blocks instead of four: the graph of two replicas takes its time.
    shallow = resnet.Architecture((1, 1, 0, 0), bottleneck=False, relative_cost=0.2)
    monkeypatch.setitem(resnet.ARCHITECTURES, "resnet10", shallow)
    changes |= {"method": method, "batch_size": 348, "epochs": 1, "optimizer.name": "sgd"}
    changes |= {"swav.num_prototypes": 8, "swav.freeze_epochs": 0.5, "monitor.every_epochs": 0.0}
    training.train(tiny_config(**changes), tmp_path / "one")
    monkeypatch.setattr(loop, "make_strategy", lambda *_, **__: two_replicas)
    training.train(tiny_config(**changes), tmp_path / "two")
    one, two = (
        [line["loss"] for line in training.read_metrics(tmp_path / name)] for name in ("one", "two")
    )
    np.testing.assert_allclose(one, two, rtol=1e-5)
    # A queued direction of a short projection has lost a digit or two to the division.
    assert_equal_weights(weights(tmp_path / "one"), weights(tmp_path / "two"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("replicas", [3, 4, 7])
def test_a_batch_that_cannot_be_shared_is_refused(replicas):
    with pytest.raises(UserError, match=f"use a multiple of {replicas}$"):
        pipeline.check_shares(349, replicas)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
    ],
)
def test_multi_worker_needs_a_cluster_that_this_process_is_in(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match="TF_CONFIG"):
        strategies.make_strategy("multi_worker")


@pytest.mark.parametrize(
    ("kind", "index", "chief"),
    [("chief", 0, True), ("worker", 0, False), ("worker", 1, False)],
)
def test_one_worker_is_the_chief(monkeypatch, kind, index, chief):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    task = {"type": kind, "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert strategies.is_chief("multi_worker") == chief
    assert strategies.is_chief("mirrored")
    del cluster["chief"]
    if kind == "worker":
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        assert strategies.is_chief("multi_worker") == (index == 0)


def start_workers(workdir, count=2, *, own=(), **changes):
    """The processes of a multi-worker run, started without the launcher.

    `changes` are dotted settings of all of them, `own` those of the first, the second, ...
    """
    sys.path.insert(0, str(ROOT / "examples"))
    from multi_worker import cluster

    processes = []
    for number, config in enumerate(cluster(count)):
        settings = changes | (own[number] if own else {})
        command = ["env", f"TF_CONFIG={config}", *TRAIN, f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in settings.items()]
        processes.append(
            subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        )
    return processes


def test_workers_with_different_settings_are_refused(tmp_path):
    processes = start_workers(tmp_path / "run", own=[{"seed": 1}, {"seed": 2}])
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 2, errors
        assert "different settings" in errors.splitlines()[-1]


def test_workers_that_would_begin_at_different_steps_are_refused(monkeypatch):
    monkeypatch.setattr(strategies, "_of_all_workers", lambda *_: [(3, 7), (0, 7)])
    with pytest.raises(UserError, match=r"steps, \(3, 0\): .* share"):
        strategies.check_same(None, default_config(), pathlib.Path("run"), 3)


def test_two_workers_train_what_one_device_does(tmp_path):
    processes = start_workers(tmp_path / "two", epochs=1, **{"optimizer.name": "sgd"})
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
    config, *_ = training.load_method(tmp_path / "two")
    config.strategy = "default"
    training.train(config, tmp_path / "one")
    one, two = (
        [line["loss"] for line in training.read_metrics(tmp_path / name)] for name in ("one", "two")
    )
    assert len(one) == 4
    np.testing.assert_allclose(one, two, rtol=1e-5)
    assert_equal_weights(weights(tmp_path / "one"), weights(tmp_path / "two"), rtol=1e-4, atol=1e-5)


def wait_for_lines(workdir, count, processes):
    path = workdir / "metrics.jsonl"
    while not (path.exists() and path.read_text().count("\n") >= count):
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_worker_stops_the_others_and_all_go_on_when_started_again(tmp_path, victim):
    workdir = tmp_path / "run"
    processes = start_workers(workdir, epochs=200, **{"checkpoint.every_epochs": 0.5})
    wait_for_lines(workdir, 3, processes)
    processes[victim].kill()
    start = time.monotonic()
    _, errors = processes[1 - victim].communicate(timeout=120)
    assert time.monotonic() - start < 60
    assert processes[1 - victim].returncode not in (0, None)
    assert "a worker is gone" in errors.splitlines()[-1], errors
    processes[victim].communicate()
    before = len(training.read_metrics(workdir))
    assert before >= 3
    again = start_workers(workdir, epochs=200, **{"checkpoint.every_epochs": 0.5})
    wait_for_lines(workdir, before + 3, again)
    for process in again:
        process.send_signal(signal.SIGTERM)  # they stop after the same step
    assert [process.wait(timeout=120) for process in again] == [143, 143]
    steps = [line["step"] for line in training.read_metrics(workdir)]
    assert steps == list(range(1, len(steps) + 1))
