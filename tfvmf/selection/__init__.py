"""Choosing, searching and exploring images by kappa, familiarity and direction."""

from tfvmf.selection.choose import Selection, check, check_folder, select
from tfvmf.selection.strategies import diverse, duplicate_groups, nearest

__all__ = [
    "Selection",
    "check",
    "check_folder",
    "diverse",
    "duplicate_groups",
    "nearest",
    "select",
]
