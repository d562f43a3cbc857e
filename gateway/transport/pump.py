"""The pump of one relayed connection: two sockets and the relay between them.

A shell, on the event loop. It copies data once, through a buffer that all connections of the loop share.
While one end accepts no data, the pump does not read the other.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import ssl
import struct
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

from sluice.datastream.server.secure_socket import SecureSocket, why_refused
from sluice.gateway.transport.frames import Buffer, ConnectionBreach
from sluice.gateway.transport.relay import FrameRelay

__all__ = ["LINGER_SECONDS", "READ_BYTES", "PrivateFolder", "Pump", "SocketEnd"]

READ_BYTES: Final = 256 * 1024
"""A Unix socket takes some 200 kB at once."""
BUFFERS_AT_ONCE: Final = 512
"""Buffers in one sendmsg(2) call, which takes 1,024."""
UNSENT_PIECES_MAX: Final = 64
"""Pieces of one read each that may wait for one end."""
LINGER_SECONDS: Final = 1.0
"""The time that the pump reads an ending connection: a reset would destroy the last frame."""
SOCKET_BUFFER_BYTES: Final = 1 << 20
"""Requested towards gRPC; the kernel grants at most `net.core.wmem_max`."""
TLS_RECEIVE_BYTES: Final = 16 * 1024
"""Encrypted bytes taken at once: 600 key updates, or nearly the largest record."""
TLS_SEND_BYTES: Final = 64 * 1024
"""Bytes encrypted at once."""
TLS_UNSENT_BYTES_MAX: Final = 2 * TLS_SEND_BYTES
"""Encrypted bytes that may wait: a peer that reads nothing can ask for answers, such as to key updates."""


AnyRelay = TypeVar("AnyRelay", bound=FrameRelay)


class SocketEnd:
    """One of the two sockets of a connection.

    Args:
        sock: a non-blocking socket.
        on_lost: called when a send finds that the other side has left.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_readable: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.socket = sock
        self.secure: SecureSocket | None = None
        """Its TLS."""
        self.on_drained: Callable[[], None] = lambda: None
        """Called when all waiting data is sent."""
        self._loop = loop
        self._number = sock.fileno()
        self._on_readable = on_readable
        self._on_lost = on_lost
        self._unsent: deque[Buffer] = deque()
        self._is_reading = False
        self._will_read = False
        """Whether `_read_pending` will be called."""
        self._is_closed = False

    @property
    def is_clogged(self) -> bool:
        """True if data waits to be sent to it."""
        return bool(self._unsent) or (self.secure is not None and self.secure.has_unsent)

    @property
    def is_full(self) -> bool:
        """True if so much waits that the pump must not even read window updates."""
        return len(self._unsent) > UNSENT_PIECES_MAX or (
            self.secure is not None and self.secure.unsent_bytes > TLS_UNSENT_BYTES_MAX
        )

    def read_on(self) -> None:
        """Call `on_readable` from now on."""
        if not self._is_reading and not self._is_closed:
            self._is_reading = True
            self._loop.add_reader(self._number, self._on_readable)
            self._read_held_data()

    def read_no_more(self) -> None:
        """Do not call `on_readable` until `read_on`."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._number)

    def _read_held_data(self) -> None:
        # What is held does not make the socket readable. One call at a time: each read asks for the next, and
        # so does each event of the socket.
        if self.secure is not None and self.secure.may_hold_data and not self._will_read:
            self._will_read = True
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        self._will_read = False
        if self._is_reading:
            self._on_readable()

    def read_into(self, buffer: memoryview) -> int | None:
        """Read what there is; return 0 at the end, None if there is nothing now."""
        if self._is_closed:
            return None
        if self.secure is None:
            try:
                return self.socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return None
        size = self.secure.read_into(buffer)
        self.await_room()
        if size != 0:
            self._read_held_data()
        return size

    def await_room(self) -> None:
        """Send what waits as soon as the kernel takes it."""
        if self.is_clogged and not self._is_closed:
            self._loop.add_writer(self._number, self._send_unsent)

    def send(self, buffers: list[Buffer]) -> None:
        """Send buffers, now or later."""
        if self._is_closed:
            return
        if self.is_clogged:
            self._unsent.append(b"".join(buffers))
            return
        for at, left in self._send_now(buffers):
            self._unsent.append(bytes(left))
            if buffers[at + 1 :]:
                self._unsent.append(b"".join(buffers[at + 1 :]))
        self.await_room()

    def _send_unsent(self) -> None:
        buffers = list(self._unsent)
        self._unsent.clear()
        for at, left in self._send_now(buffers):
            self._unsent.extend((memoryview(left), *buffers[at + 1 :]))
        if self._is_closed or self.is_clogged:
            return
        self._loop.remove_writer(self._number)
        self.on_drained()

    def _send_now(self, buffers: list[Buffer]) -> list[tuple[int, Buffer]]:
        """Send what goes now; return index and rest of the first unsent buffer."""
        sent = 0
        try:
            if self.secure is None:
                sent = self.socket.sendmsg(buffers[:BUFFERS_AT_ONCE])
            else:
                self.secure.flush()
                for data in _joined(buffers):
                    sent += self.secure.send(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._on_lost()
            return []
        for at, buffer in enumerate(buffers):
            if sent < len(buffer):
                return [(at, buffer[sent:])]
            sent -= len(buffer)
        return []

    def send_end(self) -> None:
        """Tell the other side that nothing more comes."""
        if self._is_closed:
            return
        with suppress(OSError):
            if self.secure is not None and not self.secure.end():
                self.await_room()  # `on_drained` comes again
                return
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Forget the socket; idempotent."""
        if self._is_closed:
            return
        self._is_closed, self._is_reading = True, False
        self._loop.remove_reader(self._number)
        self._loop.remove_writer(self._number)
        self._unsent.clear()
        self.secure = None  # else its session could be resumed
        self.socket.close()


