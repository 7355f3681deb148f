"""From a run's configuration to its encoder, the same for every method."""

import math

import keras
import ml_collections

from tfvmf import models


def encoder_from_config(
    config: ml_collections.ConfigDict,
    *,
    concentration: bool,
    direction_head: bool = True,
    hidden_layers: int = 1,
    output_norm: bool = False,
) -> keras.Model:
    """Builds the encoder that a run's configuration describes.

    Args:
        config: The run's configuration.
        concentration: Whether the method learns a concentration.
        direction_head: False: the direction is that of the features.
        hidden_layers: Of the direction head.
        output_norm: Of the direction head.
    """
    model = config.model
    return models.build_encoder(
        backbone=model.backbone,
        width=model.width,
        dimension=model.dimension if direction_head else None,
        stem=model.stem,
        hidden=model.hidden,
        hidden_layers=hidden_layers,
        output_norm=output_norm,
        dropout=model.dropout,
        concentration=concentration,
        initial_concentration=initial_concentration(config),
    )


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
