"""A table: what one block has of each column of a `decode`, and the columns' types in Arrow.

Pure. A block is turned into lists, one for each column, all of one length: no object is made for a row.
Source: docs/analytics.md, "Columns".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from sluice.gateway.blocks.items import kinds_of
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.publishers.blocks.linking import summary_of

__all__ = [
    "AMOUNTS",
    "BYTES_LIST",
    "NFT_TRANSFERS",
    "SIZES",
    "TEXTS",
    "TIME",
    "TOKEN_AMOUNTS",
    "BlockView",
    "Decode",
    "Table",
]

Table = dict[str, list[Any]]
"""Column -> the values of one block's rows."""

TIME: Final = pa.timestamp("us", tz="UTC")
"""A TIMESTAMP of Spark. It has microseconds: a column `…_ns` beside it has the whole time."""
TEXTS: Final = pa.list_(pa.string())
BYTES_LIST: Final = pa.list_(pa.binary())
SIZES: Final = pa.map_(pa.string(), pa.int64())
"""By kind of item."""
AMOUNTS: Final = pa.list_(
    pa.struct({"account": pa.string(), "amount": pa.int64(), "is_approval": pa.bool_()})
)
TOKEN_AMOUNTS: Final = pa.list_(
    pa.struct({"token": pa.string(), "account": pa.string(), "amount": pa.int64(), "is_approval": pa.bool_()})
)
NFT_TRANSFERS: Final = pa.list_(
    pa.struct(
        {
            "token": pa.string(),
            "sender": pa.string(),
            "receiver": pa.string(),
            "serial_number": pa.int64(),
            "is_approval": pa.bool_(),
        }
    )
)


class BlockView:
    """A block of which a table is made; what several columns need is found once.

    Args:
        number: of the block.
        items: of the block.
        summary: of the block, if it was hashed before.
    """

    def __init__(self, number: int, items: Sequence[bytes], summary: BlockSummary | None = None) -> None:
        self.number = number
        self.items = items
        if summary is not None:
            self.summary = summary

    @cached_property
    def kinds(self) -> list[int]:
        """The kind of each item. Raises ItemError."""
        return list(kinds_of(self.items))

    @cached_property
    def summary(self) -> BlockSummary:
        """The hashes. Raises PrepareError."""
        return summary_of(self.number, self.items)


@dataclass(frozen=True)
class Decode:
    """A way to make rows of blocks."""

    columns: Mapping[str, pa.DataType]
    """In order, the block's number first."""
    table: Callable[[BlockView, Collection[str]], Table]
    """Takes a block and the wanted columns; returns at least these.

    Raises ItemError or PrepareError for what is no block.
    """
