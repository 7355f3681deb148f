"""Embeds images: a folder of them, or a data set.

  tfvmf embed models/mine FOLDER --output=out.npz
  tfvmf embed models/mine FOLDER --output=out.npz --sort=kappa
  tfvmf embed runs/mine mnist --output=out.npz --data_dir=DIR

The file holds names, mean_direction, concentration and features; with a calibrated model, also
confidence and accept. --sort=kappa draws out.png: the images from the least to the most certain.
"""

from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli
from tfvmf.settings import MAX_PIXELS

ARGUMENTS = ("model", "data")


def define(values: flags.FlagValues, argv: list[str]) -> None:
    """Defines the flags."""
    del argv
    cli.define_shared(
        values,
        "data_dir",
        "download",
        "max_pixels",
        "trust_model",
        model="a run directory, an export or a .keras file; required",
        data="a folder of images, at any depth, or digits, a TFDS name, npz:/path; required",
        output="the .npz file to write; required",
    )
    new = cli.definers(values)
    new.enum("sort", "", ["", "kappa"], "kappa: also draw a contact sheet")
    new.integer("batch_size", 64, "images per forward pass", lower_bound=1)


def main(values: flags.FlagValues) -> None:
    """Embeds, says what is where."""
    for name in ("model", "data", "output"):
        if not values[name].value:
            raise UserError(f"--{name} is missing (--help lists the flags)")

    cli.import_tensorflow()
    from tfvmf import serving

    embeddings = serving.embed_data(
        values.model,
        values.data,
        values.output,
        data_dir=values.data_dir,
        max_pixels=values.max_pixels or MAX_PIXELS,
        download=values.download,
        sort=values.sort,
        batch_size=values.batch_size,
        trust_model=values.trust_model,
    )
    kappa = embeddings["concentration"]
    print(f"embedded: {values.output}")
    print(f"  images {len(kappa)}, kappa {kappa.min():.4g} to {kappa.max():.4g}")
    if "accept" in embeddings:
        print(f"  accepted {embeddings['accept'].sum()} of {len(kappa)}")
    if values.sort:
        print(f"least to most certain: {values.output.removesuffix('.npz')}.png")
