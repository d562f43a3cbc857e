"""The layout of a block in the stream: its entries, and the way back from entries to a block.

Pure. One block is one atomic operation. The decoder refuses every other sequence, and another layout than
that of the first block. No item can be taken for a mark: the field numbers 0xb0 and 0xb1 are refused, here
and by the root hash (176 and 177 modulo 20 are 16 and 17).
Source: docs/spec/block-layout.md; docs/spec/stream-file.md section 5.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX
from sluice.gateway.blocks.errors import ItemError, LayoutError
from sluice.gateway.blocks.items import VARINT_SIZE_MAX, kind_of, kinds_of, varint
from sluice.gateway.blocks.merkle import HASH_SIZE
from sluice.gateway.limits import RUN_ITEMS_MAX, STORED_BLOCK_BYTES_MAX

__all__ = [
    "BLOCK_END_SIZE",
    "BLOCK_END_TYPE",
    "BOOKMARKS_MAX",
    "CONTINUED",
    "LAYOUTS",
    "NATIVE_LAYOUT",
    "NATIVE_SUFFIX_SIZE",
    "NEWEST_LAYOUT",
    "BlockDecoder",
    "EntryRun",
    "StoredBlock",
    "block_end_of",
    "block_number_of",
    "bookmark_of",
    "bookmarks_of",
    "encode",
    "encode_runs",
    "layout_of",
]

BLOCK_END_TYPE: Final = 0xB1
NEWEST_LAYOUT: Final = 2
"""The layout of new streams that hold blocks."""
NATIVE_LAYOUT: Final = 3
"""The layout of `blocks.native_layout`."""
LAYOUTS: Final = (1, 2, NATIVE_LAYOUT)
BOOKMARKS_MAX: Final = 2
"""Bookmarks of a block in any layout."""
CONTINUED: Final = 0x8000_0000
"""Set in the entry type of each piece of an item but its last."""

# BookMark {type: 2}; the value follows, except for block 0.
_BOOKMARK_HEAD: Final = b"\x08\x02"
_BOOKMARK_VALUE_TAG: Final = b"\x10"
_SECOND_BOOKMARK_HEAD: Final = b"\x00"
_NUMBER_SIZE: Final = 8
BLOCK_END_SIZE: Final = _NUMBER_SIZE + HASH_SIZE
"""Number and root hash."""
NATIVE_SUFFIX_SIZE: Final = 8
"""Bytes that the native layout adds."""
_MARK_TYPES: Final = frozenset((BOOKMARK_TYPE, BLOCK_END_TYPE))


def bookmark_of(block_number: int) -> bytes:
    """Return the bookmark that current clients ask for."""
    if block_number == 0:
        return _BOOKMARK_HEAD
    return _BOOKMARK_HEAD + _BOOKMARK_VALUE_TAG + varint(block_number)


def bookmarks_of(block_number: int, layout: int) -> tuple[bytes, ...]:
    """Return the bookmarks of a block, in the order of their entries."""
    bookmark = bookmark_of(block_number)
    return (bookmark,) if layout > 1 else (bookmark, _second_bookmark_of(block_number))


def layout_of(second_type: int) -> int:
    """Return the layout of a block by the type of its second entry."""
    return 1 if second_type == BOOKMARK_TYPE else NEWEST_LAYOUT


def _second_bookmark_of(block_number: int) -> bytes:
    return _SECOND_BOOKMARK_HEAD + block_number.to_bytes(_NUMBER_SIZE, "big")


def block_number_of(bookmark: bytes) -> int | None:
    """Return N if a bookmark is `bookmark_of(N)`, else None."""
    try:
        return _number_in_bookmark(bookmark)
    except LayoutError:
        return None


def block_end_of(entry_type: int, data: bytes) -> tuple[int, bytes] | None:
    """Return number and root hash in a block's end, of any layout."""
    sizes = (BLOCK_END_SIZE, BLOCK_END_SIZE + NATIVE_SUFFIX_SIZE)
    if entry_type != BLOCK_END_TYPE or len(data) not in sizes:
        return None
    return int.from_bytes(data[:_NUMBER_SIZE], "big"), data[_NUMBER_SIZE:BLOCK_END_SIZE]


class EntryRun(NamedTuple):
    """Consecutive entries of a block."""

    entry_types: list[int]  # one for each of `data`
    data: list[bytes]
    size_bytes: int  # of its items


def encode(
    block_number: int, items: Sequence[bytes], root_hash: bytes, layout: int = NEWEST_LAYOUT
) -> list[tuple[int, bytes]]:
    """Return all entries of a block as (entry type, data); errors as `encode_runs`."""
    bookmarks = [(BOOKMARK_TYPE, bookmark) for bookmark in bookmarks_of(block_number, layout)]
    runs = encode_runs(block_number, items, root_hash)
    return bookmarks + [entry for run in runs for entry in zip(run.entry_types, run.data, strict=True)]


