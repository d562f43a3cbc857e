"""One client of the TCP server: a socket, the command core, and an offset into the file.

What goes out, in order; each waits until the one before is with the kernel:

    1  the rest of the entry that is under way     (a Result may not cut an entry)
    2  the answer to the last command              (no further command is read until it is out)
    3  while streaming, committed bytes from the client's offset on, page by page, never padding

History and live tail are the same: send what is committed, then wait for the next commit. A client costs the
same memory whether it reads or not.

Runs in the event loop's thread; sockets never block. Protocol decisions are in `commands.py`.
Source: wire.md 3; design.md, invariant 5.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from datastream.commands import (
    Close,
    CommandCore,
    Effect,
    EndAfterCatchUp,
    OnCommandError,
    Send,
    StartStream,
    StopStream,
)
from datastream.errors import DatastreamError
from datastream.layout import page_end, page_number_of
from datastream.limits import (
    LINGER_BYTES_MAX,
    LINGER_SECONDS,
    RECEIVE_BYTES,
    SEND_BYTES_PER_TURN,
    ServerLimits,
)
from datastream.streamer import DataStreamer

__all__ = ["Connection", "ServerContext"]

_logger = logging.getLogger(__name__)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_NONE = -1


@dataclass(slots=True)
class ServerContext:
    """What the connections of a server share."""

    streamer: DataStreamer
    loop: asyncio.AbstractEventLoop
    limits: ServerLimits
    on_command_error: OnCommandError
    forget: Callable[[Connection], None]
    """Called when a connection has ended."""
    waiting: set[Connection] = field(default_factory=set)
    """Clients that have everything that is committed and want more."""
    bytes_sent: int = 0


class _Progress(Enum):
    DONE = auto()
    BLOCKED = auto()
    TURN_OVER = auto()


class Connection:
    """A connected client.

    Args:
        context: what it shares with the others.
        sock: connected and non-blocking.
        peer: the client's address, for the log.
    """

    __slots__ = (
        "_closing",
        "_context",
        "_core",
        "_end_at",
        "_ended",
        "_finish_at",
        "_linger",
        "_lingered_bytes",
        "_out",
        "_position",
        "_progress_at",
        "_reading",
        "_socket",
        "_streaming",
        "_turn_bytes",
        "_writing",
        "active_at",
        "peer",
    )

    def __init__(self, context: ServerContext, sock: socket.socket, peer: str) -> None:
        self._context = context
        self._socket = sock
        self.peer = peer
        streamer = context.streamer
        self._core = CommandCore(streamer, streamer.header.stream_type, context.on_command_error)
        self._out = b""
        self._position = _NONE
        """Offset of the next byte to stream; _NONE when there is no stream and no entry under way."""
        self._streaming = False
        self._finish_at = _NONE
        """Stream up to here before anything of `_out`."""
        self._end_at = _NONE
        """Stream up to here, then close."""
        self._closing = False
        self._ended = False
        """The client closed its sending side."""
        self._linger: asyncio.TimerHandle | None = None
        self._lingered_bytes = 0
        self._reading = False
        self._writing = False
        self._turn_bytes = 0
        self._progress_at = self.active_at = context.loop.time()
        self._watch()

    # --- events ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Send what was committed since."""
        self._guarded(self._pump)

    def sweep(self, now: float) -> None:
        """Close when a timeout has passed.

        Args:
            now: the event loop's time in seconds.
        """
        limits = self._context.limits
        if self._linger is not None:
            return
        # Not only after the kernel refused bytes: a turn may end just when its buffer is full.
        if self._writing and 0 < limits.write_timeout_seconds < now - self._progress_at:
            _logger.info("client %s: took nothing for %.1f s, closed", self.peer, now - self._progress_at)
            # Without this the kernel would keep megabytes for a client that does not read.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close()
        elif 0 < limits.inactivity_timeout_seconds < now - self.active_at:
            _logger.info("client %s: inactive for %.1f s, closed", self.peer, now - self.active_at)
            self.close()

    def close(self) -> None:
        """Close the connection now; a second time does nothing."""
        if self._socket.fileno() < 0:
            return
        if self._linger is not None:
            self._linger.cancel()
        self._context.waiting.discard(self)
        self._closing = True
        self._watch()
        self._socket.close()
        self._context.forget(self)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run one reaction; whatever goes wrong ends this client only."""
        if self._socket.fileno() < 0:
            return
        try:
            action()
        except (ConnectionError, TimeoutError) as error:
            _logger.debug("client %s: %s", self.peer, error)
            self.close()
        except (DatastreamError, OSError) as error:
            _logger.error("client %s: closed: %s", self.peer, error)
            self.close()
        except Exception:  # a bug of ours: without this the loop would call us again and again
            _logger.exception("client %s: closed", self.peer)
            self.close()

    def _on_readable(self) -> None:
        self._guarded(self._receive)

    def _on_writable(self) -> None:
        self._guarded(self._pump)

    def _on_linger_readable(self) -> None:
        self._guarded(self._drop_input)

    # --- receiving ---------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if data:
            self.active_at = self._context.loop.time()
            self._core.receive(data)
        else:
            self._ended = True
            self._core.receive_end()
        self._run_commands()
        self._pump()

    def _run_commands(self) -> None:
        """Perform the effects of complete commands, until one has an answer that must go out first."""
        while not self._out and not self._closing and self._end_at == _NONE:
            effects = self._core.next_effects()
            if effects is None:
                return
            for effect in effects:
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(data):
                self._finish_entry()
                self._out += data
            case StartStream(offset):
                self._position = offset
                self._streaming = True
            case StopStream():
                self._finish_entry()
                self._streaming = False
            case EndAfterCatchUp():
                self._end_at = self._context.streamer.committed.total_length
            case Close(reason):
                _logger.debug("client %s: %s", self.peer, reason)
                self._closing = True

    def _finish_entry(self) -> None:
        if self._position != _NONE and self._finish_at == _NONE:
            self._finish_at = self._context.streamer.boundary_from(self._position)

    # --- sending -----------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send as much as the kernel takes and this turn allows; then wait for the right thing."""
        self._context.waiting.discard(self)
        self._turn_bytes = 0
        progress = self._send_all()
        if progress is _Progress.DONE:
            if self._closing:
                self._end()
                return
            if self._streaming:
                self._context.waiting.add(self)
        self._watch(want_write=progress is not _Progress.DONE)

    def _send_all(self) -> _Progress:
        while True:
            if self._finish_at != _NONE:
                progress = self._send_range(self._finish_at)
                if progress is not _Progress.DONE:
                    return progress
                self._finish_at = _NONE
                if not self._streaming:
                    self._position = _NONE
            if self._out:
                if not self._send_out():
                    return _Progress.BLOCKED
                self._run_commands()
                continue
            if self._closing or not self._streaming:
                return _Progress.DONE
            limit = self._end_at if self._end_at != _NONE else self._context.streamer.committed.total_length
            progress = self._send_range(limit)
            if progress is _Progress.DONE and self._end_at != _NONE:
                self._closing = True
            return progress

    def _send_out(self) -> bool:
        """Send the waiting answer; return whether all of it went."""
        try:
            count = self._socket.send(self._out)
        except (BlockingIOError, InterruptedError):
            return False
        self._sent(count)
        self._out = self._out[count:]
        return not self._out

    def _send_range(self, limit: int) -> _Progress:
        """Send the entries between the client's offset and `limit`, an offset at which an entry ends."""
        streamer = self._context.streamer
        out_fd, in_fd = self._socket.fileno(), streamer.fileno()
        while True:
            position = self._position
            page_number = page_number_of(position)
            end = streamer.data_end(page_number, limit) if position < limit else position
            if position >= end:
                if page_end(page_number) >= limit or position >= limit:
                    return _Progress.DONE
                self._position = page_end(page_number)  # what is between is padding
                continue
            if self._turn_bytes >= SEND_BYTES_PER_TURN:
                return _Progress.TURN_OVER
            try:
                count = os.sendfile(out_fd, in_fd, position, end - position)
            except (BlockingIOError, InterruptedError):
                return _Progress.BLOCKED
            if count == 0:
                raise OSError(errno.EIO, f"the stream file ends before offset {end}")
            self._position = position + count
            self._sent(count)

    def _sent(self, count: int) -> None:
        self._turn_bytes += count
        self._context.bytes_sent += count
        self._progress_at = self.active_at = self._context.loop.time()

    # --- ending ------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Everything is sent: close our side, and give the client a moment to close its own.

        Closing at once while bytes of the client are unread would send a reset, which can destroy the last
        answer before the client reads it.
        """
        if self._ended:
            self.close()
            return
        self._watch()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the client was quicker
            self.close()
            return
        self._linger = self._context.loop.call_later(LINGER_SECONDS, self.close)
        self._context.loop.add_reader(self._socket.fileno(), self._on_linger_readable)
        self._reading = True

    def _drop_input(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        self._lingered_bytes += len(data)
        if not data or self._lingered_bytes > LINGER_BYTES_MAX:
            self.close()

    def _watch(self, *, want_write: bool = False) -> None:
        """Ask the event loop for what we wait for: room to send, and commands unless an answer waits."""
        loop, fd = self._context.loop, self._socket.fileno()
        want_read = not (self._out or self._closing or self._ended)
        if want_read and not self._reading:
            loop.add_reader(fd, self._on_readable)
        elif self._reading and not want_read:
            loop.remove_reader(fd)
        self._reading = want_read
        if want_write and not self._writing:
            loop.add_writer(fd, self._on_writable)
            self._progress_at = loop.time()
        elif self._writing and not want_write:
            loop.remove_writer(fd)
        self._writing = want_write
