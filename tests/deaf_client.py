"""A gRPC client that asks and takes no answer: bare HTTP/2 whose streams have a window of 0 bytes.

gRPC's own client always takes the answer to a unary call, so it cannot be one.
Source: RFC 9113 sections 3.4, 4.1, 6.5; RFC 7541 section 6.2.2 (a literal header with a new name).
"""

from __future__ import annotations

import socket
import struct

from gateway.addresses import Address

__all__ = ["DeafClient"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0x0, 0x1, 0x4
_END_STREAM, _END_HEADERS = 0x1, 0x4
_INITIAL_WINDOW_SIZE = 0x4


class DeafClient:
    """One connection; use with `with`."""

    def __init__(self, address: Address, timeout_seconds: float) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout_seconds)
        self._stream_id = -1
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings))

    def ask(self, path: str, request: bytes) -> None:
        """Make a call with one request, and half-close it."""
        self._stream_id += 2
        names = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "node",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in names.items())
        message = b"\0" + len(request).to_bytes(4, "big") + request
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self._stream_id, block)
            + _frame(_DATA, _END_STREAM, self._stream_id, message)
        )

    def wait_until_closed(self) -> None:
        """Wait until the server has ended the connection; raise TimeoutError when it does not."""
        try:
            while self._socket.recv(4096):
                pass
        except ConnectionResetError:
            pass

    def __enter__(self) -> DeafClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + payload


def _text(value: str) -> bytes:
    """A string that is not Huffman-coded, shorter than 127 bytes."""
    assert len(value) < 0x7F
    return bytes([len(value)]) + value.encode("ascii")
