"""Walks of a data page: where its entries begin, where its data ends, which bookmarks it holds. Pure.

The data of a page ends at packet type 0, exactly at the page's end, or, on the last used page, at
`total_length`. In files of other programs, anything may follow packet type 0.

Source: docs/spec/stream-file.md section 1.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count

from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    PACKET_DATA,
    PACKET_PADDING,
    PAGE_SIZE,
    Entry,
)
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, CHECKPOINT_INTERVAL

__all__ = [
    "COLUMN_ENTRIES_MAX",
    "PageFault",
    "PageWalk",
    "columns_of",
    "entries_of",
    "find_entry",
    "find_position",
    "split_page",
    "walk_page",
]

COLUMN_ENTRIES_MAX = 4_096
"""Entries read in one go: 0.7 ms, during which other threads may wait for Python's lock."""


class PageFault(Exception):
    """A fault on a page; the caller, who knows file and page, makes a public error of it."""

    def __init__(self, number: int, position: int, found: str, expected: str) -> None:
        super().__init__(f"entry {number} at position {position}: found {found}, expected {expected}")
        self.number = number
        self.position = position
        self.found = found
        self.expected = expected


@dataclass(frozen=True, slots=True)
class PageWalk:
    """The result of a walk."""

    entries_end: int
    """The number after the last entry."""
    data_end: int
    """Position just past the last entry."""
    checkpoints: array[int]
    """Positions of the entries whose number is a multiple of the interval, in order."""
    bookmarks: list[tuple[bytes, int]]
    """(bookmark, entry number) of the page's bookmarks of 1 to 16 bytes, in order."""


def _fault(page: bytes, position: int, number: int, end: int) -> PageFault:
    if end - position < ENTRY_HEAD_SIZE:
        return PageFault(
            number, position, f"{end - position} bytes, not padding", f"an entry of {ENTRY_HEAD_SIZE} or more"
        )
    packet_type, size, _, got = ENTRY_HEAD.unpack_from(page, position)
    if packet_type != PACKET_DATA:
        return PageFault(number, position, f"packet type {packet_type}", f"packet type {PACKET_DATA}")
    if got != number:
        return PageFault(number, position, f"entry number {got}", f"entry number {number}")
    if size < ENTRY_HEAD_SIZE:
        return PageFault(number, position, f"length {size}", f"a length of at least {ENTRY_HEAD_SIZE}")
    return PageFault(number, position, f"length {size}", f"a length of at most {end - position}")


def walk_page(
    page: bytes, first_number: int, end: int = PAGE_SIZE, interval: int = CHECKPOINT_INTERVAL
) -> PageWalk:
    """Walk the entries of a page and check each head.

    Args:
        page: at least `end` bytes.
        end: PAGE_SIZE, or the position of `total_length` on the last used page.
        interval: of the entry numbers at checkpoints.

    Raises:
        PageFault: a wrong head, an entry past `end`, or padding before an `end` inside the page.
    """
    number, position, places, bookmarks = walk_at_once(page, first_number, end, interval, BOOKMARK_SIZE_MAX)
    _check_end(page, position, number, end)
    return PageWalk(number, position, array("I", places), bookmarks)


def _check_end(page: bytes, position: int, number: int, end: int) -> None:
    """Check that a walk which came to a position has seen all entries."""
    padded = position < end and page[position] == PACKET_PADDING and end == PAGE_SIZE and position > 0
    if position != end and not padded:
        raise _fault(page, position, number, end)


def walk_one_by_one(
    page: bytes, number: int, end: int, interval: int, bookmark_size_max: int
) -> tuple[int, int, list[int], list[tuple[bytes, int]]]:
    """As the compiled `walk`, where there is none."""
    unpack_head = ENTRY_HEAD.unpack_from
    places: list[int] = []
    bookmarks: list[tuple[bytes, int]] = []
    position, head_end = 0, end - ENTRY_HEAD_SIZE
    while position <= head_end:
        packet_type, size, entry_type, got = unpack_head(page, position)
        following = position + size
        if packet_type != PACKET_DATA or got != number or size < ENTRY_HEAD_SIZE or following > end:
            break
        if not number % interval:
            places.append(position)
        if entry_type == BOOKMARK_TYPE and 0 < size - ENTRY_HEAD_SIZE <= bookmark_size_max:
            bookmarks.append((bytes(page[position + ENTRY_HEAD_SIZE : following]), number))
        position = following
        number += 1
    return number, position, places, bookmarks


def split_page(page: bytes, first_number: int, end: int = PAGE_SIZE) -> tuple[bytes, bytes, bytes]:
    """Return the entries of a page as columns, checked as `walk_page` checks them.

    Returns:
        The types, int64; where the data of each begins and that of the last ends, int32; the data of all.

    Raises:
        PageFault: as `walk_page`.
    """
    number, position, types, offsets, data = split_at_once(page, first_number, end)
    _check_end(page, position, number, end)
    return types, offsets, data


