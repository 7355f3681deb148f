"""Methods by name. A new one is a file and a line here."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import ml_collections

from tfvmf.errors import UserError
from tfvmf.methods.base import Method, Moment
from tfvmf.methods.byol import BYOL
from tfvmf.methods.mc_infonce import MCInfoNCE
from tfvmf.methods.simclr import SimCLR
from tfvmf.methods.simsiam import SimSiam
from tfvmf.methods.supervised import Supervised
from tfvmf.methods.swav import SwAV


def _fit_kappa(*arguments: Any, **options: Any) -> Method:
    return importlib.import_module("tfvmf.posthoc").FitKappa(*arguments, **options)


METHODS: dict[str, Callable[..., Method]] = {
    "fit_kappa": _fit_kappa,
    "mc_infonce": MCInfoNCE,
    "supervised": Supervised,
}
for _name, _method in (("simclr", SimCLR), ("simsiam", SimSiam), ("byol", BYOL), ("swav", SwAV)):
    METHODS[_name] = functools.partial(_method, probabilistic=False)
    METHODS[f"{_name}_vmf"] = functools.partial(_method, probabilistic=True)


def build_method(config: ml_collections.ConfigDict, *, num_classes: int = 0) -> Method:
    """Builds the method that `config.method` names, with its models."""
    if config.method not in METHODS:
        raise UserError(
            f"--method={config.method} is unknown: use one of {', '.join(sorted(METHODS))}"
        )
    return METHODS[config.method](config, num_classes=num_classes)


__all__ = ["METHODS", "Method", "Moment", "build_method"]
