"""Encoders: backbones, heads, and both together."""

from tfvmf.models.encoder import (
    OUTPUTS,
    ConstantConcentration,
    Levels,
    Prototypes,
    build_concentration_head,
    build_direction_head,
    build_encoder,
    build_predictor,
    copy_without_concentration,
    frozen_outputs,
    with_projection,
    without_concentration,
)
from tfvmf.models.layers import BatchNorm, Dropout, dropout_masks, has_dropout
from tfvmf.models.resnet import ARCHITECTURES, build_backbone

__all__ = [
    "ARCHITECTURES",
    "OUTPUTS",
    "BatchNorm",
    "ConstantConcentration",
    "Dropout",
    "Levels",
    "Prototypes",
    "build_backbone",
    "build_concentration_head",
    "build_direction_head",
    "build_encoder",
    "build_predictor",
    "copy_without_concentration",
    "dropout_masks",
    "frozen_outputs",
    "has_dropout",
    "with_projection",
    "without_concentration",
]
