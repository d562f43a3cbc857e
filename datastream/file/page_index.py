"""The index of data pages in memory, and the tables of full pages that are stored beside the bookmarks.

The committing thread writes the index, any thread reads it: values are only added, and readers look only
below the committed length that they hold. Only the tables of full pages, which may be evicted, need a lock.
The page being filled has a separate table, which stays.

A stored table spares later openings the walk of its page. The file decides: `StreamFile` believes a table
only as far as the entries' lengths confirm it.

Source: docs/spec/stream-file.md section 3.2.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from itertools import pairwise
from typing import NamedTuple, Protocol

from sluice.datastream.layout import PAGE_SIZE, page_number_of, page_start
from sluice.datastream.limits import CHECKPOINT_INTERVAL

__all__ = [
    "NoPageTables",
    "PageIndex",
    "PageTable",
    "PageTables",
    "decode_table",
    "encode_table",
]

OFFSET_TABLES_MAX = 16_384
"""Tables of checkpoints in memory; about 1 kB each with 68-byte entries, 16 MB in all."""

_HEAD = struct.Struct(">QQI")
_POSITION_SIZE = 4
assert array("I").itemsize == _POSITION_SIZE


class PageTable(NamedTuple):
    """The table of a full page."""

    first_number: int
    """Number of its first entry."""
    entries_end: int
    """The number after its last entry."""
    data_end: int
    """Position just past its last entry."""
    checkpoints: array[int]
    """Positions of the entries whose number is a multiple of CHECKPOINT_INTERVAL, in order."""

    def fits(self, first_number: int, entries_end: int) -> bool:
        """Return whether a page with these entries can have this table."""
        count = -(-entries_end // CHECKPOINT_INTERVAL) - -(-first_number // CHECKPOINT_INTERVAL)
        positions = self.checkpoints
        return (
            (self.first_number, self.entries_end, len(positions)) == (first_number, entries_end, count)
            and 0 < self.data_end <= PAGE_SIZE
            and all(before < after for before, after in pairwise(positions))
            and (not positions or positions[-1] < self.data_end)
        )


class PageTables(Protocol):
    """A store of page tables."""

    def get_table(self, page_number: int) -> PageTable | None:
        """Return the table of a page; None without a usable one."""
        ...

    def put_table(self, page_number: int, table: PageTable) -> None:
        """Store the table of a page, now or soon."""
        ...


class NoPageTables:
    """A store that keeps nothing."""

    def get_table(self, page_number: int) -> PageTable | None:
        """Return None."""
        return None

    def put_table(self, page_number: int, table: PageTable) -> None:
        """Do nothing."""


def encode_table(table: PageTable) -> bytes:
    """Return the bytes that are stored."""
    positions = table.checkpoints
    if sys.byteorder == "little":
        positions = positions[:]
        positions.byteswap()
    return _HEAD.pack(table.first_number, table.entries_end, table.data_end) + positions.tobytes()


def decode_table(data: bytes) -> PageTable | None:
    """Return the stored table; None if the bytes are none."""
    if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _POSITION_SIZE:
        return None
    positions = array("I", data[_HEAD.size :])
    if sys.byteorder == "little":
        positions.byteswap()
    first_number, entries_end, data_end = _HEAD.unpack_from(data)
    return PageTable(first_number, entries_end, data_end, positions)


class PageIndex:
    """First numbers, data ends and checkpoints of the used pages."""

    def __init__(self, tables_max: int = OFFSET_TABLES_MAX) -> None:
        self.first_numbers: array[int] = array("Q")
        self._data_ends: array[int] = array("Q")
        self._tables: OrderedDict[int, array[int]] = OrderedDict()
        self._tables_max = tables_max
        self._last: tuple[int, array[int]] = (-1, array("I"))
        self._lock = threading.Lock()

    def cut(self, page_count: int, last_table: array[int] | None) -> PageIndex:
        """Return an index of the first `page_count` pages, the last of them being filled.

        Readers go on with the old one.

        Args:
            last_table: checkpoints of that page; None without pages.
        """
        index = PageIndex(self._tables_max)
        index.first_numbers = self.first_numbers[:page_count]
        index._data_ends = self._data_ends[:page_count]
        with self._lock:
            index._tables.update((page, table) for page, table in self._tables.items() if page < page_count)
        if page_count:
            index._data_ends[-1] = 0
            index._tables.pop(page_count - 1, None)
            index.fill_page(page_count - 1, last_table)
        return index

    @property
    def page_count(self) -> int:
        """The number of known pages."""
        return len(self.first_numbers)

    def add_page(self, page_number: int, first_number: int) -> None:
        """Add the next page; `page_number` equals `page_count`."""
        assert page_number == len(self.first_numbers)
        self._data_ends.append(0)
        self.first_numbers.append(first_number)

    def fill_page(self, page_number: int, table: array[int] | None = None) -> None:
        """Begin to fill a page; the one before it becomes full.

        Args:
            table: its checkpoints so far.
        """
        before, before_table = self._last
        if 0 <= before < page_number:
            self.set_table(before, before_table)
        self._last = (page_number, array("I") if table is None else table)

    def page_of_entry(self, number: int) -> int:
        """Return the page of entry `number`."""
        return bisect_right(self.first_numbers, number) - 1

    def data_end(self, page_number: int) -> int:
        """Return the offset just past a full page's last entry, or 0 if unknown."""
        return self._data_ends[page_number]

    def set_data_end(self, page_number: int, offset: int) -> None:
        """Remember where the data of a full page ends."""
        self._data_ends[page_number] = offset

    def table(self, page_number: int) -> array[int] | None:
        """Return the checkpoints of a page; None if they were evicted."""
        last_number, last_table = self._last
        if page_number == last_number:
            return last_table
        with self._lock:
            table = self._tables.get(page_number)
            if table is not None:
                self._tables.move_to_end(page_number)
            return table

    def set_table(self, page_number: int, table: array[int]) -> None:
        """Keep a full page's table; evict the least recently used one above the limit."""
        with self._lock:
            self._tables[page_number] = table
            self._tables.move_to_end(page_number)
            if len(self._tables) > self._tables_max:
                self._tables.popitem(last=False)

    def add_checkpoint(self, offset: int) -> None:
        """Add a checkpoint to the page that is being filled."""
        page_number, table = self._last
        assert page_number == page_number_of(offset)
        table.append(offset - page_start(page_number))

    def nearest(self, page_number: int, table: array[int], number: int) -> tuple[int, int, int | None]:
        """Return (number, position) of the last checkpoint up to entry `number`, and the position of the
        next, or None.
        """
        first_number = self.first_numbers[page_number]
        table_number = -(-first_number // CHECKPOINT_INTERVAL) * CHECKPOINT_INTERVAL
        slot = min((number - table_number) // CHECKPOINT_INTERVAL, len(table) - 1)
        following = table[slot + 1] if slot + 1 < len(table) else None
        if slot < 0:
            return first_number, 0, following
        return table_number + slot * CHECKPOINT_INTERVAL, table[slot], following

    def nearest_position(self, page_number: int, table: array[int], position: int) -> tuple[int, int]:
        """Return (number, position) of the last checkpoint at or before `position`."""
        first_number = self.first_numbers[page_number]
        table_number = -(-first_number // CHECKPOINT_INTERVAL) * CHECKPOINT_INTERVAL
        slot = bisect_right(table, position) - 1
        if slot < 0:
            return first_number, 0
        return table_number + slot * CHECKPOINT_INTERVAL, table[slot]
