"""Embeds images into tables with one row per image: locally, in shards or on Ray; reads them."""

from typing import TYPE_CHECKING, Any

from tfvmf.embedding.table import COLUMNS, ENGINES, Table, check_output, read_table

if TYPE_CHECKING:
    from tfvmf.embedding.local import Embedded, embed

__all__ = ["COLUMNS", "ENGINES", "Embedded", "Table", "check_output", "embed", "read_table"]


def __getattr__(name: str) -> Any:  # reading tables does not need TensorFlow
    if name in ("Embedded", "embed"):
        from tfvmf.embedding import local

        return getattr(local, name)
    raise AttributeError(f"module 'tfvmf.embedding' has no attribute {name!r}")
