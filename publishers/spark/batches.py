"""Rows as Arrow batches, bounded in rows and in bytes, with only the columns that are wanted."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from publishers import limits
from publishers.spark.schema import arrow_schema

__all__ = ["Batcher", "row_batches"]

_BYTES_FIXED: Final = 8  # of a number, or of a null
_LARGE_BYTES: Final = 1024 * 1024
_LISTS: Final = pa.list_(pa.binary())


class Batcher:
    """Gathers rows until a batch is full.

    Args:
        columns: names and Arrow types, in order.
        rows_max: rows of a batch at most.
    """

    def __init__(self, columns: Mapping[str, pa.DataType], rows_max: int) -> None:
        self._schema = arrow_schema(columns)
        self._rows_max = rows_max
        self._values: list[list[Any]] = [[] for _ in self._schema.names]
        self._size_bytes = 0

    def add(self, row: Mapping[str, Any]) -> pa.RecordBatch | None:
        """Take a row; give a batch when one is full.

        Args:
            row: values by column; those of other columns are dropped, missing ones are null.
        """
        for values, name in zip(self._values, self._schema.names, strict=True):
            value = row.get(name)
            values.append(value)
            self._size_bytes += _size_of(value)
        full = len(self._values[0]) >= self._rows_max or self._size_bytes >= limits.ARROW_BATCH_BYTES
        return self.flush() if full else None

    def flush(self) -> pa.RecordBatch | None:
        """Give the rows that are left; None when there are none."""
        if not self._values or not self._values[0]:
            return None
        is_large = self._size_bytes >= _LARGE_BYTES
        arrays = [
            _joined(values)
            if is_large and field.type == _LISTS and None not in values
            else pa.array(values, field.type)
            for values, field in zip(self._values, self._schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._values = [[] for _ in self._schema.names]
        self._size_bytes = 0
        return batch


def row_batches(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, pa.DataType],
    rows_max: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Make batches of rows.

    Args:
        rows: values by column, as `Batcher.add` takes them.
        columns: names and Arrow types, in order; at least one.
        rows_max: rows of a batch at most; None: the limit for rows that are blocks.
    """
    batcher = Batcher(columns, limits.ARROW_BATCH_ROWS if rows_max is None else rows_max)
    for row in rows:
        batch = batcher.add(row)
        if batch is not None:
            yield batch
    batch = batcher.flush()
    if batch is not None:
        yield batch


def _joined(values: Sequence[Sequence[bytes]]) -> pa.Array:
    """Make an array of lists out of exactly the bytes that it needs.

    `pa.array` lets its buffer grow by doubling: several times the memory, and most of the time goes into new
    pages. For small batches it is the faster one.
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
