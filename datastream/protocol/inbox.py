"""The inbox of a client: received results, answers and streamed entries. Pure.

The shells (`client.py`, `blocking_client.py`) feed it bytes and take what a verb waits for. While streaming,
the server accepts only Stop, and entries come before its Result.

Source: docs/spec/stream-file.md section 4.
"""

from __future__ import annotations

from collections import deque

from sluice.datastream.errors import (
    BookmarkNotFound,
    CommandRefused,
    ConnectionEnded,
    EntryNotFound,
    ServerSpokeWrongly,
)
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.protocol.commands import COMMANDS, Command
from sluice.datastream.protocol.packets import Answer, Packet, PacketReader, RangeEnd, Result

__all__ = ["Inbox", "answered_entry", "answered_header", "answered_range_end"]


class Inbox:
    """Packets in order of arrival, and what the client may take next."""

    def __init__(self, stream_type: int) -> None:
        self.stream_type = stream_type
        self.is_streaming = False
        """Set by the shell after Start, cleared after Stop."""
        self._reader = PacketReader()
        self._packets: deque[Packet] = deque()
        self._range_end: int | None = None
        """The last entry of a range that was not taken to its end."""

    def await_range(self) -> None:
        """Note that RangeBookmark is sent now."""
        self._reader.awaits_range_end = True

    def begin_range(self, last_number: int) -> None:
        """Note the last entry of the range that arrives now."""
        self._range_end = last_number

    def take_range(self) -> list[Entry]:
        """Return the entries of the range that have arrived; `is_in_range` says whether more follow.

        Raises ServerSpokeWrongly for anything else, also entries past the range.
        """
        entries: list[Entry] = []
        while self._packets and self._range_end is not None:
            packet = self._packets.popleft()
            if not isinstance(packet, Entry):
                raise ServerSpokeWrongly("packet in a range", type(packet).__name__, "an entry")
            if packet.number > self._range_end:
                raise ServerSpokeWrongly("entry of a range", str(packet.number), f"at most {self._range_end}")
            if packet.number == self._range_end:
                self._range_end = None
            entries.append(packet)
        return entries

    @property
    def is_in_range(self) -> bool:
        """True if entries of a range are still to come."""
        return self._range_end is not None

    def feed(self, data: bytes, while_doing: str) -> None:
        """Add received bytes; none means that the server closed the connection."""
        if not data:
            raise ConnectionEnded(while_doing)
        self._packets.extend(self._reader.feed(data))

    def take_result(self, command: Command) -> bool:
        """Return whether the command's Result has come; streamed entries before it stay.

        Entries of a range that nobody takes any more are dropped.

        Raises:
            CommandRefused: it is not OK.
            ServerSpokeWrongly: something else came.
        """
        self.take_range()
        for position, packet in enumerate(self._packets):
            if isinstance(packet, Result):
                del self._packets[position]
                if packet.error_number:
                    raise CommandRefused(COMMANDS[command][0], packet.error_number, packet.text)
                return True
            if not isinstance(packet, Entry) or not self.is_streaming:
                raise ServerSpokeWrongly("answer", type(packet).__name__, "a Result")
        return False

    def take_entries(self) -> list[Entry]:
        """Return the streamed entries that have arrived."""
        entries: list[Entry] = []
        while self._packets:
            packet = self._packets.popleft()
            if not isinstance(packet, Entry):
                raise ServerSpokeWrongly("packet in the stream", type(packet).__name__, "an entry")
            entries.append(packet)
        return entries

    def take_answer(self) -> Packet | None:
        """Return what follows a Result; None before it has arrived."""
        return self._packets.popleft() if self._packets else None


def answered_header(packet: Packet) -> StreamHeader:
    """Return the answer to Header; raise ServerSpokeWrongly for anything else."""
    if not isinstance(packet, StreamHeader):
        raise ServerSpokeWrongly("answer to Header", type(packet).__name__, "a header")
    return packet


def answered_range_end(packet: Packet) -> int:
    """Return the number of a range's last entry; raise ServerSpokeWrongly for anything else."""
    if not isinstance(packet, RangeEnd):
        raise ServerSpokeWrongly("answer to RangeBookmark", type(packet).__name__, "a number")
    return packet.number


def answered_entry(packet: Packet, asked: int | bytes) -> Entry:
    """Return the answer to Entry (asked by number) or Bookmark (asked by its bytes).

    Raises:
        EntryNotFound, BookmarkNotFound: the server has none.
        ServerSpokeWrongly: it answered something else.
    """
    if not isinstance(packet, Answer):
        name = "Entry" if isinstance(asked, int) else "Bookmark"
        raise ServerSpokeWrongly(f"answer to {name}", type(packet).__name__, "an entry")
    if packet.entry is None:
        raise EntryNotFound(asked) if isinstance(asked, int) else BookmarkNotFound(asked)
    return packet.entry
