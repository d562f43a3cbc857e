"""One client of the TCP server: a socket, the command core, and an offset into the file.

Output goes in this order; each waits until the kernel has the one before:

    1  the queue: the rest of the entry that is under way (a Result may not cut an entry), then the answer to
       the last command; no further command is read until it is out
    2  while streaming or in a range, committed bytes from the client's offset on, page by page, never padding

History and live tail are the same: send what is committed, then wait for the next commit. Memory holds only
short answers and, with TLS, up to COPIED_BYTES of encrypted bytes.

A client's slot on the event loop is limited: COMMANDS_PER_SLOT, and a share of SEND_BYTES_PER_ITERATION.

Runs in the event loop's thread; sockets never block. `commands.py` decides about the protocol.
Source: docs/spec/stream-file.md section 4; datastream/README.md, "Limits".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import math
import os
import socket
import ssl
import struct
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto

from sluice.datastream.client.blocking_client import TlsContext
from sluice.datastream.errors import (
    DatastreamError,
    PageDamaged,
    PageNotLocal,
    PageNotServed,
    PageUnchecked,
    StreamChanged,
)
from sluice.datastream.file.page_sums import PageState, PageSums, this_thread
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import page_end, page_number_of
from sluice.datastream.limits import RECEIVE_BYTES, ServerLimits
from sluice.datastream.protocol.commands import (
    SPEAKS_TLS,
    Close,
    CommandCore,
    Effect,
    EndAfterCatchUp,
    OnCommandError,
    Send,
    SendEntries,
    SendRange,
    StartStream,
    StopStream,
)
from sluice.datastream.server.live_clients import LiveClients, LiveTail, Settled
from sluice.datastream.server.secure_socket import HANDSHAKE_RECORD, SecureSocket, why_refused

__all__ = [
    "NO_CUT",
    "Connection",
    "FirstTouch",
    "ServerContext",
]

_logger = logging.getLogger(__name__)

CHECK_AHEAD_PAGES = 3
"""Pages checked ahead of the one that a client reads."""
CHECK_THREADS = 4
"""Threads that check pages at first touch: clients on a slow disk do not wait for each other."""
FETCH_THREADS = 16
"""Threads that wait for pages of an archive: they hold up no check of a local page."""
COMMANDS_PER_SLOT = 32
"""Commands of one client that one slot answers."""
COPIED_BYTES = 1 << 16
"""Most bytes of the file that are read at once to be encrypted."""
JOINED_BYTES = 4_096
"""Most bytes of entries that are sent together with the answer before them."""
LINGER_BYTES_MAX = 1 << 16
"""Bytes that a closing connection reads and drops."""
LINGER_FIRST_SECONDS = 0.02
"""First wait of a closing connection for its client; each further one doubles."""
LINGER_STALL_SECONDS = 60.0
"""The write timeout of a closing connection, if there is none."""
SEND_BYTES_PER_ITERATION = 24 << 20
"""Bytes sent to all clients that take history, in one iteration of the event loop; about 10 ms.

More clients get shorter slots: a whole page for each of a hundred delayed live clients by 100 ms.
"""
TLS_COST = 4
"""The time to read, encrypt and send a byte, as a multiple of that of `sendfile`."""
SEND_BYTES_PER_SLOT = 1 << 20
"""Most bytes sent to one client in one slot: one data page."""
SEND_BYTES_PER_SLOT_MIN = 1 << 16
"""Bytes of the shortest slot; below it, switching costs more than sending."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_INT = struct.Struct("i")
_NONE = -1

NO_CUT = 1 << 64
"""Greater than every offset."""

WhenDone = Callable[[Exception | None], None]


