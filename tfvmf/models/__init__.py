"""Encoders: backbones, heads, and both together."""

from tfvmf.models.backbones import Backbone, Pixels, adapt, freeze_stages, load_backbone
from tfvmf.models.encoder import (
    OUTPUTS,
    ConstantConcentration,
    Encoder,
    Levels,
    Prototypes,
    build_concentration_head,
    build_direction_head,
    build_encoder,
    build_predictor,
    copy_without_concentration,
    frozen_outputs,
    with_levels,
    with_projection,
    without_concentration,
)
from tfvmf.models.layers import BatchNorm, Convolution, Dropout, dropout_masks, has_dropout
from tfvmf.models.resnet import ARCHITECTURES, build_backbone

__all__ = [
    "ARCHITECTURES", "OUTPUTS", "Backbone", "BatchNorm", "ConstantConcentration", "Convolution",
    "Dropout", "Encoder", "Levels", "Pixels", "Prototypes", "adapt", "build_backbone",
    "build_concentration_head", "build_direction_head", "build_encoder", "build_predictor",
    "copy_without_concentration", "dropout_masks", "freeze_stages", "frozen_outputs", "has_dropout",
    "load_backbone", "with_levels", "with_projection", "without_concentration",
]  # fmt: skip
