"""Losses: pure functions of tensors that know nothing of models, data or replicas."""

from tfvmf.losses.concentration import alignment, cosine, l2_penalty, vmf_penalty
from tfvmf.losses.contrastive import nt_xent
from tfvmf.losses.mc_infonce import mc_infonce

__all__ = ["alignment", "cosine", "l2_penalty", "mc_infonce", "nt_xent", "vmf_penalty"]
