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
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple

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
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, NOT_FOUND_TYPE
from sluice.gateway.api import block_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import stream_entry_item
from sluice.gateway.limits import BLOCK_ITEMS_MAX, ITEM_OVERHEAD_BYTES
from sluice.publishers.blocks.block_items import SECOND_NS, header_item
from sluice.publishers.blocks.linking import ChainStart, Linker, open_block
from sluice.publishers.errors import OptionError, PrepareError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX

__all__ = [
    "BlockPlan",
    "GroupBy",
    "Grouping",
    "Mark",
    "Segment",
    "StreamBlocks",
    "StreamPoint",
    "entry_item",
    "entry_size",
    "plan_blocks",
    "segments_of",
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
_ENTRY_TYPE_MAX: Final = NOT_FOUND_TYPE - 1
_COUNT: Final = re.compile(r"[0-9]{1,9}")

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


class Look(NamedTuple):
    """The facts about an entry that decide where blocks begin, and their times."""

    mark: Mark = Mark.NONE
    value: int | None = None
    """Number of the batch or L2 block that begins."""
    seconds: int | None = None
    """Its timestamp, since 1970, if it has one and was decoded."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A rule that cuts a stream into blocks."""

    by: GroupBy
    generation: Generation | None = None
    """That of the events; None: the bytes tell."""

    @classmethod
    def parse(cls, by: object, generation: Generation | None = None) -> Grouping:
        """Return the rule of an argument, or of a text such as `batch` or `500`; raise OptionError."""
        count = int(by) if isinstance(by, str) and _COUNT.fullmatch(by) else by
        if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= GROUP_ENTRIES_MAX:
            return cls(count, generation)
        for known in ("batch", "l2block", "bookmark"):
            if by == known:
                return cls(known, generation)
        expected = f"batch, l2block, bookmark, or a number of entries from 1 to {GROUP_ENTRIES_MAX}"
        raise OptionError("group_by", repr(by), expected)

    def look(
        self, number: int, entry_type: int, data: bytes, *, is_after_bookmark: bool, wants_time: bool
    ) -> Look:
        """Look at an entry, and decode it at most once.

        Args:
            number: of the entry.
            entry_type: of the entry.
            data: of the entry.
            is_after_bookmark: whether the entry before it has the mark BOOKMARK; then it cannot have EVENT.
            wants_time: whether its timestamp is of use. That of an entry with a mark always is.

        Raises:
            PrepareError: the entry is no event of the stated generation.
        """
        by = self.by
        if isinstance(by, int):
            mark = Mark.NONE if number % by else Mark.BOOKMARK
            may_begin = False
        elif entry_type == BOOKMARK_TYPE:
            mark = Mark.BOOKMARK if by == "bookmark" else Mark.NONE
            may_begin = by != "bookmark" and data.startswith(_BOOKMARK_STARTS[by])
        else:
            mark = Mark.NONE
            may_begin = by != "bookmark" and not is_after_bookmark and entry_type in _BEGINNING_TYPES[by]
        wants_time = wants_time or mark == Mark.BOOKMARK
        if not may_begin and not (wants_time and entry_type in _TIMED_TYPES):
            return Look(mark)
        try:
            event = decode_event(entry_type, data, self.generation)
        except EventMalformed as error:
            raise PrepareError(None, f"entry {number}: {error}") from error
        value = seconds = None
        if may_begin:
            mark, value = _beginning_of(by, event)
        if isinstance(event, _TIMED) and event.timestamp <= TIME_SECONDS_MAX:
            seconds = event.timestamp
        return Look(mark, value, seconds)

    def name_of(self, value: int | None, first: int, end: int) -> str:
        """Name a block by its content: `batch 12, entries 100 to 250`."""
        entries = f"entries {first} to {end - 1}"
        return (
            entries if value is None or isinstance(self.by, int) else f"{_NAMES[self.by]} {value}, {entries}"
        )


def _beginning_of(by: GroupBy, event: Event) -> tuple[Mark, int | None]:
    """Return the mark of an event, if it was directly after no bookmark, and the number that it names."""
    is_batch = by == "batch"
    match event:
        case Bookmark(type=kind, value=value):
            if kind == (BookmarkType.BATCH if is_batch else BookmarkType.L2_BLOCK):
                return Mark.BOOKMARK, value
        case OriginalBookmark(type=kind, number=value):
            if kind == (OriginalBookmarkType.BATCH if is_batch else OriginalBookmarkType.L2_BLOCK):
                return Mark.BOOKMARK, value
        case BatchStart(number=value) if is_batch:
            return Mark.EVENT, value
        case L2Block(number=value) | StartL2Block(block_number=value) if not is_batch:
            return Mark.EVENT, value
    return Mark.NONE, None


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
    """True if an entry that begins a block is among them."""
    is_after_bookmark: bool = False
    """True if the last entry was a bookmark that begins a block."""
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
        mark, value, seconds = grouping.look(
            number,
            entry_type,
            data,
            is_after_bookmark=self._is_after_bookmark,
            wants_time=self._seconds is None,
        )
        begins = mark != Mark.NONE
        ends_block = begins and self._has_begun
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


# --- in parts -----------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """Consecutive entries of one block, as far as a reader of a part of the stream can tell."""

    first: int
    end: int
    size_bytes: int
    mark: Mark
    """That of its first entry; EVENT may be wrong for the first entry of a part."""
    value: int | None
    seconds: int | None
    """The first timestamp in it."""
    ends_with_bookmark: bool
    """True if its last entry has the mark BOOKMARK."""


def segments_of(grouping: Grouping, entries: Iterable[tuple[int, int, bytes]]) -> Iterator[Segment]:
    """Cut a part of a stream into segments; they are as many as the blocks that begin in it, and one.

    A gap begins a segment, too. Raises PrepareError for an entry that no stream has.
    """
    segment: Segment | None = None
    for number, entry_type, data in entries:
        size_bytes = entry_size(entry_item(number, entry_type, data))
        follows = segment is not None and number == segment.end
        mark, value, seconds = grouping.look(
            number,
            entry_type,
            data,
            is_after_bookmark=follows and segment is not None and segment.ends_with_bookmark,
            wants_time=not follows or segment is None or segment.seconds is None,
        )
        is_bookmark = mark == Mark.BOOKMARK
        if segment is not None and follows and mark == Mark.NONE:
            first, _, before, its_mark, its_value, known, _ = segment
            known = seconds if known is None else known
            segment = Segment(
                first, number + 1, before + size_bytes, its_mark, its_value, known, ends_with_bookmark=False
            )
            continue
        if segment is not None:
            yield segment
        segment = Segment(number, number + 1, size_bytes, mark, value, seconds, is_bookmark)
    if segment is not None:
        yield segment


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The blocks of a stream by their entries."""

    starts: array[int]
    """The first entry of each block."""
    seconds: array[int]
    """The time of each block, since 1970."""
    end: int
    """The entry after those of the last block."""
    entries: int
    """Those of the stream, also of a block that is not complete."""

    def entry_count(self, block: int) -> int:
        """Return how many entries a block has."""
        end = self.starts[block + 1] if block + 1 < len(self.starts) else self.end
        return end - self.starts[block]


def plan_blocks(
    grouping: Grouping, segments: Iterable[Segment], *, is_whole: bool, block_bytes_max: int
) -> BlockPlan:
    """Join the segments of a whole stream, in order of their entries.

    Args:
        grouping: the rule.
        segments: of all parts, sorted.
        is_whole: whether the last block is planned though it is not complete.
        block_bytes_max: the gateway's `publish.max_block_bytes`.

    Raises:
        PrepareError: entries are missing or repeated, or a block gets too large.
    """
    starts, times = array("q"), array("q")
    end = size_bytes = 0
    value: int | None = None
    has_time = has_begun = is_after_bookmark = False
    for segment in segments:
        if segment.first != end:
            raise PrepareError(None, _out_of_order(segment.first, end))
        begins = segment.mark == Mark.BOOKMARK or (segment.mark == Mark.EVENT and not is_after_bookmark)
        if not starts or (begins and has_begun):
            times.append(times[-1] if times else 0)
            starts.append(segment.first)
            size_bytes, has_time, has_begun, value = 0, False, False, None
        if begins:
            has_begun, value = True, segment.value
        if segment.seconds is not None and not has_time:
            times[-1], has_time = segment.seconds, True
        end, is_after_bookmark = segment.end, segment.ends_with_bookmark
        size_bytes += segment.size_bytes
        entries = range(starts[-1], end)
        check_block_size(grouping, len(starts) - 1, value, entries, size_bytes, block_bytes_max)
    count = end
    is_complete = isinstance(grouping.by, int) and end % grouping.by == 0
    if starts and not is_complete and not is_whole:
        end = starts.pop()
        times.pop()
    return BlockPlan(starts, times, end, count)


def _out_of_order(got: int, expected: int) -> str:
    if got < expected:
        return f"entry {got} is there more than once"
    missing = f"entry {expected} is" if got == expected + 1 else f"entries {expected} to {got - 1} are"
    return f"{missing} missing before entry {got}"
