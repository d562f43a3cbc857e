"""The core of a follower: which server to try when, from where, and whether it has the same stream. Pure.

    next_step     -> Wait(seconds) | Connect(address)       the shell does it, then calls
    on_header     -> entries to ask for before Start        the server must have them as we know them
    on_compared      for each of them
    start_step    -> StartAt(number) | StartAtBookmark(bookmark)
    on_started
    accept        -> the next entries in order, and what is wrong with the one after them
    on_failure       raises the failure if no further attempt makes sense

Invariants
  - The core accepts only the next entry, once: no gap, no repetition, whatever servers send.
  - Before streaming, it compares the server's version, system id, stream type, and the last common entries.

What comes after a failure:

    failure                                           then
    unreachable, closed, too slow, out of order       the next server; after all of them, a pause
    has fewer entries than were handed over           the same
    another stream; an unknown first bookmark         the same, and an error when all servers do so
    violates the protocol                             as another stream, unless a server has spoken it before

Pauses double from `backoff_first_seconds` to `backoff_max_seconds`, less up to a half at random. They restart
when an entry was accepted, or the stream ran for `steady_seconds`.

Source: docs/spec/stream-file.md section 4.6; datastream/README.md, "Following, and the relay".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.datastream.errors import (
    CommandRefused,
    EntryOutOfOrder,
    RemoteError,
    ServerBehind,
    ServerSpokeWrongly,
    StreamContradicts,
)
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.limits import FollowLimits

__all__ = [
    "Address",
    "Connect",
    "FollowCore",
    "FollowerBase",
    "KnownEntries",
    "RecentEntries",
    "StartAt",
    "StartAtBookmark",
    "Wait",
    "check_same",
]

COMPARED_ENTRIES_COUNT = 8
"""Entries before the next one that are compared on every connection."""

Address = tuple[str, int]
"""Host and port of a server."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to this server and ask for its header."""

    address: Address


@dataclass(frozen=True, slots=True)
class StartAt:
    """Send Start."""

    number: int


@dataclass(frozen=True, slots=True)
class StartAtBookmark:
    """Send StartBookmark."""

    bookmark: bytes


class KnownEntries(Protocol):
    """The entries accepted so far: a server must have the same."""

    def before(self, number: int) -> Sequence[Entry]:
        """Return up to COMPARED_ENTRIES_COUNT of the last known entries below `number`."""

    def remember(self, entries: Sequence[Entry]) -> None:
        """Remember accepted entries."""


