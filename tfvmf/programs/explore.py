"""Writes a page to look at a table of embeddings; it opens from disk, in any browser.

  tfvmf explore out.parquet
  tfvmf explore out.parquet --output=page.html --max_images=2000
  tfvmf explore cifar10.parquet --data=cifar10 --data_dir=DIR

TABLE is what `tfvmf embed` wrote, with vectors. The page has a map of the images, colored by score,
class or decision; a slider for alpha with the counts of accepted and rejected images; filters,
nearest neighbors, and galleries of uncertain, foreign and duplicated images. A lasso on the map
makes a list that can be saved as CSV. Up to 5,000 images the page is one file; for more it is a
folder. The map is computed once and kept beside the page.
"""

from absl import flags

from tfvmf.programs import cli
from tfvmf.progress import printable
from tfvmf.settings import MAX_PIXELS

ARGUMENTS = ("table",)
REQUIRED = ("table",)
FLAGS: cli.Flags = {
    "table": ("", "the .parquet or .npz file, or folder of .parquet files, of `tfvmf embed`"),
    "output": "the .html file to write, or a folder; the name of the table with .html by default, "
    "with -explore for more than 5,000 images",
    "data": "the source of pictures for rows like cifar10/test:7: digits, a TFDS name or npz:/path",
    "data_dir": "",
    "max_images": "show a sample of this many images; 0 for all",
    "max_pixels": f"larger pictures are not decoded; 0 for {MAX_PIXELS}",
    "threshold": (0.95, "smallest cosine of images that count as duplicates"),
}


def main(values: flags.FlagValues) -> None:
    """Writes the page and prints a summary."""
    from tfvmf.selection.explore import explore

    given = cli.given(values, "data data_dir max_images threshold")
    max_pixels = values.max_pixels or MAX_PIXELS
    done = explore(values.table, values.output, max_pixels=max_pixels, **given)
    print(f"page: {printable(str(done.page))} ({done.page.stat().st_size / 1e6:.1f} MB)")
    left_out = f", {done.left_out:,} rows left out: broken, or not finite" if done.left_out else ""
    print(f"  images {done.images:,}, groups of duplicates {done.groups:,}{left_out}")
    if done.missing:
        advice = f": --data={printable(done.sources)} shows them" if done.sources else ""
        print(f"  {done.missing:,} pictures were not found and are left blank{advice}")
