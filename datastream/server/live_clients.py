"""The clients that have everything committed and wait for more, and the bytes that they get.

Live clients stand at the same offset. So a commit is read once for all of them, and `_many_clients` sends it
to hundreds in one call. What this changes of a client is kept here, by its socket's number, until the client
is looked at next (`settle`): ten thousand connections do not fit in a processor's cache, three words of each
do.

    place      offset of the client's next byte
    sent       bytes sent to it since it was settled
    seen       changes of the stream (`RangeSender`) that it has seen

Runs in the event loop's thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import page_end, page_number_of

Send = Callable[["array[int]", "array[int]", int, int, bytes, int], tuple[int, list[int]]]

send_to_many: Send | None
try:
    from sluice.datastream.server._many_clients import send as send_to_many
except ImportError:  # not built here
    send_to_many = None

__all__ = ["TAIL_BYTES_MAX", "LiveClients", "LiveTail", "Settled"]

TAIL_BYTES_MAX: Final = 1 << 16
"""Most live bytes read once for all waiting clients; more are sent from the file."""

_WORDS: Final = 3
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
    """What a client was sent since it was looked at last."""

    position: int
    sent_bytes: int
    changes_seen: int


class LiveClients(Generic[Client]):
    """The clients of one server that wait for the next commit.

    Args:
        send: that of `_many_clients`; None: each client is looked at by itself.
    """

    def __init__(self, send: Send | None = send_to_many) -> None:
        self._send = send
        self._clients: dict[int, Client] = {}
        self._state = array("Q")

    def add(self, number: int, client: Client, position: int, changes_seen: int, *, is_alone: bool) -> None:
        """Let a client wait, or note its new place.

        Args:
            number: of its socket.
            is_alone: it is never sent to together with others.
        """
        missing = (number + 1) * _WORDS - len(self._state)
        if missing > 0:
            self._state.extend([_ABSENT] * max(missing, len(self._state)))
        self._clients[number] = client
        at = number * _WORDS
        self._state[at : at + _WORDS] = array("Q", (_ALONE if is_alone else position, 0, changes_seen))

    def discard(self, number: int) -> None:
        """Let a client wait no more."""
        if self._clients.pop(number, None) is not None:
            self._state[number * _WORDS] = _ABSENT

    def position_of(self, number: int) -> int | None:
        """Return the place of a client that is sent to together with others."""
        position = self._state[number * _WORDS] if number in self._clients else _ABSENT
        return position if position < _ALONE else None

    def settle(self, number: int) -> Settled | None:
        """Return what a client was sent, once; None: nothing."""
        if number not in self._clients:
            return None
        at = number * _WORDS
        position, sent_bytes, changes_seen = self._state[at : at + _WORDS]
        if not sent_bytes:
            return None
        self._state[at + 1] = 0
        return Settled(position, sent_bytes, changes_seen)

    def numbers(self) -> array[int]:
        """Return the sockets of all."""
        return array("i", self._clients)

    def send(
        self, numbers: array[int], tail: LiveTail, changes_seen: int, limit: int
    ) -> tuple[int, Sequence[Client]]:
        """Send the tail to those of some sockets that stand where most do.

        Args:
            limit: whoever stands behind it gets nothing.

        Returns:
            The bytes sent, and the clients that must be looked at one by one.
        """
        state = self._state
        position = next(filter(_ALONE.__gt__, (state[number * _WORDS] for number in numbers)), _ABSENT)
        found = None if position > limit else tail.after(position)
        sent_bytes, rest = 0, numbers.tolist()
        if found is not None and self._send is not None:
            sent_bytes, rest = self._send(numbers, state, position, *found, changes_seen)
        elif position == tail.limit <= limit:
            rest = [number for number in rest if state[number * _WORDS] != position]
        return sent_bytes, [self._clients[number] for number in rest if number in self._clients]
