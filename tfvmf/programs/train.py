"""Trains an encoder without labels; started again in the same directory, it continues.

  tfvmf train
  tfvmf train --method=simclr_vmf --strategy=mirrored
  tfvmf train --config=cifar10_cpu --data_dir=DIR --workdir=runs/mine
  tfvmf train folder:/my/photos --config.minutes=60
  tfvmf train --config=cifar10 --config.optimizer.learning_rate=0.1

Every setting is a flag: --config.batch_size=128, --config.model.width=32; --helpfull lists them.
Files that cannot be read are listed in broken.csv in the run directory; up to 1 % are left out.
"""

import os
import pathlib
import shlex

from absl import flags
from ml_collections import config_flags

from tfvmf import methods
from tfvmf.config import validate
from tfvmf.programs import cli

ARGUMENTS = ("data",)
CONFIG = True
FLAGS: cli.Flags = {
    **dict.fromkeys(("download", "max_pixels"), ""),
    "data": "digits, a TFDS name, folder:/path or npz:/path; the config's by default",
    "data_dir": "where TFDS finds prepared data sets (overrides config.data.data_dir)",
    "workdir": "run directory; runs/<config>-<method> by default",
    "method": ("", f"what is trained (overrides config.method): {', '.join(methods.METHODS)}"),
    "strategy": ("", "default, mirrored or multi_worker (overrides config.strategy)"),
    "strict": (False, "do not train if any file is broken; otherwise up to 1 % are left out"),
    "force_config": (False, "continue in a directory whose run had other settings"),
    "logical_devices": (0, "with --strategy=mirrored: split the CPU into this many devices", 0),
    "peer_timeout": (300.0, "with --strategy=multi_worker: seconds to wait for the others", 1.0),
    "ensemble": (int, "train this many members into one run directory", 2),
    "ensemble_kind": (
        *("", "members are runs with other seeds, or ends of the cycles of one run (snapshot)"),
        ["seeds", "snapshot"],
    ),
    "draw_views": ("", "write a PNG of training images and their views to this file, and stop"),
}


def main(values: flags.FlagValues) -> None:
    """Trains and prints the next command."""
    config = values.config
    chosen, settings = values["config"].present, config.name
    if values.data and values.data != config.data.source:
        named = cli.short_name(values.data)
        config.name = f"{config.name}-{named}" if chosen else named
        config.data.source = values.data
    elif "config.data.source" in values and "config.name" not in values and not chosen:
        config.name = cli.short_name(config.data.source)
    config.method = values.method or config.method
    config.strategy = values.strategy or config.strategy
    config.data.data_dir = values.data_dir or config.data.data_dir
    config.data.max_pixels = values.max_pixels or config.data.max_pixels
    config.ensemble.num_members = values.ensemble or config.ensemble.num_members
    config.ensemble.kind = values.ensemble_kind or config.ensemble.kind
    name = f"{config.name}-{config.method}"
    if config.ensemble.num_members > 1:
        name += f"-{config.ensemble.num_members}_{config.ensemble.kind}"
    workdir = pathlib.Path(values.workdir or f"runs/{name}")

    methods.check_name(config.method)
    validate(config)
    if not chosen and (values.data or "config.data.source" in values):
        print(f"settings: --config={settings}, because none is given")
    cli.download(
        values, (config.data.source, config.data.eval_source), data_dir=config.data.data_dir
    )
    if config.strategy == "multi_worker":  # its servers also log the errors that they raise
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cli.import_tensorflow()  # takes seconds, so everything else is checked before
    from tfvmf import posthoc, training
    from tfvmf.training.strategies import is_chief

    if values.draw_views:
        training.draw_views(config, values.draw_views)
        print(f"views: {values.draw_views}")
        return
    training.share_cores(config)
    training.train(
        config,
        workdir,
        command=lambda epochs: _command(values, epochs),
        **cli.given(values, "force_config logical_devices peer_timeout strict"),
    )
    if is_chief(config.strategy):
        posthoc.fit_judge(workdir)
    print(f"trained: {workdir}\nnext: tfvmf evaluate {workdir}")


def _command(values: flags.FlagValues, epochs: int) -> str:
    """This command with a number of epochs instead of minutes."""
    parts = ["tfvmf", "train", *([values.data] if values.data else [])]
    for name in values:
        if name == "config" and values[name].present:
            path = pathlib.Path(config_flags.get_config_filename(values[name]))
            parts.append(f"--config={path.stem if path.parent == cli.CONFIGS else path}")
        elif values[name].present and name not in ("config", "config.minutes", "config.epochs"):
            parts.append(values[name].serialize())
    return shlex.join([*dict.fromkeys(parts), f"--config.epochs={epochs}"])
