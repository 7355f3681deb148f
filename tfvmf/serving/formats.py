"""Exports for other runtimes: ONNX and LiteRT files with the outputs of the SavedModel.

Their input is uint8 `images` [N, S, S, 3] of the training size, N at least 1, already decoded and
resized. The outputs are those of `serving_default`, with familiarity and decision. The card is
stored in the file. TensorFlow is only imported to convert.
"""

import importlib
import importlib.util
import json
import pathlib
import zipfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfvmf import cores
from tfvmf.data.images import resize_image, resize_images
from tfvmf.errors import UserError
from tfvmf.files import literal

if TYPE_CHECKING:
    import tensorflow as tf

Serve = Callable[[np.ndarray], dict[str, np.ndarray]]

# The files of each format in the directory of a version.
FILES: dict[str, tuple[str, ...]] = {
    "onnx": ("model.onnx",),
    "litert": ("model.tflite", "model_float16.tflite"),
}
FORMATS = ("savedmodel", *FILES)
OPTIONAL = ("model_float16.tflite",)  # left out if half precision changes the results too much
_PACKAGES = {"onnx": ("tf2onnx", "onnx", "onnxruntime"), "litert": ("ai_edge_litert",)}
_OPSET = 17  # supported by ONNX Runtime from 1.12 (2022) on
_CARD = "tfvmf.json"
# Largest differences of a published file: in kappa (relative above 1), in the cosine of two
# directions, and in confidence, a rank, which the last bit of a score may move by RANKS ranks more.
KAPPA, COSINE, CONFIDENCE, RANKS = 1e-3, 1e-4, 0.05, 3
COMPARED = 200  # number of images compared


def check_formats(names: Sequence[str]) -> tuple[str, ...]:
    """The requested formats; UserError if one is unknown, or its extra is not installed."""
    if not names:
        raise UserError(f"format= is empty: expected some of {', '.join(FORMATS)}")
    for name in names:
        if name not in FORMATS:
            raise UserError(f"format={name} is unknown: expected some of {', '.join(FORMATS)}")
        for package in _PACKAGES.get(name, ()):
            _installed(package, f"format={name}")
    return tuple(dict.fromkeys(names))


def _installed(package: str, who: str) -> None:
    extra = next(name for name, needs in _PACKAGES.items() if package in needs)
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        raise UserError(f"{who}: {name} is not installed: pip install 'tfvmf[{extra}]'")


def write(
    name: str, portable: Any, module: "tf.Module", directory: pathlib.Path, card: dict[str, Any]
) -> list[pathlib.Path]:
    """Converts `portable` to `onnx` or `litert`; returns the files, with the card, unverified."""
    paths = [directory / file for file in FILES[name]]
    try:
        if name == "onnx":
            _write_onnx(portable, paths[0], card)
        else:
            _write_litert(portable, module, paths, card)
    except Exception as error:  # converters can raise anything for an unknown operation
        reason = str(error)[:200]
        raise UserError(f"format={name}: the encoder cannot be converted: {reason}") from error
    return paths


def _write_onnx(portable: Any, path: pathlib.Path, card: dict[str, Any]) -> None:
    import onnx
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(
        portable, input_signature=portable.input_signature, opset=_OPSET
    )
    model.producer_name, model.producer_version = "tfvmf", str(card["tfvmf"])
    onnx.helper.set_model_props(model, {_CARD: json.dumps(card)})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _write_litert(
    portable: Any, module: "tf.Module", paths: list[pathlib.Path], card: dict[str, Any]
) -> None:
    import tensorflow as tf

    saved = paths[0].parent / "portable"
    tf.saved_model.save(module, str(saved), signatures={"serving_default": portable})
    for path in paths:
        with literal(saved) as place:
            converter = tf.lite.TFLiteConverter.from_saved_model(
                place, signature_keys=["serving_default"]
            )
        if path.name in OPTIONAL:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())
        # Like TensorFlow's own metadata, an archive after the model, which model readers ignore.
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_CARD, json.dumps(card))


