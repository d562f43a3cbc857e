"""HTTP/2 frames: found in a byte stream, and written.

Pure. `FrameScanner` passes most bytes on in the pieces they came in, and reads only the heads of DATA frames.
It keeps at most one frame: one that must be seen whole.

Source: RFC 9113 sections 4 and 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluice.gateway.errors import InvalidInput

__all__ = [
    "CLIENT_PREFACE",
    "FRAME_BYTES_DEFAULT",
    "HEAD_BYTES",
    "WINDOW_BYTES_DEFAULT",
    "WINDOW_BYTES_MAX",
    "Buffer",
    "ConnectionBreach",
    "ErrorCode",
    "Flag",
    "FrameKind",
    "FrameScanner",
    "Http2Setting",
    "frame",
    "go_away",
    "settings_in",
    "window_update",
]

Buffer = bytes | memoryview

CLIENT_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes before a client's first frame."""
HEAD_BYTES: Final = 9
FRAME_BYTES_DEFAULT: Final = 16_384
WINDOW_BYTES_DEFAULT: Final = 65_535
WINDOW_BYTES_MAX: Final = (1 << 31) - 1


class FrameKind:
    """Types of frames."""

    DATA: Final = 0
    HEADERS: Final = 1
    PRIORITY: Final = 2
    RST_STREAM: Final = 3
    SETTINGS: Final = 4
    PUSH_PROMISE: Final = 5
    PING: Final = 6
    GOAWAY: Final = 7
    WINDOW_UPDATE: Final = 8
    CONTINUATION: Final = 9


class Flag:
    """Flags of frames; END_STREAM and ACK are the same bit of different types."""

    END_STREAM: Final = 0x1
    ACK: Final = 0x1
    END_HEADERS: Final = 0x4
    PADDED: Final = 0x8
    PRIORITY: Final = 0x20


class Http2Setting:
    """Identifiers in SETTINGS frames."""

    HEADER_TABLE_SIZE: Final = 1
    INITIAL_WINDOW_SIZE: Final = 4
    MAX_FRAME_SIZE: Final = 5


class ErrorCode:
    """Codes of RST_STREAM and GOAWAY."""

    NO_ERROR: Final = 0
    PROTOCOL_ERROR: Final = 1
    FLOW_CONTROL_ERROR: Final = 3
    FRAME_SIZE_ERROR: Final = 6
    CANCEL: Final = 8
    COMPRESSION_ERROR: Final = 9
    ENHANCE_YOUR_CALM: Final = 11