def _joined(buffers: list[Buffer]) -> Iterator[bytes]:
    """Yield the bytes in pieces that TLS encrypts at once: few records, few calls."""
    parts: list[Buffer] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view):
            part = view[: TLS_SEND_BYTES - size]
            parts.append(part)
            size += len(part)
            view = view[len(part) :]
            if size == TLS_SEND_BYTES:
                yield b"".join(parts)
                parts.clear()
                size = 0
    if parts:
        yield b"".join(parts)


class PrivateFolder:
    """A folder for sockets that only this user may enter, removed at the end of the process.

    The next such process removes what a killed one left: nobody holds its lock.
    """

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _FOLDER_SECONDS and _may_lock(left):
                    shutil.rmtree(left)
        self.path = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._finalizer = weakref.finalize(self, _remove_folder, self.path, self._lock, os.getpid())

    def close(self) -> None:
        """Remove it; idempotent."""
        self._finalizer()


_FOLDER_PREFIX: Final = "sluice-sockets-"
_FOLDER_SECONDS: Final = 60
"""A younger folder without a lock may be about to be locked."""


def _may_lock(folder: Path) -> bool:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(number)
    return True


def _remove_folder(path: Path, lock: int, process_id: int) -> None:
    if os.getpid() == process_id:  # not in a forked child
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


