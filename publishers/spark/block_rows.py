"""Blocks out of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from gateway.block import Block
from publishers.errors import BadBlock, FrameError
from publishers.spark.schema import BLOCK_NUMBER, ITEMS

__all__ = ["blocks_in"]


def blocks_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    """Give the blocks of batches, row by row.

    Raises:
        FrameError: a row without a block number.
        BadBlock: a row without items, or with one that is null.
    """
    for batch in batches:
        numbers = batch.column(BLOCK_NUMBER)
        if numbers.null_count:
            raise FrameError("a row has no block_number", "every row is a block")
        for number, items in zip(numbers.to_pylist(), batch.column(ITEMS).to_pylist(), strict=True):
            if items is None:
                raise BadBlock(number, "the row has no items")
            if None in items:
                raise BadBlock(number, f"item {items.index(None)} is null")
            yield Block(number, tuple(items))
