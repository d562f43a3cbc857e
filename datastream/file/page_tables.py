"""What was learned of a full data page, so that no later opening has to walk it. Pure.

    u64 first_number | u64 entries_end | u32 data_end | u32 position of every 64th entry

Big-endian; every 64th: those whose number is a multiple of it. Kept beside the bookmarks (`bookmarks.py`),
written when a page is full or was walked. The file decides: `StreamFile` believes a table only as far as the
chain of the entries' lengths confirms it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import pairwise
from typing import NamedTuple, Protocol

from datastream.layout import PAGE_SIZE
from datastream.limits import CHECKPOINT_INTERVAL

__all__ = ["NoPageTables", "PageTable", "PageTables", "decode_table", "encode_table"]

_HEAD = struct.Struct(">QQI")
_POSITION_SIZE = 4
assert array("I").itemsize == _POSITION_SIZE


class PageTable(NamedTuple):
    """What is known of a full page."""

    first_number: int
    """Number of its first entry."""
    entries_end: int
    """The number after that of its last entry."""
    data_end: int
    """Position just past its last entry."""
    checkpoints: array[int]
    """Positions of the entries whose number is a multiple of CHECKPOINT_INTERVAL, in order."""

    def fits(self, first_number: int, entries_end: int) -> bool:
        """Whether this is a possible table of a page that holds these entries."""
        count = -(-entries_end // CHECKPOINT_INTERVAL) - -(-first_number // CHECKPOINT_INTERVAL)
        positions = self.checkpoints
        return (
            (self.first_number, self.entries_end, len(positions)) == (first_number, entries_end, count)
            and 0 < self.data_end <= PAGE_SIZE
            and all(before < after for before, after in pairwise(positions))
            and (not positions or positions[-1] < self.data_end)
        )


class PageTables(Protocol):
    """Where tables are kept."""

    def get_table(self, page_number: int) -> PageTable | None:
        """Return what is stored of a page, None without anything usable."""
        ...

    def put_table(self, page_number: int, table: PageTable) -> None:
        """Store what was learned of a page, now or soon."""
        ...


class NoPageTables:
    """Keeps nothing."""

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
    """Read what was stored; None when it is no table."""
    if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _POSITION_SIZE:
        return None
    positions = array("I", data[_HEAD.size :])
    if sys.byteorder == "little":
        positions.byteswap()
    first_number, entries_end, data_end = _HEAD.unpack_from(data)
    return PageTable(first_number, entries_end, data_end, positions)
