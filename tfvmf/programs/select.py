"""Selects images of a table: uncertain, foreign, duplicated, diverse or typical ones, or similar.

  tfvmf select out.parquet --by=uncertain --count=400 --output=label_first.csv
  tfvmf select out.parquet --by=duplicates --threshold=0.95 --output=duplicates.csv
  tfvmf select out.parquet --by=diverse:1,uncertain:0.5 --count=400 --exclude=duplicates.csv
  tfvmf select out.parquet --like=photos/cat.jpg --count=20 --link_to=similar
  tfvmf select timm.npz --by=foreign --reference=known.npz --count=100

TABLE is what `tfvmf embed` writes, a directory of its Parquet shards, or any Parquet or npz file
with a column features or mean_direction. The CSV has file, score, the scores of the table, reason
and group; without --output it is printed. Strategies:

  uncertain   lowest concentration first
  foreign     lowest familiarity first
  duplicates  those that resemble a more certain image, which is kept; groups are numbered.
              --threshold is a cosine; --count alone takes those that stand out most among their
              neighbors, by the column levels if the table has it (tfvmf embed --with_levels)
  diverse     each as far as possible from those before it (greedy k-center)
  typical     largest mean cosine to their 10 nearest first

Several strategies with weights are added: ranks from 0 to 1, and for diverse the distance to the
nearest choice in units of the mean distance of two images.
"""

import pathlib
import sys

from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli
from tfvmf.settings import MAX_PIXELS

ARGUMENTS = ("table",)
REQUIRED = ("table",)
FLAGS: cli.Flags = {
    "table": ("", "a .parquet, .npz or .csv file, or a directory of .parquet files; required"),
    "by": ("", "a strategy, or several with weights, like diverse:1,uncertain:0.5"),
    "like": ("", "instead of --by: nearest to this file of the table or, with --model, picture"),
    "count": (0, "number of images; for duplicates, the maximum", 0),
    "threshold": (float, "a cosine, for --like, duplicates, diverse and typical"),
    "reference": ("", "a table of in-distribution images, to fit familiarity and a decision to"),
    "exclude": ("", "CSV files of earlier selections, separated by commas: not chosen again"),
    "output": "the .csv file to write; printed by default",
    "copy_to": ("", "a new folder for copies of the selected files"),
    "link_to": ("", "a new folder for links to the selected files"),
    "model": "model to embed the picture of --like: a run directory, an export or a .keras file",
    **dict.fromkeys(("max_pixels", "trust_model"), ""),
}


def main(values: flags.FlagValues) -> None:
    """Selects images, and writes or prints them."""
    from tfvmf import selection

    if values.output and pathlib.Path(values.output).suffix != ".csv":
        raise UserError(f"--output={values.output}: expected a name that ends in .csv")
    arguments = cli.given(values, "by like count threshold model")
    selection.check(**arguments)
    folders = [folder for folder in (values.copy_to, values.link_to) if folder]
    for folder in folders:
        selection.check_folder(folder)
    if values.model or values.reference:
        cli.import_tensorflow()
    found = selection.select(
        values.table,
        **arguments,
        reference=values.reference,
        exclude=cli.listed(values.exclude),
        trust_model=values.trust_model,
        max_pixels=values.max_pixels or MAX_PIXELS,
    )
    # Files first: if one is missing, nothing is written.
    for folder in folders:
        found.gather(folder, link=folder == values.link_to)
    if values.output:
        found.write(values.output)
    else:
        sys.stdout.writelines(line.replace("\r\n", "\n") for line in found.csv())
    where = f": {values.output}" if values.output else ""
    told = sys.stdout if values.output else sys.stderr
    print(f"selected {len(found):,} of {found.of:,} images{where}", file=told)
    for line in (*found.notes, *(f"files: {folder}" for folder in folders)):
        print(f"  {line}", file=told)
