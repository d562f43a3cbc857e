"""The ways in which sources give blocks as typed rows, by name, and rows as Arrow batches.

Source: docs/analytics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from sluice.publishers.limits import ARROW_BATCH_BYTES, ARROW_BATCH_HASHES
from sluice.publishers.rows.block_rows import HASHES, HEADERS, ITEM_ROWS
from sluice.publishers.rows.state_changes import STATE_CHANGES
from sluice.publishers.rows.table import Decode, Table
from sluice.publishers.rows.transactions import RECORDS, TRANSACTIONS

__all__ = ["DECODES", "table_batches"]

DECODES: Final[Mapping[str, Decode]] = {
    "hashes": HASHES,
    "headers": HEADERS,
    "items": ITEM_ROWS,
    "transactions": TRANSACTIONS,
    "state_changes": STATE_CHANGES,
    "records": RECORDS,
}


def table_batches(
    tables: Iterable[tuple[Table, int]],
    columns: Mapping[str, pa.DataType],
    rows_max: int = ARROW_BATCH_HASHES,
    bytes_max: int = ARROW_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of blocks as batches, bounded in rows and bytes.

    Args:
        tables: of each block its table, and about how many bytes that has.
        columns: names and Arrow types, in order; a table that lacks one has nulls in it.
    """
    schema = pa.schema(list(columns.items()))
    gathered: list[list[Any]] = [[] for _ in columns]
    count = size_bytes = 0
    for table, bytes_added in tables:
        added = len(next(iter(table.values())))
        for values, name in zip(gathered, columns, strict=True):
            values += table.get(name) or [None] * added
        count += added
        size_bytes += bytes_added
        if count >= rows_max or size_bytes >= bytes_max:
            yield from _batches(gathered, schema, _rows_each(count, size_bytes, rows_max, bytes_max))
            gathered = [[] for _ in columns]
            count = size_bytes = 0
    if count:
        yield from _batches(gathered, schema, _rows_each(count, size_bytes, rows_max, bytes_max))


def _rows_each(count: int, size_bytes: int, rows_max: int, bytes_max: int) -> int:
    """Return the rows of a batch, if one block alone has more than a batch may have."""
    if size_bytes <= 2 * bytes_max:
        return rows_max
    return min(rows_max, max(1, count * bytes_max // size_bytes))


def _batches(gathered: list[list[Any]], schema: pa.Schema, rows_each: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(gathered[0]), rows_each):
        arrays = [
            pa.array(values[start : start + rows_each] if len(values) > rows_each else values, field.type)
            for values, field in zip(gathered, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
