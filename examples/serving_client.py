#!/usr/bin/env python3
"""Asks a TensorFlow Serving server, over gRPC, how sure it is of your images.

    pip install tensorflow-serving-api
    python examples/serving_client.py --server=localhost:8500 a.jpg b.png

Sends the files as they are to the signature `serving_bytes`; prints a line an image. Needs nothing
of tfvmf.
"""

import argparse
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def embed(
    stub: prediction_service_pb2_grpc.PredictionServiceStub,
    contents: list[bytes],
    *,
    model: str = "tfvmf",
    timeout: float = 10.0,
) -> dict[str, np.ndarray]:
    """Sends encoded images in one request; returns the outputs by name, each [N, ...]."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_bytes"
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto(contents, tf.string))
    response = stub.Predict(request, timeout)
    return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}


def main() -> int:
    """Reads the files, asks the server, prints the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="JPEG or PNG files")
    parser.add_argument("--server", default="localhost:8500", help="host:port of the gRPC service")
    parser.add_argument("--model", default="tfvmf", help="name under which the model is served")
    parser.add_argument("--batch", type=int, default=32, help="images per request")
    arguments = parser.parse_args()
    with grpc.insecure_channel(arguments.server) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for start in range(0, len(arguments.files), arguments.batch):
            names = arguments.files[start : start + arguments.batch]
            try:
                contents = [pathlib.Path(name).read_bytes() for name in names]
                outputs = embed(stub, contents, model=arguments.model)
            except (OSError, grpc.RpcError) as error:
                # A broken file: INVALID_ARGUMENT, and its position among the files of the request.
                text = error.details() if isinstance(error, grpc.RpcError) else str(error)
                print(f"files {start} to {start + len(names) - 1}: {text}", file=sys.stderr)
                return 2
            for position, name in enumerate(names):
                line = f"{name}  kappa {outputs['concentration'][position]:.4f}"
                if "accept" in outputs:  # the model was calibrated
                    word = "accepted" if outputs["accept"][position] else "rejected"
                    line += f"  confidence {outputs['confidence'][position]:.3f}  {word}"
                print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