def encode_runs(
    block_number: int,
    items: Sequence[bytes],
    root_hash: bytes,
    kinds: Sequence[int] | None = None,
    *,
    items_max: int = RUN_ITEMS_MAX,
    bytes_max: int = sys.maxsize,
    end_suffix: bytes = b"",
) -> Iterator[EntryRun]:
    """Yield the entries of a block after its bookmarks, in order, as runs.

    Args:
        items: in block order; at least one.
        kinds: `kinds_of(items)`, if known.
        items_max: entries of a run; the block end does not count.
        bytes_max: bytes of a run's items, unless it has a single entry.
        end_suffix: follows number and root hash in the block end.

    Raises:
        ItemError: an item is malformed.
        LayoutError: there is no item, or its field number is a mark's entry type.
    """
    assert len(root_hash) == HASH_SIZE
    if not items:
        raise LayoutError(f"block {block_number}", "no items", "at least one")
    start = 0
    while start < len(items):
        data = list(items[start : start + items_max])
        size_bytes = sum(map(len, data))
        if size_bytes > bytes_max or (size_bytes > DATA_SIZE_MAX < max(map(len, data))):
            fitting = bisect_right(list(accumulate(map(len, data))), min(bytes_max, DATA_SIZE_MAX))
            del data[max(1, fitting) :]  # an item that is cut is alone in its runs
            size_bytes = sum(map(len, data))
        stop = start + len(data)
        entry_types = list(kinds_of(data, start) if kinds is None else kinds[start:stop])
        if not _MARK_TYPES.isdisjoint(entry_types):
            got = f"item field {next(kind for kind in entry_types if kind in _MARK_TYPES)}"
            expected = "no field number that is the entry type of a mark"
            raise LayoutError(f"block {block_number}", got, expected)
        if len(data) == 1 and size_bytes > DATA_SIZE_MAX:
            yield from _pieces_before_last(entry_types[0], data[0])
            data = [data[0][_last_piece_at(data[0]) :]]
            size_bytes = len(data[0])
        if stop == len(items):
            entry_types.append(BLOCK_END_TYPE)
            data.append(block_number.to_bytes(_NUMBER_SIZE, "big") + root_hash + end_suffix)
        yield EntryRun(entry_types, data, size_bytes)
        start = stop


def _last_piece_at(item: bytes) -> int:
    return (len(item) - 1) // DATA_SIZE_MAX * DATA_SIZE_MAX