class FirstTouch:
    """Checks pages in threads at their first touch.

    A client of an unchecked page waits for the check; all others continue. Runs in the event loop's thread;
    `page_sums.py` has the checks.
    """

    def __init__(self, sums: PageSums, loop: asyncio.AbstractEventLoop) -> None:
        self._sums = sums
        self._loop = loop
        self._threads = ThreadPoolExecutor(CHECK_THREADS, "page-check")
        self._fetch_threads = ThreadPoolExecutor(FETCH_THREADS, "page-fetch")
        self._waiting: dict[int, list[WhenDone]] = {}

    def check(self, page_number: int, when_done: WhenDone) -> None:
        """Check a page, call back, and check the next pages.

        Args:
            when_done: called with None, or with the reason why the page cannot be checked.
        """
        self._begin(page_number).append(when_done)
        for following in range(page_number + 1, page_number + 1 + CHECK_AHEAD_PAGES):
            if self._sums.state(following) is PageState.UNKNOWN:
                self._begin(following)

    def _begin(self, page_number: int) -> list[WhenDone]:
        waiting = self._waiting.get(page_number)
        if waiting is None:
            waiting = self._waiting[page_number] = []
            is_remote = self._sums.state(page_number) is PageState.REMOTE
            (self._fetch_threads if is_remote else self._threads).submit(self._check, page_number)
        return waiting

    def _check(self, page_number: int) -> None:
        failure: Exception | None = None
        try:
            self._sums.check(page_number)
        except PageDamaged:
            pass  # the sums have logged it; a bug of ours must reach the waiting clients, too
        except Exception as error:  # also a bug of ours: whoever waits must hear of it
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._done, page_number, failure)
        except RuntimeError:
            _logger.debug("a check after the event loop has ended")

    def _done(self, page_number: int, failure: Exception | None) -> None:
        for when_done in self._waiting.pop(page_number, ()):
            when_done(failure)

    async def close(self) -> None:
        """Forget all waiting clients; return when no thread reads the stream any more."""
        self._waiting.clear()
        for threads in (self._threads, self._fetch_threads):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)


