"""A concentration head for an encoder that stays as it is: minutes instead of a training."""

import os
import pathlib
import re
from typing import Any

import ml_collections
import numpy as np

from tfvmf import files
from tfvmf.config import default_config, validate
from tfvmf.errors import UserError
from tfvmf.methods import Method
from tfvmf.posthoc import cached
from tfvmf.posthoc.method import FitKappa, copy_into_run
from tfvmf.training import loop, run_directory
from tfvmf.training.checkpoints import load_method
from tfvmf.training.inputs import Inputs, image_inputs
from tfvmf.training.strategies import is_chief

_EPOCHS = 2
_CACHED_EPOCHS = 8  # which need no forward passes of the encoder; docs/kappa.md
# What Keras and TensorFlow put around the message of an operation.
_NOISE = re.compile(
    r"\x1b\[\d+m|Exception encountered when calling \S+ |Graph execution error: .*unavailable> "
)
_OF_MODELS = ("feature_layer", "input_range", "level_layers")  # settings of foreign models


def fit_kappa(
    model: str | os.PathLike[str],
    workdir: str | os.PathLike[str],
    *,
    config: ml_collections.ConfigDict | None = None,
    changes: dict[str, Any] | None = None,
    logical_devices: int = 0,
    trust_model: bool = False,
) -> dict[str, float]:
    """Trains a new concentration head; the directions stay bit-for-bit what they are.

    The result is a run directory like any other: it is evaluated, exported and resumed as such.
    (Cached features give a head without an encoder: it is exported, and no suite measures it.)

    Args:
        model: What is frozen: a run directory, a `.keras` file, the directory of a SavedModel, or
            cached features in an `.npz` file (`cached.load_features`).
        workdir: Run directory of the result.
        config: Data, views and optimization where the model is not a run; those of
            `default_config` by default.
        changes: Dotted settings in which the result differs from the model's run or from
            `config`, and from what is best for a head (`fit_config`): 2 epochs of Adam, wide views,
            all levels of a run. Those of a model from elsewhere are `fit_kappa.feature_layer`,
            `.input_range` and `.level_layers` (`foreign.load_frozen`).
        logical_devices: See `strategies.make_strategy`.
        trust_model: See `tfvmf.load`.

    Returns:
        The last measured values, as `train` does.
    """
    model = pathlib.Path(model).expanduser()
    workdir = pathlib.Path(workdir).expanduser()
    if model.resolve() == workdir.resolve():
        raise UserError(f"workdir={workdir} is the encoder's own: choose another")
    settings = fit_config(model, changes or {}, config)
    settings.fit_kappa.trust_model = trust_model

    def initialize(method: Method) -> None:
        if settings.fit_kappa.kind != "run":
            if is_chief(settings.strategy):
                copy_into_run(settings, workdir)
            return
        _, trained, _ = load_method(model)
        for layer in method.encoder.layers:
            if layer.name != "concentration_head" and layer.weights:
                layer.set_weights(trained.encoder.get_layer(layer.name).get_weights())

    return loop.train_run(
        settings,
        workdir,
        logical_devices=logical_devices,
        initialize=initialize,
        make_inputs=make_inputs,
    )


def make_inputs(config: ml_collections.ConfigDict) -> Inputs:
    """What the head is trained on: images, views of them that are embedded once, or features."""
    if config.fit_kappa.kind == "features":
        return cached.feature_inputs(config)
    inputs = cached.view_inputs(config) if config.fit_kappa.cache_views else image_inputs(config)
    if config.fit_kappa.kind == "run":
        return inputs

    def check(method: Method) -> None:
        check_outputs(method)
        inputs.check(method)

    return inputs._replace(check=check)


def check_outputs(method: Method) -> None:
    """Refuses a model from elsewhere that fails on images, or has no finite outputs."""
    path, size = method.config.fit_kappa.model, method.config.data.image_size
    noise = np.random.default_rng(0).uniform(size=(2, size, size, 3)).astype(np.float32)
    try:
        outputs = method.encoder(noise, training=False)
    except Exception as error:  # whatever the operations of an unknown graph raise
        reason = _NOISE.sub("", " ".join(str(error).split()))[:200]
        raise UserError(
            f"{path} fails on images of {size}x{size} ({reason}): try another "
            "--config.data.image_size"
        ) from error
    if not all(np.isfinite(value).all() for value in outputs.values()):
        raise UserError(
            f"{path} gives features that are not finite: does it expect another input_range?"
        )


# ---- Settings. TensorFlow runs nothing here: devices are set up later.


