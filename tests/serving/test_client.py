"""The example client against a gRPC server of our own: the messages are TensorFlow Serving's."""

import base64
import concurrent.futures
import http.server
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

CLIENT = pathlib.Path(__file__).parents[2] / "examples" / "serving_client.py"


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict, as the server does it: by the signature that the request names."""

    def __init__(self, path):
        self._signatures = tf.saved_model.load(str(path)).signatures

    def Predict(self, request, context):  # noqa: N802
        if request.model_spec.name != "tfvmf":
            context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found")
        inputs = {name: tf.constant(tf.make_ndarray(v)) for name, v in request.inputs.items()}
        try:
            outputs = self._signatures[request.model_spec.signature_name](**inputs)
        except tf.errors.InvalidArgumentError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        response = predict_pb2.PredictResponse()
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value.numpy()))
        return response


@pytest.fixture(scope="module")
def address(exported):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Service(exported.path), server
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


@pytest.fixture(scope="module")
def client_module():
    spec = importlib.util.spec_from_file_location("serving_client", CLIENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client(client_module, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(CLIENT), *map(str, arguments)])
        return client_module.main()

    return run


@pytest.fixture
def files(digits, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path, image in zip(paths, digits, strict=False):
        Image.fromarray(image).save(path)
    return paths


def test_it_prints_one_line_per_image(client, address, files, exported, digits, capsys):
    assert client(f"--server={address}", "--batch=2", *files) == 0
    lines = capsys.readouterr().out.splitlines()
    kappa = [float(line.split("kappa ")[1].split()[0]) for line in lines]
    np.testing.assert_allclose(kappa, exported.expected(digits[:5])["concentration"], atol=1e-3)
    assert all("confidence" in line and line.endswith("ed") for line in lines)


def test_a_broken_file_is_refused_by_its_position_and_the_next_request_works(
    client, address, files, capsys
):
    files[3].write_bytes(files[3].read_bytes()[:50])
    assert client(f"--server={address}", *files) == 2
    assert "image 3 is broken" in capsys.readouterr().err
    assert client(f"--server={address}", *files[:3]) == 0


def test_other_mistakes(client, address, files, capsys):
    assert client(f"--server={address}", "--model=other", *files) == 2
    assert "Servable not found" in capsys.readouterr().err
    assert client(f"--server={address}", "/no/such/file.png") == 2
    assert "/no/such/file.png" in capsys.readouterr().err


def test_it_is_quiet_and_quick_and_says_that_nobody_answers(files, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not needed')")
    command = [sys.executable, CLIENT, f"--server=localhost:{port}", files[0]]
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"localhost:{port}: cannot connect")
    assert done.stderr.count("\n") == 1


def test_tensors_of_all_forms(client_module):
    tensor = client_module.make_messages()["Tensor"](dtype=1)
    tensor.shape.dim.add(size=3)
    tensor.float_val.append(0.5)
    np.testing.assert_array_equal(client_module.to_array(tensor), [0.5, 0.5, 0.5])
    tensor.content = np.array([1.0, 2.0, 3.0], np.float32).tobytes()
    np.testing.assert_array_equal(client_module.to_array(tensor), [1.0, 2.0, 3.0])


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_the_curl_of_the_docs_sends_a_photograph_of_5_megabytes(tmp_path):
    photo = np.random.default_rng(0).bytes(5_000_000)
    (tmp_path / "photo.jpg").write_bytes(photo)
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"answered")

        def log_message(self, *arguments):
            pass

    text = (CLIENT.parents[1] / "docs" / "serving.md").read_text()
    command = text.split("\nREST:\n")[1].split("```")[1]
    with http.server.HTTPServer(("localhost", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        command = command.replace("localhost:8501", f"localhost:{server.server_port}")
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        server.shutdown()
        thread.join()
    assert (done.returncode, done.stdout, done.stderr) == (0, "answered", "")
    ((path, request),) = received
    assert path == "/v1/models/tfvmf:predict"
    assert request["signature_name"] == "serving_bytes"
    (instance,) = request["instances"]
    assert base64.b64decode(instance["image_bytes"]["b64"]) == photo
