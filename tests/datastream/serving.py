"""A server in its own thread, so that tests can talk to it with plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import uvloop

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.limits import ServerLimits
from sluice.datastream.protocol.commands import OnCommandError
from sluice.datastream.server.connection import ServerContext
from sluice.datastream.server.server import StreamServer
from tests.certificates import Authority

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


class _TlsSocket(ssl.SSLSocket):
    """A client's socket that knows an orderly end, and still reads after it has closed its sending side."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except ssl.SSLEOFError as error:  # no alert came before: to OpenSSL, a reset is such an end, too
            raise ConnectionResetError from error

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS of a server at 127.0.0.1, and of its clients."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        pair = authority.issue("server")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*pair)
        client = ssl.create_default_context(cafile=str(authority.path))
    client.sslsocket_class = _TlsSocket
    return server, client


class ServerThread:
    """Serves a stream from a thread with its own event loop, asyncio's or uvloop's.

    Args:
        loop: asyncio or uvloop; `uvloop, TLS` for a server with TLS.
    """

    def __init__(
        self,
        streamer: DataStreamer,
        *,
        limits: ServerLimits = PATIENT,
        on_command_error: OnCommandError = "close",
        loop: str = "uvloop",
    ) -> None:
        name, _, with_tls = loop.partition(", ")
        self._client_tls = contexts()[1] if with_tls else None  # not made in the threads of a test
        tls = (lambda: contexts()[0]) if with_tls else None
        self.server = StreamServer(streamer, "127.0.0.1", 0, limits, on_command_error, tls)
        self._loop = uvloop.new_event_loop() if name == "uvloop" else asyncio.new_event_loop()
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

    def connect(self, source: str = "127.0.0.1", receive_bytes: int | None = None) -> socket.socket:
        """Return a socket connected from an address, with TLS if the server has it, and a timeout of 20 s.

        Args:
            receive_bytes: of the kernel's buffer; None: as it likes.
        """
        plain = socket.socket()
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.settimeout(20)
        plain.bind((source, 0))
        plain.connect((self.host, self.port))
        if self._client_tls is None:
            return plain
        return self._client_tls.wrap_socket(plain, server_hostname=self.host, suppress_ragged_eofs=False)

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
