"""`--engine=ray`: the rows of the local program, whatever dies meanwhile. All on loopback."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from helpers.disks import full_disk
from helpers.untrained import make_run
from PIL import Image

from tfvmf import embedding
from tfvmf.embedding import local, table

ray = pytest.importorskip("ray", reason="an extra: pip install '.[ray]'")
Cluster = pytest.importorskip("ray.cluster_utils").Cluster
pytestmark = pytest.mark.slow
IMAGES = 5000
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run, and a folder of 5,000 small images of two classes, two of which are broken."""
    place = tmp_path_factory.mktemp("ray")
    make_run(place / "run")
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (place / "images" / label).mkdir(parents=True)
    for number in range(IMAGES):
        pixels = rng.integers(256, size=(4, 4, 3), dtype=np.uint8)
        path = place / "images" / "ab"[number % 2] / f"{number:05}.png"
        Image.fromarray(pixels).resize((20, 16)).save(path)
    path.write_bytes(path.read_bytes()[:80])
    (place / "images" / "a" / "00500.png").write_text("no image")
    return place


@pytest.fixture(scope="module")
def expected(place):
    done = embedding.embed(place / "run", place / "images", place / "local.parquet")
    assert (done.images, done.broken) == (IMAGES, 2)
    return embedding.read_table(done.output)