class Pump(Generic[AnyRelay]):
    """One relayed connection.

    Args:
        buffer: receives each read; free again when a call returns.
        relay: decides what passes.
        outside: the socket towards the network.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        relay: AnyRelay,
        outside: socket.socket,
    ) -> None:
        self.loop = loop
        self.relay: AnyRelay = relay
        self.outside = self.end_of(outside, self._read_outside)
        self.grpc: SocketEnd | None = None
        self.is_closed = False
        self._buffer = buffer
        self._is_securing = False
        self._is_paused = False
        self._pausing: asyncio.TimerHandle | None = None
        self._ends_at_ns: int | None = None

    def end_of(
        self, sock: socket.socket, on_readable: Callable[[], None], on_lost: Callable[[], None] | None = None
    ) -> SocketEnd:
        """Make one end of the connection; losing it closes the connection, unless `on_lost` is given."""
        sock.setblocking(False)
        end = SocketEnd(self.loop, sock, on_readable, on_lost or self.close)
        end.on_drained = self._on_drained
        return end

    def start_tls(self, context: ssl.SSLContext, *, is_server: bool, server_name: str | None = None) -> None:
        """Begin TLS with the outside; `on_secured` or `close` follows."""
        sock = self.outside.socket
        self._is_securing = True
        self.outside.secure = SecureSocket(
            sock,
            context,
            is_server=is_server,
            server_name=server_name,
            receive_bytes=TLS_RECEIVE_BYTES,
        )
        self.loop.add_reader(sock.fileno(), self._shake_hands, self.outside.secure)
        if not is_server:
            self.outside.secure.greet()
            self.outside.await_room()

    def _shake_hands(self, secure: SecureSocket) -> None:
        try:
            is_done = secure.shake_hands()
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionAbortedError:  # it has left: a load balancer that probes the port
            self.close()
            return
        except OSError as error:
            self.on_tls_failed(
                why_refused(error)
                if isinstance(error, ssl.SSLError)
                else error.strerror or type(error).__name__
            )
            self.close()
            return
        self.outside.await_room()
        if is_done:
            self._is_securing = False
            self.loop.remove_reader(self.outside.socket.fileno())
            self.on_secured(secure.certificate)

    def enter(self, grpc: socket.socket) -> None:
        """Relay to gRPC over a connected socket."""
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            grpc.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        # When gRPC accepts nothing any more, its last bytes are still to be read.
        self.grpc = self.end_of(grpc, self._read_grpc, on_lost=lambda: None)
        self.grpc.read_on()

    # --- what subclasses add --------------------------------------------------------------------------------

    def on_secured(self, certificate: bytes | None) -> None:
        """TLS has succeeded; `certificate` is the outside's, in DER."""
        self.outside.read_on()

    def on_tls_failed(self, reason: str) -> None:
        """TLS has failed; the pump closes the connection next."""

    def on_outside(self) -> None:
        """The relay has taken bytes of the outside. Raises ConnectionBreach."""

    def on_grpc(self) -> None:
        """The relay has taken bytes of gRPC."""

    def on_breach(self, breach: ConnectionBreach) -> None:
        """The connection ends for a breach."""

    def on_left_grpc(self) -> None:
        """Nothing more is relayed."""

    def on_closed(self) -> None:
        """The connection is over."""

    # --- reading and sending --------------------------------------------------------------------------------

    def _read_outside(self) -> None:
        try:
            size = self.outside.read_into(self._buffer)
        except OSError:
            self.close()
            return
        if size is None:
            if self.outside.is_full:  # of answers to what gave no data
                self.outside.read_no_more()
            return
        if self._ends_at_ns is not None:  # it is over: drop what comes
            if not size:
                self.close()
            return
        if not size:
            self._on_outside_end()
            return
        self.relay.now_ns = time.monotonic_ns()
        try:
            self.relay.from_outside(self._buffer[:size])
            self.on_outside()
        except ConnectionBreach as breach:
            self.breach(breach)
            return
        self.flush()

    def _read_grpc(self) -> None:
        assert self.grpc is not None
        try:
            size = self.grpc.read_into(self._buffer)
        except OSError:  # gRPC closed the connection with unread data
            size = 0
        if size is None:
            return
        if not size:
            self._end(LINGER_SECONDS)
            return
        self.relay.now_ns = time.monotonic_ns()
        try:
            self.relay.from_grpc(self._buffer[:size])
        except ConnectionBreach:  # gRPC's bytes cannot be relayed
            self.close()
            return
        self.flush()
        self.on_grpc()

    def flush(self) -> None:
        """Send what the relay holds; stop reading its sender while the other end is clogged."""
        relay, outside, grpc = self.relay, self.outside, self.grpc
        if relay.to_grpc and grpc is not None:
            grpc.send(relay.to_grpc)
            relay.to_grpc.clear()
            if grpc.is_clogged:
                outside.read_no_more()
        if relay.to_outside:
            outside.send(relay.to_outside)
            relay.to_outside.clear()
            if outside.is_clogged and grpc is not None:
                grpc.read_no_more()
            if outside.is_full:
                outside.read_no_more()

    def _on_drained(self) -> None:
        outside, grpc = self.outside, self.grpc
        if self.is_closed or self._is_securing:
            return
        if self._ends_at_ns is not None:
            if not outside.is_clogged:
                outside.send_end()
            return
        if grpc is not None and not outside.is_clogged:
            grpc.read_on()
        if (grpc is None or not grpc.is_clogged) and not (self._is_paused or outside.is_full):
            outside.read_on()

    def pause(self, seconds: float) -> None:
        """Do not read the outside for some time."""
        if not self._is_paused:
            self._is_paused = True
            self.outside.read_no_more()
            self._pausing = self.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._is_paused = False
        self._on_drained()

    # --- the end --------------------------------------------------------------------------------------------

    def _on_outside_end(self) -> None:
        """Pass on the outside's end; gRPC then ends the connection."""
        self.outside.read_no_more()
        if self.grpc is None:
            self.close()
        else:
            self.grpc.send_end()

    def breach(self, breach: ConnectionBreach) -> None:
        """End the connection, and tell the outside why."""
        if self._ends_at_ns is not None or self.is_closed:
            return
        self.on_breach(breach)
        if self._is_securing:  # nothing can be told
            self.close()
            return
        self.relay.end(breach)
        self.relay.to_grpc.clear()
        self.flush()
        self._end(LINGER_SECONDS)

    def _end(self, seconds: float) -> None:
        """Stop relaying; close when the outside has read everything, or after some time."""
        if self.is_closed:
            return
        self._ends_at_ns = time.monotonic_ns() + int(seconds * 1e9)
        self._leave_grpc()
        if not self.outside.is_clogged:
            self.outside.send_end()
        self.outside.read_on()

    def _leave_grpc(self) -> None:
        self.relay.close()
        if self.grpc is not None:
            self.grpc.close()
        self.on_left_grpc()

    def is_over(self, now_ns: int) -> bool:
        """Close an ending connection when its time is up; return whether relaying has ended."""
        if self._ends_at_ns is not None and now_ns >= self._ends_at_ns:
            self.close()
        return self._ends_at_ns is not None or self.is_closed

    def cut_off(self) -> bool:
        """End the connection at once; return False if it has ended already."""
        if self.is_closed:
            return False
        with suppress(OSError):  # with a reset, which the other side notices
            self.outside.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()
        return True

    def close(self) -> None:
        """Close both sockets; idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._pausing is not None:
            self._pausing.cancel()
        self._leave_grpc()
        self.outside.close()
        self.on_closed()
