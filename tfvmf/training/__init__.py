"""Training: the loop, strategies, optimizers, checkpoints, metrics."""

from tfvmf.training.checkpoints import load_method
from tfvmf.training.contrastive import Contrastive
from tfvmf.training.inputs import augmentation_from_config, draw_views, load_reserve, load_source
from tfvmf.training.loop import Interrupted, load_members, train
from tfvmf.training.metrics import read_metrics
from tfvmf.training.strategies import share_cores

__all__ = [
    "Contrastive", "Interrupted", "augmentation_from_config", "draw_views", "load_members",
    "load_method", "load_reserve", "load_source", "read_metrics", "share_cores", "train",
]  # fmt: skip
