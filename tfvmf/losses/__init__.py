"""Losses: functions of tensors and Keras losses that know nothing of models, data or replicas."""

from tfvmf.losses.concentration import (
    alignment,
    concentration_terms,
    cosine,
    l2_penalty,
    predicted_cosine,
    vmf_penalty,
)
from tfvmf.losses.contrastive import copies, nt_xent
from tfvmf.losses.keras_losses import (
    MCInfoNCE,
    NegativeCosine,
    NTXent,
    SquaredDistance,
    SwappedPrediction,
    VMFAlignment,
)
from tfvmf.losses.mc_infonce import mc_infonce
from tfvmf.losses.prediction import (
    negative_cosine,
    sinkhorn,
    squared_distance,
    swapped_prediction,
)

__all__ = [
    "MCInfoNCE",
    "NTXent",
    "NegativeCosine",
    "SquaredDistance",
    "SwappedPrediction",
    "VMFAlignment",
    "alignment",
    "concentration_terms",
    "copies",
    "cosine",
    "l2_penalty",
    "mc_infonce",
    "negative_cosine",
    "nt_xent",
    "predicted_cosine",
    "sinkhorn",
    "squared_distance",
    "swapped_prediction",
    "vmf_penalty",
]