class ConnectionBreach(InvalidInput):
    """A breach of HTTP/2 or of a limit, which ends the connection."""

    def __init__(self, what: str, *, got: str, expected: str, code: int = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(what, got=got, expected=expected)
        self.code = code
        """The code of the answering GOAWAY."""


def frame(kind: int, flags: int, stream_id: int, payload: Buffer = b"") -> bytes:
    """Write one frame."""
    return b"".join((_head(len(payload), kind, flags, stream_id), payload))


def _head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return (length << 48 | kind << 40 | flags << 32 | stream_id).to_bytes(HEAD_BYTES, "big")


def window_update(stream_id: int, size: int) -> bytes:
    """Write a WINDOW_UPDATE that grants `size` bytes; stream 0 is the connection."""
    return _head(4, FrameKind.WINDOW_UPDATE, 0, stream_id) + size.to_bytes(4, "big")


def go_away(code: int, words: str, last_stream_id: int = 0) -> bytes:
    """Write a GOAWAY frame with a text for the other end's log."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + words.encode()
    return frame(FrameKind.GOAWAY, 0, 0, payload)


def settings_in(payload: Buffer) -> list[tuple[int, int]]:
    """Read a SETTINGS frame: identifiers and values, in order. Raises ConnectionBreach."""
    if len(payload) % 6:
        raise ConnectionBreach(
            "settings",
            got=f"{len(payload)} bytes",
            expected="a multiple of 6",
            code=ErrorCode.FRAME_SIZE_ERROR,
        )
    return [
        (int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big"))
        for at in range(0, len(payload), 6)
    ]


class FrameScanner:
    """Finds the frames in one direction of a connection, and passes them on or replaces them.

    Args:
        out: gets what goes to the other end, also slices of `feed`'s chunk.
        on_data: gets the head of each DATA frame: flags, stream id, payload bytes; returns True to let it
            pass, False to get it whole in `on_frame`.
        on_payload: gets passing DATA, piece by piece.
        on_frame: gets every other whole frame: type, flags, stream id, payload; returns None to let it pass,
            or bytes to replace it.
        preface: bytes that must come before the first frame; they pass.
    """

    def __init__(
        self,
        out: list[Buffer],
        *,
        on_data: Callable[[int, int, int], bool],
        on_payload: Callable[[memoryview], None] | None,
        on_frame: Callable[[int, int, int, memoryview], bytes | None],
        preface: bytes = b"",
    ) -> None:
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        """The longest payload that the receiver takes."""
        self._out = out
        self._on_data = on_data
        self._on_payload = on_payload
        self._on_frame = on_frame
        self._preface = preface
        self._left = 0  # bytes to come of a passing DATA frame
        self._carry = bytearray()  # an incomplete frame
        self._waiting: list[bytes] = []  # inserted frames, for the next gap
        self._is_feeding = False

    @property
    def awaits_preface(self) -> bool:
        """True if the preface is incomplete."""
        return bool(self._preface)

    def insert(self, frames: bytes) -> None:
        """Send frames of our own behind the passing DATA frame, and behind what `feed` still holds of its
        chunk."""
        if frames:
            (self._waiting if self._left or self._is_feeding else self._out).append(frames)

    def feed(self, chunk: memoryview) -> None:
        """Take bytes from the socket.

        Raises:
            ConnectionBreach: the connection cannot go on; `out` holds what came before.
        """
        self._is_feeding = True
        try:
            self._feed(chunk)
        finally:
            self._is_feeding = False

    def _feed(self, chunk: memoryview) -> None:
        at, start, end = 0, 0, len(chunk)
        if self._preface:
            at = self._take_preface(chunk)
            start = at
        if not self._left and self._carry:
            start = at = self._finish_carried(chunk, at)
        if self._left:
            at = self._pass_payload(chunk, at)
        waiting = self._waiting
        if waiting and not self._left:
            start = self._place_waiting(chunk, start, at)
        on_data, on_payload, frame_max = self._on_data, self._on_payload, self.frame_bytes_max
        while end - at >= HEAD_BYTES:
            length = chunk[at] << 16 | chunk[at + 1] << 8 | chunk[at + 2]
            if length > frame_max:
                raise _too_long(length, frame_max)
            is_data = not chunk[at + 3]
            flags = chunk[at + 4]
            stream_id = int.from_bytes(chunk[at + 5 : at + HEAD_BYTES], "big") & WINDOW_BYTES_MAX
            if is_data and on_data(flags, stream_id, length):
                at += HEAD_BYTES
                after = at + length
                if after > end:
                    self._left = after - end
                    after = end
                if on_payload is not None and after > at:
                    on_payload(chunk[at:after])
                at = after
                if waiting and not self._left:
                    start = self._place_waiting(chunk, start, at)
                continue
            after = at + HEAD_BYTES + length
            if after > end:
                self._keep(chunk, start, at, is_data)
                return
            instead = self._on_frame(chunk[at + 3], flags, stream_id, chunk[at + HEAD_BYTES : after])
            if waiting:
                start = self._place_waiting(chunk, start, at)
            if instead is not None:
                if start < at:
                    self._out.append(chunk[start:at])
                if instead:
                    self._out.append(instead)
                start = after
            at = after
            frame_max = self.frame_bytes_max
        self._keep(chunk, start, at, False)

    def _keep(self, chunk: memoryview, start: int, at: int, is_announced: bool) -> None:
        if start < at:
            self._out.append(chunk[start:at])
        if at < len(chunk):
            self._carry += chunk[at:]
            self._is_announced = is_announced

    def _place_waiting(self, chunk: memoryview, start: int, at: int) -> int:
        """Pass what precedes a gap, then the inserted frames; return the gap's place."""
        if start < at:
            self._out.append(chunk[start:at])
        self._out += self._waiting
        self._waiting.clear()
        return at

    _is_announced = False
    """True if the kept frame is DATA that `on_data` has seen."""

    def _take_preface(self, chunk: memoryview) -> int:
        take = min(len(self._preface), len(chunk))
        got = bytes(chunk[:take])
        if not self._preface.startswith(got):
            raise ConnectionBreach("preface", got=repr(got[:24]), expected="the preface of an HTTP/2 client")
        self._preface = self._preface[take:]
        self._out.append(got)
        return take

    def _pass_payload(self, chunk: memoryview, at: int) -> int:
        """Pass the rest of a DATA frame; return where it or the chunk ends."""
        after = min(at + self._left, len(chunk))
        self._left -= after - at
        if self._on_payload is not None and after > at:
            self._on_payload(chunk[at:after])
        return after

    def _finish_carried(self, chunk: memoryview, at: int) -> int:
        """Complete the kept frame as far as possible; return where the chunk goes on."""
        carry = self._carry
        if len(carry) < HEAD_BYTES:
            take = min(HEAD_BYTES - len(carry), len(chunk) - at)
            carry += chunk[at : at + take]
            at += take
            if len(carry) < HEAD_BYTES:
                return at
        length = int.from_bytes(carry[:3], "big")
        if length > self.frame_bytes_max:
            raise _too_long(length, self.frame_bytes_max)
        kind, flags = carry[3], carry[4]
        stream_id = int.from_bytes(carry[5:HEAD_BYTES], "big") & WINDOW_BYTES_MAX
        if kind == FrameKind.DATA and not self._is_announced:
            if self._on_data(flags, stream_id, length):
                self._out.append(bytes(carry))
                carry.clear()
                self._left = length
                return at
            self._is_announced = True
        take = min(HEAD_BYTES + length - len(carry), len(chunk) - at)
        carry += chunk[at : at + take]
        at += take
        if len(carry) < HEAD_BYTES + length:
            return at
        whole = bytes(carry)
        carry.clear()
        self._is_announced = False
        instead = self._on_frame(kind, flags, stream_id, memoryview(whole)[HEAD_BYTES:])
        self._place_waiting(chunk, at, at)
        if instead is None:
            self._out.append(whole)
        elif instead:
            self._out.append(instead)
        return at


def _too_long(length: int, most: int) -> ConnectionBreach:
    return ConnectionBreach(
        "frame size", got=f"{length} bytes", expected=f"at most {most}", code=ErrorCode.FRAME_SIZE_ERROR
    )
