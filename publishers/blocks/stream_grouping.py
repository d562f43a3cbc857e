"""The blocks of a network's stream: which entries make a block, and what time it has. Pure.

    batch      a block begins with the bookmark of a batch
    l2block    a block begins with the bookmark of an L2 block
    bookmark   a block begins with each bookmark
    N          a block has N entries

Where such a bookmark is missing before a BatchStart, L2Block or StartL2Block, that event begins the block.
Entries before the first beginning belong to the first block. A block is complete when the next one begins, or
when it has N entries.

Blocks depend on the entries alone: whoever reads a stream from entry 0 makes the same bytes. A block has the
time of its first event with a timestamp, else that of the block before; before any time it is 1970.
Source: docs/spark.md, "The stream of a network"; docs/spec/stream-file.md section 5.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal

from google.protobuf.message import DecodeError

from sluice.datastream.errors import EventMalformed
from sluice.datastream.events.events import Event, Generation, decode_event
from sluice.datastream.events.network_events import BatchStart, Bookmark, BookmarkType, L2Block, UpdateGer
from sluice.datastream.events.original_events import (
    OriginalBookmark,
    OriginalBookmarkType,
    OriginalUpdateGer,
    StartL2Block,
)
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX
from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import stream_entry_item
from sluice.gateway.limits import BLOCK_ITEMS_MAX, ITEM_OVERHEAD_BYTES
from sluice.publishers.blocks.block_items import SECOND_NS, header_item
from sluice.publishers.blocks.linking import ChainStart, Linker, open_block
from sluice.publishers.errors import OptionError, PrepareError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX

__all__ = [
    "GroupBy",
    "Grouping",
    "Mark",
    "StreamBlocks",
    "StreamPoint",
    "check_block_size",
    "entry_item",
    "entry_size",
]

GroupBy = Literal["batch", "l2block", "bookmark"] | int
"""The rule that cuts a stream into blocks."""

FRAME_ITEMS: Final = 3
"""Header, footer and one proof."""
FRAME_BYTES: Final = 1_024
"""Room for them in a block: they have some 300 bytes."""
GROUP_ENTRIES_MAX: Final = BLOCK_ITEMS_MAX - FRAME_ITEMS
"""Entries that a gateway takes in one block."""
TIME_SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999. A later timestamp is an error of its writer, and counts as none."""
_ENTRY_TYPE_MAX: Final = (1 << 32) - 1

# First bytes of the bookmarks that may begin a block, in both generations; the others are not decoded.
_BOOKMARK_STARTS: Final = {"batch": (b"\x08\x01", b"\x01"), "l2block": (b"\x08\x02", b"\x00")}
_BEGINNING_TYPES: Final = {
    "batch": frozenset((BatchStart.ENTRY_TYPE,)),
    "l2block": frozenset((L2Block.ENTRY_TYPE, StartL2Block.ENTRY_TYPE)),
}
_TIMED: Final = (L2Block, UpdateGer, StartL2Block, OriginalUpdateGer)
_TIMED_TYPES: Final = frozenset(kind.ENTRY_TYPE for kind in _TIMED)
_NAMES: Final = {"batch": "batch", "l2block": "L2 block"}


