"""Fits a concentration head to a frozen encoder, in minutes instead of a full training."""

import functools
import itertools
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from tfvmf import files
from tfvmf.config import validate
from tfvmf.configs import photos
from tfvmf.errors import UserError
from tfvmf.methods import METHODS, Method
from tfvmf.methods.base import ViewKind
from tfvmf.models import backbones
from tfvmf.posthoc import cached
from tfvmf.posthoc.judge import fit_judge
from tfvmf.posthoc.method import FitKappa
from tfvmf.settings import PREFIXES
from tfvmf.training import loop, run_directory
from tfvmf.training.checkpoints import load_method
from tfvmf.training.inputs import Inputs, image_inputs, load_sources
from tfvmf.training.strategies import split_processor

_CACHED_VIEWS = 2  # ordinary views per image, and as many damaged ones
_STEPS = 400  # minimum number of training steps (docs/kappa.md)
_EPOCHS = 2  # minimum without cached views
# Text that Keras and TensorFlow add around an operation's message.
_NOISE = re.compile(
    r"\x1b\[\d+m|Exception encountered when calling \S+ |Graph execution error: .*unavailable> "
)
_CROP = 0.6  # minimum area of a view
_OF_MODELS = ("feature_layer", "input_range", "level_layers", "weights")  # external models only


def fit_kappa(
    model: str | os.PathLike[str],
    workdir: str | os.PathLike[str],
    *,
    config: ml_collections.ConfigDict | None = None,
    changes: dict[str, Any] | None = None,
    logical_devices: int = 0,
    trust_model: bool = False,
) -> dict[str, float]:
    """Trains a new concentration head; the directions stay bit-for-bit the same.

    The result is an ordinary run directory: it can be evaluated, exported and resumed. (Cached
    features give a head without an encoder, which can be exported but not evaluated.)

    Args:
        model: The frozen model: a run directory, a backbone (`applications:NAME`, `hub:PRESET`,
            a `.keras` file), the directory of a SavedModel, or cached features in an `.npz` file
            (`cached.load_features`).
        workdir: Run directory of the result.
        config: Data, views and optimization if the model is not a run; by default those of
            `configs/photos.py`, with images of 224x224 if the model takes any size.
        changes: Dotted settings that replace those of the model's run or of `config`, and the
            defaults for a head (`fit_config`): wide views, all levels, two ordinary and two
            damaged views, embedded once, and 400 steps of Adam. An external model gets images of
            its own size; its further settings are `model.feature_layer`, `.input_range`,
            `.level_layers` and `.weights` (`models.load_backbone`).
        logical_devices: See `strategies.make_strategy`.
        trust_model: See `tfvmf.load`.

    Returns:
        The last measured values, like `train`.
    """
    workdir = pathlib.Path(workdir).expanduser()
    if pathlib.Path(model).expanduser().resolve() == workdir.resolve():
        raise UserError(f"workdir={workdir} is the model's own: choose another")
    changes = changes or {}
    if logical_devices:
        split_processor(logical_devices)  # impossible after loading a model to inspect it
    settings = fit_config(model, changes, config)
    settings.fit_kappa.trust_model = trust_model

    def initialize(method: Method) -> None:
        if settings.fit_kappa.kind == "run":
            _, trained, _ = load_method(settings.fit_kappa.model)
            for layer in method.encoder.layers:
                if layer.name != "concentration_head" and layer.weights:
                    layer.set_weights(trained.encoder.get_layer(layer.name).get_weights())

    free = (f"{workdir}-{number}" for number in itertools.count(2))
    latest = loop.train(
        settings,
        workdir,
        logical_devices=logical_devices,
        initialize=initialize,
        make_inputs=functools.partial(make_inputs, chosen=changes),
        advice=f", such as {next(name for name in free if not os.path.exists(name))}",
    )
    fit_judge(workdir, trust_model=trust_model)
    return latest


