"""Clients of the TCP protocol: `StreamClient` (async), `BlockingStreamClient`, and `iter_entries`.

    async with StreamClient.connect("127.0.0.1", 6900) as client:
        print(await client.header())
        await client.start(0)
        async for entry in client.entries():
            ...

Both are thin shells around `packets.PacketReader` (what the server says) and `_Inbox` (what it means). While
streaming, the server takes no command but Stop.

Source: wire.md 3 and 4.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator

from datastream.commands import COMMANDS, Command, encode_command
from datastream.errors import (
    BookmarkNotFound,
    CommandRefused,
    ConnectionEnded,
    EntryNotFound,
    ServerSpokeWrongly,
)
from datastream.layout import Entry, StreamHeader
from datastream.limits import CLIENT_READ_BYTES
from datastream.packets import Answer, Packet, PacketReader, Result

__all__ = ["BlockingStreamClient", "StreamClient", "iter_entries"]


class _Inbox:
    """Packets in the order they came, and what the client may take next."""

    def __init__(self, stream_type: int) -> None:
        self.stream_type = stream_type
        self.reader = PacketReader()
        self.packets: deque[Packet] = deque()
        self.is_streaming = False

    def feed(self, data: bytes, while_doing: str) -> None:
        """Take in bytes; none means that the server closed the connection."""
        if not data:
            raise ConnectionEnded(while_doing)
        self.packets.extend(self.reader.feed(data))

    def take_result(self) -> Result | None:
        """Return the Result when it has come; streamed entries before it stay to be taken."""
        for position, packet in enumerate(self.packets):
            if isinstance(packet, Result):
                del self.packets[position]
                return packet
            if not isinstance(packet, Entry):
                raise ServerSpokeWrongly("answer", type(packet).__name__, "a Result")
        return None

    def take_entries(self) -> list[Entry]:
        """Return the streamed entries that have come."""
        entries: list[Entry] = []
        while self.packets:
            packet = self.packets.popleft()
            if not isinstance(packet, Entry):
                raise ServerSpokeWrongly("packet in the stream", type(packet).__name__, "an entry")
            entries.append(packet)
        return entries

    def take_answer(self) -> Packet | None:
        """Return what follows a Result, when it has come."""
        return self.packets.popleft() if self.packets else None

    @staticmethod
    def check(command: Command, result: Result) -> None:
        """Raise CommandRefused unless the Result is OK."""
        if result.error_number:
            raise CommandRefused(COMMANDS[command][0], result.error_number, result.text)


def _expect_header(packet: Packet) -> StreamHeader:
    if not isinstance(packet, StreamHeader):
        raise ServerSpokeWrongly("answer to Header", type(packet).__name__, "a header")
    return packet


def _expect_answer(packet: Packet, name: str) -> Entry | None:
    if not isinstance(packet, Answer):
        raise ServerSpokeWrongly(f"answer to {name}", type(packet).__name__, "an entry")
    return packet.entry


class _Connecting:
    """What `StreamClient.connect` returns: the client when awaited, or an asynchronous context with it."""

    def __init__(self, host: str, port: int, stream_type: int) -> None:
        self._host = host
        self._port = port
        self._stream_type = stream_type

    def __await__(self) -> Generator[object, None, StreamClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> StreamClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def _connect(self) -> StreamClient:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=CLIENT_READ_BYTES)
        return StreamClient(reader, writer, self._stream_type)


class StreamClient:
    """An asyncio client; make one with `connect`.

    Errors of every verb: `CommandRefused` (the server's Result), `ConnectionEnded`, `ServerSpokeWrongly`,
    and OSError from the socket.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream_type: int) -> None:
        self._reader = reader
        self._writer = writer
        self._inbox = _Inbox(stream_type)

    @classmethod
    def connect(cls, host: str, port: int, stream_type: int = 1) -> _Connecting:
        """Connect to a server: `await` it, or use it with `async with`; OSError when it cannot be reached."""
        return _Connecting(host, port, stream_type)

    async def __aenter__(self) -> StreamClient:
        """Return self."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it was broken already

    async def header(self) -> StreamHeader:
        """Return the header of what is committed."""
        return _expect_header(await self._query(Command.HEADER, None))

    async def entry(self, number: int) -> Entry:
        """Return an entry; EntryNotFound when there is none of that number."""
        entry = _expect_answer(await self._query(Command.ENTRY, number), "Entry")
        if entry is None:
            raise EntryNotFound(number)
        return entry

    async def bookmark(self, bookmark: bytes) -> Entry:
        """Return the first entry after a bookmark that is not one; BookmarkNotFound when it is unknown."""
        entry = _expect_answer(await self._query(Command.BOOKMARK, bookmark), "Bookmark")
        if entry is None:
            raise BookmarkNotFound(bookmark)
        return entry

    async def start(self, number: int) -> None:
        """Begin streaming at an entry number; take the entries from `entries`."""
        await self._command(Command.START, number)
        self._inbox.is_streaming = True

    async def start_bookmark(self, bookmark: bytes) -> None:
        """Begin streaming at a bookmark's entry; take the entries from `entries`."""
        await self._command(Command.START_BOOKMARK, bookmark)
        self._inbox.is_streaming = True

    async def stop(self) -> list[Entry]:
        """End streaming; return the entries that came before the server's Result and were not taken."""
        await self._command(Command.STOP, None)
        self._inbox.is_streaming = False
        return self._inbox.take_entries()

    async def entries(self) -> AsyncIterator[Entry]:
        """Yield streamed entries as they come, live ones too, until the stream is stopped.

        Raises:
            ConnectionEnded: the server closed the connection.
        """
        inbox = self._inbox
        while True:
            for entry in inbox.take_entries():
                yield entry
            if not inbox.is_streaming:
                return
            inbox.feed(await self._reader.read(CLIENT_READ_BYTES), "streaming")

    async def _command(self, command: Command, parameter: int | bytes | None) -> None:
        self._writer.write(encode_command(command, self._inbox.stream_type, parameter))
        await self._writer.drain()
        while (result := self._inbox.take_result()) is None:
            self._inbox.feed(await self._reader.read(CLIENT_READ_BYTES), f"answering {COMMANDS[command][0]}")
        self._inbox.check(command, result)

    async def _query(self, command: Command, parameter: int | bytes | None) -> Packet:
        await self._command(command, parameter)
        while (packet := self._inbox.take_answer()) is None:
            self._inbox.feed(await self._reader.read(CLIENT_READ_BYTES), f"answering {COMMANDS[command][0]}")
        return packet


