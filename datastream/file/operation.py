"""The entries of uncommitted atomic operations, in one buffer. Pure.

The buffer holds them exactly as they will lie in the file, padding included, so a commit is one write.

    committed │ sealed operations │ the open operation │ room on the page
              └ base              └ mark               └ end

`TRANSITIONS` says which call is allowed in which state:

    state         start         add    update  seal      rollback  rollback group  commit      change
    IDLE          OPEN          -      -       -         -         IDLE            -           COMMITTING
    OPEN          -             OPEN   OPEN    SEALED    IDLE      IDLE            COMMITTING  -
    SEALED        OPEN_SEALED   -      -       -         -         IDLE            COMMITTING  -
    OPEN_SEALED   -             stays  stays   SEALED    SEALED    IDLE            COMMITTING  -
    COMMITTING    everything is refused until the commit ends: IDLE
    READ_ONLY     everything but closing is refused
    CLOSED        everything is refused          (- is refused; SEALED: complete operations wait for a commit)

*Update* replaces an entry of the open operation; *change* updates or truncates what is committed.

Source: docs/spec/stream-file.md sections 1.3 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from itertools import islice
from typing import NamedTuple

from sluice.datastream.errors import (
    BookmarkSizeWrong,
    CommitInProgress,
    EntryNotFound,
    EntrySealed,
    EntryTooLong,
    EntryTypeReserved,
    NoOperationOpen,
    OperationAlreadyOpen,
    OperationsNotCommitted,
    OperationTooLarge,
    StreamClosed,
    StreamReadOnly,
)
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    DATA_SIZE_MAX,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    NOT_FOUND_TYPE,
    PACKET_DATA,
    PAGE_SIZE,
    Committed,
    page_end,
    page_number_of,
)
from sluice.datastream.limits import BOOKMARK_SIZE_MAX, CHECKPOINT_INTERVAL

__all__ = [
    "ADDING",
    "CALL_NAMES",
    "TRANSITIONS",
    "Call",
    "OperationGroup",
    "OperationState",
    "WrittenGroup",
    "Wrong",
    "next_state",
]


class OperationState(IntEnum):
    """The state of the atomic operation."""

    IDLE = auto()
    OPEN = auto()
    SEALED = auto()
    OPEN_SEALED = auto()
    COMMITTING = auto()
    READ_ONLY = auto()
    CLOSED = auto()


class Call(IntEnum):
    """A call of the API, or the end of a commit."""

    START = auto()
    ADD_ENTRY = auto()
    ADD_BOOKMARK = auto()
    UPDATE = auto()
    SEAL = auto()
    ROLLBACK = auto()
    ROLLBACK_GROUP = auto()
    COMMIT = auto()
    COMMIT_DONE = auto()
    UPDATE_COMMITTED = auto()
    TRUNCATE = auto()
    CLOSE = auto()


CALL_NAMES: dict[Call, str] = {
    Call.START: "start_atomic_op",
    Call.ADD_ENTRY: "add_stream_entry",
    Call.ADD_BOOKMARK: "add_stream_bookmark",
    Call.UPDATE: "update_entry_data",
    Call.SEAL: "seal_atomic_op",
    Call.ROLLBACK: "rollback_atomic_op",
    Call.ROLLBACK_GROUP: "rollback_group",
    Call.COMMIT: "commit_atomic_op",
    Call.COMMIT_DONE: "the end of a commit",
    Call.UPDATE_COMMITTED: "update_entry_data of a committed entry",
    Call.TRUNCATE: "truncate_file",
    Call.CLOSE: "close",
}


class Wrong(Enum):
    """The reason why a call is refused; the value is the error's class."""

    ALREADY_OPEN = OperationAlreadyOpen
    NOT_OPEN = NoOperationOpen
    NOT_COMMITTED = OperationsNotCommitted
    COMMITTING = CommitInProgress
    READ_ONLY = StreamReadOnly
    CLOSED = StreamClosed


