"""The blocks of pages of a stream file as Arrow batches, without a Python step for each item. Pure.

    page ─► page ─► page            the pages with the end of a block make a window:
    └──── window ────┘└─ the rest begins the next window

A window holds whole blocks. numpy checks its layout column by column; `BlockDecoder` takes the rare cases:
items in several entries, and errors.
Source: docs/spec/block-layout.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.blocks.errors import ItemError, LayoutError
from sluice.gateway.blocks.items import kind_of
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.blocks.stream_layout import (
    BLOCK_END_TYPE,
    BOOKMARKS_MAX,
    CONTINUED,
    BlockDecoder,
    bookmarks_of,
    layout_of,
)
from sluice.gateway.limits import STORED_BLOCK_BYTES_MAX
from sluice.publishers.sources.entry_blocks import begins_block
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.page_entries import PageEntries
from sluice.publishers.spark.schema import BLOCK_NUMBER, ITEMS, arrow_schema

__all__ = ["block_batches"]

_NUMBER_SIZE: Final = 8
_END_SIZE: Final = _NUMBER_SIZE + HASH_SIZE
_UNKNOWN: Final = 0


@dataclass(frozen=True, slots=True)
class _Part:
    first_number: int
    types: NDArray[np.int64]
    kinds: NDArray[np.uint32]
    """The kind of each entry's item; 0: unknown."""
    data: pa.Array

    def __len__(self) -> int:
        return len(self.types)

    def cut(self, start: int, end: int | None = None) -> _Part:
        rows = slice(start, end)
        data = self.data.slice(start, None if end is None else end - start)
        return _Part(self.first_number + start, self.types[rows], self.kinds[rows], data)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        return zip(self.types.tolist(), self.data.to_pylist(), strict=True)


