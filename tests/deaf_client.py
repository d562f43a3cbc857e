"""A gRPC client that asks and reads no answer: bare HTTP/2 with stream windows of 0 bytes.

gRPC's own client always reads the answer to a unary call, does not ping at will, and sends only ASCII
metadata.
Source: RFC 9113 sections 3.4, 4.1, 6.5, 6.7, 6.8; RFC 7541 section 6.2.2 (a literal header with a new name).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping

from sluice.gateway.addresses import Address

__all__ = ["DeafClient"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0x0, 0x1, 0x4, 0x6, 0x7
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_FRAME_HEAD_SIZE = 9
_INITIAL_WINDOW_SIZE = 0x4


class DeafClient:
    """One connection; use with `with`."""

    def __init__(self, address: Address, timeout_seconds: float) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout_seconds)
        self._stream_id = -1
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings))

    def ask(self, path: str, request: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Make a call with one request, and half-close it. Metadata is sent as Latin-1."""
        self._stream_id += 2
        names = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "node",
            "te": "trailers",
            "content-type": "application/grpc",
            **(metadata or {}),
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in names.items())
        message = b"\0" + len(request).to_bytes(4, "big") + request
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self._stream_id, block)
            + _frame(_DATA, _END_STREAM, self._stream_id, message)
        )

    def wait_for_headers(self) -> None:
        """Wait for an answer's headers, which need no window."""
        while self._next_frame()[0] != _HEADERS:
            pass

    def ping(self) -> bool:
        """Ping; return False if the server ends the connection instead of answering."""
        try:
            self._socket.sendall(_frame(_PING, 0, 0, bytes(8)))
            while (frame := self._next_frame())[:2] != (_PING, _ACK):
                if frame[0] == _GOAWAY:
                    return False
        except ConnectionError:
            return False
        return True

    def _next_frame(self) -> tuple[int, int]:
        """Read one frame; return its kind and flags."""
        head = self._receive(_FRAME_HEAD_SIZE)
        self._receive(int.from_bytes(head[:3], "big"))
        return head[3], head[4]

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError(f"got the end after {len(data)} of {size} bytes")
            data += more
        return data

    def expect_close(self) -> None:
        """Wait until the server ends the connection; raise TimeoutError if it does not."""
        try:
            while self._socket.recv(4096):
                pass
        except ConnectionResetError:
            pass

    def hang_up(self) -> None:
        """End the connection, even while a thread waits for its end."""
        with contextlib.suppress(OSError):  # the server was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> DeafClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + payload


def _text(value: str) -> bytes:
    """A string that is not Huffman-coded, shorter than 127 bytes."""
    assert len(value) < 0x7F
    return bytes([len(value)]) + value.encode("latin-1")
