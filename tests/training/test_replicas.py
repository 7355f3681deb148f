"""N replicas compute what one device would, and refuse what they cannot."""

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import numpy as np
import pytest
from helpers.states import assert_equal_weights, weights
from helpers.tiny import tiny_config

from tfvmf import training
from tfvmf.data import pipeline
from tfvmf.errors import UserError
from tfvmf.models import resnet
from tfvmf.training import loop, strategies
from tfvmf.training.inputs import image_inputs

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
        ("vi_simsiam", {"model.hidden": 64, "model.width": 8}),
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
    shallow = ((1, 1, 0, 0), False)
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


def tf_config(*addresses, kind="worker", index=0, **others):
    """TF_CONFIG as text; a worker of `addresses` by default."""
    cluster = {"worker": list(addresses), **others}
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not set"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("7", "has no objects"),
        ('"worker"', "has no objects"),
        ("[]", "has no objects"),
        ('{"cluster": {"worker": ["a:1"]}}', "has no objects"),
        ('{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}', "has no objects"),
        ('{"cluster": {"worker": "a:1"}, "task": {}}', "no list of addresses for 'worker'"),
        ('{"cluster": {"worker": 2}, "task": {}}', "no list of addresses for 'worker'"),
        (tf_config("a:1", 2), "address 2, which is not host:port"),
        (tf_config("a:1", "b"), "address 'b', which is not host:port"),
        (tf_config("a:1", "b:"), "address 'b:'"),
        (tf_config("a:1", "b:x"), "address 'b:x'"),
        (tf_config("a:1", "b:0"), "address 'b:0'"),
        (tf_config("a:1", "b:65536"), "address 'b:65536'"),
        (tf_config("a:1", ":5"), "address ':5'"),
        (tf_config("a:1", "::1:5"), "address '::1:5'"),
        (tf_config("a:1", "A:1"), "A:1 twice"),
        (tf_config("a:1", index=1), "'worker 1', but has only worker 0"),
        (tf_config("a:1", index=-1), "'worker -1'"),
        (tf_config("a:1", index=None), "'worker None'"),
        (tf_config("a:1", index=0.5), "'worker 0.5'"),
        (tf_config("a:1", kind="chief"), "'chief 0'"),
        (tf_config("a:1", kind="ps", ps=["b:1"]), "unknown type 'ps'"),
        (tf_config("a:1", chief=["b:1", "c:1"]), "has 2 chiefs"),
    ],
)
def test_multi_worker_needs_a_cluster_that_this_process_is_in(monkeypatch, text, problem):
    with pytest.raises(UserError, match=r"^TF_CONFIG ") as caught:
        strategies.parse_cluster(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match="TF_CONFIG"):
        strategies.make_strategy("multi_worker")


def test_addresses_of_all_kinds():
    text = tf_config("Host-1.example:2222", "[fe80::1]:80", kind="worker", index="1")
    assert strategies.parse_cluster(text) == (
        {"worker 0": ("host-1.example", 2222), "worker 1": ("fe80::1", 80)},
        "worker 1",
    )


@pytest.mark.parametrize(
    ("kind", "index", "chief"),
    [("chief", 0, True), ("worker", 0, False), ("worker", 1, False)],
)
def test_one_worker_is_the_chief(monkeypatch, kind, index, chief):
    monkeypatch.setenv("TF_CONFIG", tf_config("b:1", "c:1", kind=kind, index=index, chief=["a:1"]))
    assert strategies.is_chief("multi_worker") == chief
    assert strategies.is_chief("mirrored")
    if kind == "worker":
        monkeypatch.setenv("TF_CONFIG", tf_config("b:1", "c:1", index=index))
        assert strategies.is_chief("multi_worker") == (index == 0)


def test_what_workers_do_not_have_in_common():
    facts = {f"worker {i}": {"width": 2, "data": "a", "shape": [1, 2]} for i in range(5)}
    facts["worker 1"] = {"width": 2, "data": "a", "shape": (1, 2)}  # JSON makes them the same
    assert strategies.disagreement(facts) == ""
    facts["worker 1"] = {"width": 4, "data": "a", "shape": [1, 2]}
    told = strategies.disagreement(facts)
    assert told.endswith(
        ": width is 2 on worker 0, worker 2, worker 3 and 1 more and 4 on worker 1"
    )
    facts["worker 4"] = {"width": 2, "shape": [1, 2], "new": True}
    told = strategies.disagreement(facts)
    assert 'data is "a" on worker 0, worker 1' in told
    assert "null on worker 4" in told
    assert "new is null on worker 0" in told


