"""The settings of a head that is fitted to an encoder, and all that can be wrong with them."""

import pathlib
from typing import Any

import ml_collections
import numpy as np

from tfvmf import files, inference
from tfvmf.config import default_config, validate
from tfvmf.data.vectors import vectors_there
from tfvmf.errors import UserError
from tfvmf.methods import build_method
from tfvmf.methods.encoders import base_method, is_foreign, takes_features
from tfvmf.training import frozen, run_directory

_EPOCHS = 2
_CACHED_EPOCHS = 8  # which need no forward passes of the encoder; docs/kappa.md
_OF_MODELS = ("feature_layer", "input_range", "level_layers")  # flags, and settings of fit_kappa


def config_of(
    encoder: pathlib.Path,
    changes: dict[str, Any],
    config: ml_collections.ConfigDict | None = None,
) -> ml_collections.ConfigDict:
    """The settings of the result: those of the encoder's run, or `config`, with the head's.

    Every problem with the encoder shows here.

    Args:
        encoder: See `fit_kappa`.
        changes: Dotted settings that are asked for.
        config: Data and views where the encoder is not a run.
    """
    kind = frozen.kind_of(encoder)
    if kind == "run":
        settings = _run_config(encoder)
    else:
        settings = ml_collections.ConfigDict((config or default_config()).to_dict())
        settings.name = encoder.stem
        settings.fit_kappa.kind = kind
        settings.fit_kappa.model = str(encoder)
    cached = kind == "features" or changes.get("fit_kappa.cache_views", 0)
    settings.method = "fit_kappa"
    settings.name = f"{settings.name}-kappa"
    settings.ensemble.num_members = 1
    settings.epochs = _CACHED_EPOCHS if cached else _EPOCHS
    settings.optimizer.name = "adam"
    settings.optimizer.learning_rate = 1e-3
    settings.optimizer.warmup_epochs = 0.1
    settings.fit_kappa.cache_views = 0
    settings.concentration.levels = "all"  # what can be seen depends on the encoder, see below
    settings.concentration.view_kind = "wide"
    settings.update_from_flattened_dict(changes)
    validate(settings)
    if settings.fit_kappa.cache_views == 1:
        raise UserError("--cache_views=1: at least 2 views of an image are compared; 0 for none")
    if kind == "features":
        _complete_features(settings, changes)
    elif is_foreign(settings):
        _complete_model(settings, changes)
    else:
        _refuse(settings, _OF_MODELS, f"{encoder} is a run, which knows its own")
    return settings


def _run_config(encoder: pathlib.Path) -> ml_collections.ConfigDict:
    """The settings of a run, whose encoder is to be frozen."""
    config, _ = run_directory.read(encoder)
    if config.ensemble.num_members > 1:
        raise UserError(
            f"--encoder={encoder} is an ensemble: name one of its members, "
            f"{run_directory.member(encoder, 0)}"
        )
    if is_foreign(config):  # a head was fitted before: its encoder gets another
        if takes_features(config):
            raise UserError(f"--encoder={encoder} has no encoder: it was fitted to features")
        frozen.locate(config, encoder)
        return config
    config.fit_kappa.method = base_method(config)
    config.fit_kappa.model = str(encoder)
    return config


def _complete_model(settings: ml_collections.ConfigDict, changes: dict[str, Any]) -> None:
    """Adds what a model from elsewhere tells of itself; one that cannot be used is refused."""
    layers = ",".join(name.strip() for name in settings.fit_kappa.level_layers.split(",") if name)
    if changes.get("concentration.levels") == "all" and not layers:
        raise UserError(
            "--levels=all: name the layers whose maps the head is to see, --level_layers=a,b,c"
        )
    if changes.get("concentration.levels") == "last":
        layers = ""
    settings.fit_kappa.level_layers = layers
    settings.concentration.levels = "all" if layers else "last"
    path, size = pathlib.Path(settings.fit_kappa.model), settings.data.image_size
    encoder = build_method(settings).encoder
    noise = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), dtype=np.uint8)
    try:
        outputs = inference.Embedder(encoder)(noise)
    except Exception as error:  # whatever the operations of an unknown graph raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--encoder={path} fails on images of {size}x{size} ({reason}): try another "
            "--config.data.image_size"
        ) from error
    if not all(np.isfinite(value).all() for value in outputs.values()):
        raise UserError(f"--encoder={path} gives features that are not finite (--input_range?)")
    settings.model.dimension = outputs["mean_direction"].shape[1]
    settings.fit_kappa.fingerprint = files.fingerprint(path)


def _complete_features(settings: ml_collections.ConfigDict, changes: dict[str, Any]) -> None:
    """Adds what cached features tell of themselves."""
    path = pathlib.Path(settings.fit_kappa.model)
    where = f"{path} holds features already"
    _refuse(settings, (*_OF_MODELS, "cache_views"), where)
    if changes.get("concentration.levels") == "all":
        raise UserError(f"--levels=all: {where}, and the head sees nothing else")
    length, wide = vectors_there(path)
    if changes.get("concentration.view_kind") == "wide" and not wide:
        raise UserError(f"--views=wide: {path} has no array 'wide', features of damaged views")
    settings.concentration.levels = "last"
    if "concentration.view_kind" not in changes:
        settings.concentration.view_kind = "wide" if wide else "augment"
    settings.model.dimension = length
    settings.data.source = str(path)
    settings.fit_kappa.fingerprint = files.fingerprint(path)


def _refuse(settings: ml_collections.ConfigDict, names: tuple[str, ...], reason: str) -> None:
    """Refuses settings that would have no effect."""
    for name in names:
        if settings.fit_kappa[name]:
            raise UserError(f"--{name}={settings.fit_kappa[name]}: {reason}")