class Mark(IntEnum):
    """The part of an entry in the beginning of a block."""

    NONE = 0
    BOOKMARK = 1
    """The entry is a bookmark that begins a block."""
    EVENT = 2
    """The entry begins a block unless the entry before it has BOOKMARK."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A rule that cuts a stream into blocks."""

    by: GroupBy
    generation: Generation | None = None
    """That of the events; None: the bytes tell."""

    @classmethod
    def parse(cls, by: object, generation: Generation | None = None) -> Grouping:
        """Return the rule of an argument, or of a text such as `batch` or `500`; raise OptionError."""
        count = int(by) if isinstance(by, str) and by.isascii() and by.isdecimal() else by
        if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= GROUP_ENTRIES_MAX:
            return cls(count, generation)
        for known in ("batch", "l2block", "bookmark"):
            if by == known:
                return cls(known, generation)
        expected = f"batch, l2block, bookmark, or a number of entries from 1 to {GROUP_ENTRIES_MAX}"
        raise OptionError("group_by", repr(by), expected)

    def mark_of(self, number: int, entry_type: int, data: bytes) -> tuple[Mark, int | None]:
        """Return an entry's mark, and the number of the batch or L2 block that it names.

        Raises:
            PrepareError: the entry is no event of the stated generation.
        """
        by = self.by
        if isinstance(by, int):
            return (Mark.NONE if number % by else Mark.BOOKMARK), None
        if by == "bookmark":
            return (Mark.BOOKMARK if entry_type == BOOKMARK_TYPE else Mark.NONE), None
        if entry_type == BOOKMARK_TYPE:
            if data.startswith(_BOOKMARK_STARTS[by]):
                match self._event(number, entry_type, data):
                    case Bookmark(type=kind, value=value) if kind == _network_type(by):
                        return Mark.BOOKMARK, value
                    case OriginalBookmark(type=kind, number=value) if kind == _original_type(by):
                        return Mark.BOOKMARK, value
        elif entry_type in _BEGINNING_TYPES[by]:
            event = self._event(number, entry_type, data)
            if by == "batch" and isinstance(event, BatchStart):
                return Mark.EVENT, event.number
            if by == "l2block" and isinstance(event, L2Block):
                return Mark.EVENT, event.number
            if by == "l2block" and isinstance(event, StartL2Block):
                return Mark.EVENT, event.block_number
        return Mark.NONE, None

    def seconds_of(self, number: int, entry_type: int, data: bytes) -> int | None:
        """Return an entry's timestamp, seconds since 1970, if it has one; raise as `mark_of`."""
        if entry_type not in _TIMED_TYPES:
            return None
        event = self._event(number, entry_type, data)
        if isinstance(event, _TIMED) and event.timestamp <= TIME_SECONDS_MAX:
            return event.timestamp
        return None

    def name_of(self, value: int | None, first: int, end: int) -> str:
        """Name a block by its content: `batch 12, entries 100 to 250`."""
        entries = f"entries {first} to {end - 1}"
        return (
            entries if value is None or isinstance(self.by, int) else f"{_NAMES[self.by]} {value}, {entries}"
        )

    def _event(self, number: int, entry_type: int, data: bytes) -> Event:
        try:
            return decode_event(entry_type, data, self.generation)
        except EventMalformed as error:
            raise PrepareError(None, f"entry {number}: {error}") from error


def _network_type(by: str) -> int:
    return BookmarkType.BATCH if by == "batch" else BookmarkType.L2_BLOCK


def _original_type(by: str) -> int:
    return OriginalBookmarkType.BATCH if by == "batch" else OriginalBookmarkType.L2_BLOCK


def entry_item(number: Any, entry_type: Any, data: Any) -> bytes:
    """Return the item of an entry; raise PrepareError if no stream has such an entry."""
    if number is None or number < 0:
        raise PrepareError(None, f"an entry has the number {number}, expected 0 or above")
    if entry_type is None or not 0 <= entry_type <= _ENTRY_TYPE_MAX:
        raise PrepareError(None, f"entry {number} has type {entry_type}, expected 0 to {_ENTRY_TYPE_MAX}")
    if data is None:
        raise PrepareError(None, f"entry {number} has no data (null)")
    if len(data) > DATA_SIZE_MAX:
        raise PrepareError(None, f"entry {number} has {len(data)} bytes, at most {DATA_SIZE_MAX} are allowed")
    return stream_entry_item(entry_type, bytes(data))


def entry_size(item: bytes) -> int:
    """Return the bytes that a gateway counts for an item of a block."""
    return len(item) + ITEM_OVERHEAD_BYTES


def check_block_size(
    grouping: Grouping, number: int, value: int | None, entries: range, size_bytes: int, block_bytes_max: int
) -> None:
    """Check that a gateway takes a block of these entries.

    Args:
        grouping: the rule that made it.
        number: of the block.
        value: number of the batch or L2 block, if known.
        entries: of the block, so far.
        size_bytes: of their items, as `entry_size`.
        block_bytes_max: the gateway's `publish.max_block_bytes`.

    Raises:
        PrepareError: it does not.
    """
    for got, most, unit in (
        (size_bytes + FRAME_BYTES, block_bytes_max, "bytes (publish.max_block_bytes)"),
        (len(entries), GROUP_ENTRIES_MAX, "entries"),
    ):
        if got > most:
            name = grouping.name_of(value, entries.start, entries.stop)
            reason = f"it ({name}) has {got} {unit}, at most {most} are allowed; group the entries by less"
            raise PrepareError(number, reason)


