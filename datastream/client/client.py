"""The asyncio client of the TCP protocol: one connection, all commands.

    async with StreamClient.connect("127.0.0.1", 6900) as client:
        print(await client.header())
        await client.start(0)
        async for entry in client.entries():
            ...

A thin shell around `inbox.py`. `follower.py` reconnects; `blocking_client.py` has the same verbs without
asyncio.

Source: docs/spec/stream-file.md sections 2 and 4.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator

from sluice.datastream.client.blocking_client import CLIENT_READ_BYTES, TlsContext, keep_alive
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.protocol.commands import COMMANDS, Command, encode_command
from sluice.datastream.protocol.inbox import Inbox, answered_entry, answered_header, answered_range_end
from sluice.datastream.protocol.packets import Packet

__all__ = ["StreamClient"]


class _Connecting:
    """The result of `StreamClient.connect`: await it, or use it as an asynchronous context."""

    def __init__(
        self, host: str, port: int, stream_type: int, tls: TlsContext | None, tls_server_name: str | None
    ) -> None:
        self._host = host
        self._port = port
        self._stream_type = stream_type
        self._tls = tls
        self._tls_server_name = tls_server_name

    def __await__(self) -> Generator[object, None, StreamClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> StreamClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def _connect(self) -> StreamClient:
        tls = None if self._tls is None else await asyncio.to_thread(self._tls)  # it may read files
        reader, writer = await asyncio.open_connection(
            self._host,
            self._port,
            limit=CLIENT_READ_BYTES,
            ssl=tls,
            server_hostname=None if tls is None else self._tls_server_name or self._host,
        )
        # uvloop returns a stand-in with the same methods.
        sock: socket.socket = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the server has closed; the first command fails
            keep_alive(sock)
        return StreamClient(reader, writer, self._stream_type)


class StreamClient:
    """An asyncio client; make one with `connect`.

    Errors of every verb: `CommandRefused` (the server's Result), `ConnectionEnded`, `ServerSpokeWrongly`,
    and OSError from the socket.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream_type: int) -> None:
        self._reader = reader
        self._writer = writer
        self._inbox = Inbox(stream_type)

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        stream_type: int = 1,
        *,
        tls: TlsContext | None = None,
        tls_server_name: str | None = None,
    ) -> _Connecting:
        """Connect to a server, with `await` or `async with`; raise OSError if it cannot be reached.

        Args:
            tls, tls_server_name: as in `BlockingStreamClient`.
        """
        return _Connecting(host, port, stream_type, tls, tls_server_name)

    async def __aenter__(self) -> StreamClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._writer.get_extra_info("sslcontext") is None:
            self._writer.close()
        else:  # else asyncio would wait for the server's alert, up to 30 s
            self._writer.transport.abort()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it was broken already

    async def header(self) -> StreamHeader:
        """Return the header of what is committed."""
        return answered_header(await self._query(Command.HEADER))

    async def entry(self, number: int) -> Entry:
        """Return an entry; raise EntryNotFound without one."""
        return answered_entry(await self._query(Command.ENTRY, number), number)

    async def bookmark(self, bookmark: bytes) -> Entry:
        """Return the first entry after a bookmark that is no bookmark; raise BookmarkNotFound without one."""
        return answered_entry(await self._query(Command.BOOKMARK, bookmark), bookmark)

    async def start(self, number: int) -> None:
        """Begin streaming at an entry number; take the entries from `entries` or `receive`."""
        await self._command(Command.START, number)
        self._inbox.is_streaming = True

    async def start_bookmark(self, bookmark: bytes) -> None:
        """Begin streaming at a bookmark's entry; take the entries from `entries` or `receive`."""
        await self._command(Command.START_BOOKMARK, bookmark)
        self._inbox.is_streaming = True

    async def stop(self) -> list[Entry]:
        """End streaming; return the arrived entries that were not taken."""
        await self._command(Command.STOP)
        self._inbox.is_streaming = False
        return self._inbox.take_entries()

    async def receive(self) -> list[Entry]:
        """Return the streamed entries that have arrived, at least one; empty after Stop.

        Cancelling it loses nothing.

        Raises:
            ConnectionEnded: the server closed the connection.
        """
        while not (entries := self._inbox.take_entries()) and self._inbox.is_streaming:
            self._inbox.feed(await self._reader.read(CLIENT_READ_BYTES), "streaming")
        return entries

    async def entries(self) -> AsyncIterator[Entry]:
        """Yield streamed entries as they come, live ones too, until the stream is stopped.

        Raises:
            ConnectionEnded: the server closed the connection.
        """
        while entries := await self.receive():
            for entry in entries:
                yield entry

    async def range(self, first: bytes, last: bytes) -> AsyncIterator[Entry]:
        """Yield the entries from one bookmark's to another's, both included.

        Whoever takes only some of them may send the next command: it drops the rest.

        Raises:
            CommandRefused: there is no such bookmark (error 4: first, 5: last), or the last comes before the
                first (5). Error 9: the server does not know the command.
            ConnectionEnded: the server closed the connection.
        """
        self._inbox.await_range()
        self._inbox.begin_range(answered_range_end(await self._query(Command.RANGE_BOOKMARK, first, last)))
        while self._inbox.is_in_range:
            for entry in self._inbox.take_range():
                yield entry
            if self._inbox.is_in_range:
                self._inbox.feed(await self._reader.read(CLIENT_READ_BYTES), "answering RangeBookmark")

    async def _command(self, command: Command, *parameters: int | bytes) -> None:
        self._writer.write(encode_command(command, self._inbox.stream_type, *parameters))
        await self._writer.drain()
        while not self._inbox.take_result(command):
            self._inbox.feed(await self._reader.read(CLIENT_READ_BYTES), f"answering {COMMANDS[command][0]}")

    async def _query(self, command: Command, *parameters: int | bytes) -> Packet:
        await self._command(command, *parameters)
        while (packet := self._inbox.take_answer()) is None:
            self._inbox.feed(await self._reader.read(CLIENT_READ_BYTES), f"answering {COMMANDS[command][0]}")
        return packet
