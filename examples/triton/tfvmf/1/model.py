"""Triton's python backend serves an export of tfvmf: a SavedModel's directory, or an .onnx file.

For files instead of pixels, set the signature to serving_bytes and the input to `image_bytes`
TYPE_STRING [1], with reshape: { shape: [] }.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """Triton calls `initialize` once, then `execute` with requests that it has joined."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the export that config.pbtxt names."""
        if int(np.__version__.split(".")[0]) > 1:
            # A stub that was built for numpy 1 would pass wrong pixels, without an error.
            raise RuntimeError(f"numpy {np.__version__}: Triton's python backend needs numpy < 2")
        config = json.loads(args["model_config"])
        settings = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.input = config["input"][0]["name"]
        self.outputs = [output["name"] for output in config["output"]]
        self.run = load(settings["export"], settings["signature"], self.input)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Runs all requests in one call; if it fails, each alone, so that only a bad one fails."""
        given = [triton.get_input_tensor_by_name(each, self.input).as_numpy() for each in requests]
        try:
            joined = self.run(np.concatenate(given))
            ends = np.cumsum([len(each) for each in given])[:-1]
            parts = {name: np.split(joined[name], ends) for name in self.outputs}
            found = [{name: parts[name][i] for name in parts} for i in range(len(given))]
            return [self.respond(outputs) for outputs in found]
        except Exception as error:
            if len(given) == 1:
                wrong = type(error).__name__.startswith("InvalidArgument")  # in both runtimes
                kind = triton.TritonError
                code = kind.INVALID_ARG if wrong else kind.INTERNAL
                return [triton.InferenceResponse(error=kind(str(error)[:300], code))]
            return [self.execute([each])[0] for each in requests]

    def respond(self, outputs: dict[str, np.ndarray]) -> Any:
        """The answer to one request."""
        return triton.InferenceResponse(
            [triton.Tensor(name, np.ascontiguousarray(outputs[name])) for name in self.outputs]
        )


def load(path: str, signature: str, name: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """A function of a batch, in ONNX Runtime or TensorFlow."""
    if path.endswith(".onnx"):
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda batch: dict(zip(names, session.run(names, {name: batch}), strict=True))
    import tensorflow as tf

    model = tf.saved_model.load(path)

    def run(batch: np.ndarray) -> dict[str, np.ndarray]:
        outputs = model.signatures[signature](**{name: tf.constant(batch)})
        return {key: value.numpy() for key, value in outputs.items()}

    return run