def make_inputs(config: ml_collections.ConfigDict, chosen: Mapping[str, Any]) -> Inputs:
    """The training data of the head: images, views that are embedded once, or features.

    Sets the batch size, epochs for enough steps, and the intervals for saving and measuring, unless
    these settings are in `chosen`.
    """
    if config.fit_kappa.kind == "features":
        inputs = cached.feature_inputs(config)
    elif config.fit_kappa.cache_views:
        inputs = cached.view_inputs(config)
    else:
        sources = load_sources(config)
        inputs = image_inputs(config, sources)
        usual = inputs.views

        def views(method: Method) -> list[ViewKind]:
            assert isinstance(method, FitKappa)
            method.native_size = sources[0].native_size
            return usual(method)

        inputs = inputs._replace(views=views)
    _choose_length(config, inputs.size, chosen)
    if config.fit_kappa.kind in ("run", "features"):
        return inputs

    def check(method: Method) -> None:
        inputs.check(method)
        check_outputs(method)

    return inputs._replace(check=check)


def _choose_length(config: ml_collections.ConfigDict, size: int, chosen: Mapping[str, Any]) -> None:
    cached_views = config.fit_kappa.kind == "features" or config.fit_kappa.cache_views
    if "batch_size" not in chosen:
        config.batch_size = min(config.batch_size, max(size, 2))
    if "epochs" not in chosen:
        steps = max(1, size // config.batch_size)
        wanted = math.ceil(_STEPS / steps)
        config.epochs = max(wanted, 1 if cached_views else _EPOCHS)
    for key, parts in (("monitor.every_epochs", 1), ("checkpoint.every_epochs", 4)):
        if key not in chosen:
            config.update_from_flattened_dict({key: max(1.0, config.epochs / parts)})


def check_outputs(method: Method) -> None:
    """Raises UserError if an external model fails on images, or has outputs that are not finite."""
    path, size = method.config.fit_kappa.model, method.config.data.image_size
    noise = np.random.default_rng(0).uniform(size=(2, size, size, 3)).astype(np.float32)
    try:
        outputs = method.encoder(noise, training=False)
    except Exception as error:  # an unknown graph can raise anything
        reason = _NOISE.sub("", " ".join(str(error).split()))[:200]
        raise UserError(
            f"{path} fails on images of {size}x{size} ({reason}): try another "
            "--config.data.image_size"
        ) from error
    if not all(np.isfinite(value).all() for value in outputs.values()):
        raise UserError(
            f"{path} gives features that are not finite: does it expect another input_range?"
        )
    features = outputs["features"].numpy()
    if (features >= 0).all() and np.allclose(features.sum(axis=1), 1.0, atol=1e-3):
        raise UserError(
            f"{path}: its features sum to 1, like class probabilities: name the layer before "
            "the classifier with feature_layer=NAME, or save the model without it"
        )


# ---- Settings. TensorFlow does not run anything here: devices are set up later.


def fit_config(
    model: str | os.PathLike[str],
    changes: dict[str, Any],
    config: ml_collections.ConfigDict | None = None,
) -> ml_collections.ConfigDict:
    """The settings of the result: the run's or `config`, then the head's, then `changes`."""
    kind, model = kind_of(model)
    if kind == "run":
        settings = _run_config(pathlib.Path(model))
    else:
        settings = ml_collections.ConfigDict((config or photos.get_config()).to_dict())
        settings.name = pathlib.Path(model).stem
        settings.fit_kappa.kind = kind
        settings.fit_kappa.model = model
    settings.method = "fit_kappa"
    settings.name = f"{settings.name}-kappa"
    settings.ensemble.num_members = 1
    settings.minutes = 0.0
    settings.optimizer.name = "adam"
    settings.optimizer.learning_rate = 1e-3
    settings.optimizer.warmup_epochs = 0.1
    settings.fit_kappa.cache_views = 0 if kind == "features" else _CACHED_VIEWS
    settings.concentration.levels = "all" if settings.fit_kappa.kind == "run" else "last"
    settings.concentration.view_kind = "wide"
    # Small crops disagree for reasons unrelated to damage, which hides its effect (studies/kappa).
    settings.augment.crop_min = max(
        settings.augment.crop_min, min(_CROP, settings.augment.crop_max)
    )
    settings.update_from_flattened_dict(changes)
    settings.data.view_share = 1.0  # kappa is trained on whole images, as it will be used
    validate(settings)
    if settings.fit_kappa.cache_views == 1:
        raise UserError("cache_views=1: at least 2 views of an image are compared; 0 for none")
    if kind == "features":
        _complete_features(settings, changes)
    elif settings.fit_kappa.kind == "run":
        asked = tuple(name for name in _OF_MODELS if f"model.{name}" in changes)
        _refuse(settings.model, asked, f"{model} is a run, which has its own")
    else:
        usual = backbones.USUAL_SIZE if config is None else settings.data.image_size
        if kind != "run" and "data.image_size" not in changes:
            own = backbones.declared_input(model, kind)[0]
            settings.data.image_size = own or usual
        _complete_model(settings, changes)
    return settings


def kind_of(model: str | os.PathLike[str]) -> tuple[str, str]:
    """The kind of a model (`method.KINDS`), by its prefix or its files, and its path."""
    prefix, _, name = os.fspath(model).partition(":")
    path = files.find_model(model)
    if prefix in PREFIXES and name and not path.exists():
        if prefix != "keras":
            return prefix, name
        path = pathlib.Path(name).expanduser()
    if path.is_dir():
        if files.read_text(path / "config.json") is not None:
            return "run", str(path)
        if (path / "saved_model.pb").is_file():
            return "saved_model", str(path)
        versions = sorted(path.parent for path in path.glob("*/saved_model.pb"))
        if versions:
            raise UserError(f"{path} holds SavedModels: name one of them, {versions[-1]}")
        raise UserError(
            f"{path} is neither a run directory (no config.json) nor a SavedModel (no "
            "saved_model.pb)"
        )
    kinds = {".keras": "keras", ".npz": "features"}
    if not path.exists():
        raise UserError(
            f"{path}: there is no such file or directory; expected a run, a SavedModel, cached "
            f"features (.npz), a .keras file, {PREFIXES['applications']} or {PREFIXES['hub']}"
        )
    if path.suffix not in kinds:
        raise UserError(
            f"{path} is a file of an unknown kind: use .keras (model.save) or .npz (cached "
            "features), or the directory of a run or of a SavedModel"
        )
    return kinds[path.suffix], str(path)


def _run_config(model: pathlib.Path) -> ml_collections.ConfigDict:
    """The settings of a run whose encoder will be frozen."""
    config, _ = run_directory.read(model)
    if config.ensemble.num_members > 1:
        raise UserError(
            f"{model} is an ensemble: name one of its members, {run_directory.member(model, 0)}"
        )
    if config.method == "fit_kappa" and config.fit_kappa.kind != "run":
        # The run is itself a fitted head: its encoder gets a new one.
        if config.fit_kappa.kind == "features":
            raise UserError(f"{model} has no encoder: it was fitted to features")
        FitKappa.locate(config, model)
        if config.model.level_layers == "none":  # perhaps only the earlier head did without levels
            config.model.level_layers = ""
        return config
    METHODS[config.method].locate(config, model)
    if config.method != "fit_kappa":  # `fit_kappa` records the method that trained the directions
        config.fit_kappa.method = config.method.removesuffix("_vmf")
    config.fit_kappa.model = str(model)
    return config


def _complete_model(settings: ml_collections.ConfigDict, changes: dict[str, Any]) -> None:
    """Settings of a head for an external model: its inputs, and the model's fingerprint."""
    frozen = settings.fit_kappa
    if changes.get("concentration.levels") == "last":
        settings.model.level_layers = "none"
    path = settings.model.weights if frozen.kind == "applications" else frozen.model
    if os.path.exists(path):
        frozen.fingerprint = files.fingerprint(path)


def _complete_features(settings: ml_collections.ConfigDict, changes: dict[str, Any]) -> None:
    """Settings of a head for cached features: their length, and the kinds of views."""
    path = pathlib.Path(settings.fit_kappa.model)
    where = f"{path} holds features already"
    _refuse(settings.model, _OF_MODELS, where)
    _refuse(settings.fit_kappa, ("cache_views",), where)
    if changes.get("concentration.levels") == "all":
        raise UserError(f"levels=all: {where}, and the head sees nothing else")
    length, wide = cached.inspect_cached_features(path)
    if changes.get("concentration.view_kind") == "wide" and not wide:
        raise UserError(f"view_kind=wide: {path} has no array 'wide', features of damaged views")
    settings.concentration.levels = "last"
    if "concentration.view_kind" not in changes:
        settings.concentration.view_kind = "wide" if wide else "augment"
    settings.model.dimension = length
    settings.data.source = str(path)
    settings.fit_kappa.fingerprint = files.fingerprint(path)


def _refuse(section: ml_collections.ConfigDict, names: tuple[str, ...], reason: str) -> None:
    """Raises UserError for settings that would have no effect."""
    for name in names:
        if section[name]:
            raise UserError(f"{name}={section[name]}: {reason}")
