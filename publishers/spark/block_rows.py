"""Rows and blocks out of Arrow batches; what a row of a block may not be is said here, once.

A row has a number from 0 on, and items, none of which is null. Rows that were made from blocks (hashes,
links) have no column of items. `root_row` is the row of a block that was hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from gateway.blocks.block import Block
from gateway.blocks.root_hash import BlockSummary
from publishers.errors import BadBlock, FrameError, PublisherError
from publishers.spark.schema import ALL_BLOCKS, BLOCK_NUMBER, ITEMS, LAYOUT, PREVIOUS, ROOT

__all__ = ["blocks_in", "root_row", "rows_in"]

Refuse = Callable[[int | None, str], PublisherError]
"""Makes the error for a row: its block number, None where it has none, and what is wrong."""


def rows_in(batches: Iterable[pa.RecordBatch], refuse: Refuse) -> Iterator[dict[str, Any]]:
    """Give the rows of batches, values by column.

    Args:
        batches: with a column of block numbers; where there is one of items, too, it is checked.
        refuse: makes what is raised.

    Raises:
        PublisherError: what `refuse` made: a number or items are null, or a number is below 0.
    """
    for batch in batches:
        names = batch.schema.names
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            number = row[BLOCK_NUMBER]
            if number is None:
                raise refuse(None, "a row has no block_number (null)")
            if number < 0:
                raise refuse(number, "numbers begin with 0")
            if ITEMS in row:
                items = row[ITEMS]
                if items is None:
                    raise refuse(number, "the row has no items (null)")
                if None in items:
                    raise refuse(number, f"item {items.index(None)} is null")
            yield row


def blocks_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    """Give the blocks of batches, row by row; other columns are not looked at.

    Raises:
        FrameError: a row without a block number.
        BadBlock: a row whose number is below 0, that has no items, or one that is null.
    """
    for row in rows_in((batch.select([BLOCK_NUMBER, ITEMS]) for batch in batches), _refusal):
        yield Block(row[BLOCK_NUMBER], tuple(row[ITEMS]))


def _refusal(number: int | None, reason: str) -> PublisherError:
    return FrameError(reason, "every row is a block") if number is None else BadBlock(number, reason)


def root_row(summary: BlockSummary) -> dict[str, Any]:
    """Give the row of a hashed block: values by column, `ROOT_COLUMNS`."""
    return {
        BLOCK_NUMBER: summary.number,
        ROOT: summary.root_hash,
        LAYOUT: summary.root_layout,
        PREVIOUS: summary.previous_root_hash,
        ALL_BLOCKS: summary.all_blocks_root_hash,
    }
