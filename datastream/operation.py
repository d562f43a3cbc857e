"""One atomic operation at a time: its states as a table, its entries in one buffer. Pure.

    state         start         add    seal      rollback  rollback group  commit
    IDLE          OPEN          -      -         -         IDLE            -
    OPEN          -             OPEN   SEALED    IDLE      IDLE            COMMITTING
    SEALED        OPEN_SEALED   -      -         -         IDLE            COMMITTING
    OPEN_SEALED   -             stays  SEALED    SEALED    IDLE            COMMITTING
    COMMITTING    everything is refused until the commit ends: IDLE
    CLOSED        everything is refused          (- is refused; SEALED: complete operations wait for a commit)

Sealed operations and the open one lie behind each other in one buffer, exactly as they will lie in the file,
padding included, so that a commit is one write. Nothing of them is on disk before that.

Source: wire.md 4; the page rule, wire.md 1.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple

from datastream.errors import (
    BookmarkSizeWrong,
    CommitInProgress,
    EntryTooLong,
    EntryTypeReserved,
    NoOperationOpen,
    OperationAlreadyOpen,
    OperationTooLarge,
    StreamClosed,
)
from datastream.layout import (
    BOOKMARK_TYPE,
    DATA_SIZE_MAX,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_PAGE_SIZE,
    NOT_FOUND_TYPE,
    PACKET_DATA,
    PAGE_SIZE,
    Committed,
    page_number_of,
)
from datastream.limits import (
    BOOKMARK_SIZE_MAX,
    BOOKMARK_SIZE_MIN,
    CHECKPOINT_INTERVAL,
    OPERATION_GROUP_BYTES_MAX,
)

__all__ = ["ADDING", "CALL_NAMES", "TRANSITIONS", "Call", "OperationGroup", "State", "Wrong", "next_state"]


class State(IntEnum):
    """Where the atomic operation stands."""

    IDLE = auto()
    OPEN = auto()
    SEALED = auto()
    OPEN_SEALED = auto()
    COMMITTING = auto()
    CLOSED = auto()


class Call(IntEnum):
    """A call of the API, or the end of a commit."""

    START = auto()
    ADD_ENTRY = auto()
    ADD_BOOKMARK = auto()
    SEAL = auto()
    ROLLBACK = auto()
    ROLLBACK_GROUP = auto()
    COMMIT = auto()
    COMMIT_DONE = auto()
    CLOSE = auto()


CALL_NAMES: dict[Call, str] = {
    Call.START: "start_atomic_op",
    Call.ADD_ENTRY: "add_stream_entry",
    Call.ADD_BOOKMARK: "add_stream_bookmark",
    Call.SEAL: "seal_atomic_op",
    Call.ROLLBACK: "rollback_atomic_op",
    Call.ROLLBACK_GROUP: "rollback_group",
    Call.COMMIT: "commit_atomic_op",
    Call.COMMIT_DONE: "the end of a commit",
    Call.CLOSE: "close",
}


class Wrong(Enum):
    """Why a call is refused; the value is the error's class."""

    ALREADY_OPEN = OperationAlreadyOpen
    NOT_OPEN = NoOperationOpen
    COMMITTING = CommitInProgress
    CLOSED = StreamClosed


TRANSITIONS: dict[State, dict[Call, State | Wrong]] = {
    State.IDLE: {
        Call.START: State.OPEN,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: Wrong.NOT_OPEN,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.CLOSE: State.CLOSED,
    },
    State.OPEN: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: State.OPEN,
        Call.ADD_BOOKMARK: State.OPEN,
        Call.SEAL: State.SEALED,
        Call.ROLLBACK: State.IDLE,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: State.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.CLOSE: State.CLOSED,
    },
    State.SEALED: {
        Call.START: State.OPEN_SEALED,
        Call.ADD_ENTRY: Wrong.NOT_OPEN,
        Call.ADD_BOOKMARK: Wrong.NOT_OPEN,
        Call.SEAL: Wrong.NOT_OPEN,
        Call.ROLLBACK: Wrong.NOT_OPEN,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: State.COMMITTING,
        Call.COMMIT_DONE: Wrong.NOT_OPEN,
        Call.CLOSE: State.CLOSED,
    },
    State.OPEN_SEALED: {
        Call.START: Wrong.ALREADY_OPEN,
        Call.ADD_ENTRY: State.OPEN_SEALED,
        Call.ADD_BOOKMARK: State.OPEN_SEALED,
        Call.SEAL: State.SEALED,
        Call.ROLLBACK: State.SEALED,
        Call.ROLLBACK_GROUP: State.IDLE,
        Call.COMMIT: State.COMMITTING,
        Call.COMMIT_DONE: Wrong.ALREADY_OPEN,
        Call.CLOSE: State.CLOSED,
    },
    State.COMMITTING: {**dict.fromkeys(Call, Wrong.COMMITTING), Call.COMMIT_DONE: State.IDLE},
    State.CLOSED: {**dict.fromkeys(Call, Wrong.CLOSED), Call.CLOSE: State.CLOSED},
}

ADDING: frozenset[State] = frozenset({State.OPEN, State.OPEN_SEALED})
"""The states in which entries are added."""


def next_state(state: State, call: Call) -> State:
    """Return the state after `call`.

    Raises:
        MisuseError: the table refuses the call; the state stays as it was.
    """
    following = TRANSITIONS[state][call]
    if isinstance(following, Wrong):
        raise following.value(CALL_NAMES[call])
    return following


class _Mark(NamedTuple):
    """How far the buffer and its lists reached at some moment."""

    size: int
    number: int
    room: int
    page_starts: int
    page_ends: int
    bookmarks: int
    checkpoints: int


