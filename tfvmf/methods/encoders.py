"""From a run's configuration to its encoder, the same for every method."""

import keras
import ml_collections

from tfvmf import models


def encoder_from_config(
    config: ml_collections.ConfigDict, *, concentration: bool, direction_head: bool = True
) -> keras.Model:
    """Builds the encoder that `config.model` describes.

    Args:
        config: The section `model` of a run's configuration.
        concentration: Whether the method learns a concentration.
        direction_head: False: the direction is that of the features.
    """
    return models.build_encoder(
        backbone=config.backbone,
        width=config.width,
        dimension=config.dimension if direction_head else None,
        stem=config.stem,
        hidden=config.hidden,
        concentration=concentration,
    )
