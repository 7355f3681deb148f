"""Fits a new concentration head to a trained encoder, in minutes and without labels.

  tfvmf fit-kappa runs/cifar10_cpu-simclr_vmf
  tfvmf fit-kappa runs/cifar10_cpu-supervised --workdir=runs/supervised_kappa
  tfvmf fit-kappa runs/mine --levels=last --view_kind=augment --cache_views=4
  tfvmf fit-kappa applications:EfficientNetV2B0 folder:/images
  tfvmf fit-kappa hub:dinov2_small folder:/images
  tfvmf fit-kappa mobilenet.keras folder:/images --input_range=-1..1
  tfvmf fit-kappa resnet.keras folder:/images --feature_layer=avg_pool --level_layers=c2_out,c3_out
  tfvmf fit-kappa my_saved_model --config=cifar10_cpu --data_dir=DIR
  tfvmf fit-kappa features.npz

MODEL is a run, a backbone (`applications:NAME`, `hub:PRESET`, a Keras file), a SavedModel, or an
.npz file with `features` [N, K, F] of K views of each image (and `wide` [N, W, F] of damaged ones,
if you have them). It is not changed. Which pixels a backbone takes, and which layers are its
features and levels, is found by rule and printed. Without --config, images are augmented like
photographs. The result is a run directory, which you evaluate and export like any other; for an
.npz file it is only a head, which `tfvmf export` writes.
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from tfvmf.config import default_config
from tfvmf.errors import UserError
from tfvmf.files import beside, find_model, read_text
from tfvmf.programs import cli

ARGUMENTS = ("model", "data")
REQUIRED = ("model",)
CONFIG = True
FLAGS: cli.Flags = {
    "model": "a run, applications:NAME, hub:PRESET, a .keras file, a SavedModel or an .npz file",
    "data": "images to fit on; the run's or the config's by default",
    "data_dir": "where TFDS finds prepared data sets, if not where the run found them",
    "workdir": "run directory; <model>-kappa for a run, runs/<name>-kappa otherwise",
    **dict.fromkeys(("download", "max_pixels", "seed", "trust_model"), ""),
    "feature_layer": ("", "output of a model (for Keras, also a layer) to use as features"),
    "input_range": ("", "pixels that a model takes: 0..1, -1..1, 0..255, caffe, torch"),
    "level_layers": ("", "layers whose maps the head sees, separated by commas"),
    "weights": ("", "weights for applications: and hub:, instead of trained ones: none, or a file"),
    "image_size": (int, "height and width of images; the model's own by default"),
    "levels": ("", "what the head sees: last, or all (default) levels", ["last", "all"]),
    "view_kind": ("", "learn from ordinary views, or also from damaged ones", ["augment", "wide"]),
    "cache_views": (
        int,
        "embed this many views of each image once, and as many wide ones; 2 by default; 0 makes "
        "new views every step",
        0,
    ),
    "epochs": (int, "passes over the images; by default enough for 400 steps", 1),
    "learning_rate": (float, "learning rate of Adam; 1e-3 by default", 0),
}
# The settings that have a flag, named like their last part.
_SETTINGS = (
    *("model.feature_layer", "model.input_range", "model.level_layers", "model.weights"),
    *("data.image_size", "data.data_dir", "concentration.levels", "concentration.view_kind"),
    *("fit_kappa.cache_views", "optimizer.learning_rate", "epochs", "seed"),
)


def main(values: flags.FlagValues) -> None:
    """Fits the head and prints the next command."""
    given = {key: values[key.rpartition(".")[2]].value for key in _SETTINGS}
    given |= {"data.source": values.data, "data.max_pixels": values.max_pixels or None}
    settings = config_flags.get_override_values(values["config"])
    changes = settings | {key: value for key, value in given.items() if value not in (None, "")}
    model = find_model(values.model)
    of_run = read_text(model / "config.json") is not None
    if of_run and values["config"].present:
        raise UserError("--config=FILE: a run keeps its settings; --config.NAME=VALUE changes one")
    named = pathlib.Path("runs") / model.stem.rpartition(":")[2]
    workdir = pathlib.Path(values.workdir or f"{beside(model) if of_run else named}-kappa")
    # The flag's default is for digits; without it, None stands for the settings for photographs.
    config = values.config if values["config"].present else None
    cli.import_tensorflow()
    from tfvmf import posthoc
    from tfvmf.training import run_directory

    if values.download and model.suffix != ".npz":
        loaded = run_directory.read(model)[0] if of_run else config or default_config()
        used = (values.data or loaded.data.source, loaded.data.eval_source)
        cli.download(values, used, data_dir=loaded.data.data_dir)
    posthoc.fit_kappa(
        values.model, workdir, config=config, changes=changes, trust_model=values.trust_model
    )
    following = f"tfvmf evaluate {workdir}"
    if model.suffix == ".npz":
        following = f"tfvmf export {workdir} --output=DIR"
    print(f"fitted: {workdir}\nnext: {following}")
