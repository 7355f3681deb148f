"""Images to the table of results per image: local, by shard, on Ray; its readers and writers.

Tables are read without TensorFlow, so the rest loads when first used.
"""

from typing import TYPE_CHECKING, Any

from tfvmf.embedding.table import (
    COLUMNS,
    Table,
    check_directory,
    check_output,
    parse_shard,
    read_table,
)

if TYPE_CHECKING:
    from tfvmf.embedding.local import Embedded, embed
    from tfvmf.embedding.shards import embed_shard

__all__ = [
    "COLUMNS",
    "Embedded",
    "Table",
    "check_directory",
    "check_output",
    "embed",
    "embed_shard",
    "parse_shard",
    "read_table",
]


def __getattr__(name: str) -> Any:
    if name in ("Embedded", "embed"):
        from tfvmf.embedding import local

        return getattr(local, name)
    if name == "embed_shard":
        from tfvmf.embedding import shards

        return shards.embed_shard
    raise AttributeError(f"module 'tfvmf.embedding' has no attribute {name!r}")
