"""Choosing, searching and exploring images by kappa, familiarity and direction."""

from tfvmf.selection.strategies import diverse, duplicate_groups, nearest

__all__ = ["diverse", "duplicate_groups", "nearest"]
