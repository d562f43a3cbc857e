"""Relayed connections to servers that do not understand gRPC core.

A shell. Helidon's servers refuse gRPC core's header encoding. A client that has found that out
(`transport.channels.refused_headers`) or was told so (`SLUICE_VIA=relay`, `--via`) connects gRPC to a Unix
socket; a thread of this process relays to the server:

    gRPC core ── Unix socket ──▶ thread, ClientRelay ── TCP, TLS ──▶ server

Each address and certificate has its own socket, which lives as long as the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.gateway.addresses import parse_address
from sluice.gateway.errors import GatewayError
from sluice.gateway.transport.pump import READ_BYTES, PrivateFolder, Pump
from sluice.gateway.transport.relay import ClientRelay

if TYPE_CHECKING:
    from sluice.gateway.transport.channels import ClientTls

__all__ = ["VIA_VARIABLE", "is_relayed", "learn", "relayed"]

log = logging.getLogger(__name__)

VIA_VARIABLE: Final = "SLUICE_VIA"
"""`direct` never relays, `relay` always does; `auto`, or unset, relays if a server needs it."""
CONNECT_SECONDS_MAX: Final = 20.0
"""gRPC's own default."""
TICK_SECONDS: Final = 0.1
NO_DESCRIPTOR_SECONDS: Final = 0.5
"""Backoff without a free file descriptor."""

_learned: set[str] = set()


def is_relayed(address: str) -> bool:
    """Return whether connections to `host:port` are relayed."""
    via = os.environ.get(VIA_VARIABLE, "auto")
    return via == "relay" or (via != "direct" and address in _learned)


def learn(address: str) -> bool:
    """Relay to this address from now on; return False if the environment forbids it."""
    if os.environ.get(VIA_VARIABLE) == "direct":
        return False
    _learned.add(address)
    log.info("%s wants indexed headers, as Helidon's servers do: connections to it are relayed", address)
    return True


def relayed(address: str, tls: ClientTls | None) -> str:
    """Return the target of a channel that is relayed to `host:port`."""
    if tls is not None:
        tls.context()  # now, for the caller's sake
    return f"unix:{_thread_of_process().socket_of(address, tls)}"


_lock = threading.Lock()
_thread: _RelayThread | None = None


def _thread_of_process() -> _RelayThread:
    global _thread
    with _lock:
        if _thread is None or _thread.process_id != os.getpid():  # a fork has no threads
            _thread = _RelayThread()
        return _thread


class _RelayThread:
    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.pumps: set[_Outgoing] = set()
        self._folder = PrivateFolder()
        self._sockets: dict[Hashable, Path] = {}
        self._sockets_lock = threading.Lock()
        threading.Thread(target=self._run, name="relay", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._tick)
        self.loop.run_forever()

    def _tick(self) -> None:
        self.loop.call_later(TICK_SECONDS, self._tick)
        now_ns = time.monotonic_ns()
        for pump in tuple(self.pumps):
            pump.tick(now_ns)

    def socket_of(self, address: str, tls: ClientTls | None) -> Path:
        """Return the socket that relays to an address; listen on it first if need be."""
        key = (address, tls)
        with self._sockets_lock:  # threads may ask at once
            path = self._sockets.get(key)
            if path is None:
                path = self._folder.path / str(len(self._sockets))
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listener.bind(str(path))
                listener.listen()
                listener.setblocking(False)
                self._sockets[key] = path
                self.loop.call_soon_threadsafe(
                    self.loop.add_reader, listener, self._accept, listener, address, tls
                )
        return path

    def _accept(self, listener: socket.socket, address: str, tls: ClientTls | None) -> None:
        try:
            grpc, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptor left: trying again at once would only spin
            log.warning("%s: cannot connect: %s", address, error.strerror)
            self.loop.remove_reader(listener)
            self.loop.call_later(
                NO_DESCRIPTOR_SECONDS, self.loop.add_reader, listener, self._accept, listener, address, tls
            )
            return
        task = self.loop.create_task(self._connect(grpc, address, tls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    _tasks: set[asyncio.Task[None]] = set()  # noqa: RUF012  # there is one thread

    async def _connect(self, grpc: socket.socket, address: str, tls: ClientTls | None) -> None:
        where = parse_address(address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                found = await self.loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
                server = await self._connected(found)
        except (OSError, TimeoutError) as error:
            log.warning("%s: cannot connect: %s", address, str(error) or "no answer in time")
            grpc.close()
            return
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pump = _Outgoing(self, server, grpc, address)
        self.pumps.add(pump)
        try:
            if tls is None:
                pump.begin()
            else:
                pump.start_tls(tls.context(), is_server=False, server_name=tls.server_name or where.host)
        except (GatewayError, OSError, ValueError) as error:
            log.warning("%s: cannot connect: %s", address, error)
            pump.close()

    async def _connected(self, found: Sequence[tuple[Any, ...]]) -> socket.socket:
        last: OSError = OSError("no address")
        for family, kind, protocol, _, name in found:
            server = socket.socket(family, kind, protocol)
            server.setblocking(False)
            try:
                await self.loop.sock_connect(server, name)
                return server
            except OSError as error:
                server.close()
                last = error
            except BaseException:
                server.close()
                raise
        raise last


class _Outgoing(Pump[ClientRelay]):
    def __init__(
        self, thread: _RelayThread, server: socket.socket, grpc: socket.socket, address: str
    ) -> None:
        super().__init__(thread.loop, thread.buffer, ClientRelay(), server)
        self._thread = thread
        self._grpc_socket = grpc
        self._address = address
        self._gives_up_at_ns = time.monotonic_ns() + int(CONNECT_SECONDS_MAX * 1e9)

    def begin(self) -> None:
        """Relay: the server is connected and trusted."""
        self._gives_up_at_ns = 0
        self.enter(self._grpc_socket)
        self.outside.read_on()

    def on_secured(self, certificate: bytes | None) -> None:
        self.begin()

    def on_tls_failed(self, reason: str) -> None:
        log.warning("%s: TLS failed: %s", self._address, reason)

    def on_closed(self) -> None:
        self._grpc_socket.close()
        self._thread.pumps.discard(self)

    def tick(self, now_ns: int) -> None:
        if self._gives_up_at_ns and now_ns >= self._gives_up_at_ns:
            self.on_tls_failed("no answer in time")
            self.close()
        elif not self.is_over(now_ns) and self.relay.open_streams:
            self.relay.tick()
            self.flush()
