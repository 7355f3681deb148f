"""Encoders: backbones, heads, and both together."""

from tfvmf.models.batch_norm import BatchNorm
from tfvmf.models.dropout import Dropout, dropout_masks, has_dropout
from tfvmf.models.encoder import (
    OUTPUTS,
    build_encoder,
    frozen_outputs,
    with_projection,
    without_concentration,
)
from tfvmf.models.heads import (
    Levels,
    Prototypes,
    build_concentration_head,
    build_direction_head,
    build_predictor,
)
from tfvmf.models.resnet import ARCHITECTURES, build_backbone

__all__ = [
    "ARCHITECTURES",
    "OUTPUTS",
    "BatchNorm",
    "Dropout",
    "Levels",
    "Prototypes",
    "build_backbone",
    "build_concentration_head",
    "build_direction_head",
    "build_encoder",
    "build_predictor",
    "dropout_masks",
    "frozen_outputs",
    "has_dropout",
    "with_projection",
    "without_concentration",
]
