#!/usr/bin/env python3
"""Asks a TensorFlow Serving server, over gRPC, how sure it is of your images.

    pip install grpcio numpy protobuf
    python examples/serving_client.py --server=localhost:8500 a.jpg b.png

Sends the files as they are to the signature `serving_bytes`; prints one line per image. Needs
neither tfvmf nor TensorFlow: the few fields of the messages that matter are defined here.
"""

import argparse
import math
import pathlib
import sys
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Name, number and type of fields from tensorflow_serving/apis/{model,predict}.proto and
# tensorflow/core/framework/{tensor,tensor_shape}.proto. A star means repeated; maps are pairs.
FIELDS = {
    "Dim": "size 1 int64",
    "Shape": "dim 2 *Dim",
    "Tensor": "dtype 1 int32, shape 2 Shape, content 4 bytes, float_val 5 *float, "
    "string_val 8 *bytes, bool_val 11 *bool",
    "Pair": "key 1 string, value 2 Tensor",
    "Spec": "name 1 string, signature_name 3 string",
    "Request": "model_spec 1 Spec, inputs 2 *Pair",
    "Response": "outputs 1 *Pair",
}
KINDS = {1: ("float_val", np.float32), 10: ("bool_val", np.bool_)}  # tensors by their dtype
STRING = 7


def make_messages() -> dict[str, Any]:
    """The classes of the messages in `FIELDS`, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="client.proto", package="c", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            title, number, kind = field.split()
            label = "LABEL_REPEATED" if kind.startswith("*") else "LABEL_OPTIONAL"
            made = message.field.add(name=title, number=int(number))
            made.label = descriptor_pb2.FieldDescriptorProto.Label.Value(label)
            kind = kind.lstrip("*")
            if kind in FIELDS:
                made.type_name = f".c.{kind}"
                kind = "message"
            made.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"c.{name}"))
        for name in FIELDS
    }


def embed(
    channel: grpc.Channel, contents: list[bytes], *, model: str = "tfvmf", timeout: float = 10.0
) -> dict[str, np.ndarray]:
    """Sends encoded images in one request; returns the outputs by name, each [N, ...]."""
    messages = make_messages()
    request = messages["Request"]()
    request.model_spec.name, request.model_spec.signature_name = model, "serving_bytes"
    tensor = request.inputs.add(key="image_bytes").value
    tensor.dtype = STRING
    tensor.shape.dim.add(size=len(contents))
    tensor.string_val.extend(contents)
    predict = channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=messages["Response"].FromString,
    )
    return {pair.key: to_array(pair.value) for pair in predict(request, timeout=timeout).outputs}


def to_array(tensor: Any) -> np.ndarray:
    """A tensor of floats or truth values as an array."""
    field, dtype = KINDS[tensor.dtype]
    shape = [dim.size for dim in tensor.shape.dim]
    if tensor.content:
        return np.frombuffer(tensor.content, dtype).reshape(shape)
    values = np.array(getattr(tensor, field), dtype)
    if values.size == 1:  # one value stands for all
        values = np.repeat(values, math.prod(shape))
    return values.reshape(shape)


def main() -> int:
    """Reads the files, asks the server, prints the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="JPEG or PNG files")
    parser.add_argument("--server", default="localhost:8500", help="host:port of the gRPC service")
    parser.add_argument("--model", default="tfvmf", help="name under which the model is served")
    parser.add_argument("--batch", type=int, default=32, help="images per request")
    arguments = parser.parse_args()
    with grpc.insecure_channel(arguments.server) as channel:
        for start in range(0, len(arguments.files), arguments.batch):
            names = arguments.files[start : start + arguments.batch]
            try:
                contents = [pathlib.Path(name).read_bytes() for name in names]
                outputs = embed(channel, contents, model=arguments.model)
            except OSError as error:
                print(f"{error.filename}: {error.strerror}", file=sys.stderr)
                return 2
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    text = "cannot connect: does TensorFlow Serving run there, with this gRPC port?"
                    print(f"{arguments.server}: {text}", file=sys.stderr)
                else:  # INVALID_ARGUMENT names a broken file by its position in the request
                    several = f" to {names[-1]}" if len(names) > 1 else ""
                    print(f"{names[0]}{several}: {error.details()}", file=sys.stderr)
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