# --- entry by entry -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """The point from which the blocks of a stream go on; by default before entry 0.

    Its size is that of one block.
    """

    chain: ChainStart = field(default_factory=ChainStart)
    """Before the block that is being gathered."""
    next_entry: int = 0
    items: tuple[bytes, ...] = ()
    """Of the entries that are gathered."""
    has_begun: bool = False
    """Whether an entry that begins a block is among them."""
    is_after_bookmark: bool = False
    """Whether the last entry was a bookmark that begins a block."""
    value: int | None = None
    """Number of the batch or L2 block."""
    seconds: int | None = None
    """Time of the gathered block; None: no entry had one."""
    seconds_before: int = 0
    """Time of the block before."""

    def to_bytes(self) -> bytes:
        """Return it as a line of JSON, and then the items as a `Block` message."""
        facts = {name: getattr(self, name) for name in _FACTS} | {"chain": self.chain.to_json()}
        items = block_pb2.Block(items=self.items).SerializeToString(deterministic=True)
        return json.dumps(facts).encode() + b"\n" + items

    @classmethod
    def from_bytes(cls, text: bytes) -> StreamPoint:
        """Read what `to_bytes` returned; raise PrepareError for other bytes."""
        line, _, items = text.partition(b"\n")
        try:
            facts = json.loads(line)
            chain = ChainStart.from_json(facts.pop("chain"))
            return cls(chain=chain, items=tuple(block_pb2.Block.FromString(items).items), **facts)
        except (ValueError, TypeError, LookupError, AttributeError, DecodeError) as error:
            raise PrepareError(None, "the state of the query is not what this version writes") from error


_FACTS: Final = ("next_entry", "has_begun", "is_after_bookmark", "value", "seconds", "seconds_before")


class StreamBlocks:
    """Makes linked blocks of entries that come one by one; they have no proofs.

    Args:
        grouping: the rule.
        point: where to go on.
        block_bytes_max: the gateway's `publish.max_block_bytes`.
    """

    def __init__(
        self,
        grouping: Grouping,
        point: StreamPoint | None = None,
        *,
        block_bytes_max: int = BLOCK_FILE_BYTES_MAX,
    ) -> None:
        point = point or StreamPoint()
        self._grouping = grouping
        self._block_bytes_max = block_bytes_max
        self._linker = Linker(point.chain)
        self._number = point.chain.next_number
        self._next_entry = point.next_entry
        self._items = list(point.items)
        self._size_bytes = sum(map(entry_size, self._items))
        self._has_begun = point.has_begun
        self._is_after_bookmark = point.is_after_bookmark
        self._value = point.value
        self._seconds = point.seconds
        self._seconds_before = point.seconds_before

    @property
    def point(self) -> StreamPoint:
        """The point after the last entry that was taken."""
        return StreamPoint(
            self._linker.end,
            self._next_entry,
            tuple(self._items),
            self._has_begun,
            self._is_after_bookmark,
            self._value,
            self._seconds,
            self._seconds_before,
        )

    def feed(self, number: int, entry_type: int, data: bytes) -> Block | None:
        """Take the next entry; return the block that it completes, which may be the one before it.

        Raises:
            PrepareError: it is not the next entry, no stream has it, or its block gets too large. Nothing is
                taken.
        """
        if number != self._next_entry:
            raise PrepareError(None, _out_of_order(number, self._next_entry))
        item = entry_item(number, entry_type, data)
        grouping = self._grouping
        mark, value = grouping.mark_of(number, entry_type, data)
        begins = mark == Mark.BOOKMARK or (mark == Mark.EVENT and not self._is_after_bookmark)
        seconds = None
        ends_block = begins and self._has_begun
        if ends_block or self._seconds is None:
            seconds = grouping.seconds_of(number, entry_type, data)
        first = number if ends_block else number - len(self._items)
        size_bytes = entry_size(item) + (0 if ends_block else self._size_bytes)
        block_number = self._number + ends_block
        named = value if begins else self._value
        check_block_size(
            grouping, block_number, named, range(first, number + 1), size_bytes, self._block_bytes_max
        )
        block = self._close() if ends_block else None
        self._items.append(item)
        self._size_bytes += entry_size(item)
        self._next_entry = number + 1
        self._is_after_bookmark = mark == Mark.BOOKMARK
        if begins:
            self._has_begun = True
            self._value = value
        if self._seconds is None:
            self._seconds = seconds
        if isinstance(grouping.by, int) and (number + 1) % grouping.by == 0:
            return self._close()
        return block

    def finish(self) -> Block | None:
        """Return the block of the entries that are left, complete or not, if there are any."""
        return self._close() if self._items else None

    def _close(self) -> Block:
        seconds = self._seconds_before if self._seconds is None else self._seconds
        opened = open_block(self._number, (header_item(self._number, seconds * SECOND_NS), *self._items))
        links = self._linker.link(self._number, opened.path())
        block = Block(self._number, opened.closed(links))
        self._number += 1
        self._seconds_before = seconds
        self._items, self._size_bytes = [], 0
        self._has_begun, self._value, self._seconds = False, None, None
        return block


def _out_of_order(got: int, expected: int) -> str:
    if got < expected:
        return f"entry {got} is there more than once"
    missing = f"entry {expected} is" if got == expected + 1 else f"entries {expected} to {got - 1} are"
    return f"{missing} missing before entry {got}"
