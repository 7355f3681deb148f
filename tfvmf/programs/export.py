"""Exports a trained run as the next version of a model for TensorFlow Serving.

  tfvmf export runs/mine --output=models/mine
  tfvmf export runs/mine --output=models/mine --calibrate_on=test --reject_below=0.05

Signatures serving_default (uint8 images) and serving_bytes (JPEG or PNG) give mean_direction,
concentration and features; calibrated, also confidence and accept. See docs/serving.md.
"""

from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli

ARGUMENTS = ("model",)


def define(values: flags.FlagValues, argv: list[str]) -> None:
    """Defines the flags."""
    del argv
    cli.define_shared(
        values,
        "checkpoint",
        "download",
        model=f"directory of a trained run; {cli.DEFAULT_RUN} by default",
        output="directory of versions; required",
        data_dir="where TFDS finds prepared data sets, if not where the run found them",
    )
    flags.DEFINE_string(
        "calibrate_on",
        "",
        "split of the run's data (test) whose kappas give confidence and accept",
        flag_values=values,
    )
    flags.DEFINE_float(
        "reject_below",
        None,
        "with --calibrate_on: accept is false below this confidence; 0.05",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "keras", False, "also save the encoder for Keras (encoder.keras)", flag_values=values
    )


def main(values: flags.FlagValues) -> None:
    """Exports, says what to do next."""
    if not values.output:
        raise UserError("--output is missing: name a directory for the versions of the model")
    if values.reject_below is not None and not values.calibrate_on:
        raise UserError("--reject_below needs --calibrate_on: a split of the run's data, as test")

    cli.import_tensorflow()
    from tfvmf import serving

    path = serving.export_model(
        values.model or cli.DEFAULT_RUN,
        values.output,
        checkpoint=values.checkpoint,
        calibrate_on=values.calibrate_on,
        reject_below=0.05 if values.reject_below is None else values.reject_below,
        data_dir=values.data_dir,
        download=values.download,
        keras_file=values.keras,
    )
    if serving.read_card(path)["image_size"] is None:
        print(f"exported: {path} (features in, not images)")
        return
    if not (path / "assets.extra" / "tf_serving_warmup_requests").exists():
        print("no warm-up requests: install tensorflow-serving-api and export again to have them")
    print(f"exported: {path}")
    print(f"next: tfvmf embed {values.output} FOLDER --output=out.npz")
