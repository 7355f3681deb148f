"""Embeds images: a folder of them, one file, or a data set.

  tfvmf embed models/mine FOLDER --output=out.parquet
  tfvmf embed models/mine FOLDER --output=out.csv --sort=concentration
  tfvmf embed runs/mine mnist --output=out.npz --data_dir=DIR
  tfvmf embed runs/mine one.jpg
  tfvmf embed models/mine/1/model.onnx FOLDER --output=out.parquet

The table has one row per image: file, error, label, features, mean_direction, concentration and,
of a model that has them, familiarity, confidence, accept, class and class_probability; the last
line then says whether the confidences look like those of in-distribution images. A broken file is a
row with its error. A command that was stopped continues when it is typed again.
--sort=concentration sorts the rows, and draws the least and the most certain images to out.png. One
file without --output is shown.
"""

import pathlib
import signal
import sys
import tempfile

import numpy as np
from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli
from tfvmf.settings import MAX_PIXELS

ARGUMENTS = ("model", "data")
REQUIRED = ("model", "data")
FLAGS: cli.Flags = {
    "model": "a run directory, an export, a .keras, .onnx or .tflite file, or a shipped name "
    "(cifar10); required",
    "data": "a folder of images, at any depth, an image, or digits, a TFDS name, npz:/path; "
    "required",
    "output": "the file to write: .parquet, .npz, or .csv, which has no vectors",
    **dict.fromkeys(("checkpoint", "data_dir", "download", "max_pixels", "trust_model"), ""),
    "sort": ("", "concentration: sort the rows, draw a sheet", ["concentration"]),
    "batch_size": (64, "images per forward pass", 1),
    "restart": (False, "do not continue what OUTPUT.parts holds, but start again"),
}


def main(values: flags.FlagValues) -> None:
    """Embeds, says what is where."""
    if not values.output and not pathlib.Path(values.data).expanduser().is_file():
        raise UserError("--output is missing: a name that ends in .parquet, .npz or .csv")
    from tfvmf import embedding

    if values.output:
        embedding.check_output(values.output)
    if not values.model.endswith((".onnx", ".tflite")):  # which need no TensorFlow
        cli.import_tensorflow()
    with tempfile.TemporaryDirectory() as place:
        try:
            done = embedding.embed(
                values.model,
                values.data,
                values.output or pathlib.Path(place, "shown.parquet"),
                checkpoint=values.checkpoint,
                data_dir=values.data_dir,
                download=values.download,
                sort=values.sort,
                batch_size=values.batch_size,
                max_pixels=values.max_pixels or MAX_PIXELS,
                restart=values.restart,
                trust_model=values.trust_model,
            )
        except KeyboardInterrupt:
            from tfvmf.training import Interrupted

            raise Interrupted(signal.SIGINT, "stopped: the same command continues") from None
        if not values.output:
            table = embedding.read_table(done.output)
            for name in table.columns:
                value = table[name][0]
                if not isinstance(value, np.ndarray) and value != "":
                    print(f"{name}: {value}")
            return
    good = done.images - done.broken
    rejected = "" if done.rejected is None else f", rejected {done.rejected}"
    print(f"embedded: {done.output}")
    print(f"  images {done.images}: embedded {good}, broken {done.broken}{rejected}")
    if good:
        print(f"  concentration {done.lowest:.4g} to {done.highest:.4g}")
    if done.broken:
        print("  broken files are rows with an error, and no numbers")
    if done.drift:
        print(f"  {done.drift}")
    if done.sheet:
        print(f"least and most certain: {done.sheet}")
    elif values.sort:
        found = "all concentrations are equal (a model without kappa?)" if good else "no images"
        print(f"warning: {found}: rows are not sorted, no sheet is drawn", file=sys.stderr)
