"""The TCP server of a stream: accepts clients, wakes them after commits, enforces timeouts.

    commit, any thread -> _on_commit -> (one call into the loop, however many commits) -> _wake
    _wake: `wakes_per_slot` waiting clients at a time get what was committed; other events run in between

Runs in one event loop, asyncio's or uvloop's, on raw non-blocking sockets. Commits may come from any thread.
Each client is a `Connection`; the protocol is in `commands.py`.

Source: docs/spec/stream-file.md section 4.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from array import array

from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.errors import AddressUnavailable
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Committed
from sluice.datastream.limits import ServerLimits
from sluice.datastream.protocol.commands import OnCommandError
from sluice.datastream.server.connection import NO_CUT, Connection, ServerContext
from sluice.datastream.server.descriptors import SPARE_DESCRIPTORS, client_descriptors_end, descriptors_max
from sluice.datastream.server.live_clients import LiveTail
from sluice.datastream.server.places import Places, party_of

__all__ = ["StreamServer"]

_logger = logging.getLogger(__name__)

KEEPALIVE_PROBES = 9
"""Unanswered keepalive probes after which a connection is dead. go: 9."""
KEEPALIVE_SECONDS = 15
"""Silence before the first keepalive probe, and between probes. go: 15 s, by default."""
LISTEN_BACKLOG_COUNT = 1_024
"""Connections that the kernel holds until they are accepted."""

_CLIENT_IS_GONE = frozenset(
    {
        *(errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH),
    }
)
"""Errors of accept(2) about one client; any other pauses accepting."""
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_REFUSED_LOG_SECONDS = 5.0


class StreamServer:
    """Serves a stream to any number of TCP clients.

    Args:
        streamer: stays open when the server closes.
        host: address to listen on, or a name: all of its addresses; "" for all of this machine.
        port: 0 takes a free one, see `address`.
        on_command_error: what a command in the wrong state does to the connection.
        tls: returns the context of the next handshake, such as `lambda: context`; None: no TLS.
    """

    def __init__(
        self,
        streamer: DataStreamer,
        host: str = "127.0.0.1",
        port: int = 6900,
        limits: ServerLimits | None = None,
        on_command_error: OnCommandError = "keep",
        tls: TlsContext | None = None,
    ) -> None:
        if on_command_error not in ("close", "keep"):
            raise ValueError(f"on_command_error: got {on_command_error!r}, expected 'keep' or 'close'")
        self._streamer = streamer
        self._host = host
        self._port = port
        self._limits = ServerLimits() if limits is None else limits
        self._on_command_error = on_command_error
        self._tls = tls
        self._connections: set[Connection] = set()
        self._places: Places[Connection] = Places(self._limits.connections_max, spares="old")
        self._listeners: list[socket.socket] = []
        self._context: ServerContext | None = None
        self._timers: dict[object, asyncio.Handle] = {}
        self._wake_due = False
        self._to_wake = array("i")
        self._wake_again = False
        self._length_seen = 0
        self._cut_lock = threading.Lock()
        self._descriptors_end: int | None = None
        self._refused_count = 0
        self._refused_logged_at = float("-inf")

    async def start(self) -> None:
        """Listen and serve.

        Raises AddressUnavailable.
        """
        loop = asyncio.get_running_loop()
        self._listeners = await self._listen(loop)
        self._descriptors_end = client_descriptors_end()
        self._context = ServerContext(
            self._streamer, loop, self._limits, self._on_command_error, self._forget, self._tls
        )
        self._unsubscribe = self._streamer.on_commit(self._on_commit)
        # Behind it, or an earlier commit could make a later truncation look like growth.
        self._length_seen = max(self._length_seen, self._streamer.committed.total_length)
        for listener in self._listeners:
            loop.add_reader(listener.fileno(), self._accept, listener)
        self._sweep()
        descriptors, wanted = descriptors_max(), self._limits.connections_max
        if descriptors is not None and descriptors < wanted + SPARE_DESCRIPTORS:
            _logger.warning(
                "this process may open %d files (ulimit -n); %d clients need %d",
                *(descriptors, wanted, wanted + SPARE_DESCRIPTORS),
            )
        for listener in self._listeners:
            _logger.info(
                "data streamer: listening on %s%s",
                *(format_address(listener.getsockname()), "" if self._tls is None else " with TLS"),
            )

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> list[socket.socket]:
        listeners: list[socket.socket] = []
        port, missing = self._port, None
        try:
            found = await loop.getaddrinfo(
                self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
            for family, address in addresses:
                try:
                    # All addresses use the free port that the first one got.
                    listener = _listen_at(family, (address[0], port, *address[2:]), len(addresses) > 1)
                except OSError as error:
                    if error.errno not in _NO_SUCH_ADDRESS:
                        raise
                    missing = error  # such as ::1 without IPv6: the others will do
                    continue
                listeners.append(listener)
                port = listener.getsockname()[1]
            if missing is not None and not listeners:
                raise missing
        except (OSError, OverflowError, UnicodeError) as error:
            for listener in listeners:
                listener.close()
            raise AddressUnavailable(self._host, self._port, _as_os_error(error)) from error
        return listeners

    async def close(self) -> None:
        """Stop listening and close every connection; idempotent.

        The kernel still delivers what it has, unless the client sent unread bytes.
        """
        if not self._listeners or self._context is None:
            return
        self._unsubscribe()
        for timer in self._timers.values():
            timer.cancel()
        for listener in self._listeners:
            self._context.loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners = []
        self._to_wake = array("i")
        for connection in list(self._connections):
            connection.close()
        await self._context.first_touch.close()

    async def __aenter__(self) -> StreamServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the server listens on, the first of several."""
        if not self._listeners:
            return self._host, self._port
        host, port = self._listeners[0].getsockname()[:2]
        return host, port

    @property
    def client_count(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the kernel for clients since the start."""
        return self._context.bytes_sent if self._context else 0

    @property
    def lag_bytes(self) -> int:
        """The distance of the slowest streaming client from the committed length, in bytes."""
        total_length = self._streamer.committed.total_length
        return max((one.lag_bytes(total_length) for one in self._connections), default=0)

    # --- events ------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        assert self._context is not None
        for _ in range(self._limits.accept_batch_count):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _CLIENT_IS_GONE:
                    _logger.debug("a client was gone before it was accepted: %s", error)
                    continue
                seconds = self._limits.accept_pause_seconds
                _logger.error("cannot accept clients for %.1f s: %s", seconds, error)
                self._pause_accepting(listener)
                return
            party = party_of(address[0].partition("%")[0])
            if self._places.are_taken and not self._make_room(party):
                self._refuse(sock, address, f"{len(self._connections)} are connected already")
                continue
            if self._descriptors_end is not None and sock.fileno() >= self._descriptors_end:
                self._refuse(sock, address, "the last files that this process may open are not for clients")
                continue
            try:
                sock.setblocking(False)
                connection = Connection(self._context, sock, format_address(address), party)
                self._connections.add(connection)
                self._places.add(connection, party)
            except OSError as error:  # no memory in the kernel's poll set
                _logger.error("client %s: cannot be served: %s", format_address(address), error)
                sock.close()

    def _make_room(self, party: str) -> bool:
        """Close a client of the address with most clients for another address's newcomer; False: no such
        client."""
        gives_way = self._places.who_gives_way(party)
        if gives_way is None:
            return False
        self._note_refused(gives_way.peer, "its address has most of the clients, and others come")
        gives_way.close()
        return True

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._places.remove(connection)

    def _pause_accepting(self, listener: socket.socket) -> None:
        assert self._context is not None
        loop, fd = self._context.loop, listener.fileno()
        loop.remove_reader(fd)
        self._timers[listener] = loop.call_later(
            self._limits.accept_pause_seconds, loop.add_reader, fd, self._accept, listener
        )

    def _refuse(self, sock: socket.socket, address: tuple[str, int], reason: str) -> None:
        sock.close()
        self._note_refused(format_address(address), reason)

    def _note_refused(self, peer: str, reason: str) -> None:
        assert self._context is not None
        self._refused_count += 1
        now = self._context.loop.time()
        if now - self._refused_logged_at >= _REFUSED_LOG_SECONDS:
            _logger.warning(
                "client %s: closed, %s; %d refused so far",
                *(peer, reason, self._refused_count),
            )
            self._refused_logged_at = now

    def _on_commit(self, committed: Committed) -> None:
        """Wake the clients; called in the committing thread, after the view was swapped.

        The flag is set after the swap and cleared before the view is read, so no commit is missed. A shorter
        stream was truncated; this notes it before any later commit is visible.
        """
        assert self._context is not None
        if committed.total_length < self._length_seen:
            with self._cut_lock:
                self._context.cut_offset = min(self._context.cut_offset, committed.total_length)
        self._length_seen = committed.total_length
        if self._wake_due:
            return
        self._wake_due = True
        try:
            self._context.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            _logger.debug("a commit after the event loop has ended")

    def _wake(self) -> None:
        assert self._context is not None
        self._wake_due = False
        if self._context.cut_offset != NO_CUT:
            self._close_the_cut_off()
        if self._to_wake:
            self._wake_again = True
            return
        self._to_wake = self._context.live.numbers()
        self._wake_some()

    def _wake_some(self) -> None:
        assert self._context is not None
        context, count = self._context, self._limits.wakes_per_slot
        numbers, self._to_wake = self._to_wake[:count], self._to_wake[count:]
        tail = LiveTail(self._streamer)
        sent_bytes, rest = context.live.send(
            numbers, tail, self._streamer.range_sender().seen, context.cut_offset, context.loop.time()
        )
        context.bytes_sent += sent_bytes
        for connection in rest:
            connection.wake(tail)
        if self._to_wake:
            context.loop.call_soon(self._wake_some)
        elif self._wake_again:
            self._wake_again = False
            context.loop.call_soon(self._wake)

    def _close_the_cut_off(self) -> None:
        assert self._context is not None
        cut_offset = self._context.cut_offset
        for connection in list(self._connections):
            connection.close_if_past(cut_offset)
        with self._cut_lock:
            if self._context.cut_offset == cut_offset:
                self._context.cut_offset = NO_CUT

    def _sweep(self) -> None:
        assert self._context is not None
        live = self._context.live
        self._sweep_some(live.numbers(), list(self._connections.difference(live.clients())))

    def _sweep_some(self, numbers: array[int], connections: list[Connection]) -> None:
        assert self._context is not None
        loop, limits, live = self._context.loop, self._limits, self._context.live
        now, count = loop.time(), limits.swept_per_slot
        for connection in live.idle(numbers[:count], now, limits.inactivity_timeout_seconds):
            connection.sweep(now)
        if not numbers:
            for connection in connections[:count]:
                connection.sweep(now)
            connections = connections[count:]
        if numbers or connections:
            self._timers["sweep"] = loop.call_soon(self._sweep_some, numbers[count:], connections)
            return
        timeouts = [limits.write_timeout_seconds, limits.inactivity_timeout_seconds]
        if self._tls is not None:
            timeouts.append(limits.handshake_timeout_seconds)
        interval = min([limits.sweep_interval_seconds, *(timeout / 4 for timeout in timeouts if timeout)])
        self._timers["sweep"] = loop.call_later(interval, self._sweep)


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))


def _listen_at(family: int, address: tuple[object, ...], is_one_of_several: bool) -> socket.socket:
    """Listen at one address; connections inherit TCP_NODELAY and keepalive."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        if family == socket.AF_INET6 and is_one_of_several:  # IPv4 has its own listener
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG_COUNT)
    except BaseException:
        listener.close()
        raise
    return listener


def format_address(address: tuple[str, int]) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
