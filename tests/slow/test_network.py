"""Four workers on four hosts, one of which is cut off: network namespaces with a bridge between.

No traffic leaves the namespaces. They take the rights of root and Debian's iproute2.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from helpers.states import weights

ROOT = pathlib.Path(__file__).parents[2]
WORKERS = 4
TRAIN = [
    sys.executable, "-m", "tfvmf", "train",
    "--strategy=multi_worker",
    "--peer_timeout=200",
    "--config.epochs=10",
    "--config.batch_size=464",  # 3 steps per epoch of the 1397 digits
    "--config.data.image_size=8",
    "--config.model.backbone=resnet10",
    "--config.model.width=2",
    "--config.model.dimension=8",
    "--config.model.hidden=8",
    "--config.monitor.every_epochs=0",
    "--config.log_every_steps=1",
]  # fmt: skip
STEPS = 30


class Network:
    """Namespaces `host0` and so on, each with the address 10.77.0.1 and so on, around a hub."""

    def __init__(self):
        self.prefix = f"tfvmf{os.getpid()}-"
        self._made = []

    def ip(self, *arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def build(self):
        hub = self._namespace("hub")
        self.ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        self.ip("-n", hub, "link", "set", "bridge", "up")
        for i in range(WORKERS):
            host = self._namespace(f"host{i}")
            cable = ["type", "veth", "peer", "name", "eth0", "netns", host]
            self.ip("-n", hub, "link", "add", f"port{i}", *cable)
            self.ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            self.ip("-n", host, "link", "set", "eth0", "up")
            self.ip("-n", hub, "link", "set", f"port{i}", "up")
            self.connect(i)

    def connect(self, i):
        self.ip("-n", f"{self.prefix}hub", "link", "set", f"port{i}", "master", "bridge")

    def cut(self, i):
        """Nothing is forwarded from or to a host, and nobody is told: the cable looks well."""
        self.ip("-n", f"{self.prefix}hub", "link", "set", f"port{i}", "nomaster")

    def remove(self):
        for name in self._made:
            with contextlib.suppress(OSError):
                self.ip("netns", "delete", name)

    def _namespace(self, name):
        name = f"{self.prefix}{name}"
        self.ip("netns", "add", name)
        self._made.append(name)
        self.ip("-n", name, "link", "set", "lo", "up")
        return name


@pytest.fixture(scope="module")
def network():
    if not shutil.which("ip"):
        pytest.skip("there is no program `ip`: install iproute2")
    made = Network()
    try:
        try:
            made.build()
        except OSError as error:
            pytest.skip(f"network namespaces are not allowed here: {error}")
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def workers(network, workdir, logs):
    """The same command on all hosts; what still runs at the end is killed."""
    addresses = [f"10.77.0.{i + 1}:2222" for i in range(WORKERS)]
    processes = []
    logs.mkdir()
    try:
        for i in range(WORKERS):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
            host = ["ip", "netns", "exec", f"{network.prefix}host{i}"]
            with (logs / f"{i}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        [*host, *TRAIN, f"--workdir={workdir}"],
                        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CONFIG": json.dumps(task)},
                        stdout=log,
                        stderr=log,
                    )
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def last_line(path):
    return path.read_text().strip().splitlines()[-1]


def digest(workdir):
    found = hashlib.sha256()
    for name, value in sorted(weights(workdir).items()):
        found.update(name.encode() + value.tobytes())
    return found.hexdigest()


def finish(processes, logs):
    codes = [process.wait(timeout=900) for process in processes]
    assert codes == [0] * WORKERS, [last_line(path) for path in sorted(logs.iterdir())]


@pytest.fixture(scope="module")
def undisturbed(network, tmp_path_factory):
    """The hash of all weights after 30 steps."""
    scratch = tmp_path_factory.mktemp("undisturbed")
    with workers(network, scratch / "run", scratch / "logs") as processes:
        finish(processes, scratch / "logs")
    return digest(scratch / "run")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_that_is_cut_off_ends_all_workers_and_changes_no_bit(
    network, undisturbed, tmp_path, victim
):
    workdir, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    try:
        with workers(network, workdir, tmp_path / "first") as processes:
            while not (metrics.exists() and metrics.read_text().count("\n") >= STEPS // 3):
                assert all(process.poll() is None for process in processes)
                time.sleep(0.02)
            network.cut(victim)
            start = time.monotonic()
            codes = [process.wait(timeout=120) for process in processes]
            seconds = time.monotonic() - start
    finally:
        network.connect(victim)
    lines = [last_line(path) for path in sorted((tmp_path / "first").iterdir())]
    print(f"all ended {seconds:.0f} s after the cut:", *lines, sep="\n")
    assert codes == [2] * WORKERS, lines
    assert all("a worker is gone" in line for line in lines), lines
    written = metrics.read_text().count("\n")
    assert written < STEPS  # it was cut in the middle
    with workers(network, workdir, tmp_path / "second") as processes:
        finish(processes, tmp_path / "second")
    assert digest(workdir) == undisturbed
    print(f"cut after {written} steps, all weights equal: {undisturbed}")
