"""A consensus node's client in Python, with the peculiarities of PBJ over Helidon.

It sends no `te`, never enlarges its connection's window, counts each WINDOW_UPDATE of a stream twice, cuts
messages anywhere, and answers every DATA frame with two tiny WINDOW_UPDATEs. Over TLS it offers no ALPN and
knows the server by its certificate's hash. `tests.interop.network_software` has the real client.
"""

from __future__ import annotations

import hashlib
import random
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import hpack

from sluice.gateway.api import node_pb2, publish_pb2
from sluice.gateway.transport.frames import (
    CLIENT_PREFACE,
    FRAME_BYTES_DEFAULT,
    HEAD_BYTES,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    Flag,
    FrameKind,
    Http2Setting,
    frame,
    go_away,
    settings_in,
    window_update,
)
from sluice.gateway.transport.header_blocks import header_frames
from tests.nodes import text_of

__all__ = ["NetworkDouble"]

SERVICES: Final = "/org.hiero.block.api."
WINDOW_SECONDS: Final = 15.0
"""The time that it waits for a window before it gives its stream up, as Helidon does."""
READ_BYTES: Final = 1 << 16
# ENABLE_PUSH 0, MAX_FRAME_SIZE, INITIAL_WINDOW_SIZE.
SETTINGS: Final = b"\0\2\0\0\0\0\0\5\0\0\x40\0\0\4\0\0\xff\xff"


