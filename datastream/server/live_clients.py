"""The clients that have everything committed and wait for more, and the bytes that they get.

Live clients stand at the same offset. So a commit is read once for all of them, and `_many_clients` sends it
to hundreds in one call. What this changes of a client is kept here, by its socket's number, until the client
is looked at next (`settle`): ten thousand connections do not fit in a processor's cache, five words of each
do.

    place             offset of the client's next byte
    unacknowledged    bytes that its host may not have
    since             when it took some last, or else when they were sent
    seen              changes of the stream (`RangeSender`) that it has seen
    active            when it took or sent bytes last

Times are microseconds of the loop's time.

Runs in the event loop's thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import page_end, page_number_of

try:
    from sluice.datastream.server import _many_clients
except ImportError:  # not built here
    IS_COMPILED = False
else:
    IS_COMPILED = True

__all__ = ["IS_COMPILED", "TAIL_BYTES_MAX", "LiveClients", "LiveTail", "Settled"]

TAIL_BYTES_MAX: Final = 1 << 16
"""Most live bytes read once for all waiting clients; more are sent from the file."""

_WORDS: Final = 5
_MICROSECONDS: Final = 1_000_000
_ABSENT: Final = (1 << 64) - 1
_ALONE: Final = (1 << 64) - 2
"""The place of a client that is always sent to by itself, such as one with TLS."""

Client = TypeVar("Client")


class LiveTail:
    """The newest committed bytes, read once for all the clients that wait for them.

    One `pread` and a `send` to each beat a `sendfile` to each. The range is short, ends at the committed
    length and lies on one page. Each iteration of wake-ups has its own.
    """

    __slots__ = ("_ranges", "_streamer", "limit")

    def __init__(self, streamer: DataStreamer) -> None:
        self._streamer = streamer
        self.limit = streamer.committed.total_length
        self._ranges: dict[int, tuple[int, bytes] | None] = {}

    def after(self, position: int) -> tuple[int, bytes] | None:
        """Return (offset, bytes) of all that a client at `position` lacks; None: use `sendfile`.

        The offset is `position`, or the start of the next page if only padding lies between.
        """
        try:
            return self._ranges[position]
        except KeyError:
            found = self._ranges[position] = self._read(position)
            return found

    def _read(self, position: int) -> tuple[int, bytes] | None:
        limit = self.limit
        if position >= limit:
            return None
        page_number = page_number_of(position)
        end = self._streamer.data_end(page_number, limit)
        if position >= end:
            position = page_end(page_number)
            end = self._streamer.data_end(page_number + 1, limit) if position < limit else position
        size = end - position
        if end != limit or not 0 < size <= TAIL_BYTES_MAX:
            return None
        data = self._streamer.read_bytes(size, position)
        return (position, data) if len(data) == size else None


class Settled(NamedTuple):
    """The place of a client in the stream, and what is known of its host."""

    position: int
    unacknowledged_bytes: int
    progress_at: float  # this and the last are seconds of the loop's time
    changes_seen: int
    active_at: float


class LiveClients(Generic[Client]):
    """The clients of one server that wait for the next commit.

    Args:
        is_compiled: False: each client is looked at by itself.
    """

    def __init__(self, *, is_compiled: bool = IS_COMPILED) -> None:
        self._is_compiled = is_compiled
        self._clients: dict[int, Client] = {}
        self._state = array("Q")

    def add(self, number: int, client: Client, settled: Settled, *, is_alone: bool) -> None:
        """Let a client wait, or note what has changed.

        Args:
            number: of its socket.
            is_alone: it is never sent to together with others.
        """
        missing = (number + 1) * _WORDS - len(self._state)
        if missing > 0:
            self._state.extend([_ABSENT] * max(missing, len(self._state)))
        self._clients[number] = client
        position, unacknowledged_bytes, progress_at, changes_seen, active_at = settled
        since, active = int(progress_at * _MICROSECONDS), int(active_at * _MICROSECONDS)
        at = number * _WORDS
        self._state[at : at + _WORDS] = array(
            "Q", (_ALONE if is_alone else position, unacknowledged_bytes, since, changes_seen, active)
        )

    def discard(self, number: int) -> None:
        """Let a client wait no more."""
        if self._clients.pop(number, None) is not None:
            self._state[number * _WORDS] = _ABSENT

    def position_of(self, number: int) -> int | None:
        """Return the place of a client that is sent to together with others."""
        position = self._state[number * _WORDS] if number in self._clients else _ABSENT
        return position if position < _ALONE else None

    def settle(self, number: int) -> Settled | None:
        """Return where a client stands; None: it does not wait, or is sent to by itself."""
        if self.position_of(number) is None:
            return None
        at = number * _WORDS
        position, unacknowledged_bytes, since, changes_seen, active = self._state[at : at + _WORDS]
        progress_at, active_at = since / _MICROSECONDS, active / _MICROSECONDS
        return Settled(position, unacknowledged_bytes, progress_at, changes_seen, active_at)

    def clients(self) -> Iterable[Client]:
        """Return all."""
        return self._clients.values()

    def numbers(self) -> array[int]:
        """Return the sockets of all."""
        return array("i", self._clients)

    def send(
        self, numbers: array[int], tail: LiveTail, changes_seen: int, limit: int, now: float
    ) -> tuple[int, Sequence[Client]]:
        """Send the tail to those of some sockets that stand where most do.

        Args:
            limit: whoever stands behind it gets nothing.
            now: of the loop, in seconds.

        Returns:
            The bytes sent, and the clients that must be looked at one by one.
        """
        state = self._state
        position = next(filter(_ALONE.__gt__, (state[number * _WORDS] for number in numbers)), _ABSENT)
        found = None if position > limit else tail.after(position)
        sent_bytes, rest = 0, numbers.tolist()
        if found is not None and self._is_compiled:
            now_us = int(now * _MICROSECONDS)
            sent_bytes, rest = _many_clients.send(numbers, state, position, *found, changes_seen, now_us)
        elif position == tail.limit <= limit:
            rest = [number for number in rest if state[number * _WORDS] != position]
        return sent_bytes, [self._clients[number] for number in rest if number in self._clients]

    def idle(self, numbers: array[int], now: float, idle_seconds_max: float) -> Sequence[Client]:
        """Note of some sockets which clients have taken all; return those that must be looked at one by one.

        Args:
            now: of the loop, in seconds.
            idle_seconds_max: a client may be idle for so long; 0: for ever.
        """
        rest = numbers.tolist()
        if self._is_compiled:
            idle_max = int(idle_seconds_max * _MICROSECONDS) or _ABSENT
            rest = _many_clients.idle(numbers, self._state, int(now * _MICROSECONDS), idle_max)
        return [self._clients[number] for number in rest if number in self._clients]
