"""Methods by name. A new one is a file, and a line here; nothing here imports TensorFlow."""

import contextlib
import difflib
import random
from collections.abc import Iterator

import ml_collections
import numpy as np

from tfvmf.errors import UserError
from tfvmf.lazy import Registry
from tfvmf.methods.base import Method, Objective, StepContext
from tfvmf.methods.simclr import MCInfoNCE, SimCLR
from tfvmf.methods.simsiam import BYOL, SimSiam
from tfvmf.methods.supervised import Supervised
from tfvmf.methods.swav import SwAV
from tfvmf.methods.vi_simsiam import VISimSiam

__all__ = [
    "METHODS", "Method", "Objective", "StepContext", "build_method", "building", "check_name",
]  # fmt: skip


def plain(method: type[Method]) -> type[Method]:
    """The same method without a concentration."""
    return type(method.__name__, (method,), {"probabilistic": False, "__doc__": method.__doc__})


METHODS: Registry[type[Method]] = Registry(
    simclr=plain(SimCLR),
    simclr_vmf=SimCLR,
    simsiam=plain(SimSiam),
    simsiam_vmf=SimSiam,
    byol=plain(BYOL),
    byol_vmf=BYOL,
    swav=plain(SwAV),
    swav_vmf=SwAV,
    mc_infonce=MCInfoNCE,
    vi_simsiam=VISimSiam,
    supervised=Supervised,
    fit_kappa="tfvmf.posthoc.method:FitKappa",
)


def check_name(name: str) -> None:
    """Raises UserError, with the known methods, unless `name` is one of them."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"--method={name} is unknown: {hint}use one of {', '.join(sorted(METHODS))}"
        )


def build_method(config: ml_collections.ConfigDict, *, num_classes: int = 0) -> Method:
    """Builds the method of `config.method`, with its models."""
    check_name(config.method)
    return METHODS[config.method](config, num_classes=num_classes)


@contextlib.contextmanager
def building(*, seed: int, precision: str = "float32") -> Iterator[None]:
    """Seeds the weights and sets the precision of models built inside, and restores both after."""
    import keras

    states, policy = (random.getstate(), np.random.get_state()), keras.config.dtype_policy()
    random.seed(seed)  # used by Keras's initializers
    np.random.seed(seed)
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        np.random.set_state(states[1])
        random.setstate(states[0])