TRANSITIONS: dict[OperationState, dict[Call, OperationState | Wrong]] = {
    OperationState.IDLE: {
        Call.START: OperationState.OPEN,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.UPDATE: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: Wrong.NOT_OPEN,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.UPDATE_COMMITTED: OperationState.COMMITTING,
        Call.TRUNCATE: OperationState.COMMITTING,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.OPEN: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: OperationState.OPEN,
        Call.ADD_BOOKMARK: OperationState.OPEN,
        Call.UPDATE: OperationState.OPEN,
        Call.SEAL: OperationState.SEALED,
        Call.ROLLBACK: OperationState.IDLE,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: OperationState.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.UPDATE_COMMITTED: Wrong.ALREADY_OPEN,
        Call.TRUNCATE: Wrong.ALREADY_OPEN,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.SEALED: {
        Call.START: OperationState.OPEN_SEALED,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.UPDATE: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: OperationState.COMMITTING,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.UPDATE_COMMITTED: Wrong.NOT_COMMITTED,
        Call.TRUNCATE: Wrong.NOT_COMMITTED,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.OPEN_SEALED: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: OperationState.OPEN_SEALED,
        Call.ADD_BOOKMARK: OperationState.OPEN_SEALED,
        Call.UPDATE: OperationState.OPEN_SEALED,
        Call.SEAL: OperationState.SEALED,
        Call.ROLLBACK: OperationState.SEALED,
        Call.ROLLBACK_GROUP: OperationState.IDLE,
        Call.COMMIT: OperationState.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.UPDATE_COMMITTED: Wrong.ALREADY_OPEN,
        Call.TRUNCATE: Wrong.ALREADY_OPEN,
        Call.CLOSE: OperationState.CLOSED,
    },
    OperationState.COMMITTING: {
        **dict.fromkeys(Call, Wrong.COMMITTING),
        Call.COMMIT_DONE: OperationState.IDLE,
    },
    OperationState.READ_ONLY: {**dict.fromkeys(Call, Wrong.READ_ONLY), Call.CLOSE: OperationState.CLOSED},
    OperationState.CLOSED: {**dict.fromkeys(Call, Wrong.CLOSED), Call.CLOSE: OperationState.CLOSED},
}

ADDING: frozenset[OperationState] = frozenset({OperationState.OPEN, OperationState.OPEN_SEALED})


def next_state(state: OperationState, call: Call) -> OperationState:
    """Return the state after `call`; raise MisuseError if the table refuses it."""
    following = TRANSITIONS[state][call]
    if isinstance(following, Wrong):
        raise following.value(CALL_NAMES[call])
    return following


OPERATION_GROUP_BYTES_MAX = 5 << 28
"""Bytes of memory for uncommitted operations (1.25 GiB). Padding counts: it equals the entries if no two of
them fit on one page."""


# `begin`, `begin_commit` and `end_commit` run for each operation: usually they skip the table, and members of
# a class are slower to find.
_IDLE, _OPEN, _COMMITTING = OperationState.IDLE, OperationState.OPEN, OperationState.COMMITTING
assert TRANSITIONS[_IDLE][Call.START] is _OPEN
assert TRANSITIONS[_OPEN][Call.COMMIT] is _COMMITTING
assert TRANSITIONS[_COMMITTING][Call.COMMIT_DONE] is _IDLE


class _Mark(NamedTuple):
    size: int
    number: int
    room: int
    page_starts: int
    page_ends: int
    checkpoints: int


_pack_head = ENTRY_HEAD.pack
_CHECKPOINT_MASK = CHECKPOINT_INTERVAL - 1
_BOOKMARK_ENTRY_SIZE_MAX = ENTRY_HEAD_SIZE + BOOKMARK_SIZE_MAX
_SPECIAL = frozenset((BOOKMARK_TYPE, NOT_FOUND_TYPE))


def append_one_by_one(
    buffer: bytearray,
    entry_types: list[int],
    data: list[bytes],
    at: int,
    number: int,
    room: int,
    interval: int,
) -> tuple[int, list[int]]:
    """As the compiled `append`, where there is none."""
    count, starts, end = 0, [], len(buffer) + room
    for entry_type, one in zip(islice(entry_types, at, None), islice(data, at, None), strict=True):
        size = ENTRY_HEAD_SIZE + len(one)
        is_plain = one.__class__ is bytes and 0 <= entry_type < NOT_FOUND_TYPE and entry_type != BOOKMARK_TYPE
        if not is_plain or len(buffer) + size > end:
            break
        if not (number + count) % interval:
            starts.append(len(buffer))
        buffer += _pack_head(PACKET_DATA, size, entry_type, number + count)
        buffer += one
        count += 1
    return count, starts


try:
    from sluice.datastream.file import _many_entries

    append_many = _many_entries.append
except ImportError:  # where nothing was compiled
    append_many = append_one_by_one


def _not_bytes(size: int, bytes_count: int) -> TypeError:
    """Return the error of a buffer whose `len` counts other items than bytes."""
    return TypeError(f"data: got {bytes_count} bytes with heads, expected {size}: len does not count bytes")


class WrittenGroup(NamedTuple):
    """The rest of a group's commit once its entries are on disk."""

    end: tuple[int, int]
    """(total_length, total_entries) behind the group."""
    all_bookmarks: dict[bytes, int]
    page_starts: list[tuple[int, int]]
    page_ends: list[tuple[int, int]]
    checkpoints: list[int]


class OperationGroup:
    """The state of the atomic operation, and the entries of the sealed operations and of the open one.

    `_room` is the rest of the page while entries may be added, else 0. So one comparison in the fast paths
    `add_entry` and `add_bookmark` finds both a full page and a wrong state.
    """

    __slots__ = (
        "_mark",
        "_room",
        "_room_kept",
        "_size_max",
        "base",
        "bookmarks",
        "buffer",
        "checkpoints",
        "number_next",
        "page_ends",
        "page_starts",
        "sealed_bookmarks",
        "state",
        "unindexed",
    )

    def __init__(
        self,
        base: tuple[int, int],
        size_max: int = OPERATION_GROUP_BYTES_MAX,
        state: OperationState = OperationState.IDLE,
    ) -> None:
        self.state = state
        self.base = base
        """(total_length, total_entries) before the group."""
        self.buffer = bytearray()
        """The bytes from `base[0]` on, padding included, as they will lie in the file."""
        self.number_next = base[1]
        self.page_starts: list[tuple[int, int]] = []
        """(page number, its first entry's number) of pages begun here."""
        self.page_ends: list[tuple[int, int]] = []
        """(page number, offset just past its last entry) of pages completed here."""
        self.bookmarks: dict[bytes, int] = {}
        """Each bookmark of the last operation, with its newest entry in it."""
        self.sealed_bookmarks: dict[bytes, int] = {}
        """The same of the sealed operations before it."""
        self.checkpoints: list[int] = []
        """Offsets of the entries whose number is a multiple of CHECKPOINT_INTERVAL."""
        self.unindexed: set[int] = set()
        """Entries of type 0xb0 that were not added as bookmarks."""
        self._size_max = size_max
        self._mark: _Mark | None = None
        self._room = 0
        self.restart(base)

    def restart(self, base: tuple[int, int]) -> None:
        """Drop everything, and begin behind these totals."""
        self.base = base
        self.number_next = base[1]
        # 0 on a page border: then the first entry begins a page.
        self._room_kept = (HEADER_PAGE_SIZE - base[0]) % PAGE_SIZE
        self._room = self._room_kept if self.state in ADDING else 0
        self._mark = None
        self.buffer.clear()
        self.page_starts.clear()
        self.page_ends.clear()
        self.bookmarks.clear()
        self.sealed_bookmarks.clear()
        self.checkpoints.clear()
        self.unindexed.clear()

    @property
    def end(self) -> Committed:
        """The totals behind this group."""
        return Committed(self.base[0] + len(self.buffer), self.number_next)

    @property
    def all_bookmarks(self) -> dict[bytes, int]:
        """The bookmarks of all operations, each with its newest entry; do not change it."""
        return self.sealed_bookmarks | self.bookmarks if self.sealed_bookmarks else self.bookmarks

    # --- the state ---------------------------------------------------------------------------------------

    def move(self, call: Call) -> None:
        """Change to the state after `call`."""
        following = next_state(self.state, call)
        if self.state in ADDING:
            self._room_kept, self._room = self._room, 0
        self.state = following
        if following in ADDING:
            self._room = self._room_kept

    def begin(self) -> None:
        """Begin an operation; `rollback` returns to here."""
        if self.state is _IDLE:
            self.state = _OPEN
            self._room = self._room_kept
            return
        self.move(Call.START)
        self._mark = self._mark_here()
        self.sealed_bookmarks |= self.bookmarks
        self.bookmarks.clear()

    def begin_commit(self) -> None:
        """End the open operation; nothing is added until `end_commit` or `restart`."""
        if self.state is not _OPEN:
            self.move(Call.COMMIT)
            return
        self.state = _COMMITTING
        self._room_kept, self._room = self._room, 0

    def end_commit(self, committed: tuple[int, int]) -> None:
        """Begin behind this group, which is committed or about to be."""
        assert self.state is _COMMITTING
        self.base = committed
        self.buffer.clear()
        self.bookmarks.clear()
        if self._mark is not None:
            self._mark = None
            self.sealed_bookmarks.clear()
        if self.checkpoints:
            self.checkpoints.clear()
        if self.unindexed:
            self.unindexed.clear()
        if self.page_starts:
            self.page_starts.clear()
            self.page_ends.clear()
        self.state = _IDLE  # last, in case of an interruption

    def hand_over(self, end: tuple[int, int]) -> WrittenGroup:
        """Begin behind this group, whose entries are on disk; return the rest of its commit."""
        written = WrittenGroup(
            *(end, dict(self.all_bookmarks), self.page_starts[:], self.page_ends[:], self.checkpoints[:])
        )
        self.end_commit(end)
        return written

    def seal(self) -> None:
        """End the open operation; it joins the next commit."""
        self.move(Call.SEAL)

    def rollback(self) -> None:
        """Drop the open operation; sealed ones stay."""
        self.move(Call.ROLLBACK)
        self._back_to_mark()

    def _back_to_mark(self) -> None:
        if self._mark is None:
            self.restart(self.base)
        else:
            self._back_to(self._mark)
            self.bookmarks.clear()

    def _back_to(self, mark: _Mark) -> None:
        del self.buffer[mark.size :]
        del self.page_starts[mark.page_starts :]
        del self.page_ends[mark.page_ends :]
        del self.checkpoints[mark.checkpoints :]
        self.number_next = mark.number
        self.unindexed = {number for number in self.unindexed if number < mark.number}
        self._room_kept = mark.room
        if self.state in ADDING:
            self._room = mark.room

    # --- adding ------------------------------------------------------------------------------------------

    def add_entry(self, entry_type: int, data: bytes) -> int:
        """Append an entry and return its number.

        Raises:
            As `DataStreamer.add_stream_entry`; EntryTypeReserved also if the type is no u32.
            TypeError: no bytes, or a buffer of larger items.
        """
        size = ENTRY_HEAD_SIZE + len(data)
        number = self.number_next
        # Before any change: this refuses what is not bytes, or no entry type.
        try:
            entry = _pack_head(PACKET_DATA, size, entry_type, number) + data
        except struct.error:
            raise self._refusal(Call.ADD_ENTRY, entry_type, size) from None
        if size > self._room or entry_type in _SPECIAL or len(entry) != size:
            self._admit(Call.ADD_ENTRY, entry_type, size, len(entry))
        if not number & _CHECKPOINT_MASK:
            self.checkpoints.append(self.base[0] + len(self.buffer))
        self.buffer += entry
        self._room -= size
        self.number_next = number + 1
        return number

    def add_entries(self, entry_types: Sequence[int], data: Sequence[bytes]) -> None:
        """Append entries in order, as `add_entry` for each, a page at a time.

        Raises:
            As `add_entry` for the first refused entry; then none was added.
        """
        next_state(self.state, Call.ADD_ENTRY)
        mark = self._mark_here()
        entry_types, data = list(entry_types), list(data)
        at = 0
        try:
            while at < len(data):
                size, number = len(self.buffer), self.number_next
                count, starts = append_many(
                    self.buffer, entry_types, data, at, number, self._room, CHECKPOINT_INTERVAL
                )
                if count:
                    self._room -= len(self.buffer) - size
                    self.number_next = number + count
                    self.checkpoints += [self.base[0] + start for start in starts]
                else:
                    self.add_entry(entry_types[at], data[at])  # begins a page, or refuses the entry
                    count = 1
                at += count
        except BaseException:
            self._back_to(mark)
            raise

    def add_bookmark(self, bookmark: bytes) -> int:
        """Append a bookmark entry and return its number.

        Raises:
            As `DataStreamer.add_stream_bookmark`.
            TypeError: no bytes, or a buffer of larger items.
        """
        size = ENTRY_HEAD_SIZE + len(bookmark)
        number = self.number_next
        entry = _pack_head(PACKET_DATA, size, BOOKMARK_TYPE, number) + bookmark
        if size > self._room or not ENTRY_HEAD_SIZE < size <= _BOOKMARK_ENTRY_SIZE_MAX or len(entry) != size:
            self._admit(Call.ADD_BOOKMARK, BOOKMARK_TYPE, size, len(entry))
        if not number & _CHECKPOINT_MASK:
            self.checkpoints.append(self.base[0] + len(self.buffer))
        self.buffer += entry
        self._room -= size
        self.number_next = number + 1
        self.bookmarks[bookmark if bookmark.__class__ is bytes else bytes(bookmark)] = number
        return number

    def _refusal(self, call: Call, entry_type: int, size: int) -> Exception:
        next_state(self.state, call)
        if size > PAGE_SIZE:
            return EntryTooLong(size - ENTRY_HEAD_SIZE, DATA_SIZE_MAX)
        return EntryTypeReserved(entry_type, "is not an unsigned 32-bit number")

    def _admit(self, call: Call, entry_type: int, size: int, bytes_count: int) -> None:
        """Refuse an entry, or begin a page for it.

        Args:
            size: of the entry, by the `len` of its data.
            bytes_count: the real size of the entry.
        """
        next_state(self.state, call)
        if bytes_count != size:
            raise _not_bytes(size, bytes_count)
        if entry_type == NOT_FOUND_TYPE:
            raise EntryTypeReserved(entry_type, "means 'not found' to clients")
        if call is Call.ADD_BOOKMARK and not ENTRY_HEAD_SIZE < size <= _BOOKMARK_ENTRY_SIZE_MAX:
            raise BookmarkSizeWrong(size - ENTRY_HEAD_SIZE, BOOKMARK_SIZE_MAX)
        if size > self._room:
            self._turn_page(size)
        if call is Call.ADD_ENTRY and entry_type == BOOKMARK_TYPE:
            self.unindexed.add(self.number_next)

    def _turn_page(self, size: int) -> None:
        if size > PAGE_SIZE:
            raise EntryTooLong(size - ENTRY_HEAD_SIZE, DATA_SIZE_MAX)
        # Once a page, so the group may exceed the limit by less than a page.
        if len(self.buffer) + self._room + size > self._size_max:
            raise OperationTooLarge(len(self.buffer) + self._room + size, self._size_max)
        offset = self.base[0] + len(self.buffer)
        page_next = page_number_of(offset + self._room)
        # At a border that the group did not write, the file knows where the data ended.
        if self._room or self.buffer:
            self.page_ends.append((page_next - 1, offset))
        self.buffer += bytes(self._room)
        self.page_starts.append((page_next, self.number_next))
        self._room = PAGE_SIZE

    def _mark_here(self) -> _Mark:
        return _Mark(
            len(self.buffer),
            self.number_next,
            self._room,
            len(self.page_starts),
            len(self.page_ends),
            len(self.checkpoints),
        )

    # --- updating an entry of the open operation ---------------------------------------------------------

    def update(self, number: int, entry_type: int, data: bytes) -> None:
        """Replace an entry of the open operation by any entry or bookmark; later ones move.

        In place of an entry of type 0xb0 that is no bookmark, another of that type is none, either.
        """
        next_state(self.state, Call.UPDATE)
        mark = self._mark
        first_number = self.base[1] if mark is None else mark.number
        if number >= self.number_next:
            raise EntryNotFound(number, self.number_next)
        if number < first_number:
            raise EntrySealed(number)
        entries = self._entries_of_open_operation()
        before, unindexed = list(entries), set(self.unindexed)
        entries[number - first_number] = (entry_type, bytes(data))
        self._back_to_mark()
        try:
            self._add_all(entries, unindexed)
        except BaseException:
            self._back_to_mark()
            self._add_all(before, unindexed)
            raise

    def _add_all(self, entries: list[tuple[int, bytes]], unindexed: set[int]) -> None:
        for entry_type, data in entries:
            if entry_type == BOOKMARK_TYPE and self.number_next not in unindexed:
                self.add_bookmark(data)
            else:
                self.add_entry(entry_type, data)

    def _entries_of_open_operation(self) -> list[tuple[int, bytes]]:
        mark = self._mark
        position = 0 if mark is None else mark.size
        offset = self.base[0]
        entries = []
        while position < len(self.buffer):
            if len(self.buffer) - position < ENTRY_HEAD_SIZE or self.buffer[position] != PACKET_DATA:
                position = page_end(page_number_of(offset + position)) - offset  # over the padding
                continue
            _, size, entry_type, _ = ENTRY_HEAD.unpack_from(self.buffer, position)
            entries.append((entry_type, bytes(self.buffer[position + ENTRY_HEAD_SIZE : position + size])))
            position += size
        return entries
