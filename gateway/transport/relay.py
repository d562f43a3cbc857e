"""The relay of one connection between the outside and gRPC core; it mends what gRPC core would refuse.

Pure: bytes in, bytes out. In a node a `ServerRelay` has a client outside; in a client a `ClientRelay` has a
server outside.

Frames pass unchanged, flow control included, but for four things:

    header blocks           pass only when they are whole and within limits
    requests without `te`   gRPC core resets them; the relay adds `te: trailers` and *mends* their streams
    requests to a server    that wants indexed pseudo-headers: the relay rewrites them and mends their streams
    large messages          the relay withholds the window for one until `MessageGate` grants it

A mended stream belongs to software that miscounts its window. Helidon's client counts each WINDOW_UPDATE of a
stream twice and overruns the window, for which gRPC core would end the stream. So the relay grants the
outside one large window, keeps gRPC's updates, and queues DATA beyond them:

    outside ── DATA ──▶ queue ── DATA, within gRPC's window ──▶ gRPC core
            ◀── one large grant            WINDOW_UPDATE (kept) ──┘

The connection's window passes unchanged and bounds the queue. So one slow stream may block a client's whole
connection.

Let R be the window left by counting right. A client that sends beyond R = 0 counts twice; one that stops at R
= 0, or just before it for a tick, counts right.

Source: RFC 9113 sections 5.2, 6.9 and 8.2.2; the gRPC protocol over HTTP/2, "Requests" (te).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

from sluice.gateway.transport.callers import STREAM_KEY
from sluice.gateway.transport.frames import (
    CLIENT_PREFACE,
    FRAME_BYTES_DEFAULT,
    HEAD_BYTES,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    Buffer,
    ConnectionBreach,
    ErrorCode,
    Flag,
    FrameKind,
    FrameScanner,
    Http2Setting,
    frame,
    go_away,
    settings_in,
    window_update,
)
from sluice.gateway.transport.header_blocks import (
    HeaderBlock,
    HeaderReader,
    HeaderWriter,
    header_field,
    header_frames,
)
from sluice.gateway.transport.message_size import TooLong, too_long

__all__ = ["ClientRelay", "FrameRelay", "MessageGate", "ServerRelay", "Stream"]

PUBLISH_PATH: Final = b"/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
"""The call of publishers."""
STREAMS_MAX: Final = 4_096
"""Open streams of one connection. gRPC core resets those beyond `STREAMS_PER_CONNECTION_MAX`, but silently
ignores streams with an even number or begun after its GOAWAY."""
_PREFIX_BYTES: Final = 5
"""Compression u8 and length u32 in front of a message."""
_RESOURCE_EXHAUSTED: Final = b"8"
"""gRPC core's status for a message that is too long."""
_NEARLY_USED_UP: Final = 1 << 16
"""A client may stop so many bytes short of its window, to wait for room for a whole message."""
_ANSWER_COST: Final = 64
"""Extra cost of a PING or SETTINGS, which gRPC core answers, and of padding."""
_CALL_COST: Final = 256
"""Extra cost of HEADERS, which begin a call."""
_RESET_COST: Final = 1_000
"""Cost in bytes of a client's RST_STREAM."""


class MessageGate(Protocol):
    """Decides which large messages may be received now."""

    small_bytes: int
    """A message up to this length needs no grant."""

    def ask(self, stream_id: int, size: int) -> bool:
        """Ask for a message of `size` bytes; False holds it until `ServerRelay.grant`."""

    def publishes(self, stream_id: int) -> None:
        """Note a publisher's call: its service tells when it has taken over a message."""

    def progressed(self, stream_id: int, size: int) -> None:
        """Note that `size` bytes of the granted message have come."""

    def came(self, stream_id: int) -> None:
        """Note that the granted message has come whole."""

    def done(self, stream_id: int) -> None:
        """Note that the stream has ended."""


@dataclass(slots=True)
class Stream:
    """One open stream."""

    stream_id: int
    is_mended: bool = False
    outside_done: bool = False
    grpc_done: bool = False
    # Flow control of a mended stream: gRPC core's window, and the outside's grant and use.
    window: int = 0
    queue: deque[bytearray] = field(default_factory=deque)
    queued_end: bool = False
    trailers: bytes = b""
    granted: int = 0
    used: int = 0
    used_at_tick: int = 0
    counts_twice: bool | None = None
    # The gRPC message under way.
    left: int = 0
    prefix: bytearray = field(default_factory=bytearray)
    large: int = 0
    has_asked: bool = False
    held: int = 0
    is_held: bool = False