def _pieces_before_last(kind: int, item: bytes) -> Iterator[EntryRun]:
    """Yield the pieces one at a time, since copying takes a while."""
    for offset in range(0, _last_piece_at(item), DATA_SIZE_MAX):
        yield EntryRun([CONTINUED | kind], [item[offset : offset + DATA_SIZE_MAX]], DATA_SIZE_MAX)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block read back from its entries, with only its layout checked."""

    number: int
    items: tuple[bytes, ...]
    root_hash: bytes


class _Expecting(Enum):
    BOOKMARK = "a bookmark"
    SECOND = "the block's second bookmark"
    SECOND_OR_ITEM = "the block's second bookmark or an item"
    ITEM = "an item"
    ITEM_OR_END = "an item or the block end"
    PIECE = "the next piece of the item"


_AFTER_BOOKMARK: Final = {
    None: _Expecting.SECOND_OR_ITEM,
    1: _Expecting.SECOND,
    NEWEST_LAYOUT: _Expecting.ITEM,
}


class BlockDecoder:
    """Turns entries into blocks, from the first bookmark of a block on.

    A call that raises leaves the decoder unchanged.

    Args:
        layout: 1 or 2; None: that of the first block.
    """

    def __init__(self, block_bytes_max: int = STORED_BLOCK_BYTES_MAX, *, layout: int | None = None) -> None:
        self._block_bytes_max = block_bytes_max
        self._layout = layout
        self.reset()

    def reset(self) -> None:
        """Forget the current block; the next entry must be the first of a block."""
        self._expecting = _Expecting.BOOKMARK
        self._number = 0
        self._items: list[bytes] = []
        self._size_bytes = 0
        self._pieces: list[bytes] = []
        self._pieces_kind = 0

    @property
    def block_number(self) -> int | None:
        """The current block, None between blocks."""
        return None if self._expecting is _Expecting.BOOKMARK else self._number

    def feed(self, entry_type: int, data: bytes) -> StoredBlock | None:
        """Take one entry; return the block that it ends. Raises LayoutError."""
        if self._expecting is _Expecting.BOOKMARK:
            self._take_bookmark(entry_type, data)
        elif self._expecting is _Expecting.SECOND or (
            self._expecting is _Expecting.SECOND_OR_ITEM and entry_type == BOOKMARK_TYPE
        ):
            self._take_second_bookmark(entry_type, data)
        elif entry_type == BLOCK_END_TYPE:
            return self._end_block(data)
        else:
            self._take_item(entry_type, data)
        return None

    def _take_bookmark(self, entry_type: int, data: bytes) -> None:
        if entry_type != BOOKMARK_TYPE:
            raise LayoutError("stream between blocks", f"entry type {entry_type:#x}", "a bookmark (0xb0)")
        self._number = _number_in_bookmark(data)
        self._expecting = _AFTER_BOOKMARK[self._layout]

    def _take_second_bookmark(self, entry_type: int, data: bytes) -> None:
        what = f"second bookmark of block {self._number}"
        if entry_type != BOOKMARK_TYPE:
            raise LayoutError(what, f"entry type {entry_type:#x}", "a bookmark (0xb0)")
        expected = _second_bookmark_of(self._number)
        if data != expected:
            raise LayoutError(what, _short(data), expected.hex())
        self._expecting = _Expecting.ITEM
        self._layout = 1

    def _take_item(self, entry_type: int, data: bytes) -> None:
        if entry_type == BOOKMARK_TYPE:
            raise LayoutError(f"block {self._number}", "a bookmark (0xb0)", self._expecting.value)
        size_bytes = self._size_bytes + len(data)
        if size_bytes > self._block_bytes_max:
            raise LayoutError(
                f"block {self._number}", f"{size_bytes} bytes of items", f"at most {self._block_bytes_max}"
            )
        if entry_type >= CONTINUED or self._expecting is _Expecting.PIECE:
            self._take_piece(entry_type, data)
        else:
            self._check_kind(entry_type, data)
            self._items.append(data)
            self._expecting = _Expecting.ITEM_OR_END
        self._size_bytes = size_bytes

    def _take_piece(self, entry_type: int, data: bytes) -> None:
        kind = entry_type & ~CONTINUED
        what = f"block {self._number}: piece {len(self._pieces)} of item {len(self._items)}"
        if self._pieces and kind != self._pieces_kind:
            raise LayoutError(what, f"entry type {entry_type:#x}", f"field number {self._pieces_kind}")
        if entry_type >= CONTINUED:
            if len(data) != DATA_SIZE_MAX:
                raise LayoutError(what, f"{len(data)} bytes", f"{DATA_SIZE_MAX}, as it is not the last piece")
            self._pieces.append(data)
            self._pieces_kind = kind
            self._expecting = _Expecting.PIECE
            return
        if not data:
            raise LayoutError(what, "0 bytes", "at least 1 in the last piece")
        item = b"".join((*self._pieces, data))
        self._check_kind(kind, item)
        self._items.append(item)
        self._pieces.clear()
        self._expecting = _Expecting.ITEM_OR_END

    def _check_kind(self, entry_type: int, item: bytes) -> None:
        try:
            kind = kind_of(item)
        except ItemError as error:
            what = f"block {self._number}: item {len(self._items)}: {error.what}"
            raise LayoutError(what, error.got, error.expected) from error
        if kind != entry_type:
            what = f"block {self._number}: item {len(self._items)}"
            raise LayoutError(what, f"entry type {entry_type:#x}", f"{kind:#x}, its field number")

    def _end_block(self, data: bytes) -> StoredBlock:
        what = f"end of block {self._number}"
        if self._expecting is not _Expecting.ITEM_OR_END:
            raise LayoutError(f"block {self._number}", "the block end (0xb1)", self._expecting.value)
        if len(data) != BLOCK_END_SIZE:
            raise LayoutError(what, f"{len(data)} bytes", f"{BLOCK_END_SIZE}")
        number = int.from_bytes(data[:_NUMBER_SIZE], "big")
        if number != self._number:
            raise LayoutError(what, f"block number {number}", f"{self._number}, as in its bookmark")
        block = StoredBlock(number, tuple(self._items), data[_NUMBER_SIZE:])
        self._layout = self._layout or NEWEST_LAYOUT
        self.reset()
        return block


def _number_in_bookmark(data: bytes) -> int:
    value = data[len(_BOOKMARK_HEAD) + len(_BOOKMARK_VALUE_TAG) :]
    number = 0
    if len(value) <= VARINT_SIZE_MAX:
        for index, byte in enumerate(value):
            number |= (byte & 0x7F) << 7 * index
    if number >= 1 << 64 or data != bookmark_of(number):
        raise LayoutError("first bookmark of a block", _short(data), "BookMark {type: 2, value: N}")
    return number


def _short(data: bytes) -> str:
    return f"{data[:16].hex()}… ({len(data)} bytes)" if len(data) > 16 else data.hex() or "no bytes"