def block_batches(
    pages: Iterable[PageEntries],
    first_number: int,
    end_number: int,
    columns: Mapping[str, pa.DataType],
    *,
    may_be_cut: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks whose first entry is in a part of a stream, as `blocks_that_begin_in` does.

    Args:
        pages: from the one that begins with entry `first_number` on, as far as needed.
        end_number: the entry after the part's last.
        may_be_cut: whether the last block may have no end yet; it is left out.

    Returns:
        A batch for each window: some MB, or one block.

    Raises:
        LayoutError: the entries are no blocks, or the last block is cut off.
    """
    held: list[_Part] = []
    is_begun = first_number == 0
    for page in pages:
        part = _part_of(page)
        if not is_begun:
            start = _first_block_in(part)
            if start is None:
                if part.first_number + len(part) >= end_number:
                    return
                continue
            part, is_begun = part.cut(start), True
        if not held and part.first_number >= end_number:
            return
        ends = np.flatnonzero(part.types == BLOCK_END_TYPE)
        if not len(ends):
            held.append(part)
            _check_open(held)
            continue
        cut_at = int(ends[-1]) + 1
        window = _joined([*held, part.cut(0, cut_at)])
        yield from _window_batches(window, end_number, columns)
        held = [part.cut(cut_at)] if cut_at < len(part) else []
        if window.first_number + len(window) >= end_number:
            return
    if held and not may_be_cut:
        _check_open(held, is_over=True)


def _part_of(page: PageEntries) -> _Part:
    return _Part(page.first_number, page.types, _kinds_in(page), page.data())


def _kinds_in(page: PageEntries) -> NDArray[np.uint32]:
    """Return the kinds of items with a tag of one byte and a length of one or two."""
    every_byte = np.frombuffer(page.every_byte + bytes(3), np.uint8)
    starts = page.offsets[:-1]
    sizes = np.diff(page.offsets)
    tags, low, high = (every_byte[starts + offset].astype(np.uint32) for offset in range(3))
    kinds = np.where((tags < 0x80) & (tags & 7 == 2), tags >> 3, _UNKNOWN)
    has_one = (sizes >= 2) & (sizes <= 129) & (low == sizes - 2)
    length = sizes - 3
    has_two = (sizes >= 131) & (sizes <= 16_386) & (low == (length & 0x7F | 0x80)) & (high == length >> 7)
    return np.where(has_one | has_two, kinds, _UNKNOWN).astype(np.uint32)


def _first_block_in(part: _Part) -> int | None:
    for index in np.flatnonzero(part.types == BOOKMARK_TYPE).tolist():
        if begins_block(BOOKMARK_TYPE, part.data[index].as_py()):
            return int(index)
    return None


def _joined(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return _Part(
        parts[0].first_number,
        np.concatenate([part.types for part in parts]),
        np.concatenate([part.kinds for part in parts]),
        pa.concat_arrays([part.data for part in parts]),
    )


def _check_open(held: list[_Part], *, is_over: bool = False) -> None:
    bookmark_count = sum(int((part.types == BOOKMARK_TYPE).sum()) for part in held)
    size_bytes = sum(part.data.nbytes for part in held)
    begins = held[0].types[0] == BOOKMARK_TYPE
    if begins and bookmark_count <= BOOKMARKS_MAX and size_bytes <= STORED_BLOCK_BYTES_MAX and not is_over:
        return
    decoder = BlockDecoder()
    for part in held:
        for entry_type, data in part.entries():
            decoder.feed(entry_type, data)
    if is_over:
        raise LayoutError(f"block {decoder.block_number}", "the end of the stream", "the block end (0xb1)")


def _window_batches(
    window: _Part, end_number: int, columns: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    ends = np.flatnonzero(window.types == BLOCK_END_TYPE)
    starts = np.concatenate(([0], ends[:-1] + 1))
    count = int(np.searchsorted(starts, end_number - window.first_number))
    if count < len(ends):
        ends, starts = ends[:count], starts[:count]
        window = window.cut(0, int(ends[-1]) + 1)
    # A block's first entries are its bookmarks; the decoder takes a window that mixes layouts.
    has_second = layout_of(int(window.types[min(1, len(window) - 1)])) == 1
    firsts = [starts, starts + 1] if has_second else [starts]
    numbers = _numbers_of(window, firsts, ends)
    if numbers is None:
        yield from row_batches(_decoded(window), columns)
        return
    arrays = {BLOCK_NUMBER: pa.array(numbers, pa.int64())}
    if ITEMS in columns:
        is_item = np.ones(len(window), bool)
        is_item[np.concatenate((*firsts, ends))] = False
        offsets = np.concatenate(([0], np.cumsum(ends - starts - len(firsts))))
        arrays[ITEMS] = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), window.data.filter(pa.array(is_item))
        )
    yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=arrow_schema(columns))


def _numbers_of(
    window: _Part, firsts: Sequence[NDArray[np.int64]], ends: NDArray[np.int64]
) -> list[int] | None:
    """Check the layout of whole blocks; return their numbers, or None if the decoder has to check.

    `firsts` has an array for each bookmark of the layout: its place in each block.
    """
    types = window.types
    if (
        bool((ends - firsts[-1] < 2).any())  # bookmarks, an item, the end
        or not all(bool((types[at] == BOOKMARK_TYPE).all()) for at in firsts)
        or int((types == BOOKMARK_TYPE).sum()) != len(firsts) * len(ends)
        or bool((types >= CONTINUED).any())
        or window.data.nbytes > STORED_BLOCK_BYTES_MAX
    ):
        return None
    *marks, end = (window.data.take(pa.array(where)).to_pylist() for where in (*firsts, ends))
    numbers = [int.from_bytes(data[:_NUMBER_SIZE], "big") for data in end]
    layout = layout_of(int(types[1]))
    for number, mark, *bookmarks in zip(numbers, end, *marks, strict=True):
        if len(mark) != _END_SIZE or tuple(bookmarks) != bookmarks_of(number, layout):
            return None
    is_wrong = window.kinds != types
    is_wrong[np.concatenate((*firsts, ends))] = False
    for index in np.flatnonzero(is_wrong).tolist():  # mostly items of more than 16 kB
        if not _is_item(window.data[index].as_py(), int(types[index])):
            return None
    return numbers


def _is_item(data: bytes, kind: int) -> bool:
    try:
        return kind_of(data) == kind
    except ItemError:
        return False


def _decoded(window: _Part) -> Iterator[dict[str, Any]]:
    decoder = BlockDecoder()
    for entry_type, data in window.entries():
        stored = decoder.feed(entry_type, data)
        if stored is not None:
            yield {BLOCK_NUMBER: stored.number, ITEMS: stored.items}