def test_settings_data_and_versions_are_compared():
    config = tiny_config(**{"data.data_dir": "/here"})
    facts = strategies.run_facts(config, image_inputs(config))
    assert json.loads(json.dumps(facts)) == facts
    elsewhere = tiny_config(**{"data.data_dir": "/there"})
    assert strategies.run_facts(elsewhere, image_inputs(elsewhere)) == facts
    wider = tiny_config(**{"model.width": 3})
    changed = strategies.run_facts(wider, image_inputs(wider))
    assert {key for key in facts if facts[key] != changed[key]} == {"--config.model.width"}
    other = tiny_config(**{"data.train_split": "test", "data.eval_split": "test"})
    changed = strategies.run_facts(other, image_inputs(other))
    assert facts["training data"] != changed["training data"]
    assert {"tfvmf", "TensorFlow", "Keras"} <= facts.keys()


def meeting(all_facts, *, timeout=30.0, present=None):
    """What `meet` raises in each of so many workers, None for nothing; those `present` come."""
    clusters = [strategies.parse_cluster(text) for text in launcher().cluster(len(all_facts))]
    places = range(len(all_facts)) if present is None else present

    def come(i):
        try:
            strategies.meet(clusters[i], all_facts[i], timeout=timeout)
        except UserError as error:
            return str(error)
        return None

    with futures.ThreadPoolExecutor(len(all_facts)) as pool:
        return list(pool.map(come, places))


def test_workers_that_agree_meet():
    assert meeting([{"width": 2}] * 4) == [None] * 4
    assert meeting([{}]) == [None]


def test_workers_that_do_not_agree_all_hear_of_it():
    told = meeting([{"width": 2}, {"width": 4}, {"width": 2}])
    assert len({*told}) == 1
    assert "--config" not in told[0]
    assert "width is 2 on worker 0, worker 2 and 4 on worker 1" in told[0]


def test_a_missing_worker_is_named_by_all_others():
    told = meeting([{}] * 3, timeout=1.5, present=[0, 2])
    assert all("--peer_timeout=1.5" in each for each in told)
    assert all("worker 1 at localhost:" in each for each in told)
    assert not any("worker 2 at" in each or "worker 0 at" in each for each in told)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'["worker 0", {}]\n'])
def test_a_port_in_use_is_found_on_its_host_and_nobody_is_taken_for_a_worker(says):
    clusters = [strategies.parse_cluster(text) for text in launcher().cluster(2)]
    with socket.create_server(("localhost", clusters[1].addresses["worker 1"][1])) as stranger:

        def greet():
            with contextlib.suppress(OSError):
                while True:
                    visitor, _ = stranger.accept()
                    with visitor:
                        visitor.recv(100)
                        visitor.sendall(says)

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(UserError, match=r"worker 1 cannot listen .*in use"):
            strategies.meet(clusters[1], {}, timeout=1.0)
        with pytest.raises(UserError, match=r"worker 1 at .* is missing \(another program"):
            strategies.meet(clusters[0], {}, timeout=1.0)
        stranger.shutdown(socket.SHUT_RDWR)


def test_strangers_who_call_do_no_harm():
    clusters = [strategies.parse_cluster(text) for text in launcher().cluster(2)]
    port = clusters[0].addresses["worker 0"][1]
    with futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(strategies.meet, clusters[0], {"a": 1}, timeout=60.0)
        calls = []
        for line in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"x" * 2**21, b"worker 1\n", b""):
            while True:
                try:
                    calls.append(socket.create_connection(("localhost", port)))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                calls[-1].sendall(line)
        second = pool.submit(strategies.meet, clusters[1], {"a": 1}, timeout=60.0)
        assert first.result() is None
        assert second.result() is None
    for call in calls:
        call.close()


def launcher():
    """The module examples/multi_worker.py."""
    sys.path.insert(0, str(ROOT / "examples"))
    import multi_worker

    return multi_worker


def start_workers(workdir, count=2, **changes):
    """The processes of a multi-worker run, started without the launcher."""
    command = [*TRAIN, f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in changes.items()]
    return [
        subprocess.Popen(
            ["env", f"TF_CONFIG={config}", *command],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for config in launcher().cluster(count)
    ]


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
