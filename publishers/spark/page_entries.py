"""The entries of a data page as columns, without a Python step for each. Pure.

A walk from entry to entry in Python would take longer than all the rest. So numpy finds the entry heads at
once: positions with the packet type of data, 9 bytes before a number that an entry of this page can have.
They are right if:

  - the first is at position 0, each further one where the one before it ends;
  - their numbers are consecutive;
  - the last ends where the page's data may end.

Otherwise (data can look like a head, a page can be damaged) `walk_page` decides.
Source: docs/spec/stream-file.md section 1; `datastream/file/pages.py` has the walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluice.datastream.file.pages import walk_page
from sluice.datastream.layout import ENTRY_HEAD_SIZE, PACKET_DATA, PACKET_PADDING, PAGE_SIZE, Entry

__all__ = ["PageEntries", "read_page"]

_SIZE_AT: Final = 1
_TYPE_AT: Final = 5
_NUMBER_AT: Final = 9
_LOW_BYTES: Final = 2
"""Bytes of an entry number that differ within a page, which has fewer than 2^16 entries."""
assert PAGE_SIZE // ENTRY_HEAD_SIZE < 1 << 8 * _LOW_BYTES


@dataclass(frozen=True, slots=True)
class PageEntries:
    """The entries of one page, checked as `walk_page` checks them."""

    page: bytes
    first_number: int
    positions: NDArray[np.int32]
    """The start of each entry, and the end of the last."""
    types: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.types)

    def numbers(self) -> pa.Array:
        """Return the entry numbers, int64."""
        return pa.array(np.arange(self.first_number, self.first_number + len(self), dtype=np.int64))

    def data(self) -> pa.Array:
        """Return the data of each entry, as binary."""
        buffers = [None, pa.py_buffer(self.positions), pa.py_buffer(self.page)]
        with_heads = pa.Array.from_buffers(pa.binary(), len(self), buffers)
        return pc.binary_slice(with_heads, ENTRY_HEAD_SIZE, PAGE_SIZE)

    def entries(self) -> list[Entry]:
        """Return the entries one by one."""
        positions = self.positions.tolist()
        return [
            Entry(kind, number, self.page[start + ENTRY_HEAD_SIZE : end])
            for number, kind, start, end in zip(
                range(self.first_number, self.first_number + len(self)),
                self.types.tolist(),
                positions,
                positions[1:],
                strict=False,
            )
        ]


def read_page(page: bytes, first_number: int, end: int) -> PageEntries:
    """Find the entries of a page, and check each head.

    Args:
        page: at least `end` bytes.
        end: where the entries end at the latest: PAGE_SIZE, or the position of `total_length`.

    Raises:
        PageFault: as `walk_page`.
    """
    positions = _heads(page, first_number, end)
    if positions is None:
        positions = _walk(page, first_number, end)
    types = _at_every_byte(page, end, _TYPE_AT, ">u4")[positions[:-1]].astype(np.uint32)
    return PageEntries(page, first_number, positions, types)


def _heads(page: bytes, first_number: int, end: int) -> NDArray[np.int32] | None:
    """Find the heads; None: a walk may find others."""
    places = end - ENTRY_HEAD_SIZE + 1
    count_max = end // ENTRY_HEAD_SIZE
    if places <= 0:
        return None
    every_byte = np.frombuffer(page, np.uint8, end)
    is_head = every_byte[:places] == PACKET_DATA
    high, high_of_last = (number >> 8 * _LOW_BYTES for number in (first_number, first_number + count_max))
    if high == high_of_last:  # else the bytes above the low ones change on this page
        for byte_index in (5, 4):
            at = _NUMBER_AT + byte_index
            is_head &= every_byte[at : at + places] == high.to_bytes(6, "big")[byte_index]
    starts = np.flatnonzero(is_head)
    numbers = _at_every_byte(page, end, _NUMBER_AT, ">u8")[starts].astype(np.uint64)
    is_near = numbers - np.uint64(first_number) < count_max
    starts, numbers = starts[is_near], numbers[is_near]
    if not len(starts) or starts[0] != 0:
        return None
    sizes = _at_every_byte(page, end, _SIZE_AT, ">u4")[starts].astype(np.int64)
    ends = starts + sizes
    data_end = int(ends[-1])
    is_chain = (
        np.array_equal(starts[1:], ends[:-1])
        and bool((sizes >= ENTRY_HEAD_SIZE).all())
        and int(numbers[0]) == first_number
        and bool((np.diff(numbers) == 1).all())
    )
    is_end = data_end == end or (data_end < end == PAGE_SIZE and page[data_end] == PACKET_PADDING)
    return np.append(starts, data_end).astype(np.int32) if is_chain and is_end else None


def _walk(page: bytes, first_number: int, end: int) -> NDArray[np.int32]:
    walk = walk_page(page, first_number, end)
    sizes = _at_every_byte(page, end, _SIZE_AT, ">u4")
    positions = np.empty(walk.entries_end - first_number + 1, np.int32)
    position = 0
    for index in range(len(positions) - 1):
        positions[index] = position
        position += int(sizes[position])
    positions[-1] = position
    assert position == walk.data_end
    return positions


def _at_every_byte(page: bytes, end: int, offset: int, kind: str) -> NDArray[Any]:
    """Return the integers `offset` bytes after each position where a head has room."""
    return np.ndarray((max(0, end - ENTRY_HEAD_SIZE + 1),), kind, page, offset, (1,))
