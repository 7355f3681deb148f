"""An export behind a real server, over the network stack: Triton, from nvidia-pytriton's wheel.

It has the python backend alone, so this tests transport, types, batching and errors with the model
repository in `examples/triton`. Everything stays on the loopback device. The server needs numpy 1:
it gets an environment of its own, which takes TensorFlow and ONNX Runtime from ours.
"""

import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv

import numpy as np
import pytest
import tensorflow as tf
from helpers.pictures import huge_png
from helpers.untrained import make_run
from PIL import Image

from tfvmf import posthoc, serving, training

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "triton" / "tfvmf"
PACKAGES = ("nvidia-pytriton==0.7.0", "tritonclient[http,grpc]>=2.73", "numpy<2")
OUTPUTS = ("mean_direction", "features", "concentration", "familiarity", "confidence", "accept")
INSTALL, START, DRIVE = 1800, 600, 3000  # seconds at most, on a busy machine


def encoded(image, kind):
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Python and packages of an environment with Triton; TRITON_VENV names a finished one."""
    given = os.environ.get("TRITON_VENV")
    place = pathlib.Path(given) if given else tmp_path_factory.mktemp("environment")
    python = place / "bin" / "python"
    if not given:
        venv.create(place, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *PACKAGES],
            capture_output=True, text=True, check=False, timeout=INSTALL,
        )  # fmt: skip
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("nvidia-pytriton cannot be had from here")
        assert done.returncode == 0, done.stderr[-2000:]
    packages = next(place.glob("lib/python*/site-packages"))
    ours = [entry for entry in sys.path if pathlib.Path(entry, "onnxruntime").is_dir()]
    # Behind its own packages: numpy stays the old one.
    lines = dict.fromkeys([sysconfig.get_path("purelib"), *ours])
    (packages / "ours.pth").write_text("\n".join(lines) + "\n")
    return python, packages


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    workdir = make_run(tmp_path_factory.mktemp("run"), **{"data.reserve": 400.0})
    posthoc.fit_judge(workdir)
    output = tmp_path_factory.mktemp("models")
    path = serving.export_model(workdir, output, format=("savedmodel", "onnx"))
    config, _, _ = training.load_method(workdir)
    return path, training.load_source(config, "digits", "test").images()


def repository(place, path):
    """The example, three times: pixels, files, and pixels to ONNX Runtime."""
    pixels = 'input [{ name: "images" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }]'
    content = (
        'input [{ name: "image_bytes" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [] } }]'
    )
    config = (EXAMPLE / "config.pbtxt").read_text()
    assert pixels in config
    for name, export, signature in (
        ("tfvmf", path, "serving_default"),
        ("tfvmf_bytes", path, "serving_bytes"),
        ("tfvmf_onnx", path / "model.onnx", "serving_default"),
    ):
        shutil.copytree(EXAMPLE, place / name)
        text = config.replace("/models/mine/1", str(export)).replace("serving_default", signature)
        text = text.replace(pixels, content) if signature == "serving_bytes" else text
        (place / name / "config.pbtxt").write_text(text)
    return place


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def server(environment, exported, tmp_path_factory):
    """A running server: its process and its ports."""
    python, packages = environment
    place, (http, grpc) = tmp_path_factory.mktemp("server"), free_ports(2)
    triton = packages / "pytriton" / "tritonserver"
    shutil.copytree(triton / "backends", place / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, place / "backends" / "python")
    command = [
        triton / "bin" / "tritonserver",
        f"--model-repository={repository(place / 'repository', exported[0])}",
        f"--backend-directory={place / 'backends'}",
        *("--http-address=127.0.0.1", f"--http-port={http}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={grpc}"),
        "--allow-metrics=false",
    ]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    variables = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    log = place / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env={**inherited, **variables}, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START
        while not ready(http):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(1)
        yield process, http, grpc
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as found:
            return found.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def driven(environment, exported, server, tmp_path_factory):
    """What the clients have seen, and the same asked of the export directly."""
    (python, _), (path, images), (process, http, grpc) = environment, exported, server
    place = tmp_path_factory.mktemp("requests")
    signatures = tf.saved_model.load(str(path)).signatures
    # One by one, as the clients ask.
    seconds, answers = [], []
    for row in range(len(images)):
        start = time.perf_counter()
        outputs = signatures["serving_default"](images=tf.constant(images[row : row + 1]))
        answers.append({name: outputs[name].numpy()[0] for name in OUTPUTS})
        seconds.append(time.perf_counter() - start)
    np.savez(place / "answers.npz", **{n: np.stack([a[n] for a in answers]) for n in OUTPUTS})
    files = [encoded(images[0], "PNG"), encoded(images[1], "JPEG")]
    bad = [files[0][:60], b"no image", huge_png(30_000)]
    assert 0.5e6 < len(bad[2]) < 5e6
    np.savez(
        place / "requests.npz",
        images=images,
        files=np.array(files, object),
        bad=np.array(bad, object),
    )
    arguments = [http, grpc, process.pid, place / "requests.npz", place / "answers.npz"]
    done = subprocess.run(
        [python, HERE / "triton_load.py", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=DRIVE,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    found["direct"] = {"p50": np.median(seconds[5:]), "p99": np.percentile(seconds[5:], 99)}
    found["expected bytes"] = signatures["serving_bytes"](image_bytes=files)["concentration"]
    print(f"\nload average {os.getloadavg()[0]:.1f}")
    print("| | p50 ms | p99 ms | images/s | largest difference of kappa |")
    for name, told in {"direct calls": found["direct"], **found["load"]}.items():
        speed = told.get("images_per_second", 1 / told["p50"])
        worst = told.get("worst", {}).get("concentration", 0.0)
        p50, p99 = 1e3 * told["p50"], 1e3 * told["p99"]
        print(f"| {name} | {p50:.1f} | {p99:.1f} | {speed:,.0f} | {worst:.1e} |")
    print("memory, MiB, every 1,000 requests:", [kib // 1024 for kib in found["memory"]])
    print("errors:", json.dumps(found["errors"], indent=1))
    return found


@pytest.mark.slow
def test_eight_clients_over_http_and_grpc_get_what_direct_calls_give(driven):
    assert len(driven["load"]) == 4
    for name, told in driven["load"].items():
        assert told["requests"] == 1600
        for output in ("mean_direction", "features", "concentration"):
            assert told["worst"][output] < 1e-4, (name, output)
        assert told["worst"]["familiarity"] < 1e-2
        # A confidence is a rank among 200: the last bit of a score may move it by a few of them.
        assert told["worst"]["confidence"] < 0.05
    for protocol in ("http", "grpc"):
        np.testing.assert_allclose(
            driven[f"bytes {protocol}"], driven["expected bytes"], rtol=1e-4, atol=1e-4
        )


@pytest.mark.slow
def test_malformed_requests_get_an_error_and_the_server_lives_on(driven):
    for case, told in driven["errors"].items():
        assert told, case
    for protocol in ("http", "grpc"):
        for number, words in enumerate(("is broken", "neither a JPEG nor a PNG", "too large")):
            told = driven["errors"][f"bad file {number}, {protocol}"]
            assert words in told
            assert told.startswith(
                {"http": "[400]", "grpc": "[StatusCode.INVALID_ARGUMENT]"}[protocol]
            )


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_requests(driven):
    first, *_, last = driven["memory"][1:]  # allocators have settled after the first thousand
    assert last < 1.03 * first + 8 * 1024
