"""A cheap client: one gRPC call over bare HTTP/2.

gRPC's own client takes about as long over a short message as the node does, on the same processors. This one
does what a stream needs: flow control, frame size, and answers to settings and pings. It decodes no headers
(HPACK): a call that ends is an error, whatever its status. Pure: `benchmarks.bare_publisher`,
`benchmarks.paced_publisher` and `benchmarks.live_subscribers` have the sockets.
Source: RFC 9113 sections 3.4, 4.1, 5.2, 6.5, 6.7, 6.9; RFC
7541 section 6.2.2 (a literal header with a new name); gRPC over HTTP/2, "Length-Prefixed-Message".
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["BareCall", "Hear"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 0x4, 0x5
_WINDOW_BYTES: Final = 65_535
"""The initial window of connection and stream, in both directions (section 6.9.2)."""
_FRAME_HEAD: Final = struct.Struct(">BHBBI")  # length in 8 and 16 bits, kind, flags, stream
_STREAM: Final = 1
_PREFIX_BYTES: Final = 5
Hear = Callable[[bytes | str], None]


class BareCall:
    """One call on a connection of its own.

    Args:
        method: the path of the call.
        name: the client's `publisher-id`.
        write: sends bytes on the connection.
        hear: called with each serialized answer, and with a text when the node has ended the call.
    """

    def __init__(
        self, method: str, name: str, write: Callable[[Sequence[bytes | memoryview]], None], hear: Hear
    ) -> None:
        self.is_taken = False
        """The node has taken the call."""
        self._hear = hear
        self._write = write
        self._call = _frame(_HEADERS, _END_HEADERS, _STREAM, _headers(method, name))
        self._received = b""  # an incomplete frame
        self._answers = b""  # an incomplete message
        self._unsent: deque[memoryview] = deque()
        # Send windows: of the connection, of the stream, and of a new stream.
        self._connection_window = self._stream_window = self._initial_window = _WINDOW_BYTES
        self._frame_bytes_max = 16_384
        self._unreturned_bytes = 0

    def open(self) -> None:
        """Open the call, once connected."""
        self._write([_PREFACE, _frame(_SETTINGS, 0, 0, b""), self._call])

    def send(self, messages: Sequence[bytes]) -> None:
        """Send serialized messages, as the node's flow control allows."""
        for message in messages:
            self._unsent.append(memoryview(b"\0" + len(message).to_bytes(4, "big") + message))
        self._send_on()

    @property
    def is_all_sent(self) -> bool:
        """Return whether flow control has let everything through."""
        return not self._unsent

    def receive(self, data: bytes) -> None:
        """Process the complete frames received so far."""
        received = self._received + data if self._received else data
        start, end = 0, len(received)
        while end >= start + _FRAME_HEAD.size:
            high, low, kind, flags, stream = _FRAME_HEAD.unpack_from(received, start)
            payload_start = start + _FRAME_HEAD.size
            payload_end = payload_start + (high << 16 | low)
            if end < payload_end:
                break
            self._take(kind, flags, stream, received[payload_start:payload_end])
            start = payload_end
        self._received = received[start:]

    # --- frames --------------------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Process one frame; ignore unknown kinds (section 4.1)."""
        if kind == _DATA:
            self._take_data(payload[1 : -payload[0] or None] if flags & _PADDED else payload, len(payload))
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big") & 0x7FFF_FFFF
            if stream:
                self._stream_window += more
            else:
                self._connection_window += more
            self._send_on()
        elif kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._write([_frame(_PING, _ACK, 0, payload)])
        elif kind == _HEADERS and not flags & _END_STREAM:
            self.is_taken = True
        elif kind in (_HEADERS, _RST_STREAM, _GOAWAY):
            self._hear(f"frame {kind} with {payload!r}")

    def _take_data(self, data: bytes, taken_bytes: int) -> None:
        self._unreturned_bytes += taken_bytes
        if self._unreturned_bytes > _WINDOW_BYTES // 2:
            more = self._unreturned_bytes.to_bytes(4, "big")
            self._write([_frame(_WINDOW_UPDATE, 0, 0, more), _frame(_WINDOW_UPDATE, 0, _STREAM, more)])
            self._unreturned_bytes = 0
        answers = self._answers + data if self._answers else data
        start, end = 0, len(answers)
        while end >= start + _PREFIX_BYTES:
            answer_end = start + _PREFIX_BYTES + int.from_bytes(answers[start + 1 : start + 5], "big")
            if end < answer_end:
                break
            self._hear(answers[start + _PREFIX_BYTES : answer_end])
            start = answer_end
        self._answers = answers[start:]

    def _take_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif name == _MAX_FRAME_SIZE:
                self._frame_bytes_max = value
        self._write([_frame(_SETTINGS, _ACK, 0, b"")])
        self._send_on()

    def _send_on(self) -> None:
        """Send as much as the node's windows allow."""
        parts: list[bytes | memoryview] = []
        while self._unsent:
            message = self._unsent[0]
            size = min(len(message), self._connection_window, self._stream_window, self._frame_bytes_max)
            if size <= 0:
                break
            parts += (_frame_head(size, _DATA, 0, _STREAM), message[:size])
            self._connection_window -= size
            self._stream_window -= size
            if size == len(message):
                self._unsent.popleft()
            else:
                self._unsent[0] = message[size:]
        if parts:
            self._write(parts)


def _headers(method: str, name: str) -> bytes:
    """The headers of the call; neither names nor values are longer than 126 bytes."""
    texts = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "node",
        "te": "trailers",
        "content-type": "application/grpc",
        "publisher-id": name,
    }
    return b"".join(b"\0" + _text(key) + _text(value) for key, value in texts.items())


def _text(value: str) -> bytes:
    """A string that is not Huffman-coded, shorter than 127 bytes."""
    assert len(value) < 0x7F
    return bytes([len(value)]) + value.encode("ascii")


def _frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return _FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _frame_head(len(payload), kind, flags, stream) + payload
