"""From a run's configuration to its encoder, the same for every method."""

import math
import pathlib

import keras
import ml_collections

from tfvmf import models


def encoder_from_config(config: ml_collections.ConfigDict, *, concentration: bool) -> keras.Model:
    """Builds the encoder that a run's configuration describes.

    Args:
        config: The run's configuration.
        concentration: Whether it has a concentration head.
    """
    model, method = config.model, base_method(config)
    return models.build_encoder(
        backbone=model.backbone,
        width=model.width,
        # Trained with labels, the features themselves are what is compared.
        dimension=None if method == "supervised" else model.dimension,
        stem=model.stem,
        hidden=model.hidden,
        hidden_layers=2 if method == "simsiam" else 1,
        output_norm=method == "simsiam" or (method == "byol" and config.byol.output_norm),
        dropout=model.dropout,
        concentration=concentration,
        initial_concentration=initial_concentration(config),
        concentration_levels=config.concentration.levels,
    )


def is_foreign(config: ml_collections.ConfigDict) -> bool:
    """Whether the encoder was trained elsewhere, and only its head is ours."""
    return config.method == "fit_kappa" and config.fit_kappa.kind != "run"


def takes_features(config: ml_collections.ConfigDict) -> bool:
    """Whether it is a head without an encoder: features in instead of images."""
    return is_foreign(config) and config.fit_kappa.kind == "features"


def encoder_words(config: ml_collections.ConfigDict) -> str:
    """What the encoder is, for people."""
    if is_foreign(config):
        name = pathlib.Path(config.fit_kappa.model).name
        return f"{name} with a head of width {config.model.hidden}"
    return f"{config.model.backbone} of width {config.model.width}"


def base_method(config: ml_collections.ConfigDict) -> str:
    """The method that trained, or trains, the directions: without `_vmf`."""
    name = config.fit_kappa.method if config.method == "fit_kappa" else config.method
    return name.removesuffix("_vmf")


def initial_concentration(config: ml_collections.ConfigDict) -> float:
    """The kappa of an untrained head.

    The paper's l2 penalty puts kappa between 0 and 5: softplus(0) is a good start. The exact
    penalty and MC-InfoNCE live on the scale of the dimension: samples of kappa = softplus(0) are
    all but uniform at d = 128 and teach nothing. At kappa = d a sample has E[mu.x] = 0.62 in any
    high dimension.
    """
    if config.concentration.initial:
        return config.concentration.initial
    implicit = config.method == "mc_infonce"
    if implicit or config.concentration.regularizer == "vmf":
        return float(config.model.dimension)
    return math.log(2.0)
