"""Methods by name. A new one is a file and a line here."""

import functools
from collections.abc import Callable

import ml_collections

from tfvmf.errors import UserError
from tfvmf.methods.base import Method
from tfvmf.methods.mc_infonce import MCInfoNCE
from tfvmf.methods.simclr import SimCLR
from tfvmf.methods.supervised import Supervised

METHODS: dict[str, Callable[..., Method]] = {
    "mc_infonce": MCInfoNCE,
    "simclr": functools.partial(SimCLR, probabilistic=False),
    "simclr_vmf": functools.partial(SimCLR, probabilistic=True),
    "supervised": Supervised,
}


def build_method(config: ml_collections.ConfigDict, *, num_classes: int = 0) -> Method:
    """Builds the method that `config.method` names, with its models."""
    if config.method not in METHODS:
        raise UserError(
            f"--method={config.method} is unknown: use one of {', '.join(sorted(METHODS))}"
        )
    return METHODS[config.method](config, num_classes=num_classes)


__all__ = ["METHODS", "Method", "build_method"]