@dataclass(slots=True)
class ServerContext:
    """The state that the connections of a server share."""

    streamer: DataStreamer
    loop: asyncio.AbstractEventLoop
    limits: ServerLimits
    on_command_error: OnCommandError
    forget: Callable[[Connection], None]
    """Called when a connection has ended."""
    tls: TlsContext | None = None
    """None: no TLS."""
    live: LiveClients[Connection] = field(default_factory=LiveClients)
    """Clients that have everything committed and wait for more."""
    writing_count: int = 0
    """Clients that wait for room in their socket, or for their next slot."""
    bytes_sent: int = 0
    cut_offset: int = NO_CUT
    """The length to which the stream was truncated; clients past it must be reset."""
    first_touch: FirstTouch = field(init=False)
    _has_shaken_hands: bool = False

    def __post_init__(self) -> None:
        self.first_touch = FirstTouch(self.streamer.sums, self.loop)

    def slot_bytes(self) -> int:
        """Return how many bytes one client may be sent in one slot."""
        cost = 1 if self.tls is None else TLS_COST
        part = SEND_BYTES_PER_ITERATION // (self.writing_count + 1)
        return max(SEND_BYTES_PER_SLOT_MIN, min(SEND_BYTES_PER_SLOT, part) // cost)

    def may_shake_hands(self) -> bool:
        """Return True once in an iteration of the event loop: a handshake takes up to a millisecond."""
        if self._has_shaken_hands:
            return False
        self._has_shaken_hands = True
        self.loop.call_soon(self._next_handshake)
        return True

    def _next_handshake(self) -> None:
        self._has_shaken_hands = False


class _Progress(Enum):
    DONE = auto()
    BLOCKED = auto()
    SLOT_OVER = auto()
    COMMANDS_LEFT = auto()
    """The slot is over, and received commands may wait."""


class Connection:
    """A connected client.

    Args:
        sock: connected and non-blocking.
        peer: address and port, for the log.
        party: its network address, by which log lines are counted (`extra={"caused_by": …}`).
    """

    __slots__ = (
        "_caused",
        "_closing",
        "_context",
        "_core",
        "_end_at",
        "_ended",
        "_is_securing",
        "_linger",
        "_lingered_bytes",
        "_number",
        "_position",
        "_progress_at",
        "_queue",
        "_range_end",
        "_reached",
        "_reading",
        "_secure",
        "_sender",
        "_slot_bytes",
        "_slot_commands",
        "_socket",
        "_streaming",
        "_unacknowledged",
        "_writing",
        "active_at",
        "peer",
    )

    def __init__(self, context: ServerContext, sock: socket.socket, peer: str, party: str = "") -> None:
        self._context = context
        self._socket = sock
        self._number = sock.fileno()
        self._secure: SecureSocket | None = None
        self._is_securing = context.tls is not None
        self.peer = peer
        self._caused = {"caused_by": party}
        streamer = context.streamer
        self._core = CommandCore(streamer, streamer.header.stream_type, context.on_command_error)
        self._sender = streamer.range_sender()
        self._queue: list[bytes | SendRange] = []
        """Bytes to send before anything else."""
        self._position = _NONE
        """Offset of the next byte to stream; _NONE when not streaming."""
        self._reached = 0
        """The highest offset sent from the file before the current stream."""
        self._streaming = False
        self._end_at = _NONE
        """Stream up to here, then close."""
        self._range_end = _NONE
        """The end of the range that is under way; _NONE without one."""
        self._closing = False
        self._ended = False
        """The client closed its sending side."""
        self._linger: asyncio.TimerHandle | None = None
        self._lingered_bytes = 0
        self._reading = False
        self._writing = False
        self._slot_bytes = 0
        """Bytes that may still be sent in this slot."""
        self._slot_commands = 0
        self._unacknowledged = 0
        """Bytes that the client's host had not acknowledged at the last sweep, plus those sent since."""
        self._progress_at = self.active_at = context.loop.time()
        self._watch(want_read=True, want_write=False)

    # --- events ------------------------------------------------------------------------------------------

    def wake(self, tail: LiveTail) -> None:
        """Send what was committed since; only for a live client."""
        if self._socket.fileno() >= 0:
            self._guarded(self._send_tail, tail)

    def sweep(self, now: float) -> None:
        """Close when a timeout has passed; `now` is the event loop's time in seconds."""
        limits = self._context.limits
        if self._linger is not None or self._socket.fileno() < 0:
            return
        self._settle()
        if self._is_securing:
            if now - self.active_at > limits.handshake_timeout_seconds:
                text = "client %s: no TLS handshake within %g s, closed"
                _logger.info(text, self.peer, limits.handshake_timeout_seconds, extra=self._caused)
                self.close()
            return
        # Also while the kernel takes bytes: live entries for a dead host fill its buffer slowly.
        if self._unacknowledged:
            self._look_for_progress(now)
        if self._unacknowledged and 0 < limits.write_timeout_seconds < now - self._progress_at:
            seconds = now - self._progress_at
            _logger.info("client %s: took nothing for %.1f s, closed", self.peer, seconds, extra=self._caused)
            self._reset()
        elif 0 < limits.inactivity_timeout_seconds < now - self.active_at:
            seconds = now - self.active_at
            _logger.info("client %s: inactive for %.1f s, closed", self.peer, seconds, extra=self._caused)
            self.close()
        elif self._context.live.position_of(self._number) is not None:
            self._wait()

    def lag_bytes(self, total_length: int) -> int:
        """Return a streaming client's distance from the committed length, in bytes of the file, else 0."""
        if not self._streaming:
            return 0
        position = self._context.live.position_of(self._number)
        return max(0, total_length - (self._position if position is None else position))

    def close_if_past(self, offset: int) -> None:
        """Reset a client that was, or is being, sent something at or after `offset`.

        Even if that was long ago: a socket holds pages of the file, not copies (within one machine until the
        client reads them), so writing to these pages changes the sent bytes. A client in a range was promised
        all of it.

        A client that has closed its sending side before `offset` gets the rest up to it.
        """
        self._settle()
        if max(self._position, self._reached, self._range_end) > offset and self._socket.fileno() >= 0:
            _logger.warning(
                "client %s: reset: the stream was truncated to %d", self.peer, offset, extra=self._caused
            )
            self._reset()
        self._end_at = min(self._end_at, offset)

    def close(self) -> None:
        """Close the connection now; idempotent."""
        if self._socket.fileno() < 0:
            return
        if self._linger is not None:
            self._linger.cancel()
        self._context.live.discard(self._number)
        self._closing = True
        self._watch(want_read=False, want_write=False)
        if self._secure is not None and not self._is_securing:
            with contextlib.suppress(OSError):
                self._secure.end()
        self._secure = None  # it refers to this connection
        self._socket.close()
        self._context.forget(self)

    def _reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._secure = None  # its alert would make the end look orderly
        self.close()

    def _guarded(self, action: Callable[..., None], *args: object) -> None:
        """Run one event handler; a failure ends only this client."""
        if self._socket.fileno() < 0:
            return
        this_thread.waits = False
        try:
            self._settle()
            action(*args)
        except PageUnchecked as unchecked:
            self._await_check(unchecked.page_number)
        except PageNotServed as error:
            _logger.info("client %s: ended before a page that is not served: %s", self.peer, error)
            self._queue.clear()
            self._closing = True
            self._guarded(self._pump)  # everything before it goes out whole
        except (ConnectionError, TimeoutError) as error:
            _logger.debug("client %s: %s", self.peer, error)
            self.close()
        except StreamChanged as error:
            _logger.warning("client %s: reset: %s", self.peer, error, extra=self._caused)
            self._reset()
        except ssl.SSLError as error:
            _logger.info("client %s: closed: TLS: %s", self.peer, why_refused(error), extra=self._caused)
            self.close()
        except (DatastreamError, OSError) as error:
            _logger.error("client %s: closed: %s", self.peer, error, extra=self._caused)
            self.close()
        except Exception:  # a bug of ours; the loop would repeat the call for ever
            _logger.exception("client %s: closed", self.peer, extra=self._caused)
            self.close()
        finally:
            this_thread.waits = True

    def _settle(self) -> None:
        """Take over what was sent to it together with others."""
        settled = self._context.live.settle(self._number)
        if settled is not None:
            self._position, self._unacknowledged, self._progress_at, changes_seen, self.active_at = settled
            self._sender.begin(changes_seen)

    def _await_check(self, page_number: int) -> None:
        self._context.live.discard(self._number)
        self._watch(want_read=False, want_write=False)
        self.active_at = math.inf  # it waits for us
        self._context.first_touch.check(page_number, self._on_checked)

    def _on_checked(self, failure: Exception | None) -> None:
        self.active_at = self._context.loop.time()
        if failure is None:
            self._guarded(self._pump)
        elif isinstance(failure, PageNotLocal):
            self._guarded(self._pump_without, failure)
        elif self._socket.fileno() >= 0:
            _logger.error("client %s: closed: a page cannot be checked: %s", self.peer, failure)
            self.close()

    def _pump_without(self, missing: PageNotLocal) -> None:
        """Send what there is before a page that the archive does not give."""
        this_thread.not_local = missing
        try:
            self._pump()
        finally:
            this_thread.not_local = None

    def _on_readable(self) -> None:
        if self._is_securing:
            self._guarded(self._shake_hands)
        else:
            self._guarded(self._receive if self._linger is None else self._drop_input)

    def _on_writable(self) -> None:
        self._guarded(self._pump)

    def _on_linger_timer(self, delay: float, until: float) -> None:
        self._guarded(self._look_at_linger, delay, until)

    # --- receiving ---------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        context = self._context
        if not context.may_shake_hands():
            return
        try:
            if self._secure is None:
                assert context.tls is not None
                first = self._socket.recv(1, socket.MSG_PEEK)
                if first and first != HANDSHAKE_RECORD:
                    self._refuse("it speaks no TLS, which this port expects")
                    return
                self._secure = SecureSocket(self._socket, context.tls(), self._on_wire)
            is_done = self._secure.shake_hands()
        except (BlockingIOError, InterruptedError):
            return
        except ssl.SSLError as error:
            self._refuse(f"the TLS handshake failed: {why_refused(error)}")
            return
        if not is_done:
            self._watch(want_read=True, want_write=self._has_unsent)
            return
        self._is_securing = False
        self._take(*self._secure.read())  # commands may have come behind the handshake

    def _refuse(self, reason: str) -> None:
        """End a connection without TLS, behind an alert if there is one."""
        _logger.info("client %s: closed, %s", self.peer, reason, extra=self._caused)
        self._is_securing, self._secure, self._closing = False, None, True
        self._end()

    def _receive(self) -> None:
        try:
            if self._secure is not None:
                data, ended = self._secure.receive()
            else:
                data = self._socket.recv(RECEIVE_BYTES)
                ended = not data
        except (BlockingIOError, InterruptedError):
            return
        self._take(data, ended)

    def _take(self, data: bytes, ended: bool) -> None:
        if data:
            # uvloop reports a socket's error once and stops polling it: a reset behind these bytes would go
            # unnoticed.
            if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise ConnectionResetError(error, os.strerror(error))
            self.active_at = self._context.loop.time()
            self._core.receive(data)
        if ended:
            self._ended = True
            self._core.receive_end()
        self._pump()

    def _run_command(self) -> bool:
        if self._end_at != _NONE:
            return False
        if not self._streaming:
            self._sender.begin()
        effects = self._core.next_effects()
        if effects is None:
            return False
        self._slot_commands += 1
        for effect in effects:
            self._perform(effect)
        return True

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(data):
                self._finish_entry()
                self._queue.append(data)
            case SendRange(offset, size):
                self._queue.append(effect)
                self._reached = max(self._reached, offset + size)
            case SendEntries(offset, end):
                self._position = offset
                self._range_end = end
                self._join_first(end)
            case StartStream(offset):
                self._position = offset
                self._streaming = True
                self._join_first(self._context.streamer.committed.total_length)
            case StopStream():
                self._finish_entry()
                self._reached = max(self._reached, self._position)
                self._position = _NONE
                self._streaming = False
            case EndAfterCatchUp():
                self._end_at = self._context.streamer.committed.total_length
            case Close(reason):
                level = logging.INFO if reason == SPEAKS_TLS else logging.DEBUG
                _logger.log(level, "client %s: closed, %s", self.peer, reason, extra=self._caused)
                self._closing = True

    def _join_first(self, limit: int) -> None:
        """Append the first entries to the answer before them: what comes at once wakes the client once."""
        streamer, position = self._context.streamer, self._position
        page_number = page_number_of(position)
        if position >= limit or streamer.sums.state(page_number) is not PageState.GOOD:
            return
        if self._core.has_bytes:  # the next command may end the connection, and these could end in an entry
            return
        size = min(JOINED_BYTES, streamer.data_end(page_number, limit) - position)
        if size > 0 and isinstance(self._queue[-1], bytes):
            joined = self._sender.read(size, position)
            self._queue[-1] += joined
            self._position += len(joined)

    def _finish_entry(self) -> None:
        """Queue the rest of the current entry.

        Raises:
            StreamChanged: a truncation dropped its end; an answer would cut the entry.
        """
        if not self._streaming:
            return
        try:
            boundary = self._context.streamer.boundary_from(self._position)
        finally:  # behind it: its result or failure may come of other entries
            self._check_place()
        if boundary > self._position:
            self._queue.append(SendRange(self._position, boundary - self._position))
            self._position = boundary

    def _check_place(self) -> None:
        """Raise StreamChanged if a change removed the client's place."""
        context, position = self._context, self._position
        self._sender.check(position)
        # The sender does not see a truncation while live bytes are sent.
        if max(position, self._range_end) > min(context.cut_offset, context.streamer.committed.total_length):
            raise StreamChanged(context.streamer.path, position)

    # --- sending -----------------------------------------------------------------------------------------

    def _send_tail(self, tail: LiveTail) -> None:
        """Send new committed bytes from those that all waiting clients share."""
        found = tail.after(self._position)
        # Looked at after the tail, see `StreamServer._on_commit`.
        if self._position > self._context.cut_offset:
            self._reset()
            return
        if found is None:
            self._pump()
            return
        offset, data = found
        try:
            count = self._send(data)
        except (BlockingIOError, InterruptedError):
            self._pump()
            return
        self._position = offset + count
        self._sent(count)
        if count < len(data) or self._has_unsent:
            self._pump()
        else:
            self._sender.begin()  # at an entry's end, earlier updates do not concern it
            self._wait()

    def _pump(self) -> None:
        """Send as much as kernel and slot allow; then wait for the right event."""
        self._slot_bytes = self._context.slot_bytes()
        self._slot_commands = 0
        progress = self._send_all()
        if progress is _Progress.DONE and self._closing and self._secure is not None:
            self._secure.end()
        if progress is _Progress.DONE and self._has_unsent:
            progress = _Progress.BLOCKED
        if progress is _Progress.DONE and self._closing:
            self._end()
            return
        if progress is _Progress.DONE and self._streaming:
            self._wait()
        else:
            self._context.live.discard(self._number)
        # Neither answers nor commands pile up: while one waits, reading stops.
        is_answering = self._queue or self._range_end != _NONE or self._has_unsent
        want_read = not (is_answering or self._ended or progress is _Progress.COMMANDS_LEFT)
        self._watch(want_read, want_write=progress is not _Progress.DONE)

    def _wait(self) -> None:
        settled = Settled(
            self._position, self._unacknowledged, self._progress_at, self._sender.seen, self.active_at
        )
        self._context.live.add(self._number, self, settled, is_alone=self._secure is not None)

    def _send_all(self) -> _Progress:
        while True:
            if not self._send_queue():
                return _Progress.BLOCKED
            if self._closing:
                return _Progress.DONE
            if self._slot_commands >= COMMANDS_PER_SLOT or self._slot_bytes <= 0:
                return _Progress.COMMANDS_LEFT
            if self._range_end != _NONE:
                self._check_place()  # the range was there when it was asked for
                progress = self._send_range(self._range_end)
                if progress is not _Progress.DONE:
                    return progress
                self._reached = max(self._reached, self._range_end)
                self._position = self._range_end = _NONE
                continue
            if self._run_command():
                continue
            if not self._streaming:
                return _Progress.DONE
            limit = self._end_at if self._end_at != _NONE else self._context.streamer.committed.total_length
            progress = self._send_range(limit)
            if progress is _Progress.DONE and self._end_at != _NONE:
                self._closing = True
            return progress

    def _send_queue(self) -> bool:
        queue = self._queue
        if self._secure is not None:
            try:
                self._secure.flush()
            except (BlockingIOError, InterruptedError):
                return False
        while queue:
            piece = queue[0]
            try:
                if isinstance(piece, bytes):
                    count = self._send(piece)
                    rest: bytes | SendRange | None = piece[count:] or None
                else:
                    count = self._send_file(piece.offset, piece.size)
                    left = piece.size - count
                    rest = SendRange(piece.offset + count, left) if left else None
            except (BlockingIOError, InterruptedError):
                return False
            self._sent(count)
            if rest is None:
                del queue[0]
            else:
                queue[0] = rest
        return True

    def _send_range(self, limit: int) -> _Progress:
        streamer = self._context.streamer
        while True:
            position = self._position
            page_number = page_number_of(position)
            end = streamer.data_end(page_number, limit) if position < limit else position
            if position >= end:
                if position > limit:
                    self._check_place()  # otherwise a client would seem to have everything
                if page_end(page_number) >= limit or position >= limit:
                    return _Progress.DONE
                self._position = page_end(page_number)  # only padding lies between
                continue
            if self._slot_bytes <= 0:
                return _Progress.SLOT_OVER
            try:
                count = self._send_file(position, min(end - position, self._slot_bytes))
            except (BlockingIOError, InterruptedError):
                return _Progress.BLOCKED
            self._position = position + count
            self._sent(count)

    def _send_file(self, offset: int, size: int) -> int:
        self._context.streamer.sums.require(page_number_of(offset))
        if self._secure is None:
            count = self._sender.send(self._socket.fileno(), offset, size)
        else:
            self._secure.flush()  # else the bytes would be read for nothing
            count = self._secure.send(self._sender.read(min(size, COPIED_BYTES), offset))
        if count == 0:
            raise OSError(errno.EIO, f"the stream file ends before offset {offset + size}")
        return count

    def _send(self, data: bytes) -> int:
        return self._socket.send(data) if self._secure is None else self._secure.send(data)

    @property
    def _has_unsent(self) -> bool:
        """True if bytes that count as sent wait for room in the kernel."""
        return self._secure is not None and self._secure.has_unsent

    def _sent(self, count: int) -> None:
        self._slot_bytes -= count
        self._context.bytes_sent += count
        if self._secure is None:
            self._on_wire(count)

    def _on_wire(self, count: int) -> None:
        # Bytes in the kernel are no sign of the client: `_look_for_progress` asks.
        if not self._unacknowledged:
            self._progress_at = self._context.loop.time()
        self._unacknowledged += count

    # --- ending ------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Close our side, then wait until the client has everything and closed its own.

        Closing with unread bytes of the client would send a reset, which can destroy the last answer. The
        connection counts until the kernel has delivered everything, so non-reading clients cannot pile up.
        """
        if self._ended and not self._count_unacknowledged():
            self.close()
            return
        self._context.live.discard(self._number)
        self._watch(want_read=False, want_write=False)
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the client was quicker
            self.close()
            return
        if not self._ended:
            self._watch(want_read=True, want_write=False)
        until = self._context.loop.time() + self._context.limits.linger_seconds
        self._wait_for_linger(LINGER_FIRST_SECONDS, until)

    def _drop_input(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        self._lingered_bytes += len(data)
        if self._lingered_bytes > LINGER_BYTES_MAX:
            self.close()
        elif not data:
            self._ended = True
            if self._has_all():
                self.close()
            else:
                self._watch(want_read=False, want_write=False)

    def _wait_for_linger(self, delay: float, until: float) -> None:
        self._linger = self._context.loop.call_later(delay, self._on_linger_timer, delay, until)

    def _look_at_linger(self, delay: float, until: float) -> None:
        now = self._context.loop.time()
        if self._has_all():
            if self._ended or now >= until:
                self.close()
                return
        else:
            self._look_for_progress(now)
            if now - self._progress_at > (self._context.limits.write_timeout_seconds or LINGER_STALL_SECONDS):
                text = "client %s: did not take the end of its answer, closed"
                _logger.info(text, self.peer, extra=self._caused)
                self._reset()
                return
        self._wait_for_linger(min(2 * delay, self._context.limits.linger_seconds), until)

    def _has_all(self) -> bool:
        """Return whether the client's host has everything; our FIN counts as one byte."""
        return self._count_unacknowledged() <= 1

    def _look_for_progress(self, now: float) -> None:
        """Note whether the client's host took bytes since the last call.

        The kernel reports room only when a third of its buffer is free: behind a slow line, that is seconds
        after the client took its first bytes.
        """
        count = self._count_unacknowledged()
        if count < self._unacknowledged:
            self._progress_at = self.active_at = now
        self._unacknowledged = count

    def _count_unacknowledged(self) -> int:
        count: int
        (count,) = _INT.unpack(fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
        return count

    def _watch(self, want_read: bool, want_write: bool) -> None:
        loop, fd = self._context.loop, self._socket.fileno()
        if want_read and not self._reading:
            loop.add_reader(fd, self._on_readable)
        elif self._reading and not want_read:
            loop.remove_reader(fd)
        self._reading = want_read
        if want_write and not self._writing:
            loop.add_writer(fd, self._on_writable)
            self._context.writing_count += 1
        elif self._writing and not want_write:
            loop.remove_writer(fd)
            self._context.writing_count -= 1
        self._writing = want_write
