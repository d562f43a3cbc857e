"""A server in its own thread, so that tests can talk to it with plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from types import TracebackType

import uvloop

from datastream.commands import OnCommandError
from datastream.limits import ServerLimits
from datastream.server import StreamServer
from datastream.streamer import DataStreamer


class ServerThread:
    """Serves a stream from a thread with its own event loop, asyncio's or uvloop's."""

    def __init__(
        self,
        streamer: DataStreamer,
        *,
        limits: ServerLimits | None = None,
        on_command_error: OnCommandError = "close",
        loop: str = "uvloop",
    ) -> None:
        self.server = StreamServer(streamer, "127.0.0.1", 0, limits, on_command_error)
        self._loop = uvloop.new_event_loop() if loop == "uvloop" else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> ServerThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)
        self.host, self.port = self.server.address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def connect(self) -> socket.socket:
        """Return a connected socket that gives up after 20 seconds."""
        return socket.create_connection((self.host, self.port), 20)

    def in_loop(self) -> None:
        """Return when the loop has turned once more."""

        async def nothing() -> None:
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(nothing(), self._loop).result(10)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Receive so many bytes, or fail when the server closes before."""
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        assert more, f"closed after {len(data)} of {size} bytes: {bytes(data[:80])!r}"
        data += more
    return bytes(data)


def read_to_end(sock: socket.socket) -> bytes:
    """Receive until the server closes."""
    data = bytearray()
    while more := sock.recv(1 << 20):
        data += more
    return bytes(data)


def has_ipv6() -> bool:
    """Whether this machine has it; many a container has not."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
