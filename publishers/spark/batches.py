"""Rows as Arrow batches, and Arrow batches as rows and blocks.

A row of a block has a number from 0 on, and items, none of which is null. Rows that were made from blocks
(hashes, links) have no column of items.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.root_hash import BlockSummary
from sluice.publishers import limits
from sluice.publishers.errors import BadBlock, FrameError, PrepareError, PublisherError
from sluice.publishers.rows.decodes import DECODES, table_batches
from sluice.publishers.rows.table import BlockView, Table
from sluice.publishers.spark.schema import (
    ALL_BLOCKS,
    BLOCK_NUMBER,
    ITEMS,
    LAYOUT,
    PREVIOUS,
    ROOT,
    arrow_schema,
)

__all__ = ["blocks_in", "decoded_batches", "root_row", "row_batches", "rows_in"]

_BYTES_FIXED: Final = 8  # of a number, or of a null
_LARGE_BYTES: Final = 1024 * 1024
_LISTS: Final = pa.list_(pa.binary())


def row_batches(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, pa.DataType],
    rows_max: int = limits.ARROW_BATCH_ROWS,
    bytes_max: int = limits.ARROW_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows, bounded in rows and bytes.

    Args:
        rows: values by column; those of other columns are dropped, missing ones are null.
        columns: names and Arrow types, in order; at least one.
        bytes_max: a batch ends once it has reached this size.
    """
    schema = arrow_schema(columns)
    gathered: list[list[Any]] = [[] for _ in columns]
    size_bytes = 0
    for row in rows:
        for values, name in zip(gathered, columns, strict=True):
            value = row.get(name)
            values.append(value)
            size_bytes += _size_of(value)
        if len(gathered[0]) >= rows_max or size_bytes >= bytes_max:
            yield _batch(gathered, schema, size_bytes)
            gathered, size_bytes = [[] for _ in columns], 0
    if gathered[0]:
        yield _batch(gathered, schema, size_bytes)


def _batch(gathered: Sequence[Sequence[Any]], schema: pa.Schema, size_bytes: int) -> pa.RecordBatch:
    is_large = size_bytes >= _LARGE_BYTES
    arrays = [
        _joined(values)
        if is_large and field.type == _LISTS and None not in values
        else pa.array(values, field.type)
        for values, field in zip(gathered, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(values: Sequence[Sequence[bytes]]) -> pa.Array:
    """Return an array of lists with exactly the bytes that it needs.

    `pa.array` doubles its buffer as it grows, which is slow for large batches, but faster for small ones.
    """
    items = list(itertools.chain.from_iterable(values))
    list_ends = array("i", itertools.accumulate(map(len, values), initial=0))
    item_ends = array("i", itertools.accumulate(map(len, items), initial=0))
    buffers = [None, pa.py_buffer(item_ends), pa.py_buffer(b"".join(items))]
    children = [pa.Array.from_buffers(pa.binary(), len(items), buffers)]
    return pa.Array.from_buffers(_LISTS, len(values), [None, pa.py_buffer(list_ends)], children=children)


def _size_of(value: Any) -> int:
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Sequence):
        return sum(map(len, value))
    return _BYTES_FIXED


def decoded_batches(
    blocks: Iterable[tuple[int, Sequence[bytes]]], decode: str, columns: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of what a source gives for a `decode` of blocks.

    Args:
        blocks: number and items of each.

    Raises:
        BadBlock: a block has no such rows: it cannot be hashed, or an item has no kind.
    """
    if decode == "blocks":
        return row_batches(({BLOCK_NUMBER: number, ITEMS: items} for number, items in blocks), columns)
    return table_batches((_table_of(number, items, decode, columns) for number, items in blocks), columns)


def _table_of(
    number: int, items: Sequence[bytes], decode: str, columns: Mapping[str, pa.DataType]
) -> tuple[Table, int]:
    try:
        return DECODES[decode].table(BlockView(number, items), columns), sum(map(len, items))
    except ItemError as error:
        raise BadBlock(number, str(error)) from error
    except PrepareError as error:
        raise BadBlock(number, error.reason) from error


# --- rows and blocks of batches -----------------------------------------------------------------------------

Refuse = Callable[[int | None, str], PublisherError]
"""Makes the error for a row from its block number, if any, and the reason."""


def rows_in(batches: Iterable[pa.RecordBatch], refuse: Refuse) -> Iterator[dict[str, Any]]:
    """Yield the rows of batches, values by column.

    `refuse` makes the error for a number or items that are null, or a number below 0.
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
    """Yield the blocks of batches, row by row.

    Raises:
        FrameError: a row without a block number.
        BadBlock: a number is below 0, or a row has no items, or a null among them.
    """
    for row in rows_in((batch.select([BLOCK_NUMBER, ITEMS]) for batch in batches), _refusal):
        yield Block(row[BLOCK_NUMBER], tuple(row[ITEMS]))


def _refusal(number: int | None, reason: str) -> PublisherError:
    return FrameError(reason, "every row is a block") if number is None else BadBlock(number, reason)


def root_row(summary: BlockSummary) -> dict[str, Any]:
    """Return the row of a hashed block: values by column, `ROOT_COLUMNS`."""
    return {
        BLOCK_NUMBER: summary.number,
        ROOT: summary.root_hash,
        LAYOUT: summary.root_layout,
        PREVIOUS: summary.previous_root_hash,
        ALL_BLOCKS: summary.all_blocks_root_hash,
    }
