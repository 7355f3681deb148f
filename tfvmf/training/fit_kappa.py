"""A concentration head for the frozen encoder of a run: minutes instead of a training."""

import pathlib
from typing import Any

import ml_collections

from tfvmf.config import validate
from tfvmf.errors import UserError
from tfvmf.methods import Method
from tfvmf.methods.encoders import base_method
from tfvmf.training import loop, run_directory
from tfvmf.training.checkpoints import load_method


def fit_kappa(
    encoder: str | pathlib.Path,
    workdir: str | pathlib.Path,
    *,
    changes: dict[str, Any] | None = None,
    logical_devices: int = 0,
) -> dict[str, float]:
    """Trains a new concentration head; the directions stay what they are, bit by bit.

    The result is a run directory like any other: it is evaluated, exported and resumed as such.

    Args:
        encoder: Run directory of the encoder.
        workdir: Run directory of the result.
        changes: Dotted settings in which it differs from the encoder's run (`config_of`).
        logical_devices: See `strategies.make_strategy`.

    Returns:
        The last measured values, as `train` does.
    """
    encoder, workdir = pathlib.Path(encoder), pathlib.Path(workdir)
    if encoder.resolve() == workdir.resolve():
        raise UserError(f"--workdir={workdir} is the encoder's own: choose another")
    config = config_of(encoder, changes or {})

    def initialise(method: Method) -> None:
        _, trained, _ = load_method(encoder)
        for layer in method.encoder.layers:
            if layer.name != "concentration_head" and layer.weights:
                layer.set_weights(trained.encoder.get_layer(layer.name).get_weights())

    return loop.train_run(config, workdir, logical_devices=logical_devices, initialise=initialise)


def config_of(encoder: pathlib.Path, changes: dict[str, Any]) -> ml_collections.ConfigDict:
    """The encoder's settings with those of the head: 2 epochs of Adam by default."""
    config, _ = run_directory.read(encoder)
    if config.ensemble.members > 1:
        raise UserError(
            f"--encoder={encoder} is an ensemble: name one of its members, "
            f"{run_directory.member(encoder, 0)}"
        )
    config.fit_kappa.method = base_method(config)
    config.fit_kappa.encoder = str(encoder)
    config.method = "fit_kappa"
    config.name = f"{config.name}-kappa"
    config.epochs = 2
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_epochs = 0.1
    config.update_from_flattened_dict(changes)
    validate(config)
    return config
