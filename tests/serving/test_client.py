"""The example client against a gRPC server of our own: the messages are TensorFlow Serving's."""

import concurrent.futures
import importlib.util
import pathlib
import sys

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


@pytest.fixture
def client(monkeypatch):
    spec = importlib.util.spec_from_file_location("serving_client", CLIENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(CLIENT), *map(str, arguments)])
        return module.main()

    return run


@pytest.fixture
def files(digits, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path, image in zip(paths, digits, strict=False):
        Image.fromarray(image).save(path)
    return paths


def test_it_prints_a_line_an_image(client, address, files, exported, digits, capsys):
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