def fit_config(
    model: pathlib.Path,
    changes: dict[str, Any],
    config: ml_collections.ConfigDict | None = None,
) -> ml_collections.ConfigDict:
    """The settings of the result: those of the model's run, or `config`, with the head's.

    Args:
        model: See `fit_kappa`.
        changes: Dotted settings that are asked for.
        config: Data and views where the model is not a run.
    """
    kind = kind_of(model)
    if kind == "run":
        settings = _run_config(model)
    else:
        settings = ml_collections.ConfigDict((config or default_config()).to_dict())
        settings.name = model.stem
        settings.fit_kappa.kind = kind
        settings.fit_kappa.model = str(model)
    cached_views = kind == "features" or changes.get("fit_kappa.cache_views", 0)
    settings.method = "fit_kappa"
    settings.name = f"{settings.name}-kappa"
    settings.ensemble.num_members = 1
    settings.minutes = 0.0
    settings.epochs = _CACHED_EPOCHS if cached_views else _EPOCHS
    settings.optimizer.name = "adam"
    settings.optimizer.learning_rate = 1e-3
    settings.optimizer.warmup_epochs = 0.1
    settings.fit_kappa.cache_views = 0
    settings.concentration.levels = "all"  # what can be seen depends on the encoder, see below
    settings.concentration.view_kind = "wide"
    settings.update_from_flattened_dict(changes)
    settings.data.view_share = 1.0  # kappa is asked about whole images: so it is taught
    validate(settings)
    if settings.fit_kappa.cache_views == 1:
        raise UserError("cache_views=1: at least 2 views of an image are compared; 0 for none")
    if kind == "features":
        _complete_features(settings, changes)
    elif settings.fit_kappa.kind == "run":
        _refuse(settings, _OF_MODELS, f"{model} is a run, which knows its own")
    else:
        _complete_model(settings, changes)
    return settings


def kind_of(model: pathlib.Path) -> str:
    """The kind of a model by what is there: `run`, `keras`, `saved_model` or `features`."""
    if model.is_dir():
        if files.read_text(model / "config.json") is not None:
            return "run"
        if (model / "saved_model.pb").is_file():
            return "saved_model"
        versions = sorted(path.parent for path in model.glob("*/saved_model.pb"))
        if versions:
            raise UserError(f"{model} holds SavedModels: name one of them, {versions[-1]}")
        raise UserError(
            f"{model} is neither a run directory (no config.json) nor a SavedModel (no "
            "saved_model.pb)"
        )
    if not model.exists():
        raise UserError(
            f"{model}: there is no such file or directory; expected a run, a .keras file, a "
            "SavedModel or cached features (.npz)"
        )
    kinds = {".keras": "keras", ".npz": "features"}
    if model.suffix not in kinds:
        raise UserError(
            f"{model} is a file of an unknown kind: use .keras (model.save) or .npz (cached "
            "features), or the directory of a run or of a SavedModel"
        )
    return kinds[model.suffix]


def _run_config(model: pathlib.Path) -> ml_collections.ConfigDict:
    """The settings of a run, whose encoder is to be frozen."""
    config, _ = run_directory.read(model)
    if config.ensemble.num_members > 1:
        raise UserError(
            f"{model} is an ensemble: name one of its members, {run_directory.member(model, 0)}"
        )
    if config.method == "fit_kappa" and config.fit_kappa.kind != "run":
        # A head was fitted before: its encoder gets another.
        if config.fit_kappa.kind == "features":
            raise UserError(f"{model} has no encoder: it was fitted to features")
        FitKappa.locate(config, model)
        return config
    if config.method != "fit_kappa":  # which notes what trained the directions
        config.fit_kappa.method = config.method.removesuffix("_vmf")
    config.fit_kappa.model = str(model)
    return config


def _complete_model(settings: ml_collections.ConfigDict, changes: dict[str, Any]) -> None:
    """Settings of a head for a model from elsewhere: what it sees."""
    layers = ",".join(name.strip() for name in settings.fit_kappa.level_layers.split(",") if name)
    if changes.get("concentration.levels") == "all" and not layers:
        raise UserError(
            "levels=all: name the layers whose maps the head is to see, level_layers=a,b,c"
        )
    if changes.get("concentration.levels") == "last":
        layers = ""
    settings.fit_kappa.level_layers = layers
    settings.concentration.levels = "all" if layers else "last"
    settings.fit_kappa.fingerprint = files.fingerprint(pathlib.Path(settings.fit_kappa.model))


def _complete_features(settings: ml_collections.ConfigDict, changes: dict[str, Any]) -> None:
    """Settings of a head for cached features: their length, and which views there are."""
    path = pathlib.Path(settings.fit_kappa.model)
    where = f"{path} holds features already"
    _refuse(settings, (*_OF_MODELS, "cache_views"), where)
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


def _refuse(settings: ml_collections.ConfigDict, names: tuple[str, ...], reason: str) -> None:
    """Refuses settings that would have no effect."""
    for name in names:
        if settings.fit_kappa[name]:
            raise UserError(f"{name}={settings.fit_kappa[name]}: {reason}")
