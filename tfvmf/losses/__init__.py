"""Losses: pure functions of tensors that know nothing of models, data or replicas."""

from tfvmf.losses.concentration import alignment, cosine, l2_penalty
from tfvmf.losses.contrastive import nt_xent

__all__ = ["alignment", "cosine", "l2_penalty", "nt_xent"]