_pack_head = ENTRY_HEAD.pack
_CHECKPOINT_MASK = CHECKPOINT_INTERVAL - 1
_RESERVED: dict[int, str] = {
    # Its bookmark would be missing in the index until the index is rebuilt.
    BOOKMARK_TYPE: "is a bookmark; use add_stream_bookmark",
    # The answer to an Entry command that found nothing has this type.
    NOT_FOUND_TYPE: "means 'not found' to clients",
}


class OperationGroup:
    """The entries of the sealed operations and of the open one, as they will lie in the file.

    Args:
        base: what is committed; the first entry gets its `total_entries` as number.
        size_max: bytes that may wait here.
    """

    __slots__ = (
        "_mark",
        "_room",
        "_size_max",
        "base",
        "bookmarks",
        "buffer",
        "checkpoints",
        "number_next",
        "page_ends",
        "page_starts",
    )

    def __init__(self, base: Committed, size_max: int = OPERATION_GROUP_BYTES_MAX) -> None:
        self.base = base
        """What is committed before the group."""
        self.buffer = bytearray()
        """The bytes from `base.total_length` on, padding included."""
        self.number_next = base.total_entries
        self.page_starts: list[tuple[int, int]] = []
        """(page number, number of its first entry) of the pages that begin in the buffer."""
        self.page_ends: list[tuple[int, int]] = []
        """(page number, offset just past its last entry) of the pages that end in the buffer."""
        self.bookmarks: list[tuple[bytes, int]] = []
        """(bookmark, entry number), in order."""
        self.checkpoints: list[int] = []
        """Offsets of the entries whose number is a multiple of CHECKPOINT_INTERVAL."""
        self._size_max = size_max
        self._room = 0
        self._mark: _Mark | None = None
        self.restart(base)

    def restart(self, base: Committed) -> None:
        """Drop everything, and begin anew after what is committed now."""
        self.base = base
        self.number_next = base.total_entries
        # 0 on a page border: the first entry then takes the slow way, which begins a page.
        self._room = (HEADER_PAGE_SIZE - base.total_length) % PAGE_SIZE
        self._mark = None
        if len(self.buffer) > PAGE_SIZE:
            self.buffer = bytearray()  # gives the memory back
        else:
            self.buffer.clear()
        self.page_starts.clear()
        self.page_ends.clear()
        self.bookmarks.clear()
        self.checkpoints.clear()

    @property
    def end(self) -> Committed:
        """What will be committed once this group is."""
        return Committed(self.base.total_length + len(self.buffer), self.number_next)

    def begin(self) -> None:
        """Begin an operation; `rollback` comes back to here."""
        self._mark = self._mark_here() if self.buffer else None

    def rollback(self) -> None:
        """Drop the open operation's entries."""
        mark = self._mark
        if mark is None:
            self.restart(self.base)
            return
        del self.buffer[mark.size :]
        del self.page_starts[mark.page_starts :]
        del self.page_ends[mark.page_ends :]
        del self.bookmarks[mark.bookmarks :]
        del self.checkpoints[mark.checkpoints :]
        self.number_next = mark.number
        self._room = mark.room

    def add_entry(self, entry_type: int, data: bytes) -> int:
        """Append an entry and return its number.

        Raises:
            EntryTypeReserved: 0xb0 or 0xffffffff, or not a u32.
            EntryTooLong: more than DATA_SIZE_MAX bytes of data.
            OperationTooLarge: the group would be larger than allowed.
        """
        if entry_type == BOOKMARK_TYPE or not 0 <= entry_type < NOT_FOUND_TYPE:
            raise EntryTypeReserved(entry_type, _RESERVED.get(entry_type, "is not an unsigned 32-bit number"))
        return self._append(entry_type, data)

    def add_bookmark(self, bookmark: bytes) -> int:
        """Append a bookmark entry and return its number.

        Raises:
            BookmarkSizeWrong: not 1 to 16 bytes.
            OperationTooLarge: the group would be larger than allowed.
        """
        if not BOOKMARK_SIZE_MIN <= len(bookmark) <= BOOKMARK_SIZE_MAX:
            raise BookmarkSizeWrong(len(bookmark), BOOKMARK_SIZE_MAX)
        number = self._append(BOOKMARK_TYPE, bookmark)
        self.bookmarks.append((bytes(bookmark), number))
        return number

    def _append(self, entry_type: int, data: bytes) -> int:
        size = ENTRY_HEAD_SIZE + len(data)
        number = self.number_next
        # Made before anything changes: what is not bytes is refused here.
        entry = _pack_head(PACKET_DATA, size, entry_type, number) + data
        if size > self._room:
            self._turn_page(size)
        if not number & _CHECKPOINT_MASK:
            self.checkpoints.append(self.base.total_length + len(self.buffer))
        self.buffer += entry
        self._room -= size
        self.number_next = number + 1
        return number

    def _turn_page(self, size: int) -> None:
        """Fill the page with zeros and begin the next, for an entry of `size` bytes."""
        if size > PAGE_SIZE:
            raise EntryTooLong(size - ENTRY_HEAD_SIZE, DATA_SIZE_MAX)
        # Looked at once a page, not once an entry: the limit may be passed by less than one page.
        if len(self.buffer) + self._room + size > self._size_max:
            raise OperationTooLarge(len(self.buffer) + self._room + size, self._size_max)
        offset = self.base.total_length + len(self.buffer)
        page_next = page_number_of(offset + self._room)
        # At a border that the group did not write itself, where the data ended is the file's to know.
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
            len(self.bookmarks),
            len(self.checkpoints),
        )
