"""Requests that TensorFlow Serving sends to itself first: no client meets a cold model."""

import io
import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image

BATCHES = (1, 8, 64)
_FILE = "tf_serving_warmup_requests"


def write_warmup(
    directory: pathlib.Path, *, model_name: str, image_size: int, batches: tuple[int, ...] = BATCHES
) -> bool:
    """Writes `tf_serving_warmup_requests`: every batch size to either signature.

    Args:
        directory: A SavedModel's `assets.extra`.
        model_name: The name under which it is served.
        image_size: Height and width of the images sent.
        batches: Images a request.

    Returns:
        False, and nothing is written, where the package of TensorFlow Serving's messages
        (tensorflow-serving-api) is not installed.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        return False
    with tf.io.TFRecordWriter(str(directory / _FILE)) as writer:
        for name, inputs in warmup_inputs(image_size, batches):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = model_name
            request.model_spec.signature_name = name
            for key, value in inputs.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())
    return True


def warmup_inputs(
    image_size: int, batches: tuple[int, ...] = BATCHES
) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Signatures, each with the inputs of a request: noise, as arrays, as JPEG and as PNG."""
    rng = np.random.default_rng(0)
    requests: list[tuple[str, dict[str, np.ndarray]]] = []
    for count in batches:
        images = rng.integers(0, 256, (count, image_size, image_size, 3), dtype=np.uint8)
        files = [_encode(image, "PNG" if i % 2 else "JPEG") for i, image in enumerate(images)]
        requests.append(("serving_default", {"images": images}))
        requests.append(("serving_bytes", {"image_bytes": np.array(files, object)}))
    return requests


def _encode(image: np.ndarray, file_format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, file_format)
    return file.getvalue()
