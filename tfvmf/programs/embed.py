"""Embeds images: a folder of them, one file, or a data set.

  tfvmf embed models/mine FOLDER --output=out.parquet
  tfvmf embed models/mine FOLDER --output=out.csv --sort=concentration
  tfvmf embed runs/mine mnist --output=out.npz --data_dir=DIR
  tfvmf embed runs/mine one.jpg
  tfvmf embed models/mine FOLDER --output=DIR --shard=3/16
  tfvmf embed models/mine parquet:s3://bucket/photos --output=DIR --engine=ray --actors=8
  tfvmf embed models/mine/1/model.onnx FOLDER --output=out.parquet

The table has one row per image: file, error, label, features, mean_direction, concentration and,
if the model has them, familiarity, confidence, accept, class and class_probability; the last line
then says whether the confidences look like those of in-distribution images. A broken file is a row
with its error. To continue a stopped command, enter it again. --sort=concentration sorts the rows,
and draws the least and the most certain images to out.png. Without --output, the row of a single
file is printed.

--shard=3/16 embeds part 3 of the parts 0 to 15 into a directory of Parquet files that all parts
share. --engine=ray embeds on Ray (pip install 'tfvmf[ray]'), here or on a cluster, and also reads
files:LIST, parquet:PLACE and tfrecord:PLACE, where places may be URIs such as s3://bucket/photos.
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

_RAY = ("actors", "ray_address", "column")
ARGUMENTS = ("model", "data")
REQUIRED = ("model", "data")
FLAGS: cli.Flags = {
    "model": "a run directory, an export, a .keras, .onnx or .tflite file, or a shipped name "
    "(cifar10); required",
    "data": "a folder of images, at any depth, an image, digits, a TFDS name or npz:/path; with "
    "--engine=ray folder:, files:, parquet: or tfrecord: and a path or URI; required",
    "output": "the file to write: .parquet, .npz, or .csv, which has no vectors; or a directory, "
    "with --shard or --engine=ray",
    **dict.fromkeys(("checkpoint", "data_dir", "download", "max_pixels", "trust_model"), ""),
    "with_levels": (False, "also write levels, which show near-duplicates best; only for a run"),
    "sort": ("", "concentration: sort the rows, draw a sheet", ["concentration"]),
    "batch_size": (64, "images per forward pass", 1),
    "restart": (False, "start again instead of continuing from OUTPUT.parts"),
    "shard": ("", "embed only this part: 3/16 is part 3 of the parts 0 to 15"),
    "engine": ("local", "local, or ray", ["local", "ray"]),
    "actors": (2, "with --engine=ray, the number of processes that embed", 1),
    "ray_address": ("", "with --engine=ray, a cluster; by default Ray is started here"),
    "column": ("", "with parquet: and tfrecord:, the column with the images"),
}


def main(values: flags.FlagValues) -> None:
    """Embeds images and prints a summary."""
    from tfvmf import embedding

    shards = bool(values.shard) or values.engine == "ray"
    if not values.output and (shards or not pathlib.Path(values.data).expanduser().is_file()):
        names = "a directory" if shards else "a name that ends in .parquet, .npz or .csv"
        raise UserError(f"--output is missing: {names}")
    if values.output:
        embedding.check_output(values.output, **cli.given(values, "shard engine"))
    wrong = [f"--{name}" for name in _RAY if values[name].present]
    if values.data.partition(":")[0] in ("files", "parquet", "tfrecord"):
        wrong.append(f"--data={values.data}")
    if wrong and values.engine != "ray":
        raise UserError(f"{wrong[0]}: only with --engine=ray")
    if not values.model.endswith((".onnx", ".tflite")):  # they need no TensorFlow
        cli.import_tensorflow()
    settings = cli.given(values, " ".join(FLAGS.keys() - {"model", "data", "output"}))
    settings["max_pixels"] = values.max_pixels or MAX_PIXELS
    with tempfile.TemporaryDirectory() as place:
        output = values.output or pathlib.Path(place, "shown.parquet")
        try:
            done = embedding.embed(values.model, values.data, output, **settings)
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