@pytest.fixture
def here(monkeypatch):
    """Workers find tfvmf as this process does."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield
    ray.shutdown()


def check(output, expected, names=None):
    """Each row once, in order, and with the numbers of the local program."""
    found = embedding.read_table(output)
    assert found.columns == expected.columns
    assert len(found) == len(expected)
    assert list(found["file"]) == list(expected["file"] if names is None else names)
    for name in found.columns:
        if name in table.TEXTS:
            if name != "file":
                assert list(found[name]) == list(expected[name]), name
        else:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


def embed(place, output, data=None, **options):
    data = data or place / "images"
    return embedding.embed(place / "run", data, output, engine="ray", **options)


@pytest.mark.parametrize("actors", [1, 2, 4])
def test_the_rows_of_the_local_program(actors, here, place, expected, tmp_path):
    done = embed(place, tmp_path / "out", actors=actors)
    assert (done.images, done.broken) == (IMAGES, 2)
    check(tmp_path / "out", expected)


def test_shards_of_both_engines_in_one_directory(here, place, expected, tmp_path):
    embed(place, tmp_path / "out", shard="2/3")
    embedding.embed(place / "run", place / "images", tmp_path / "out", shard="1/4")
    embed(place, tmp_path / "out")
    check(tmp_path / "out", expected)


def write_records(place, target, kind):
    """The images in three files, one of which is empty; returns the names of the rows."""
    paths = sorted((place / "images").rglob("*.png"))
    target.mkdir()
    names = []
    for number, part in enumerate((paths[:1500], [], paths[1500:])):
        path = target / f"{number}.{kind}"
        contents, labels = [p.read_bytes() for p in part], [p.parent.name for p in part]
        names += [f"{path}:{row}" for row in range(len(part))]
        if kind == "parquet":
            images = pa.array([{"bytes": c, "path": None} for c in contents], STRUCT)
            columns = {"image": images, "label": pa.array(labels, pa.string())}
            pq.write_table(pa.table(columns), path, row_group_size=400)
            continue
        with tf.io.TFRecordWriter(str(path)) as writer:
            for content, label in zip(contents, labels, strict=True):
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                    "label": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[label.encode()])
                    ),
                    "other": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return names


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
def test_records(kind, here, place, expected, tmp_path):
    names = write_records(place, tmp_path / "records", kind)
    embed(place, tmp_path / "out", f"{kind}:{tmp_path}/records", shard="1/2")
    embed(place, tmp_path / "out", f"{kind}:{tmp_path}/records")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 3
    check(tmp_path / "out", expected, names)


def test_lists_and_uris(here, place, expected, tmp_path):
    paths = list(expected["file"])
    uris = [pathlib.Path(path).as_uri() for path in paths[:40]]
    gone = (tmp_path / "gone.png").as_uri()
    (tmp_path / "list").write_text("\n".join([*uris, *paths[40:], gone]))
    embed(place, tmp_path / "out", f"files:{tmp_path}/list")
    found = embedding.read_table(tmp_path / "out")
    assert list(found["file"]) == [*uris, *paths[40:], gone]
    assert "No such file" in found["error"][-1]
    assert list(found["error"][:-1]) == list(expected["error"])
    same = found["features"][:-1], expected["features"]
    np.testing.assert_allclose(*same, rtol=1e-6, atol=1e-6)
    embed(place, tmp_path / "uris", f"folder:{(place / 'images').as_uri()}")
    check(tmp_path / "uris", expected, [pathlib.Path(path).as_uri() for path in paths])


def actors_of(process):
    """The processes below one that hold a model."""
    found = []
    for child in psutil.Process(process).children(recursive=True):
        try:
            if "MapWorker" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def when_begun(output, action):
    """Calls `action` in a thread after the first file is written."""

    def wait():
        while not list(output.glob("*.parquet")):
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_an_actor_is_killed(here, place, expected, tmp_path):
    killed = []

    def kill():
        killed.extend(actors_of(os.getpid())[:1])
        killed[0].kill()

    thread = when_begun(tmp_path / "out", kill)
    embed(place, tmp_path / "out", actors=2)
    thread.join(60)
    assert killed
    check(tmp_path / "out", expected)


def test_a_node_is_killed(here, place, expected, tmp_path):
    settings = {"num_cpus": 1, "object_store_memory": 2**27, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    try:
        settings.pop("include_dashboard")
        second = cluster.add_node(**settings)
        ray.init(cluster.address, log_to_driver=False)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        thread = when_begun(
            tmp_path / "out", lambda: cluster.remove_node(second, allow_graceful=False)
        )
        embed(place, tmp_path / "out", actors=2)
        thread.join(60)
        for _ in range(60):  # until the head has missed its heartbeats
            if len([node for node in ray.nodes() if node["Alive"]]) == 1:
                break
            time.sleep(1)
        else:
            pytest.fail("the second node was not killed")
    finally:
        ray.shutdown()
        cluster.shutdown()
    check(tmp_path / "out", expected)


def test_the_driver_is_killed(here, place, expected, tmp_path):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "tfvmf", "embed", place / "run", place / "images"]
    command += [f"--output={output}", "--engine=ray", "--actors=2"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE)
    children = []

    def kill():
        children.extend(psutil.Process(driver.pid).children(recursive=True))
        driver.send_signal(signal.SIGKILL)

    thread = when_begun(output, kill)
    assert driver.wait(300) == -signal.SIGKILL, driver.stderr.read().decode()
    thread.join(60)
    # Ray ends with the process that started it. Two idle agents first try for 60 seconds to report
    # to it that the node is gone.
    _, left = psutil.wait_procs(children, timeout=120)
    assert not left
    before = {path: path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    assert 0 < len(before) < len(local.file_rows(IMAGES))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"images {IMAGES}: embedded {IMAGES - 2}, broken 2" in done.stdout
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    check(output, expected)


def test_what_fails_is_one_line(here, place, tmp_path):
    for kind in ("parquet", "tfrecord"):
        write_records(place, tmp_path / kind, kind)
        cut = tmp_path / kind / f"2.{kind}"
        cut.write_bytes(cut.read_bytes()[:-333])
    write_records(place, tmp_path / "page", "parquet")
    with (tmp_path / "page" / "2.parquet").open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(20_000))
    with full_disk(tmp_path / "disk", filled=True):
        cases = [
            (place / "images", ["--output=disk/out"], "No space left on device: make room"),
            (f"parquet:{tmp_path}/parquet", ["--output=a"], "parquet/2.parquet cannot be read"),
            (f"parquet:{tmp_path}/page", ["--output=c"], "page/2.parquet cannot be read"),
            (f"tfrecord:{tmp_path}/tfrecord", ["--output=d"], "2.tfrecord cannot be read"),
            (place / "images", ["--output=b", "--ray_address=127.0.0.1:1"], "no connection to Ray"),
        ]
        for data, flags, message in cases:
            command = [sys.executable, "-m", "tfvmf", "embed", place / "run", data, *flags]
            command.append("--engine=ray")
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=tmp_path
            )
            assert done.returncode == 2, done.stderr
            assert message in done.stderr.strip().splitlines()[-1]
            assert "Traceback" not in done.stderr
            assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