class RecentEntries:
    """The last entries, kept in memory."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=COMPARED_ENTRIES_COUNT)

    def before(self, number: int) -> Sequence[Entry]:
        """Return the kept entries below `number`."""
        return [entry for entry in self._entries if entry.number < number]

    def remember(self, entries: Sequence[Entry]) -> None:
        """Remember accepted entries; keep only the last."""
        self._entries.extend(entries[-COMPARED_ENTRIES_COUNT:])


class FollowCore:
    """The state of one follower.

    Args:
        servers: in the order of preference.
        start: an entry number, a bookmark, or None for the server's end at the first connection.
        random: returns a number from 0 to 1, for the pauses.
        known: entries accepted before; None keeps the last ones in memory.
        identity: required version, system id and stream type of servers; None takes the first one's.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        start: int | bytes | None,
        limits: FollowLimits,
        random: Callable[[], float],
        known: KnownEntries | None = None,
        identity: StreamHeader | None = None,
    ) -> None:
        if not servers:
            raise ValueError("servers: got none, expected one or more addresses")
        self._servers = tuple(servers)
        self._limits = limits
        self._random = random
        self._known = RecentEntries() if known is None else known
        self.number_next: int | None = start if isinstance(start, int) else None
        """The entry to be accepted next; None until it is known."""
        self._bookmark = start if isinstance(start, bytes) else None
        self.identity = identity
        self._position = 0
        self._tries = 0
        """Failures since the last pause or accepted entry."""
        self._pauses = 0
        """Pauses since the last accepted entry."""
        self._wrong: dict[Address, RemoteError] = {}
        """Servers whose last answer was of another stream."""
        self._has_spoken = False
        self._started_at: float | None = None

    @property
    def address(self) -> Address:
        """The server that is tried or followed."""
        return self._servers[self._position]

    def next_step(self) -> Wait | Connect:
        """Return the next step without a connection."""
        if self._tries < len(self._servers):
            return Connect(self.address)
        limits = self._limits
        # No overflow: 2 ** 16 s is far above any longest pause.
        pause = min(limits.backoff_first_seconds * 2 ** min(self._pauses, 16), limits.backoff_max_seconds)
        self._pauses += 1
        self._tries = 0
        return Wait(pause * (1 - self._random() / 2))

    def on_header(self, header: StreamHeader) -> Sequence[Entry]:
        """Judge the server by its header; return the entries to compare with its answers to Entry.

        Raises StreamContradicts.
        """
        self._has_spoken = True
        if self.identity is None:
            self.identity = header
        for what in ("version", "system_id", "stream_type"):
            got, expected = getattr(header, what), getattr(self.identity, what)
            if got != expected:
                raise StreamContradicts(what.replace("_", " "), str(got), str(expected))
        if self.number_next is None and self._bookmark is None:
            self.number_next = header.total_entries
        return [] if self.number_next is None else self._known.before(header.total_entries)

    def on_compared(self, expected: Entry, got: Entry | None) -> None:
        """Judge an entry that the server answered; as `check_same`."""
        check_same(expected, got)

    def start_step(self, header: StreamHeader) -> StartAt | StartAtBookmark:
        """Return where to start.

        Raises:
            ServerBehind: it lacks entries that were accepted from others.
        """
        if self.number_next is None:
            assert self._bookmark is not None
            return StartAtBookmark(self._bookmark)
        if header.total_entries < self.number_next:
            raise ServerBehind(header.total_entries, self.number_next)
        return StartAt(self.number_next)

    def on_started(self, now: float) -> None:
        """Note that the server accepted Start, at `now` seconds of a monotonic clock."""
        self._started_at = now
        self._wrong.clear()

    def accept(self, entries: Sequence[Entry]) -> tuple[Sequence[Entry], EntryOutOfOrder | None]:
        """Return the streamed entries that are next in order, and the fault behind them."""
        if self.number_next is None and entries:
            first = entries[0]
            if not first.is_bookmark or first.data != self._bookmark:
                assert self._bookmark is not None
                return [], EntryOutOfOrder(f"entry {first.number}", f"bookmark {self._bookmark.hex()}")
            self.number_next = first.number
        expected = number = self.number_next or 0
        for entry in entries:
            if entry.number != expected:
                break
            expected += 1
        good = entries[: expected - number]
        if good:
            self.number_next = expected
            self._tries = self._pauses = 0
            self._known.remember(good)
        if len(good) == len(entries):
            return good, None
        return good, EntryOutOfOrder(f"entry {entries[len(good)].number}", f"entry {expected}")

    def resume_at(self, number: int) -> None:
        """Go back to an entry that could not be kept."""
        assert self.number_next is not None
        assert number <= self.number_next
        self.number_next = number

    def on_failure(self, error: Exception, now: float) -> None:
        """Note that the attempt or the stream failed.

        Raises:
            RemoteError: the error itself, if every server has another stream.
        """
        if self._started_at is not None and now - self._started_at >= self._limits.steady_seconds:
            self._pauses = 0
        self._started_at = None
        address = self.address
        if isinstance(error, RemoteError) and self._is_another_stream(error):
            self._wrong[address] = error
        else:
            self._wrong.pop(address, None)
        if len(self._wrong) == len(set(self._servers)):
            raise error
        self._tries += 1
        self._position = (self._position + 1) % len(self._servers)

    def _is_another_stream(self, error: RemoteError) -> bool:
        match error:
            case StreamContradicts():
                return True
            case CommandRefused():  # an unknown first bookmark; a start past the end is only behind
                return self.number_next is None
            case ServerSpokeWrongly():
                return not self._has_spoken
        return False


def check_same(expected: Entry, got: Entry | None) -> None:
    """Compare a known entry with the server's; None is "not found".

    Raises:
        StreamContradicts: they differ.
    """
    if got != expected:
        got_text = "none" if got is None else _text_of(got)
        raise StreamContradicts(f"entry {expected.number}", got_text, _text_of(expected))


def _text_of(entry: Entry) -> str:
    shown = entry.data[:16].hex() + ("…" if len(entry.data) > 16 else "")
    return f"number {entry.number}, type {entry.type:#x}, {len(entry.data)} bytes {shown}".rstrip()


class FollowerBase:
    """The part that both followers share: everything but the waiting.

    Args:
        servers, known, identity, rng: as in `FollowCore`.
        from_entry, from_bookmark: where to begin; a bookmark goes before an entry.
        now: a clock in seconds.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        from_entry: int | None,
        from_bookmark: bytes | None,
        stream_type: int,
        limits: FollowLimits | None,
        now: Callable[[], float],
        rng: Callable[[], float],
        known: KnownEntries | None = None,
        identity: StreamHeader | None = None,
    ) -> None:
        self._limits = FollowLimits() if limits is None else limits
        start = from_entry if from_bookmark is None else from_bookmark
        self._core = FollowCore(servers, start, self._limits, rng, known, identity)
        self._stream_type = stream_type
        self._now = now
        self._pending: deque[Entry] = deque()
        """Entries that were received but not handed over."""
        self.header: StreamHeader | None = None
        """The header of the followed server, as of the connection."""

    @property
    def number_next(self) -> int | None:
        """The entry to be handed over next; None until it is known."""
        return self._pending[0].number if self._pending else self._core.number_next

    @property
    def address(self) -> Address:
        """The server being followed or tried."""
        return self._core.address

    def _failure_text(self, error: Exception) -> str:
        """Report the failure to the core, which may raise; return a line for the log."""
        host, port = self._core.address
        self._core.on_failure(error, self._now())
        return f"{host}:{port}: {error}"
