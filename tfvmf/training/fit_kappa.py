"""A concentration head for an encoder that stays as it is: minutes instead of a training."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import ml_collections

from tfvmf.errors import UserError
from tfvmf.methods import Method, build_method
from tfvmf.methods.encoders import is_foreign, takes_features
from tfvmf.methods.fit_kappa import FitKappa
from tfvmf.training import cached_views, frozen, loop
from tfvmf.training.checkpoints import load_method
from tfvmf.training.fit_kappa_config import config_of
from tfvmf.training.inputs import Inputs, image_inputs
from tfvmf.training.strategies import is_chief


def fit_kappa(
    encoder: str | pathlib.Path,
    workdir: str | pathlib.Path,
    *,
    config: ml_collections.ConfigDict | None = None,
    changes: dict[str, Any] | None = None,
    logical_devices: int = 0,
) -> dict[str, float]:
    """Trains a new concentration head; the directions stay what they are, bit by bit.

    The result is a run directory like any other: it is evaluated, exported and resumed as such.
    (From cached features comes a head without an encoder: it is exported, and no suite measures
    it.)

    Args:
        encoder: A run directory, a `.keras` file, the directory of a SavedModel, or cached features
            in an `.npz` file (`load_vectors`).
        workdir: Run directory of the result.
        config: Data, views and optimization where the encoder is not a run: those of
            `default_config` by default.
        changes: Dotted settings in which the result differs from the encoder's run or from
            `config`, and from what is best for a head (`config_of`): 2 epochs of Adam, wide views,
            all levels of a run. Those of a foreign model are `fit_kappa.feature_layer`,
            `.input_range` and `.level_layers` (`models.build_foreign_encoder`).
        logical_devices: See `strategies.make_strategy`.

    Returns:
        The last measured values, as `train` does.
    """
    encoder, workdir = pathlib.Path(encoder), pathlib.Path(workdir)
    if encoder.resolve() == workdir.resolve():
        raise UserError(f"--workdir={workdir} is the encoder's own: choose another")
    settings = config_of(encoder, changes or {}, config)

    def initialize(method: Method) -> None:
        if is_foreign(settings):
            if is_chief(settings.strategy):
                frozen.keep(settings, workdir)
            return
        _, trained, _ = load_method(encoder)
        for layer in method.encoder.layers:
            if layer.name != "concentration_head" and layer.weights:
                layer.set_weights(trained.encoder.get_layer(layer.name).get_weights())

    return loop.train_run(
        settings,
        workdir,
        logical_devices=logical_devices,
        initialize=initialize,
        make_inputs=_inputs(settings),
    )


def _inputs(config: ml_collections.ConfigDict) -> Callable[[ml_collections.ConfigDict], Inputs]:
    """What the head is trained on: images, views of them that are embedded once, or features."""
    if takes_features(config):
        return cached_views.feature_inputs
    if not config.fit_kappa.cache_views:
        return image_inputs
    method = build_method(config)
    assert isinstance(method, FitKappa)
    return functools.partial(cached_views.view_inputs, length=method.packed)
