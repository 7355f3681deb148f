"""One export in TensorFlow, ONNX Runtime, OpenVINO and LiteRT: images per second, in turn."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.side_by_side import problem
from benchmarks.side_by_side.bench import Bench
from benchmarks.side_by_side.interleaved import ROOT, Times, WorkerFailed
from benchmarks.side_by_side.sections.startup import first_step
from benchmarks.side_by_side.table import Row
from tfvmf import serving

_NAMES = {"tensorflow": "", "onnx": "ONNX Runtime", "openvino": "OpenVINO", "litert": "LiteRT"}


def measure(bench: Bench) -> list[Row]:
    """Batches of 1 and 64 images of the training size, float32 throughout."""
    tiny = problem.QUICK.config_changes() if bench.quick else {}
    rows = []
    with tempfile.TemporaryDirectory(prefix="tfvmf-bench-") as scratch:
        run, output = pathlib.Path(scratch, "run"), pathlib.Path(scratch, "models")
        first_step(run, [f"--config.{key}={value}" for key, value in tiny.items()])
        command = [sys.executable, "-m", "tfvmf", "export", str(run), f"--output={output}"]
        done = subprocess.run(
            [*command, "--format=savedmodel,onnx,litert"],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            raise WorkerFailed(f"export ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        for batch in (1, 64):
            settings = {"version": str(output / "1"), "batch": batch, "threads": bench.threads}
            times = compare(bench, settings)
            rows += [
                Row(
                    section="runtimes",
                    what=f"an export in {name}, against TensorFlow, batches of {batch}",
                    ours=batch / times.median(key),
                    theirs=batch / times.median("tensorflow"),
                    unit="images/s",
                    ratio=times.ratio("tensorflow", key),
                )
                for key, name in _NAMES.items()
                if name
            ]
    return rows


def compare(bench: Bench, settings: dict[str, Any]) -> Times:
    """A process for each runtime, so that no thread of one runs beside another."""
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(bench.worker(name, {name: (f"{__name__}:{name}", settings)}))
            for name in _NAMES
        ]
        return bench.interleave(f"runtimes, batch {settings['batch']}", *workers)


def tensorflow(version: str, batch: int, threads: int) -> Callable[[int], None]:
    """The SavedModel, called from Python; its threads are set by the worker's environment."""
    import tensorflow as tf

    model = tf.saved_model.load(version)
    images = tf.constant(_images(version, batch))
    return _times(lambda: model.signatures["serving_default"](images=images)["features"].numpy())


def onnx(version: str, batch: int, threads: int) -> Callable[[int], None]:
    """model.onnx, as `tfvmf.load` runs it, with so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(f"{version}/model.onnx", options)
    images = _images(version, batch)
    return _times(lambda: session.run(None, {"images": images}))


def openvino(version: str, batch: int, threads: int) -> Callable[[int], None]:
    """The SavedModel itself. Left alone it computes in bfloat16 where it can: not the same."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    model, images = openvino.Core().compile_model(version, "CPU", settings), _images(version, batch)
    return _times(lambda: model(images))


def litert(version: str, batch: int, threads: int) -> Callable[[int], None]:
    """model.tflite."""
    from ai_edge_litert import interpreter

    model = interpreter.Interpreter(f"{version}/model.tflite", num_threads=threads)
    runner, images = model.get_signature_runner("serving_default"), _images(version, batch)
    return _times(lambda: runner(images=images))


def _images(version: str, batch: int) -> np.ndarray:
    size = serving.read_card(version)["image_size"]
    return np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)


def _times(call: Callable[[], object]) -> Callable[[int], None]:
    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    return repeat
