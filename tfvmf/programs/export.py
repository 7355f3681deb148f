"""Exports a trained run as the next version of a model for TensorFlow Serving.

  tfvmf export runs/mine --output=models/mine
  tfvmf export runs/mine --output=models/mine --calibrate_on=test --reject_below=0.05
  tfvmf export runs/mine folder:/my/images --output=models/mine

Signatures serving_default (uint8 images) and serving_bytes (JPEG or PNG) give mean_direction,
concentration and features; calibrated, also confidence and accept. DATA are images to calibrate on,
by default those of the run. See docs/serving.md.
"""

import pathlib

from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli

ARGUMENTS = ("model", "data")


def define(values: flags.FlagValues, argv: list[str]) -> None:
    """Defines the flags."""
    del argv
    cli.define_shared(
        values,
        "checkpoint",
        "download",
        "max_pixels",
        "trust_model",
        model=f"directory of a trained run; {cli.DEFAULT_RUN} by default",
        output="directory of versions; required",
        data="images to calibrate on; the run's by default",
        data_dir="where TFDS finds prepared data sets, if not where the run found them",
    )
    new = cli.definers(values)
    new.string(
        "calibrate_on",
        "",
        "split of the data (test, the default with DATA) whose kappas give confidence and accept",
    )
    new.float(
        "reject_below", None, "with --calibrate_on: accept is false below this confidence; 0.05"
    )
    new.bool("keras", False, "also save the encoder for Keras (encoder.keras)")


def main(values: flags.FlagValues) -> None:
    """Exports, says what to do next."""
    if not values.output:
        raise UserError("--output is missing: name a directory for the versions of the model")
    calibrate_on = values.calibrate_on or ("test" if values.data else "")
    if values.reject_below is not None and not calibrate_on:
        raise UserError("--reject_below needs --calibrate_on: a split of the run's data, as test")

    cli.import_tensorflow()
    from tfvmf import serving
    from tfvmf.training import run_directory

    model = pathlib.Path(values.model or cli.DEFAULT_RUN)
    if values.download and calibrate_on:
        config, _ = run_directory.read(model)
        cli.download(values, [values.data or config.data.source], data_dir=config.data.data_dir)
    path = serving.export_model(
        model,
        values.output,
        checkpoint=values.checkpoint,
        calibrate_on=calibrate_on,
        data=values.data,
        reject_below=0.05 if values.reject_below is None else values.reject_below,
        data_dir=values.data_dir,
        max_pixels=values.max_pixels,
        keras_file=values.keras,
        trust_model=values.trust_model,
    )
    if serving.read_card(path)["image_size"] is None:
        print(f"exported: {path} (features in, not images)")
        return
    if not (path / "assets.extra" / "tf_serving_warmup_requests").exists():
        print("no warm-up requests: install tensorflow-serving-api and export again to have them")
    print(f"exported: {path}")
    print(f"next: tfvmf embed {values.output} FOLDER --output=out.npz")
