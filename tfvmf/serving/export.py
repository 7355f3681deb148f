"""From a trained run to a SavedModel that any TensorFlow can serve, without this package."""

import contextlib
import pathlib
from collections.abc import Iterator

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from tfvmf import training
from tfvmf.errors import UserError
from tfvmf.files import write_text
from tfvmf.methods import Method
from tfvmf.methods.encoders import takes_features
from tfvmf.posthoc.foreign import resources
from tfvmf.progress import Progress
from tfvmf.serving import versions, warmup
from tfvmf.serving.calibration import Calibration, calibrate
from tfvmf.serving.facts import write_facts
from tfvmf.serving.signatures import build_signatures, feature_signatures

MODEL_NAME = "tfvmf"

_MODELS_CONFIG = f"""\
model_config_list {{
  config {{
    name: "{MODEL_NAME}"
    base_path: "/models/{MODEL_NAME}"
    model_platform: "tensorflow"
  }}
}}
"""
# Requests wait up to 2 ms for company. Never pad: a padded image is another image.
_BATCHING = """\
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 4 }
pad_variable_length_inputs: false
"""


def export_model(
    workdir: str | pathlib.Path,
    output_dir: str | pathlib.Path,
    *,
    checkpoint: str = "",
    calibrate_on: str = "",
    reject_below: float = 0.05,
    data_dir: str = "",
    keras_file: bool = False,
) -> pathlib.Path:
    """Writes the next version of a served model.

    Args:
        workdir: The directory of a trained run.
        output_dir: Gets `<version>/`, and `models.config` and `batching_parameters.txt` when it
            has none. A version appears when it is complete.
        checkpoint: One of the run's checkpoints; the newest by default.
        calibrate_on: Split of the run's data whose kappas give `confidence` and `accept`; ""
            leaves these outputs out.
        reject_below: `accept` is false below this confidence.
        data_dir: Where TFDS finds the data, if not where the run found it.
        keras_file: Also save the encoder for Keras, as `assets.extra/encoder.keras`.

    Returns:
        The directory of the new version.
    """
    workdir, output_dir = pathlib.Path(workdir), pathlib.Path(output_dir)
    if not 0.0 <= reject_below <= 1.0:
        raise UserError(f"--reject_below={reject_below} is not a share: use 0 to 1 (0.05)")
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"--output_dir={output_dir} is a file: name a directory")
    config, method, step = _load(workdir, checkpoint)
    if keras_file and resources(method.encoder):
        raise UserError(f"--keras: the encoder of --workdir={workdir} is a SavedModel, not Keras's")
    if calibrate_on and takes_features(config):
        raise UserError(f"--calibrate_on={calibrate_on}: --workdir={workdir} knows no images")
    if data_dir:
        config.data.data_dir = data_dir
    calibration = None
    if calibrate_on:
        calibration = _calibrate(config, method, calibrate_on, reject_below)

    size = config.data.image_size
    if takes_features(config):  # a head alone
        signatures = feature_signatures(method.encoder)
    else:
        signatures = build_signatures(method.encoder, image_size=size, calibration=calibration)
    module = tf.Module()
    # What the functions read must be reachable from what is saved: the weights, and nothing else.
    module.weights = [variable.value for variable in method.encoder.variables]
    module.resources = resources(method.encoder)
    with versions.new_directory(output_dir) as place:
        written = place / "model"
        tf.saved_model.save(module, str(written), signatures=signatures)
        _check(written, method.encoder, size)
        extra = written / "assets.extra"
        extra.mkdir()
        if not takes_features(config):
            warmup.write_warmup(extra, model_name=MODEL_NAME, image_size=size)
        if keras_file:
            method.encoder.save(extra / "encoder.keras")
        write_facts(written, config, method, step=step, calibration=calibration)
        for name, text in (
            ("models.config", _MODELS_CONFIG),
            ("batching_parameters.txt", _BATCHING),
        ):
            if not (output_dir / name).exists():
                write_text(output_dir / name, text)
        return versions.publish(written, output_dir)


def _load(workdir: pathlib.Path, checkpoint: str) -> tuple[ml_collections.ConfigDict, Method, int]:
    """The run's method in float32, whatever precision it was trained in."""
    with _float32():
        config, method, step = training.load_method(workdir, checkpoint=checkpoint)
    for variable in method.encoder.variables:
        if not np.isfinite(variable.numpy()).all():
            raise UserError(
                f"--workdir={workdir}: the weights {variable.path} are not finite: training "
                "diverged; take an earlier --checkpoint"
            )
    return config, method, step


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _calibrate(
    config: ml_collections.ConfigDict, method: Method, split: str, reject_below: float
) -> Calibration:
    """Takes the kappas of the run's own data through the very graph that is served."""
    if not method.probabilistic:
        raise UserError(
            f"--calibrate_on={split}: method {config.method} has no concentration to calibrate"
        )
    source = training.load_source(config, config.data.source, split)
    serve = build_signatures(method.encoder, image_size=config.data.image_size)["serving_default"]
    kappas, batch = [], 250
    with Progress(source.size, unit="image", description="calibrating") as progress:
        for start in range(0, source.size, batch):
            kappas.append(serve(source.images(start, start + batch))["concentration"].numpy())
            progress.update(len(kappas[-1]))
    return calibrate(np.concatenate(kappas), reject_below=reject_below, split=split)


def _check(path: pathlib.Path, encoder: keras.Model, size: int) -> None:
    """Compares what was written, loaded again, with the encoder on images of all extremes."""
    rng = np.random.default_rng(0)
    if len(encoder.input.shape) == 2:
        inputs = rng.normal(size=(6, encoder.input.shape[1])).astype(np.float32)
        sent = {"features": inputs}
    else:
        noise = rng.integers(0, 256, (2, size, size, 3), dtype=np.uint8)
        flat = np.stack([np.full((size, size, 3), level, np.uint8) for level in (0, 255)])
        images = np.concatenate([noise, flat, np.where(noise > 127, 255, 0).astype(np.uint8)])
        inputs, sent = images.astype(np.float32) / np.float32(255), {"images": images}
    served = tf.saved_model.load(str(path)).signatures["serving_default"](**sent)
    expected = encoder(inputs, training=False)
    for name, value in expected.items():
        if not np.isfinite(value).all():
            raise UserError(f"{name} of the encoder is not finite: take an earlier --checkpoint")
        np.testing.assert_allclose(served[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
