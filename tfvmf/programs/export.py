"""Exports a trained run as the next version of a model for TensorFlow Serving or other runtimes.

  tfvmf export runs/mine --output=models/mine
  tfvmf export runs/mine --output=models/mine --alpha=0.01
  tfvmf export runs/mine --output=models/mine --calibrate_on=folder:/production/sample
  tfvmf export runs/mine --output=models/mine --checkpoint=step-110
  tfvmf export runs/mine --output=models/mine --format=savedmodel,onnx,litert
  tfvmf export runs/mine --output=models/mine --with_probe

Signatures serving_default (uint8 images) and serving_bytes (JPEG or PNG) give mean_direction,
concentration and features; if calibrated, also familiarity, confidence and accept; with a probe,
also class and class_probability. DATA is the same as --calibrate_on=DATA. See docs/serving.md.
"""

import shlex

from absl import flags

from tfvmf import evaluation
from tfvmf.programs import cli

ARGUMENTS = ("model", "data")
REQUIRED = ("output",)
FLAGS: cli.Flags = {
    "model": f"directory of a trained run, or a shipped name; {cli.DEFAULT_RUN} by default",
    "output": "a directory for the versions of the model; required",
    "data": "images to calibrate on, unless --calibrate_on names them",
    "data_dir": "where TFDS finds prepared data sets, if not where the run found them",
    **dict.fromkeys(("checkpoint", "download", "max_pixels", "trust_model"), ""),
    "calibrate_on": (
        "",
        "images to calibrate on instead of the run's reserve: other data, used as a whole, or a "
        "split of the run's data; training and test images are refused",
    ),
    "alpha": (float, "share of calibration-like images that may be rejected; 0.05 by default", 0),
    "with_probe": (False, "also serve class and class_probability, from the run's linear probe"),
    "keras": (False, "also save the encoder for Keras (encoder.keras)"),
    "format": (
        "savedmodel",
        "some of savedmodel, onnx and litert, separated by commas; the last two are compared with "
        "the SavedModel, and need pip install 'tfvmf[onnx]' and 'tfvmf[litert]'",
    ),
}


def main(values: flags.FlagValues) -> None:
    """Exports the run and prints the next command."""
    evaluation.Options(alpha=values.alpha)  # raises if it is not a share
    model = cli.check_run(values.model or cli.DEFAULT_RUN)
    from tfvmf.serving import formats

    chosen = formats.check_formats(cli.listed(values.format))

    cli.import_tensorflow()
    from tfvmf import serving
    from tfvmf.training import run_directory

    if values.download and (values.calibrate_on or values.data):
        config, _ = run_directory.read(model)
        _, source = serving.calibration_data(config, values.calibrate_on, values.data)
        cli.download(values, [source], data_dir=config.data.data_dir)
    names = "checkpoint calibrate_on data alpha data_dir max_pixels with_probe trust_model"
    given = cli.given(values, names) | {"keras_file": values.keras, "format": chosen}
    path = serving.export_model(model, values.output, **given)
    card = serving.read_card(path)
    if card["image_size"] is None:
        print(f"exported: {path} (takes features, not images)")
        return
    if found := card["calibration"]:
        told = f"{found['images']:,} images of {found['source']}"
        print(f"calibrated on {told}: alpha={found['alpha']:g}")
    if found := card["classes"]:
        told = found["calibration"] or "no images: its probabilities are as they were fitted"
        count, source = len(found["names"]), found["source"]
        print(f"probe of {count} classes, fitted to {source}; calibrated on {told}")
    for name, told in card.get("formats", {}).items():
        by = ", ".join(f"{key} {value:.2g}" for key, value in told["differences"].items())
        size = "left out" if "refused" in told else f"{told['bytes'] / 1e6:.1f} MB"
        print(
            f"{name}: {size}; largest differences from the SavedModel on {told['images']} "
            f"{told['compared_on']}: {by}"
        )
        if "refused" in told:
            print(f"  {told['refused']}")
    if "savedmodel" not in chosen:
        print(f"exported: {path}")
        (first, *_) = (name for name in card["formats"] if (path / name).exists())
        print(f"next: tfvmf embed {path / first} FOLDER --output=out.npz")
        return
    if not (path / "assets.extra" / "tf_serving_warmup_requests").exists():
        print("no warm-up requests: install tensorflow-serving-api and export again to have them")
    print(f"exported: {path} (for TensorFlow Serving {serving.oldest_server(path)} or later)")
    place, inside = shlex.quote(f"{path.parent.resolve()}:/models/tfvmf"), "/models/tfvmf"
    print(
        f"serve: docker run --rm -p 8500:8500 -p 8501:8501 -v {place} tensorflow/serving "
        f"--model_config_file={inside}/models.config --enable_batching "
        f"--batching_parameters_file={inside}/batching_parameters.txt"
    )
    print(f"next: tfvmf embed {values.output} FOLDER --output=out.npz")
