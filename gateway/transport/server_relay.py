"""The relay in front of a gRPC server: the outside is a client.

Pure, as `gateway.transport.relay` is. It adds `te`, follows the messages of each call so that a large one can
be held back, and sees in gRPC's trailers which messages were refused for their size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.transport.callers import STREAM_KEY
from gateway.transport.frames import ConnectionBreach, ErrorCode, FrameKind, go_away, window_update
from gateway.transport.header_blocks import HeaderBlock, HeaderReader, field, header_frames
from gateway.transport.relay import FrameRelay, Stream

__all__ = ["MessageGate", "RefusedMessage", "ServerRelay"]

PUBLISH_PATH: Final = b"/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
"""The call of publishers: its service says when a large message is its own concern."""
STREAMS_MAX: Final = 4_096
"""Streams that are open here. gRPC core resets those beyond `STREAMS_PER_CONNECTION_MAX`, but says nothing of
those that it ignores: with an even number, or begun after its GOAWAY."""
_PREFIX_BYTES: Final = 5
"""In front of each gRPC message: a byte for compression, then u32 its length."""
_TOO_LARGE = re.compile(rb"received message larger than max \((\d+) vs\. (\d+)\)", re.IGNORECASE)
"""How gRPC core says that it refuses a message for its size."""


class MessageGate(Protocol):
    """Who says which large messages may be received now."""

    small_bytes: int
    """A message up to this length needs no grant."""

    def ask(self, stream_id: int, size: int) -> bool:
        """A message of `size` bytes begins; False: hold it until `ServerRelay.grant` is called."""

    def publishes(self, stream_id: int) -> None:
        """A call of a publisher begins: its service says when it has taken a message over."""

    def progressed(self, stream_id: int, size: int) -> None:
        """`size` bytes of the message that was granted have come."""

    def came(self, stream_id: int) -> None:
        """The message that was granted has come whole."""

    def done(self, stream_id: int) -> None:
        """Its stream has ended."""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """gRPC core refused a message for its size."""

    size: int
    """The bytes of the message."""
    limit: int
    """The most that gRPC core takes."""


class ServerRelay(FrameRelay):
    """The relay in front of a server: the outside is a client.

    Args:
        gate: says which large messages may be received now; None: all.
    """

    def __init__(self, gate: MessageGate | None = None) -> None:
        super().__init__(outside_is_client=True)
        self.refused: list[RefusedMessage] = []
        """Messages that gRPC core has refused for their size; the caller empties it."""
        self._gate = gate
        self._connection_held = 0
        self._requests, self._answers = HeaderReader(), HeaderReader()

    def grant(self, stream_id: int) -> None:
        """The gate lets the large message of a stream be received now."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_held:
            return
        stream.is_held = False
        self._hand_on_held(stream)

    def _follow(self, piece: memoryview) -> None:
        """Follow the gRPC messages in a stream's data."""
        stream = self._current
        if stream is None:
            return
        if len(piece) < stream.left:
            stream.left -= len(piece)
            if stream.has_asked:
                assert self._gate is not None
                self._gate.progressed(stream.stream_id, len(piece))
            return
        while len(piece) >= stream.left:  # the message ends in this piece, and more may begin in it
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
        """Whether a mended stream waits for the gate: nothing else keeps its client from sending.

        Not while another message of the connection is being received, which would never end.
        """
        asked = [stream for stream in self._streams.values() if stream.has_asked]
        return any(stream.is_mended for stream in asked) and all(stream.is_held for stream in asked)

    def _on_message_end(self, stream: Stream) -> None:
        """A large message has come whole."""
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
        """Hand on the windows that were held back."""
        held, stream.held = stream.held, 0
        if held and stream.stream_id in self._streams and super()._on_grpc_window(stream, held) is None:
            self._grpc.insert(window_update(stream.stream_id, held))
        if self._connection_held and not self._keeps_connection_window:
            held, self._connection_held = self._connection_held, 0
            self._credit(held)

    def _on_grpc_window(self, stream: Stream, size: int) -> bytes | None:
        if stream.large and not stream.has_asked:  # gRPC core reads, and opens the window for the message
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
            # gRPC core logs a client's words as they are, newlines too.
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
                fragment += field(b"te", b"trailers")
                self._grpc.insert(self._mend(stream))
            if (b":path", PUBLISH_PATH) in fields:
                fragment += field(STREAM_KEY.encode(), b"%d" % stream_id)
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
            if fields.get(b"grpc-status") == b"8" and (
                found := _TOO_LARGE.search(fields.get(b"grpc-message", b""))
            ):
                self.refused.append(RefusedMessage(int(found[1]), int(found[2])))
            stream = self._streams.get(block.stream_id)
            if stream is not None:
                self._grpc_ends(stream)
        return header_frames(block.stream_id, block.fragment, ends_stream=block.ends_stream)
