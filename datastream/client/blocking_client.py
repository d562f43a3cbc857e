"""The client of the TCP protocol without asyncio: `BlockingStreamClient`, and `iter_entries`.

    with BlockingStreamClient("127.0.0.1", 6900) as client:
        client.start(0)
        for entry in client.entries():
            ...

A thin shell around `inbox.py`. `blocking_follower.py` reconnects by itself.

Source: docs/spec/stream-file.md sections 2 and 4.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator

from sluice.datastream.errors import ConnectionEnded
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.protocol.commands import COMMANDS, Command, encode_command
from sluice.datastream.protocol.follow_core import check_same
from sluice.datastream.protocol.inbox import Inbox, answered_entry, answered_header, answered_range_end
from sluice.datastream.protocol.packets import Packet

__all__ = ["BlockingStreamClient", "TlsContext", "iter_entries", "keep_alive"]

CLIENT_KEEPALIVE_IDLE_SECONDS = 30
"""Silence before the first keepalive probe."""
CLIENT_KEEPALIVE_INTERVAL_SECONDS = 10
"""Time between keepalive probes."""
CLIENT_KEEPALIVE_PROBES_COUNT = 3
"""Unanswered probes that break the connection, about a minute in all."""
CLIENT_READ_BYTES = 1 << 18
"""Bytes that a client reads from its socket at once."""


TlsContext = Callable[[], ssl.SSLContext]
"""Returns the context of the next connection, such as `ssl.create_default_context`; may read files anew."""


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice a dead server; an idle stream would wait for ever."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, CLIENT_KEEPALIVE_IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, CLIENT_KEEPALIVE_INTERVAL_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, CLIENT_KEEPALIVE_PROBES_COUNT)


class BlockingStreamClient:
    """A client without asyncio.

    Args:
        timeout_seconds: for connecting and for each wait for bytes; None waits for ever.
        tls: connect with TLS; None: without.
        tls_server_name: the name in the server's certificate, if it is not the host.

    Raises:
        OSError: the server cannot be reached, or its certificate is refused.
    """

    def __init__(
        self,
        host: str,
        port: int,
        stream_type: int = 1,
        *,
        timeout_seconds: float | None = None,
        tls: TlsContext | None = None,
        tls_server_name: str | None = None,
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self._socket)
            if tls is not None:
                self._socket = tls().wrap_socket(self._socket, server_hostname=tls_server_name or host)
        except BaseException:
            self._socket.close()
            raise
        self._inbox = Inbox(stream_type)
        self._deadline: float | None = None

    def __enter__(self) -> BlockingStreamClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def set_timeout(self, timeout_seconds: float | None) -> None:
        """Set the timeout of each wait for bytes; None waits for ever."""
        self._deadline = None
        self._socket.settimeout(timeout_seconds)

    def set_deadline(self, deadline: float) -> None:
        """End all waits for bytes at this time, until `set_timeout` is called.

        Args:
            deadline: in seconds of `time.monotonic`.
        """
        self._deadline = deadline

    def shut_down(self) -> None:
        """End the connection from another thread: a waiting call raises ConnectionEnded."""
        with contextlib.suppress(OSError):  # it is closed already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of ssl would go on without TLS

    def header(self) -> StreamHeader:
        """Return the header of what is committed."""
        return answered_header(self._query(Command.HEADER))

    def entry(self, number: int) -> Entry:
        """Return an entry; raise EntryNotFound without one."""
        return answered_entry(self._query(Command.ENTRY, number), number)

    def bookmark(self, bookmark: bytes) -> Entry:
        """Return the first entry after a bookmark that is no bookmark; raise BookmarkNotFound without one."""
        return answered_entry(self._query(Command.BOOKMARK, bookmark), bookmark)

    def start(self, number: int) -> None:
        """Begin streaming at an entry number; take the entries from `entries` or `receive`."""
        self._command(Command.START, number)
        self._inbox.is_streaming = True

    def start_bookmark(self, bookmark: bytes) -> None:
        """Begin streaming at a bookmark's entry; take the entries from `entries` or `receive`."""
        self._command(Command.START_BOOKMARK, bookmark)
        self._inbox.is_streaming = True

    def stop(self) -> list[Entry]:
        """End streaming; return the arrived entries that were not taken."""
        self._command(Command.STOP)
        self._inbox.is_streaming = False
        return self._inbox.take_entries()

    def receive(self) -> list[Entry]:
        """Return the streamed entries that have arrived, at least one; empty after Stop.

        Raises:
            ConnectionEnded: the server closed the connection.
        """
        while not (entries := self._inbox.take_entries()) and self._inbox.is_streaming:
            self._inbox.feed(self._receive_bytes(), "streaming")
        return entries

    def entries(self) -> Iterator[Entry]:
        """Yield streamed entries as they come, live ones too, until the stream is stopped.

        Raises:
            ConnectionEnded: the server closed the connection.
        """
        while entries := self.receive():
            yield from entries

    def range(self, first: bytes, last: bytes) -> Iterator[Entry]:
        """Yield the entries from one bookmark's to another's, both included.

        Whoever takes only some of them may send the next command: it drops the rest.

        Raises:
            CommandRefused: there is no such bookmark (error 4: first, 5: last), or the last comes before the
                first (5). Error 9: the server does not know the command.
            ConnectionEnded: the server closed the connection.
        """
        self._inbox.await_range()
        self._inbox.begin_range(answered_range_end(self._query(Command.RANGE_BOOKMARK, first, last)))
        while self._inbox.is_in_range:
            yield from self._inbox.take_range()
            if self._inbox.is_in_range:
                self._inbox.feed(self._receive_bytes(), "answering RangeBookmark")

    def _command(self, command: Command, *parameters: int | bytes) -> None:
        self._socket.sendall(encode_command(command, self._inbox.stream_type, *parameters))
        while not self._inbox.take_result(command):
            self._inbox.feed(self._receive_bytes(), f"answering {COMMANDS[command][0]}")

    def _query(self, command: Command, *parameters: int | bytes) -> Packet:
        self._command(command, *parameters)
        while (packet := self._inbox.take_answer()) is None:
            self._inbox.feed(self._receive_bytes(), f"answering {COMMANDS[command][0]}")
        return packet

    def _receive_bytes(self) -> bytes:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
        return self._socket.recv(CLIENT_READ_BYTES)


def iter_entries(
    host: str,
    port: int,
    from_entry: int = 0,
    stream_type: int = 1,
    *,
    tls: TlsContext | None = None,
    tls_server_name: str | None = None,
) -> Iterator[Entry]:
    """Yield a server's entries from `from_entry` on, live ones too, without end.

    A server closes the connection of a reader that pauses for longer than its write timeout: the iterator
    connects again and goes on with the next entry. Closing it closes the connection.

    Raises:
        CommandRefused: there is no such entry yet (error 3).
        StreamContradicts, EntryNotFound: the server has another entry in the place of the last one, or none.
        ConnectionEnded, OSError: the connection ended, and a new one cannot be made or brings no entry.
        ServerSpokeWrongly: the server violates the protocol.
    """
    last: Entry | None = None
    while True:
        with BlockingStreamClient(
            host, port, stream_type, tls=tls, tls_server_name=tls_server_name
        ) as client:
            if last is not None:
                check_same(last, client.entry(last.number))
            client.start(from_entry if last is None else last.number + 1)
            before, failure = last, None
            while failure is None:
                try:
                    entries = client.receive()
                except (ConnectionEnded, OSError) as error:
                    failure = error
                else:
                    yield from entries
                    last = entries[-1]
            if last is before:
                raise failure