def split_one_by_one(page: bytes, number: int, end: int) -> tuple[int, int, bytes, bytes, bytes]:
    """As the compiled `split`, where there is none."""
    end_number, position, _, _ = walk_one_by_one(page, number, end, 1, 0)
    types, column = columns_one_by_one(page[:position], number, end_number, sys.maxsize)
    offsets = array("i", accumulate(map(len, column), initial=0))
    return end_number, position, array("q", types).tobytes(), offsets.tobytes(), b"".join(column)


def find_position(data: bytes, number_at_start: int, number: int, number_at_end: int | None = None) -> int:
    """Return the position in `data` of entry `number`; `data` begins with entry `number_at_start`.

    The chain of lengths must lead to the end of `data`, so bytes that only look like an entry do not.

    Raises:
        PageFault: a wrong head, an entry past the end, or another number of entries.
    """
    unpack_head = ENTRY_HEAD.unpack_from
    found = -1
    position, end = 0, len(data)
    head_end = end - ENTRY_HEAD_SIZE
    expected = number_at_start
    while position <= head_end:
        if expected == number:
            found = position
        packet_type, size, _, got = unpack_head(data, position)
        if packet_type != PACKET_DATA or got != expected or size < ENTRY_HEAD_SIZE or position + size > end:
            raise _fault(data, position, expected, end)
        position += size
        expected += 1
    if position != end:
        raise _fault(data, position, expected, end)
    if number_at_end is not None and expected != number_at_end:
        raise PageFault(expected, position, f"entry {expected} next", f"entry {number_at_end} next")
    if found < 0 and expected != number:
        raise PageFault(number, position, f"the end after {expected} entries", f"entry {number}")
    return end if found < 0 else found


def find_entry(data: bytes, number_at_start: int, offset: int) -> tuple[int, int]:
    """Return (number, position) of the first entry of `data` that begins at or after position `offset`.

    `data` begins with the head of entry `number_at_start` and ends after a whole entry; its end counts too.
    """
    position = 0
    number = number_at_start
    while position < offset:
        if position + ENTRY_HEAD_SIZE > len(data):
            raise _fault(data, position, number, len(data))
        packet_type, size, _, got = ENTRY_HEAD.unpack_from(data, position)
        if packet_type != PACKET_DATA or got != number or size < ENTRY_HEAD_SIZE:
            raise _fault(data, position, number, len(data))
        position += size
        number += 1
    return number, position


def columns_of(data: bytes, number: int, size_wanted: int) -> tuple[list[int], list[bytes]]:
    """Return types and data of the whole entries in `data`, from entry `number` on, up to `size_wanted` bytes
    or more, or COLUMN_ENTRIES_MAX entries.
    """
    wanted = number, number + COLUMN_ENTRIES_MAX, size_wanted
    return columns_at_once(data, *wanted) or columns_one_by_one(data, *wanted)


def columns_one_by_one(
    data: bytes, number: int, end_number: int, size_wanted: int
) -> tuple[list[int], list[bytes]]:
    """As the compiled `columns`, where there is none, and to say what is no entry."""
    types: list[int] = []
    column: list[bytes] = []
    size_left = size_wanted
    for entry in _entries_one_by_one(data, number, end_number):
        types.append(entry.type)
        column.append(entry.data)
        size_left -= len(entry.data)
        if size_left <= 0:
            break
    return types, column


def entries_of(data: bytes, number: int, end_number: int) -> Iterator[Entry]:
    """Yield the whole entries in `data`, from `number` up to `end_number`."""
    found = columns_at_once(data, number, end_number, sys.maxsize)
    if found is None:
        return _entries_one_by_one(data, number, end_number)
    types, column = found
    return map(Entry, types, count(number), column)


def _entries_one_by_one(data: bytes, number: int, end_number: int) -> Iterator[Entry]:
    unpack_head = ENTRY_HEAD.unpack_from
    position, head_end = 0, len(data) - ENTRY_HEAD_SIZE
    while position <= head_end and number < end_number:
        packet_type, size, entry_type, got = unpack_head(data, position)
        if packet_type != PACKET_DATA or got != number or not ENTRY_HEAD_SIZE <= size <= PAGE_SIZE:
            found = f"packet type {packet_type}, number {got}, length {size}"
            raise PageFault(number, position, found, f"entry {number}")
        following = position + size
        if following > len(data):
            return
        yield Entry(entry_type, number, data[position + ENTRY_HEAD_SIZE : following])
        position = following
        number += 1


try:
    from sluice.datastream.file import _many_entries

    columns_at_once, walk_at_once = _many_entries.columns, _many_entries.walk
    split_at_once = _many_entries.split
except ImportError:  # where nothing was compiled
    walk_at_once, split_at_once = walk_one_by_one, split_one_by_one

    def columns_at_once(
        data: bytes, number: int, end_number: int, size_wanted: int, /
    ) -> tuple[list[int], list[bytes]] | None:
        return None