class BlockingStreamClient:
    """The same verbs without asyncio.

    Args:
        host: of the server.
        port: of the server.
        stream_type: that every command names.
        timeout_seconds: for connecting and for each wait for bytes; None waits for ever.

    Raises:
        OSError: the server cannot be reached.
    """

    def __init__(
        self, host: str, port: int, stream_type: int = 1, *, timeout_seconds: float | None = None
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inbox = _Inbox(stream_type)

    def __enter__(self) -> BlockingStreamClient:
        """Return self."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def shut_down(self) -> None:
        """End the connection from another thread: a call that waits for bytes raises ConnectionEnded."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def header(self) -> StreamHeader:
        """Return the header of what is committed."""
        return _expect_header(self._query(Command.HEADER, None))

    def entry(self, number: int) -> Entry:
        """Return an entry; EntryNotFound when there is none of that number."""
        entry = _expect_answer(self._query(Command.ENTRY, number), "Entry")
        if entry is None:
            raise EntryNotFound(number)
        return entry

    def bookmark(self, bookmark: bytes) -> Entry:
        """Return the first entry after a bookmark that is not one; BookmarkNotFound when it is unknown."""
        entry = _expect_answer(self._query(Command.BOOKMARK, bookmark), "Bookmark")
        if entry is None:
            raise BookmarkNotFound(bookmark)
        return entry

    def start(self, number: int) -> None:
        """Begin streaming at an entry number; take the entries from `entries`."""
        self._command(Command.START, number)
        self._inbox.is_streaming = True

    def start_bookmark(self, bookmark: bytes) -> None:
        """Begin streaming at a bookmark's entry; take the entries from `entries`."""
        self._command(Command.START_BOOKMARK, bookmark)
        self._inbox.is_streaming = True

    def stop(self) -> list[Entry]:
        """End streaming; return the entries that came before the server's Result and were not taken."""
        self._command(Command.STOP, None)
        self._inbox.is_streaming = False
        return self._inbox.take_entries()

    def entries(self) -> Iterator[Entry]:
        """Yield streamed entries as they come, live ones too, until the stream is stopped.

        Raises:
            ConnectionEnded: the server closed the connection.
        """
        inbox = self._inbox
        while True:
            yield from inbox.take_entries()
            if not inbox.is_streaming:
                return
            inbox.feed(self._socket.recv(CLIENT_READ_BYTES), "streaming")

    def _command(self, command: Command, parameter: int | bytes | None) -> None:
        self._socket.sendall(encode_command(command, self._inbox.stream_type, parameter))
        while (result := self._inbox.take_result()) is None:
            self._inbox.feed(self._socket.recv(CLIENT_READ_BYTES), f"answering {COMMANDS[command][0]}")
        self._inbox.check(command, result)

    def _query(self, command: Command, parameter: int | bytes | None) -> Packet:
        self._command(command, parameter)
        while (packet := self._inbox.take_answer()) is None:
            self._inbox.feed(self._socket.recv(CLIENT_READ_BYTES), f"answering {COMMANDS[command][0]}")
        return packet


def iter_entries(host: str, port: int, from_entry: int = 0, stream_type: int = 1) -> Iterator[Entry]:
    """Yield the entries of a server from `from_entry` on, then live ones as they come; waits for ever.

    Closing the iterator closes the connection.

    Raises:
        CommandRefused: there is no such entry yet (error 3).
        ConnectionEnded, ServerSpokeWrongly, OSError: the connection or the server failed.
    """
    with BlockingStreamClient(host, port, stream_type) as client:
        client.start(from_entry)
        yield from client.entries()
