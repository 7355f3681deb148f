"""Losses as functions of tensors and as Keras losses, independent of models, data and replicas."""

from tfvmf.losses.functions import (
    concentration_terms,
    copies,
    cosine,
    mc_infonce,
    negative_cosine,
    nt_xent,
    sinkhorn,
    squared_distance,
    swapped_prediction,
)
from tfvmf.losses.keras_losses import MCInfoNCE, NTXent, VMFAlignment

__all__ = [
    "MCInfoNCE", "NTXent", "VMFAlignment", "concentration_terms", "copies", "cosine", "mc_infonce",
    "negative_cosine", "nt_xent", "sinkhorn", "squared_distance", "swapped_prediction",
]  # fmt: skip
