"""Exports a trained run as a model that can be served without this package."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Sequence
from typing import Any

import keras
import ml_collections
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfvmf import posthoc, training
from tfvmf.data import Source
from tfvmf.errors import UserError
from tfvmf.files import find_model, literal, scratch, write_json, write_text
from tfvmf.models.backbones import resources
from tfvmf.models.saved_model import refused_ops
from tfvmf.posthoc.judge import make_judge, refuse_overlap
from tfvmf.serving import formats
from tfvmf.serving.loader import CARD_FILE, arrays, load_run, run_card, versions
from tfvmf.serving.signatures import build_portable, build_signatures

MODEL_NAME = "tfvmf"
WARMUP_BATCHES = (1, 8, 64)
_SPLIT = re.compile(r"(train|test|validation|all)\b(?!:).*")
# The oldest TensorFlow whose C++ loader was tested with an export, its graph version, and the
# trusted operations that it does not have (from the lists of TensorFlow 2.12 and 2.21).
_OLDEST, _OLDEST_GRAPHS = "2.12", 1395
_YOUNGER = {
    *("Conv", "DecodeWebP", "FFTND", "IFFTND", "IRFFTND", "RFFTND", "SegmentMaxV2", "SegmentMinV2"),
    *("RaggedFillEmptyRows", "RaggedFillEmptyRowsGrad", "SparseSegmentMeanGradV2"),
    *("SparseSegmentSqrtNGradV2", "SparseSegmentSumGradV2"),
}
_WARMUP_FILE = "tf_serving_warmup_requests"

# Requests wait up to 2 ms to be batched. Never pad: a padded image is another image.
_SERVER_FILES = {
    "models.config": f"""\