class NetworkDouble:
    """One connection, which has one stream, as with PBJ.

    Args:
        address: `host:port`.
        pin: SHA-256 of the server's certificate, hexadecimal; None: no TLS.
        seed: decides where messages are cut.
        source: its network address.
    """

    def __init__(
        self, address: str, pin: str | None = None, seed: int = 0, source: str = "127.0.0.1"
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket: socket.socket
        self.socket = socket.create_connection((host, int(port)), WINDOW_SECONDS, (source, 0))
        if pin is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            secured = context.wrap_socket(self.socket)
            got = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()
            assert got == pin, f"certificate: got SHA-256 {got}, expected {pin}"
            self.socket = secured
        self.went_away = False
        """The server has sent GOAWAY."""
        self.window_updates = 0
        """WINDOW_UPDATEs received for the stream."""
        self._random = random.Random(seed)
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._stream_id = -1
        self._stream_window = self._connection_window = WINDOW_BYTES_DEFAULT
        self._first_window = WINDOW_BYTES_DEFAULT
        self._came = bytearray()
        self._data = bytearray()
        self._messages: deque[bytes] = deque()
        self._has_settings = False
        self.status: str | None = None
        """gRPC's status, once the stream is over; "reset" and the code if it was reset."""
        self._send(CLIENT_PREFACE + frame(FrameKind.SETTINGS, 0, 0, SETTINGS))
        self._wait_for(lambda: self._has_settings, "the server's SETTINGS")

    def call(self, method: str, frame_bytes_max: int = FRAME_BYTES_DEFAULT) -> None:
        """Begin the call of `Service/method`, with its header block in frames of that size."""
        self._stream_id += 2
        self.status = None
        self._stream_window = self._first_window
        fields = [
            (":method", "POST"),
            (":scheme", "http"),  # over TLS, too
            (":path", SERVICES + method),
            (":authority", "127.0.0.1"),
            ("content-type", "application/grpc"),
            ("grpc-accept-encoding", "zstd,identity,gzip"),
            ("hiero-correlation-id", "N3-STR1"),
            ("grpc-encoding", "identity"),
        ]
        block = self._encoder.encode(fields)
        self._send(header_frames(self._stream_id, block, ends_stream=False, frame_bytes_max=frame_bytes_max))

    def send(self, message: bytes, *, ends: bool = False) -> None:
        """Send one message, cut into DATA frames anywhere."""
        data = memoryview(b"\0" + len(message).to_bytes(4, "big") + message)
        while data:
            self._read_what_is_there()
            self._wait_for(lambda: self._window >= 1, "a window")
            most = min(FRAME_BYTES_DEFAULT, len(data), self._window)
            size = most if self._random.random() < 0.8 else self._random.randint(1, most)
            self._stream_window -= size
            self._connection_window -= size
            self._send(frame(FrameKind.DATA, 0, self._stream_id, data[:size]))
            data = data[size:]
        if ends:
            self._send(frame(FrameKind.DATA, Flag.END_STREAM, self._stream_id))

    def next(self) -> bytes:
        """Wait for the next message of the server."""
        self._wait_for(lambda: bool(self._messages) or self.status is not None, "an answer")
        assert self._messages, f"no further answer, the stream is over: {self.status}"
        return self._messages.popleft()

    def last_block(self) -> int | None:
        """Ask `serverStatus` for the last block; None: no block."""
        self.call("BlockNodeService/serverStatus")
        self.send(b"", ends=True)
        last = node_pb2.ServerStatusResponse.FromString(self.next()).last_available_block
        return None if last == (1 << 64) - 1 else last

    def publish(self) -> None:
        """Begin to publish."""
        self.call("BlockStreamPublishService/publishBlockStream")

    def answer(self) -> str:
        """Wait for the next answer to a publisher, as a short text."""
        return text_of(publish_pb2.PublishStreamResponse.FromString(self.next()))

    @property
    def _window(self) -> int:
        return min(self._stream_window, self._connection_window)

    def _send(self, data: bytes) -> None:
        self.socket.settimeout(WINDOW_SECONDS)
        self.socket.sendall(data)

    def _wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + WINDOW_SECONDS
        while not is_there():
            left = until - time.monotonic()
            assert left > 0, f"{what} did not come in {WINDOW_SECONDS:g} s"
            self._read(left)

    def _read_what_is_there(self) -> None:
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if pending or select.select([self.socket], [], [], 0)[0]:
            self._read(WINDOW_SECONDS)

    def _read(self, seconds: float) -> None:
        self.socket.settimeout(seconds)
        got = self.socket.recv(READ_BYTES)
        assert got, "the server has ended the connection"
        came = self._came
        came += got
        while len(came) >= HEAD_BYTES:
            after = HEAD_BYTES + int.from_bytes(came[:3], "big")
            if len(came) < after:
                return
            kind, flags, stream_id = came[3], came[4], int.from_bytes(came[5:HEAD_BYTES], "big")
            payload = bytes(came[HEAD_BYTES:after])
            del came[:after]
            self._take(kind, flags, stream_id, payload)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == FrameKind.SETTINGS and not flags & Flag.ACK:
            values = dict(settings_in(payload))
            window = values.get(Http2Setting.INITIAL_WINDOW_SIZE, self._first_window)
            self._stream_window += window - self._first_window
            self._first_window = window
            self._has_settings = True
            self._send(frame(FrameKind.SETTINGS, Flag.ACK, 0))
        elif kind == FrameKind.WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            assert size, "a window update of 0, which it takes for an error"
            if stream_id:
                self.window_updates += 1
                self._stream_window = min(WINDOW_BYTES_MAX, self._stream_window + 2 * size)
            else:
                self._connection_window = min(WINDOW_BYTES_MAX, self._connection_window + size)
        elif kind == FrameKind.PING and not flags & Flag.ACK:
            self._send(frame(FrameKind.PING, Flag.ACK, 0, payload))
        elif kind == FrameKind.HEADERS:
            fields = dict(self._decoder.decode(payload, raw=True))
            if flags & Flag.END_STREAM and stream_id == self._stream_id:
                self.status = fields.get(b"grpc-status", b"none").decode()
        elif kind == FrameKind.DATA:
            self._take_data(stream_id, payload)
        elif kind == FrameKind.RST_STREAM and stream_id == self._stream_id:
            self.status = f"reset {int.from_bytes(payload, 'big')}"
        elif kind == FrameKind.GOAWAY:
            assert not int.from_bytes(payload[4:8], "big"), f"GOAWAY {payload!r}"
            self.went_away = True

    def _take_data(self, stream_id: int, payload: bytes) -> None:
        if payload:
            self._send(window_update(stream_id, len(payload)) + window_update(0, len(payload)))
        data = self._data
        data += payload
        while len(data) >= 5 and len(data) >= (after := 5 + int.from_bytes(data[1:5], "big")):
            self._messages.append(bytes(data[5:after]))
            del data[:after]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the server may have ended it
            self._send(go_away(0, "Closing connection"))
        self.socket.close()
