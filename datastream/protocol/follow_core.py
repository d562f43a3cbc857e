"""Following a stream: which server to try when, from where, and whether it tells the same stream. Pure.

    next_step     -> Wait(seconds) | Connect(address)       the shell does it, and then calls
    on_header     -> what to ask before Start: `compared`   entries that the server must have as we know them
    on_compared      for each of them
    start_step    -> StartAt(number) | StartAtBookmark(bookmark)
    on_started
    accept        -> entries that are the next ones, in order, and what is wrong with the one after them
    on_failure       whatever went wrong; raises it when no further attempt makes sense

Invariants
  - An entry is accepted once, and only the next one: no gap, no repetition, whatever servers send.
  - A server that is not known to tell the same stream is not streamed from: its version, system id, stream
    type and the last entries that both have are compared first.

What comes after a failure:

| failure | then |
|---|---|
| unreachable, closed, too slow, an entry out of order | the next server; after a round of all, a pause |
| has fewer entries than were handed over | the same |
| another stream; a first bookmark that it does not have | the same, and an error when all servers do so |
| does not speak the protocol | as another stream, unless a server of the list has spoken it before |

Pauses double from `backoff_first_seconds` to `backoff_max_seconds`, less up to a half at random. They begin
anew when an entry was accepted, or when the stream ran for `steady_seconds`.

Source: docs/spec/stream-file.md section 4.6; datastream/README.md, "Following, and the relay".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from datastream.errors import (
    CommandRefused,
    EntryOutOfOrder,
    RemoteError,
    ServerBehind,
    ServerSpokeWrongly,
    StreamContradicts,
)
from datastream.layout import Entry, StreamHeader
from datastream.limits import FollowLimits

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
]

COMPARED_ENTRIES_COUNT = 8
"""Entries before the next one that are compared with the server's when one that follows connects."""

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
    """The entries that were accepted before: a server must have the same."""

    def before(self, number: int) -> Sequence[Entry]:
        """Return up to COMPARED_ENTRIES_COUNT of the last known entries below `number`."""

    def remember(self, entries: Sequence[Entry]) -> None:
        """Take in entries that were accepted."""


class RecentEntries:
    """The last entries, kept in memory."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=COMPARED_ENTRIES_COUNT)

    def before(self, number: int) -> Sequence[Entry]:
        """Return the kept entries below `number`."""
        return [entry for entry in self._entries if entry.number < number]

    def remember(self, entries: Sequence[Entry]) -> None:
        """Take in accepted entries; only the last are kept."""
        self._entries.extend(entries[-COMPARED_ENTRIES_COUNT:])


class FollowCore:
    """Decides for one that follows a stream.

    Args:
        servers: addresses, in the order of preference; at least one.
        start: an entry number, a bookmark, or None for the server's end at the first connection.
        limits: pauses and times.
        random: returns a number from 0 to 1, for the pauses.
        known: entries accepted before; None keeps the last ones in memory.
        identity: the version, system id and stream type that servers must have; None takes the first one's.
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
        """The entry to be accepted next; None while it is not known."""
        self._bookmark = start if isinstance(start, bytes) else None
        self.identity = identity
        self._position = 0
        self._tries = 0
        """Servers that failed since the last pause or accepted entry."""
        self._rounds = 0
        """Pauses since then."""
        self._wrong: dict[Address, RemoteError] = {}
        """Servers whose last answer was another stream."""
        self._has_spoken = False
        self._started_at: float | None = None

    @property
    def address(self) -> Address:
        """The server that is tried or followed."""
        return self._servers[self._position]

    def next_step(self) -> Wait | Connect:
        """Return what to do when there is no connection."""
        if self._tries < len(self._servers):
            return Connect(self.address)
        limits = self._limits
        # No overflow: 2 ** 16 s is far above any longest pause that anyone sets.
        pause = min(limits.backoff_first_seconds * 2 ** min(self._rounds, 16), limits.backoff_max_seconds)
        self._rounds += 1
        self._tries = 0
        return Wait(pause * (1 - self._random() / 2))

    def on_header(self, header: StreamHeader) -> Sequence[Entry]:
        """Judge the server by its header; return the entries to compare with what it answers to Entry.

        Raises:
            StreamContradicts: its version, system id or stream type is another.
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
        """Judge one entry that the server answered, None for "not found".

        Raises:
            StreamContradicts: it is not the entry that we know.
        """
        if got != expected:
            got_text = "none" if got is None else _text_of(got)
            raise StreamContradicts(f"entry {expected.number}", got_text, _text_of(expected))

    def start_step(self, header: StreamHeader) -> StartAt | StartAtBookmark:
        """Return where to start.

        Raises:
            ServerBehind: the server has not yet what was accepted from others.
        """
        if self.number_next is None:
            assert self._bookmark is not None
            return StartAtBookmark(self._bookmark)
        if header.total_entries < self.number_next:
            raise ServerBehind(header.total_entries, self.number_next)
        return StartAt(self.number_next)

    def on_started(self, now: float) -> None:
        """Take in that the server accepted Start, at `now` seconds of a clock that never goes back."""
        self._started_at = now
        self._wrong.clear()

    def accept(self, entries: Sequence[Entry]) -> tuple[Sequence[Entry], EntryOutOfOrder | None]:
        """Take in streamed entries; return those that are to be handed over, and what is wrong after them."""
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
            self._tries = self._rounds = 0
            self._known.remember(good)
        if len(good) == len(entries):
            return good, None
        return good, EntryOutOfOrder(f"entry {entries[len(good)].number}", f"entry {expected}")

    def resume_at(self, number: int) -> None:
        """Go back to an entry: what was accepted from there on could not be kept."""
        assert self.number_next is not None
        assert number <= self.number_next
        self.number_next = number

    def on_failure(self, error: Exception, now: float) -> None:
        """Take in that the attempt or the stream failed.

        Raises:
            RemoteError: the error itself, when every server of the list tells another stream.
        """
        if self._started_at is not None and now - self._started_at >= self._limits.steady_seconds:
            self._rounds = 0
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


def _text_of(entry: Entry) -> str:
    """Describe an entry in an error: all of a short one, the beginning of a long one."""
    shown = entry.data[:16].hex() + ("…" if len(entry.data) > 16 else "")
    return f"number {entry.number}, type {entry.type:#x}, {len(entry.data)} bytes {shown}".rstrip()


class FollowerBase:
    """What the followers of `follower.py` and `blocking_follower.py` have in common: all but the waiting.

    Args:
        servers, known, identity, rng: as in `FollowCore`.
        from_entry, from_bookmark: where to begin; a bookmark goes before an entry.
        stream_type: that every command names.
        limits: pauses and times; None: the defaults.
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
        """Entries that were received and not handed over yet."""
        self.header: StreamHeader | None = None
        """The header of the server that is followed, as of the time of connecting."""

    @property
    def number_next(self) -> int | None:
        """Number of the entry to be handed over next, None while it is not known."""
        return self._pending[0].number if self._pending else self._core.number_next

    @property
    def address(self) -> Address:
        """The server that is followed or tried."""
        return self._core.address

    def _failure_text(self, error: Exception) -> str:
        """Tell the core that the connection failed, which may raise; return a line for the log."""
        host, port = self._core.address
        self._core.on_failure(error, self._now())
        return f"{host}:{port}: {error}"