def open_file(path: pathlib.Path) -> tuple[dict[str, Any], Serve]:
    """The card of a `.onnx` or `.tflite` file, and a function of uint8 [N, H, W, 3], N >= 0."""
    try:
        card, run = OPEN[path.suffix](path)
        size = int(card["image_size"])
    except UserError:
        raise
    except Exception as error:  # runtimes can raise anything for a damaged file
        problem = f"was not written by tfvmf export, or is damaged: {str(error)[:160]}"
        raise UserError(f"{path} {problem}") from error

    def serve(images: np.ndarray) -> dict[str, np.ndarray]:
        count = len(images)
        pixels = resize_images(images, size) if count else np.zeros((1, size, size, 3), np.uint8)
        outputs = {name: value[:count] for name, value in run(pixels).items()}
        if classes := card.get("classes"):  # an index in the file: not every runtime has strings
            outputs["class"] = np.array(classes["names"], object)[outputs["class"]]
        return outputs

    return card, serve


def _open_onnx(path: pathlib.Path) -> tuple[dict[str, Any], Serve]:
    _installed("onnxruntime", str(path))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores.available()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    card = json.loads(session.get_modelmeta().custom_metadata_map[_CARD])
    return card, lambda x: dict(zip(names, session.run(names, {"images": x}), strict=True))


def _open_litert(path: pathlib.Path) -> tuple[dict[str, Any], Serve]:
    _installed("ai_edge_litert", str(path))
    from ai_edge_litert import interpreter

    with zipfile.ZipFile(path) as archive:
        card = json.loads(archive.read(_CARD))
    # From memory: the runtime would map the file, and crash if it were truncated later.
    model = interpreter.Interpreter(model_content=path.read_bytes(), num_threads=cores.available())
    runner = model.get_signature_runner("serving_default")
    # A copy: the arrays belong to the runtime, and the next call overwrites them.
    return card, lambda x: {name: np.array(value) for name, value in runner(images=x).items()}


OPEN: dict[str, Callable[[pathlib.Path], tuple[dict[str, Any], Serve]]] = {
    ".onnx": _open_onnx,
    ".tflite": _open_litert,
}


def generated_images(size: int, count: int = COMPARED) -> np.ndarray:
    """Seeded images from smooth to noise, four of them flat: uint8 [count, size, size, 3]."""
    rng, images = np.random.default_rng(0), np.empty((count, size, size, 3), np.uint8)
    for image, side in zip(images, rng.integers(2, size + 1, count), strict=True):
        image[:] = resize_image(rng.integers(0, 256, (side, side, 3), dtype=np.uint8), size)
    images[-4:] = np.array([0, 1, 127, 255], np.uint8)[:, None, None, None]
    return images


def compare(serve: Serve, reference: Serve, images: np.ndarray, *, batch: int = 64) -> dict:
    """Largest differences of two models; for `accept` and `class` their number. NaN is infinite."""
    found, expected = (
        [each(images[start : start + batch]) for start in range(0, len(images), batch)]
        for each in (serve, reference)
    )
    differences: dict[str, float] = {}
    for name in expected[0]:
        ours = np.concatenate([part[name] for part in found])
        theirs = np.concatenate([part[name] for part in expected])
        if name in ("accept", "class"):
            differences[name] = int((ours != theirs).sum())
            continue
        gap = np.abs(ours - theirs)
        if name == "concentration":
            gap = gap / np.maximum(1.0, np.abs(theirs))
        if name == "mean_direction":
            name, gap = "cosine", np.abs(1.0 - np.sum(ours * theirs, axis=1, dtype=np.float64))
        largest = float(gap.max())
        differences[name] = largest if np.isfinite(largest) else float("inf")
    return differences


def too_far(differences: dict[str, float], *, ranks: int = 0) -> str:
    """The differences that are too large, or ""; `ranks` is the number of ranks of a confidence."""
    moved = RANKS / (ranks + 1) if ranks else 0.0
    limits = {"concentration": KAPPA, "cosine": COSINE, "confidence": CONFIDENCE + moved}
    return ", ".join(
        f"{name} differs by {differences[name]:.2g} (at most {limit:.2g})"
        for name, limit in limits.items()
        if not differences.get(name, 0.0) <= limit
    )
