"""The TCP server of a stream: accepts clients, wakes them after commits, closes those whose time is up.

Runs in one event loop, asyncio's or uvloop's, on raw non-blocking sockets. Commits may come from any thread.
Each client is a `Connection`; the protocol is in `commands.py`.

Source: wire.md 3.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from datastream.commands import OnCommandError
from datastream.connection import Connection, ServerContext
from datastream.errors import AddressUnavailable
from datastream.layout import Committed
from datastream.limits import ACCEPT_BATCH_COUNT, ACCEPT_PAUSE_SECONDS, LISTEN_BACKLOG_COUNT, ServerLimits
from datastream.streamer import DataStreamer

__all__ = ["StreamServer"]

_logger = logging.getLogger(__name__)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StreamServer:
    """Serves a stream to any number of TCP clients.

    Args:
        streamer: an open stream; it stays open when the server closes.
        host: address or name to listen on.
        port: 0 takes a free one, see `address`.
        limits: connections and timeouts.
        on_command_error: whether a command in the wrong state closes the connection.
    """

    def __init__(
        self,
        streamer: DataStreamer,
        host: str = "127.0.0.1",
        port: int = 6900,
        limits: ServerLimits | None = None,
        on_command_error: OnCommandError = "close",
    ) -> None:
        if on_command_error not in ("close", "keep"):
            raise ValueError(f"on_command_error: got {on_command_error!r}, expected 'close' or 'keep'")
        self._streamer = streamer
        self._host = host
        self._port = port
        self._limits = ServerLimits() if limits is None else limits
        self._on_command_error = on_command_error
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._context: ServerContext | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._wake_due = False

    async def start(self) -> None:
        """Listen, and serve from now on.

        Raises:
            AddressUnavailable: the address is taken, unknown or not allowed.
        """
        loop = asyncio.get_running_loop()
        self._listener = await self._listen(loop)
        self._context = ServerContext(
            self._streamer, loop, self._limits, self._on_command_error, self._connections.discard
        )
        self._unsubscribe = self._streamer.on_commit(self._on_commit)
        loop.add_reader(self._listener.fileno(), self._accept)
        self._sweep()
        _logger.info("data streamer: listening on %s:%d", *self.address)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        try:
            found = await loop.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
        except (OSError, OverflowError) as error:
            raise AddressUnavailable(self._host, self._port, _as_os_error(error)) from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG_COUNT)
        except (OSError, OverflowError) as error:
            sock.close()
            raise AddressUnavailable(self._host, self._port, _as_os_error(error)) from error
        return sock

    async def close(self) -> None:
        """Stop listening and close every connection; a second time does nothing."""
        if self._listener is None or self._context is None:
            return
        self._unsubscribe()
        self._context.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._listener = None
        for timer in self._timers.values():
            timer.cancel()
        for connection in list(self._connections):
            connection.close()

    async def __aenter__(self) -> StreamServer:
        """Start and return self."""
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the server listens on."""
        if self._listener is None:
            return self._host, self._port
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def client_count(self) -> int:
        """Number of connected clients."""
        return len(self._connections)

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the kernel for clients since the start."""
        return self._context.bytes_sent if self._context else 0

    # --- events ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        assert self._context is not None
        for _ in range(ACCEPT_BATCH_COUNT):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    _logger.debug("a client was gone before it was accepted: %s", error)
                    continue
                _logger.error("cannot accept clients for %.1f s: %s", ACCEPT_PAUSE_SECONDS, error)
                self._pause_accepting()
                return
            peer = f"{address[0]}:{address[1]}"
            if len(self._connections) >= self._limits.connections_max:
                _logger.warning("client %s: closed, %d are connected already", peer, len(self._connections))
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(Connection(self._context, sock, peer))

    def _pause_accepting(self) -> None:
        assert self._listener is not None
        assert self._context is not None
        loop, fd = self._context.loop, self._listener.fileno()
        loop.remove_reader(fd)
        self._timers["accept"] = loop.call_later(ACCEPT_PAUSE_SECONDS, loop.add_reader, fd, self._accept)

    def _on_commit(self, committed: Committed) -> None:
        """Wake the clients; called in the committing thread, after the view was swapped.

        The flag is set after the swap and cleared before the view is read, so no commit is missed.
        """
        if self._wake_due:
            return
        self._wake_due = True
        assert self._context is not None
        try:
            self._context.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            _logger.debug("a commit after the event loop has ended")

    def _wake(self) -> None:
        assert self._context is not None
        self._wake_due = False
        for connection in list(self._context.waiting):
            connection.wake()

    def _sweep(self) -> None:
        assert self._context is not None
        loop, limits = self._context.loop, self._limits
        now = loop.time()
        for connection in list(self._connections):
            connection.sweep(now)
        timeouts = [limits.write_timeout_seconds, limits.inactivity_timeout_seconds]
        interval = min([limits.sweep_interval_seconds, *(timeout / 4 for timeout in timeouts if timeout)])
        self._timers["sweep"] = loop.call_later(interval, self._sweep)


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
