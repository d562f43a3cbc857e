"""The messages of `subscribeBlockStream`, made from the stream entries of committed blocks.

Pure.

An item set never spans blocks, and exceeds `set_bytes_max` only if it is one item. Items stored in pieces are
joined again. The entries are our own, of verified blocks, so only their order and the block numbers are
checked.

Source: docs/spec/wire.md section 3; docs/spec/block-layout.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.errors import LayoutError
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, CONTINUED, bookmarks_of

__all__ = ["BlockMessage", "BlockMessages"]

_MARKS: Final = frozenset((BOOKMARK_TYPE, BLOCK_END_TYPE))
_Response = subscribe_pb2.SubscribeStreamResponse


class BlockMessage(NamedTuple):
    """One message to send."""

    data: bytes
    """A serialized `SubscribeStreamResponse`."""
    ended: int | None
    """The block that it ends; None for an item set."""


class BlockMessages:
    """Turns entries into messages, from one place in the stream on.

    Args:
        block_number: the block of the first entry.
        in_block: that entry is within the block; else it is the block's first bookmark.
    """

    def __init__(self, block_number: int, *, in_block: bool, set_bytes_max: int) -> None:
        self.block_number = block_number
        """The block of the next entry."""
        self.in_block = in_block
        self.size_bytes = 0
        self.messages: list[BlockMessage] = []
        self._set_bytes_max = set_bytes_max
        self._items: list[bytes] = []
        self._set_bytes = 0
        self._pieces: list[bytes] = []

    @property
    def in_item(self) -> bool:
        """True if an item's pieces are being joined: no place to stop."""
        return bool(self._pieces)

    def feed(self, entry_type: int, data: bytes) -> None:
        """Take the next entry.

        Raises:
            LayoutError: it cannot follow in the block.
        """
        if entry_type == BOOKMARK_TYPE:
            self._bookmark(data)
        elif not self.in_block:
            got = f"entry type {entry_type:#x}"
            raise LayoutError(f"stream before block {self.block_number}", got, "a bookmark (0xb0)")
        elif entry_type == BLOCK_END_TYPE:
            self._end(data)
        elif entry_type >= CONTINUED or self._pieces:
            self._piece(entry_type, data)
        else:
            self._item(data)

    def feed_columns(self, types: Sequence[int], column: Sequence[bytes], last_number: int | None) -> int:
        """Take entries up to the end of block `last_number`, as `feed` does; return how many were taken.

        Raises:
            LayoutError: as `feed`; the entries before that one are taken.
        """
        marks = [index for index, kind in enumerate(types) if kind >= CONTINUED or kind in _MARKS]
        at = 0
        for mark in (*marks, len(types)):
            if at < mark and (self._pieces or not self.in_block):
                self.feed(types[at], column[at])
                at += 1
            self._run(column[at:mark])
            if mark < len(types):
                self.feed(types[mark], column[mark])
                at = mark + 1
                if last_number is not None and self.block_number > last_number:
                    return at
        return len(types)

    def _run(self, items: Sequence[bytes]) -> None:
        sizes = list(map(len, items))
        begin = 0
        while begin < len(items):
            # As many as fill the set; at least one into an empty set.
            room = self._set_bytes_max - self._set_bytes
            ends = list(accumulate(sizes[begin:]))
            count = bisect_right(ends, room)
            if count == 0 and not self._items:
                count = 1
            if count:
                self._items += items[begin : begin + count]
                self._set_bytes += ends[count - 1]
                self.size_bytes += ends[count - 1]
                begin += count
            if begin < len(items):
                self.flush()

    def flush(self) -> None:
        """Make a message of the set under way."""
        if self._items:
            response = _Response()
            response.block_items.block_items.extend(self._items)
            self.messages.append(BlockMessage(response.SerializeToString(), None))
            self._items, self._set_bytes = [], 0

    def _bookmark(self, data: bytes) -> None:
        number = self.block_number
        expected = bookmarks_of(number, 1)  # those of any layout
        if data not in expected or self._items or self._pieces:
            raise LayoutError(f"block {number}", f"a bookmark {data.hex()}", f"{expected[0].hex()}, once")
        self.in_block = True

    def _piece(self, entry_type: int, data: bytes) -> None:
        self._pieces.append(data)
        if entry_type < CONTINUED:
            item = b"".join(self._pieces)
            self._pieces = []
            self._item(item)

    def _item(self, item: bytes) -> None:
        size_bytes = len(item)
        if self._items and self._set_bytes + size_bytes > self._set_bytes_max:
            self.flush()
        self._items.append(item)
        self._set_bytes += size_bytes
        self.size_bytes += size_bytes

    def _end(self, data: bytes) -> None:
        number = int.from_bytes(data[:8], "big")
        if number != self.block_number or self._pieces:
            what = f"block {self.block_number}"
            raise LayoutError(what, f"the end of block {number}", "its own end, after whole items")
        self.flush()
        response = _Response()
        response.end_of_block.block_number = number
        self.messages.append(BlockMessage(response.SerializeToString(), number))
        self.block_number += 1
        self.in_block = False