class FrameRelay(ABC):
    """The common part of both relays; it mends streams in the direction to gRPC core."""

    large_window = 1 << 30
    """The first window of a mended stream; counted twice it stays within 2^31 - 1."""

    def __init__(self, *, outside_is_client: bool, frame_bytes_outside: int = FRAME_BYTES_DEFAULT) -> None:
        self.to_grpc: list[Buffer] = []
        """Bytes for gRPC core; the caller empties it."""
        self.to_outside: list[Buffer] = []
        """Bytes for the outside; the caller empties it."""
        self.now_ns = 0
        """A monotonic clock's time; the caller sets it."""
        self.last_stream_id = 0
        self.streams_begun = 0
        self.has_mended = False
        self.cost = 0
        """Bytes from outside without data; the caller resets it."""
        self.data_bytes = 0
        """Bytes of data, both ways; the caller resets it."""
        self._streams: dict[int, Stream] = {}
        self._current: Stream | None = None
        self._block: HeaderBlock | None = None
        self._grpc_block: HeaderBlock | None = None
        self._window_sent = self._window_in_force = WINDOW_BYTES_DEFAULT
        self._connection_window = WINDOW_BYTES_DEFAULT  # of the outside, over all streams
        self._unacknowledged: deque[dict[int, int]] = deque()
        preface = CLIENT_PREFACE
        self._outside = FrameScanner(
            self.to_grpc,
            on_data=self._on_outside_data,
            on_payload=self._follow if outside_is_client else None,
            on_frame=self._on_outside_frame,
            preface=preface if outside_is_client else b"",
        )
        self._grpc = FrameScanner(
            self.to_outside,
            on_data=self._on_grpc_data,
            on_payload=None,
            on_frame=self._on_grpc_frame,
            preface=b"" if outside_is_client else preface,
        )
        # gRPC core keeps to its other end's SETTINGS, which pass here.
        self._grpc.frame_bytes_max = (1 << 24) - 1

    # --- what the caller does -------------------------------------------------------------------------------

    def from_outside(self, chunk: memoryview) -> None:
        """Take bytes from outside."""
        self._outside.feed(chunk)

    def from_grpc(self, chunk: memoryview) -> None:
        """Take bytes from gRPC core."""
        self._grpc.feed(chunk)

    def end(self, breach: ConnectionBreach) -> None:
        """Tell the outside why its connection ends, unless half a frame is on the way to it."""
        if self.awaits_preface:  # a client is told in HTTP/2, whatever it speaks
            self._grpc.insert(frame(FrameKind.SETTINGS, 0, 0))
        self._grpc.insert(go_away(breach.code, str(breach), self.last_stream_id))

    def close(self) -> None:
        """End all streams with the connection."""
        for stream in tuple(self._streams.values()):
            self._forget(stream)

    def tick(self) -> None:
        """Check the streams that may wait for a window, some ten times a second."""
        for stream in self._streams.values():
            if stream.is_mended and stream.counts_twice is None:
                left = self._left_by_right_count(stream)
                if left < _NEARLY_USED_UP and stream.used == stream.used_at_tick:
                    stream.counts_twice = False
                    self._grant_outside(stream)
                stream.used_at_tick = stream.used

    @property
    def open_streams(self) -> int:
        """Number of open calls."""
        return len(self._streams)

    @property
    def awaits_preface(self) -> bool:
        """True if the client's preface has not come whole."""
        return self._outside.awaits_preface

    @property
    def block_began_ns(self) -> int | None:
        """The time at which the current header block began, in nanoseconds; None without one."""
        return None if self._block is None else self._block.began_ns

    # --- from outside ---------------------------------------------------------------------------------------

    def _on_outside_data(self, flags: int, stream_id: int, length: int) -> bool:
        if self._block is not None:
            self._block.add(FrameKind.DATA, flags, stream_id, b"")
        self.data_bytes += length
        self._connection_window -= length
        if self._connection_window < 0:
            raise ConnectionBreach(
                "flow control",
                got=f"{-self._connection_window} bytes beyond the window of the connection",
                expected="none",
                code=ErrorCode.FLOW_CONTROL_ERROR,
            )
        self.cost += HEAD_BYTES  # large frames earn more than that
        stream = self._current = self._streams.get(stream_id)
        if stream is None:
            return True
        if stream.is_mended:
            stream.used += length
            self._watch_count(stream)
            if stream.queue or stream.window < length or flags & Flag.PADDED:
                return False
            stream.window -= length
        elif flags & Flag.PADDED:
            return False
        if flags & Flag.END_STREAM:
            self._outside_ends(stream)
        return True

    def _follow(self, piece: memoryview) -> None:  # noqa: B027 - in front of a client nobody follows messages
        """Take payload of the current stream."""

    def _on_outside_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> bytes | None:
        if kind == FrameKind.DATA:
            return self._on_whole_data(flags, stream_id, payload)
        self.cost += HEAD_BYTES + len(payload)
        if self._block is not None:
            self._block.add(kind, flags, stream_id, payload)
            return self._take_outside_block(self._block)
        if kind == FrameKind.HEADERS:
            self.cost += _CALL_COST
            self._block = HeaderBlock.begin(flags, stream_id, payload, self.now_ns)
            return self._take_outside_block(self._block)
        if kind == FrameKind.CONTINUATION:
            raise ConnectionBreach(
                "header block", got="CONTINUATION without HEADERS", expected="HEADERS in front of it"
            )
        if kind in (FrameKind.PING, FrameKind.SETTINGS) and not flags & Flag.ACK:
            self.cost += _ANSWER_COST
        if kind == FrameKind.RST_STREAM:
            stream = self._streams.get(stream_id)
            if stream is not None:
                if not stream.grpc_done:
                    self.cost += _RESET_COST
                self._forget(stream)
        elif kind == FrameKind.SETTINGS:
            return self._on_outside_settings(flags, payload)
        return None

    def _on_outside_settings(self, flags: int, payload: memoryview) -> bytes | None:
        if flags & Flag.ACK:
            settings = self._unacknowledged.popleft() if self._unacknowledged else {}
            drained = self._put_in_force(settings)
            return frame(FrameKind.SETTINGS, Flag.ACK, 0) + drained if drained else None
        for identifier, value in settings_in(payload):
            if identifier == Http2Setting.HEADER_TABLE_SIZE:
                self._outside_table_size(value)
        return None

    @abstractmethod
    def _outside_table_size(self, size: int) -> None:
        """Note the size that the outside allows gRPC's header table."""

    def _take_outside_block(self, block: HeaderBlock) -> bytes:
        if not block.is_whole:
            return b""
        self._block = None
        return self._on_outside_block(block)

    @abstractmethod
    def _on_outside_block(self, block: HeaderBlock) -> bytes:
        """Handle a whole header block from outside; return its replacement."""

    def _on_whole_data(self, flags: int, stream_id: int, payload: memoryview) -> bytes | None:
        stream = self._streams.get(stream_id)
        if stream is None:  # it ended while the frame was coming
            return None
        data = payload
        if flags & Flag.PADDED:
            if not payload or payload[0] >= len(payload):
                raise ConnectionBreach(
                    "padding", got="padding longer than its frame", expected="at most the rest of the frame"
                )
            data = payload[1 : len(payload) - payload[0]]
        self._current = stream
        self._follow(data)
        ends = bool(flags & Flag.END_STREAM)
        if not stream.is_mended:
            if ends:
                self._outside_ends(stream)
            return None
        if len(payload) > len(data):
            self.cost += _ANSWER_COST
            self._credit(len(payload) - len(data))
        if data:
            queue = stream.queue
            if queue and len(queue[-1]) < FRAME_BYTES_DEFAULT:  # pieces of one byte would take much memory
                queue[-1] += data
            else:
                queue.append(bytearray(data))
        stream.queued_end |= ends
        return self._drain(stream)

    def _drain(self, stream: Stream) -> bytes:
        """Return the queue's frames within gRPC's window."""
        frames, queue, most = [], stream.queue, self._outside.frame_bytes_max
        while queue and stream.window > 0:
            piece = queue[0]
            size = min(len(piece), stream.window, most)
            stream.window -= size
            frames.append(frame(FrameKind.DATA, 0, stream.stream_id, bytes(piece[:size])))
            if size < len(piece):
                del piece[:size]
            else:
                queue.popleft()
        if not queue and stream.queued_end:
            frames.append(stream.trailers or frame(FrameKind.DATA, Flag.END_STREAM, stream.stream_id))
            stream.queued_end = False
            self._outside_ends(stream)
        return b"".join(frames)

    def _credit(self, size: int) -> None:
        """Return to the outside the connection window that gRPC core never sees used."""
        if size:
            self._connection_window += size
            self._grpc.insert(window_update(0, size))

    # --- the window of a mended stream ----------------------------------------------------------------------

    def _mend(self, stream: Stream) -> bytes:
        """Keep gRPC's window of a stream here; return the grant for the outside."""
        stream.is_mended = self.has_mended = True
        stream.window = self._window_in_force
        stream.granted = self.large_window - self._window_sent
        return window_update(stream.stream_id, stream.granted)

    def _left_by_right_count(self, stream: Stream) -> int:
        return self._window_sent + stream.granted - stream.used

    def _watch_count(self, stream: Stream) -> None:
        """Find out how the outside counts, and grant more in time."""
        left = self._left_by_right_count(stream)
        if stream.counts_twice is None:
            if left > 0:
                return
            stream.counts_twice = left < 0
        if stream.counts_twice:
            left += stream.granted
        if left <= self.large_window // 2:
            self._grant_outside(stream)

    def _grant_outside(self, stream: Stream) -> None:
        size = self.large_window // (4 if stream.counts_twice else 2)
        stream.granted += size
        self._grpc.insert(window_update(stream.stream_id, size))

    def _put_in_force(self, settings: dict[int, int]) -> bytes:
        """Apply acknowledged SETTINGS, by which gRPC core counts now; return what may go to it then."""
        window = settings.get(Http2Setting.INITIAL_WINDOW_SIZE)
        if window is None:
            return b""
        for stream in self._streams.values():
            if stream.is_mended:
                stream.window += window - self._window_in_force
        self._window_in_force = window
        waiting = [stream for stream in self._streams.values() if stream.queue]
        return b"".join(map(self._drain, waiting))

    # --- from gRPC core -------------------------------------------------------------------------------------

    def _on_grpc_data(self, flags: int, stream_id: int, length: int) -> bool:
        self.data_bytes += HEAD_BYTES + length
        if flags & Flag.END_STREAM:
            stream = self._streams.get(stream_id)
            if stream is not None:
                self._grpc_ends(stream)
        return True

    def _on_grpc_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> bytes | None:
        if kind == FrameKind.WINDOW_UPDATE:
            size = int.from_bytes(payload, "big") & WINDOW_BYTES_MAX
            stream = self._streams.get(stream_id)
            if stream is not None:
                return self._on_grpc_window(stream, size)
            if not stream_id:
                return self._on_grpc_connection_window(size)
        elif kind in (FrameKind.HEADERS, FrameKind.CONTINUATION):
            return self._on_grpc_headers(kind, flags, stream_id, payload)
        elif kind == FrameKind.RST_STREAM:
            stream = self._streams.get(stream_id)
            if stream is not None:
                self._forget(stream)
        elif kind == FrameKind.SETTINGS and not flags & Flag.ACK:
            self._on_grpc_settings(dict(settings_in(payload)))
        return None

    def _on_grpc_window(self, stream: Stream, size: int) -> bytes | None:
        if stream.is_held:
            stream.held += size
            return b""
        if not stream.is_mended:
            return None
        stream.window += size
        if stream.queue:
            self._outside.insert(self._drain(stream))
        return b""

    def _on_grpc_connection_window(self, size: int) -> bytes | None:
        self._connection_window += size
        return None

    def _on_grpc_settings(self, settings: dict[int, int]) -> None:
        self._unacknowledged.append(settings)
        window = settings.get(Http2Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            self._window_sent = window
        size = settings.get(Http2Setting.MAX_FRAME_SIZE)
        if size is not None:
            self._outside.frame_bytes_max = max(size, FRAME_BYTES_DEFAULT)
        table = settings.get(Http2Setting.HEADER_TABLE_SIZE)
        if table is not None:
            self._grpc_table_size(table)

    @abstractmethod
    def _grpc_table_size(self, size: int) -> None:
        """Note the size that gRPC core allows the outside's header table."""

    def _on_grpc_headers(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> bytes:
        """Assemble a block of gRPC core: no other frame may come between its frames."""
        if self._grpc_block is None:
            self._grpc_block = HeaderBlock.begin(flags, stream_id, payload, self.now_ns)
        else:
            self._grpc_block.add(kind, flags, stream_id, payload)
        block = self._grpc_block
        if not block.is_whole:
            return b""
        self._grpc_block = None
        return self._on_grpc_block(block)

    @abstractmethod
    def _on_grpc_block(self, block: HeaderBlock) -> bytes:
        """Handle a whole header block of gRPC core; return its replacement."""

    def _release(self, stream: Stream) -> None:  # noqa: B027 - in front of a client nothing depends on it
        """Release what waits for the end of a stream."""

    # --- the life of a stream -------------------------------------------------------------------------------

    def _begin(self, stream_id: int) -> Stream:
        stream = self._streams[stream_id] = Stream(stream_id)
        self.streams_begun += 1
        return stream

    def _outside_ends(self, stream: Stream) -> None:
        stream.outside_done = True
        if stream.grpc_done:
            self._forget(stream)

    def _grpc_ends(self, stream: Stream) -> None:
        stream.grpc_done = True
        if stream.outside_done:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.stream_id, None)
        if self._current is stream:
            self._current = None
        self._release(stream)
        if stream.queue:
            self._credit(sum(map(len, stream.queue)))
            stream.queue.clear()


class ServerRelay(FrameRelay):
    """The relay in front of a gRPC server: the outside is a client.

    It adds `te`, follows each call's messages to hold back a large one, and finds in gRPC's trailers which
    were too long.

    Args:
        gate: admits large messages; None: all.
    """

    def __init__(self, gate: MessageGate | None = None) -> None:
        super().__init__(outside_is_client=True)
        self.refused: list[TooLong] = []
        """Messages that gRPC core found too long; the caller empties it."""
        self._gate = gate
        self._connection_held = 0
        self._requests, self._answers = HeaderReader(), HeaderReader()

    def grant(self, stream_id: int) -> None:
        """Let a stream's large message be received now."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_held:
            return
        stream.is_held = False
        self._hand_on_held(stream)

    def _follow(self, piece: memoryview) -> None:
        stream = self._current
        if stream is None:
            return
        if len(piece) < stream.left:
            stream.left -= len(piece)
            if stream.has_asked:
                assert self._gate is not None
                self._gate.progressed(stream.stream_id, len(piece))
            return
        while len(piece) >= stream.left:  # the message ends in this piece
            piece, stream.left = piece[stream.left :], 0
            if stream.large:
                self._on_message_end(stream)
            missing = _PREFIX_BYTES - len(stream.prefix)
            stream.prefix += piece[:missing]
            piece = piece[missing:]
            if len(stream.prefix) < _PREFIX_BYTES:
                return
            stream.left = int.from_bytes(stream.prefix[1:], "big")
            stream.prefix.clear()
            if self._gate is not None and stream.left > self._gate.small_bytes:
                stream.large = stream.left
        stream.left -= len(piece)

    def _on_grpc_connection_window(self, size: int) -> bytes | None:
        if self._keeps_connection_window:
            self._connection_held += size
            return b""
        return super()._on_grpc_connection_window(size)

    @property
    def _keeps_connection_window(self) -> bool:
        """Return whether a mended stream waits for the gate: nothing else keeps its client from sending.

        Not while another message of the connection is under way, which would never end.
        """
        asked = [stream for stream in self._streams.values() if stream.has_asked]
        return any(stream.is_mended for stream in asked) and all(stream.is_held for stream in asked)

    def _on_message_end(self, stream: Stream) -> None:
        stream.large, stream.is_held = 0, False
        if stream.has_asked:
            stream.has_asked = False
            assert self._gate is not None
            self._gate.came(stream.stream_id)
        self._hand_on_held(stream)

    def _release(self, stream: Stream) -> None:
        stream.large, stream.is_held, stream.has_asked = 0, False, False
        if self._gate is not None:
            self._gate.done(stream.stream_id)
        self._hand_on_held(stream)

    def _hand_on_held(self, stream: Stream) -> None:
        """Pass on the withheld windows."""
        held, stream.held = stream.held, 0
        if held and stream.stream_id in self._streams and super()._on_grpc_window(stream, held) is None:
            self._grpc.insert(window_update(stream.stream_id, held))
        if self._connection_held and not self._keeps_connection_window:
            held, self._connection_held = self._connection_held, 0
            self._credit(held)

    def _on_grpc_window(self, stream: Stream, size: int) -> bytes | None:
        if stream.large and not stream.has_asked:  # gRPC core opens the window for the message
            assert self._gate is not None
            stream.has_asked = True
            stream.is_held = not self._gate.ask(stream.stream_id, stream.large)
        return super()._on_grpc_window(stream, size)

    def _outside_table_size(self, size: int) -> None:
        self._answers.allow_table(size)

    def _grpc_table_size(self, size: int) -> None:
        self._requests.allow_table(size)

    def _on_outside_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> bytes | None:
        passes = super()._on_outside_frame(kind, flags, stream_id, payload)
        if kind == FrameKind.GOAWAY and passes is None:
            # gRPC core logs a client's text unchanged, newlines too.
            return go_away(ErrorCode.NO_ERROR, "")
        return passes

    def _on_outside_block(self, block: HeaderBlock) -> bytes:
        fields = self._requests.read(block.fragment)
        stream_id, fragment = block.stream_id, bytes(block.fragment)
        stream = self._streams.get(stream_id)
        if stream is not None:  # trailers
            if stream.queue:
                raise ConnectionBreach(
                    "trailers", got="trailers behind data that waits", expected="the end of the data"
                )
            if block.ends_stream:
                self._outside_ends(stream)
        elif stream_id > self.last_stream_id:
            if not stream_id % 2 or len(self._streams) >= STREAMS_MAX:
                raise ConnectionBreach(
                    "streams",
                    got=f"stream {stream_id}, and {len(self._streams)} are open",
                    expected=f"an odd number, and at most {STREAMS_MAX} streams",
                )
            self.last_stream_id = stream_id
            stream = self._begin(stream_id)
            if not any(name == b"te" for name, _ in fields):
                fragment += header_field(b"te", b"trailers")
                self._grpc.insert(self._mend(stream))
            if (b":path", PUBLISH_PATH) in fields:
                fragment += header_field(STREAM_KEY.encode(), b"%d" % stream_id)
                if self._gate is not None:
                    self._gate.publishes(stream_id)
            if block.ends_stream:
                self._outside_ends(stream)
        return header_frames(
            stream_id,
            fragment,
            ends_stream=block.ends_stream,
            priority=block.priority,
            frame_bytes_max=self._outside.frame_bytes_max,
        )

    def _on_grpc_block(self, block: HeaderBlock) -> bytes:
        fields = dict(self._answers.read(block.fragment))
        if block.ends_stream:
            if fields.get(b"grpc-status") == _RESOURCE_EXHAUSTED:
                found = too_long(fields.get(b"grpc-message", b"").decode("latin-1"))
                if found is not None:
                    self.refused.append(found)
            stream = self._streams.get(block.stream_id)
            if stream is not None:
                self._grpc_ends(stream)
        return header_frames(block.stream_id, block.fragment, ends_stream=block.ends_stream)


class ClientRelay(FrameRelay):
    """The relay in front of a gRPC client: the outside is a server that wants indexed pseudo-headers.

    Rewritten blocks use no dynamic table, so an answer's trailers can wait behind its data.
    """

    def __init__(self) -> None:
        super().__init__(outside_is_client=False)
        self._requests, self._answers = HeaderReader(), HeaderReader()
        self._writer = HeaderWriter()

    def _outside_table_size(self, size: int) -> None:
        self._requests.allow_table(size)

    def _grpc_table_size(self, size: int) -> None:
        self._answers.allow_table(size)

    def _on_grpc_block(self, block: HeaderBlock) -> bytes:
        written = self._rewritten(block, self._requests)
        stream = self._streams.get(block.stream_id)
        if stream is None:
            stream = self._begin(block.stream_id)
            written += self._mend(stream)
            stream.counts_twice = False  # servers count right
        if block.ends_stream:
            self._grpc_ends(stream)
        return written

    def _on_outside_block(self, block: HeaderBlock) -> bytes:
        written = self._rewritten(block, self._answers)
        stream = self._streams.get(block.stream_id)
        if stream is None:
            return written
        if stream.queue:
            stream.trailers, stream.queued_end = written, True
            return b""
        if block.ends_stream:
            self._outside_ends(stream)
        return written

    def _rewritten(self, block: HeaderBlock, reader: HeaderReader) -> bytes:
        fragment = self._writer.write(reader.read(block.fragment))
        return header_frames(block.stream_id, fragment, ends_stream=block.ends_stream)
