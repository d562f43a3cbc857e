"""A server in its own thread, so that tests can talk to it with plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import uvloop

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.limits import ServerLimits
from sluice.datastream.protocol.commands import OnCommandError
from sluice.datastream.server.connection import ServerContext
from sluice.datastream.server.server import StreamServer

PATIENT = ServerLimits(write_timeout_seconds=60.0)
"""Long timeouts: a slow machine makes slow clients."""


class Clock:
    """A real event loop whose time can be set forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ahead_seconds = 0
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._loop.time() + self.ahead_seconds


class ServerThread:
    """Serves a stream from a thread with its own event loop, asyncio's or uvloop's."""

    def __init__(
        self,
        streamer: DataStreamer,
        *,
        limits: ServerLimits = PATIENT,
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

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Return a socket connected from an address, with a timeout of 20 seconds."""
        return socket.create_connection((self.host, self.port), 20, (source, 0))

    @property
    def context(self) -> ServerContext:
        assert self.server._context is not None
        return self.server._context

    def in_loop(self, call: Callable[[], object] = lambda: None) -> None:
        """Make a call in the loop's thread; return after one more iteration."""

        async def turn() -> None:
            call()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(turn(), self._loop).result(10)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        assert more, f"closed after {len(data)} of {size} bytes: {bytes(data[:80])!r}"
        data += more
    return bytes(data)


def read_to_end(sock: socket.socket) -> bytes:
    data = bytearray()
    while more := sock.recv(1 << 20):
        data += more
    return bytes(data)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