model_config_list {{
  config {{
    name: "{MODEL_NAME}"
    base_path: "/models/{MODEL_NAME}"
    model_platform: "tensorflow"
  }}
}}
""",
    "batching_parameters.txt": """\
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 4 }
pad_variable_length_inputs: false
""",
}


def export_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] = "",
    calibrate_on: str = "",
    data: str = "",
    alpha: float | None = None,
    data_dir: str | os.PathLike[str] = "",
    max_pixels: int = 0,
    keras_file: bool = False,
    format: Sequence[str] = ("savedmodel",),
    with_probe: bool = False,
    trust_model: bool = False,
) -> pathlib.Path:
    """Writes the next version of a served model.

    Args:
        model: The directory of a trained run, or the name of a shipped one.
        output: Directory of versions: gets `<version>/`, and `models.config` and
            `batching_parameters.txt` if it has none. A version appears when it is complete.
        checkpoint: One of the run's checkpoints; the newest by default.
        calibrate_on: Calibration images for `confidence` and `accept`, without training or test
            images: other data (a spec for `tfvmf.data.load_source`), or a split of `data`. If both
            are "", the run's own calibration (`posthoc.fit_judge`); if it has none, these outputs
            are left out.
        data: The data that this split belongs to; the run's by default.
        alpha: Share of in-distribution images that may be rejected; the run's by default, 0.05.
        data_dir: Replaces the run's directory of TFDS data sets.
        max_pixels: Replaces the run's; larger images are rejected.
        keras_file: Also save the encoder for Keras, as `assets.extra/encoder.keras`.
        format: Any of `savedmodel`, `onnx` (model.onnx) and `litert` (model.tflite, and
            model_float16.tflite if it is as good), each compared with the SavedModel first.
        with_probe: Also serve `class` and `class_probability`, by the linear probe that
            `tfvmf evaluate` has stored in the run.
        trust_model: See `tfvmf.load`.

    Returns:
        The directory of the new version.
    """
    format = formats.check_formats(format)
    model, output = find_model(model), pathlib.Path(output).expanduser()
    if alpha is not None and not 0.0 < alpha < 1.0:
        raise UserError(f"alpha={alpha}: expected a share between 0 and 1, like 0.05")
    if output.exists() and not output.is_dir():
        raise UserError(f"output={output} is a file: expected a directory")
    config, method, step = load_run(
        model, checkpoint=os.fspath(checkpoint), trust_model=trust_model
    )
    if keras_file and resources(method.encoder):
        raise UserError(f"keras_file: the encoder of {model} is a SavedModel, not a Keras model")
    split, source = calibration_data(config, calibrate_on, data)
    if split and method.takes == "features":
        raise UserError(f"calibrate_on={calibrate_on}: {model} takes features, not images")
    if format != ("savedmodel",) and method.takes == "features":
        raise UserError(f"format={','.join(format)}: {model} takes features: expected savedmodel")
    config.data.data_dir = os.fspath(data_dir) or config.data.data_dir
    config.data.max_pixels = max_pixels or config.data.max_pixels
    judge = posthoc.load(model, step=step, encoder=method.encoder)
    card = run_card(config, method, step)
    images: Source | None = None
    if split:
        images = training.load_source(config, source, split)
        refuse_overlap(config, images)
        familiarity = judge and judge.familiarity
        judge = make_judge(config, method, images, step=step, familiarity=familiarity)
    if judge and alpha is not None:
        judge = judge.at(alpha)
    elif alpha is not None:
        raise UserError(f"alpha={alpha}: {model} was not calibrated: use calibrate_on=DATA")
    probe = None
    if with_probe:
        try:
            probe = posthoc.require_probe(model, step=step)
        except UserError as error:
            raise UserError(f"with_probe=True: {error}") from error
    card |= {"calibration": judge and judge.describe(), "classes": probe and probe.describe()}

    size = config.data.image_size
    signatures = build_signatures(method.encoder, image_size=size, judge=judge, probe=probe)
    module = tf.Module()
    # The saved object must reference what the functions read: the weights, and nothing else.
    module.weights = [variable.value for variable in method.encoder.variables]
    module.resources = resources(method.encoder)
    with scratch(output) as place:  # servers ignore this folder
        written = place / "model"
        tf.saved_model.save(module, str(written), signatures=signatures)
        _check(written, method.encoder, size)
        if others := [name for name in format if name != "savedmodel"]:
            portable = build_portable(method.encoder, image_size=size, judge=judge, probe=probe)
            files: list[pathlib.Path] = []
            for name in others:
                files += formats.write(name, portable, module, place, card)
            card["formats"] = _verified(files, written, card, *_comparable(config, images))
            if "savedmodel" not in format:
                shutil.rmtree(written)
                written.mkdir()
            for file in files:
                if "refused" not in card["formats"][file.name]:
                    file.rename(written / file.name)
        extra = written / "assets.extra"
        extra.mkdir()
        if method.takes == "images" and "savedmodel" in format:
            write_warmup(extra, image_size=size)
        if keras_file:
            method.encoder.save(extra / "encoder.keras")
        write_json(written / CARD_FILE, card)
        for name, text in _SERVER_FILES.items() if "savedmodel" in format else ():
            if not (output / name).exists():
                write_text(output / name, text)
        return publish(written, output)


def _comparable(config: ml_collections.ConfigDict, images: Source | None) -> tuple[np.ndarray, str]:
    """Images for comparing two formats (calibration images if possible), and their description."""
    if images is None:
        with contextlib.suppress(UserError):  # the data are not available
            images = training.load_reserve(config)
    if images is None:
        return formats.generated_images(config.data.image_size), "generated images"
    rows = np.random.default_rng(0).permutation(images.size)[: formats.COMPARED]
    return images.take(np.sort(rows)), f"images of {images.name} ({images.split})"


def _verified(
    files: list[pathlib.Path], written: pathlib.Path, card: dict, images: np.ndarray, what: str
) -> dict[str, dict[str, Any]]:
    """Size and largest differences from the SavedModel of each file; UserError if too large."""
    with literal(written) as place:
        loaded = tf.saved_model.load(place)
    reference = arrays(loaded.signatures["serving_default"])
    told: dict[str, dict[str, Any]] = {}
    ranks = (card["calibration"] or {}).get("ranks", 0)
    for file in files:
        differences = formats.compare(formats.open_file(file)[1], reference, images)
        about = {"bytes": file.stat().st_size, "images": len(images), "compared_on": what}
        told[file.name] = {**about, "differences": differences}
        if reason := formats.too_far(differences, ranks=ranks):
            told[file.name]["refused"] = reason
            if file.name not in formats.OPTIONAL:
                raise UserError(f"{file.name} differs from the SavedModel on {what}: {reason}")
    return told


def oldest_server(version: str | os.PathLike[str]) -> str:
    """The oldest TensorFlow Serving that can load an export, judging by its graph: `2.12`.

    A server rejects graphs of a later `min_consumer` or with unknown operations; it ignores unknown
    attributes, with a warning.
    """
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((pathlib.Path(version) / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    nodes = [graph.node, *(function.node_def for function in graph.library.function)]
    used = {node.op for part in nodes for node in part}
    old = graph.versions.min_consumer <= _OLDEST_GRAPHS and not used & _YOUNGER
    if old and not refused_ops(version):
        return _OLDEST
    return ".".join(model.meta_graphs[0].meta_info_def.tensorflow_version.split(".")[:2])


def calibration_data(
    config: ml_collections.ConfigDict, calibrate_on: str, data: str
) -> tuple[str, str]:
    """The split ("" for no calibration) and the source to calibrate a run on."""
    if calibrate_on and not data and not _SPLIT.fullmatch(calibrate_on):
        calibrate_on, data = "", calibrate_on
    own = config.data.source
    usual = "" if not data else "test" if data == own else "all"
    return calibrate_on or usual, data or own


def _check(path: pathlib.Path, encoder: keras.Model, size: int) -> None:
    """Compares the written model, loaded again, with the encoder."""
    if len(encoder.input.shape) == 2:
        features = np.random.default_rng(0).normal(size=(6, encoder.input.shape[1]))
        name, scale, inputs = "features", 1, features.astype(np.float32)
    else:
        name, scale, inputs = "images", 255, formats.generated_images(size, 8)
    with literal(path) as place:
        served = tf.saved_model.load(place).signatures["serving_default"](**{name: inputs})
    expected = encoder(inputs / np.float32(scale), training=False)
    for name, value in expected.items():
        if not np.isfinite(value).all():
            raise UserError(f"{name} of the encoder is not finite: use an earlier checkpoint")
        np.testing.assert_allclose(served[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def publish(written: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Renames a complete version to the next free number, atomically; returns its new path."""
    while True:
        path = directory / str((versions(directory) or [0])[-1] + 1)
        try:
            return written.rename(path)
        except OSError:
            if not path.exists():  # else another export took the number: try the next
                raise


def write_warmup(directory: pathlib.Path, *, image_size: int) -> bool:
    """Writes requests that TensorFlow Serving sends to itself at startup, so that no client waits.

    Batches of noise of every size in `WARMUP_BATCHES` go to both signatures, as JPEG and PNG.
    Returns False, and writes nothing, without the package tensorflow-serving-api.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        return False
    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(directory / _WARMUP_FILE)) as writer:
        for count in WARMUP_BATCHES:
            images = rng.integers(0, 256, (count, image_size, image_size, 3), dtype=np.uint8)
            encode = itertools.cycle([tf.io.encode_jpeg, tf.io.encode_png])
            contents = [next(encode)(image).numpy() for image in images]
            for signature, name, value in (
                ("serving_default", "images", images),
                ("serving_bytes", "image_bytes", contents),
            ):
                request = predict_pb2.PredictRequest(
                    model_spec={"name": MODEL_NAME, "signature_name": signature},
                    inputs={name: tf.make_tensor_proto(value)},
                )
                log = prediction_log_pb2.PredictionLog(predict_log={"request": request})
                writer.write(log.SerializeToString())
    return True
