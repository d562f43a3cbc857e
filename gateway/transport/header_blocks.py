"""Header blocks of HTTP/2: assembled from frames, read within limits, and rewritten.

Pure. The relay passes a block on when it is whole, because gRPC core keeps a block that never ends. An added
field stands at the end as "literal without indexing", which leaves the tables of both ends unchanged.

Source: RFC 9113 section 6.2; RFC 7541 sections 2.3 and 6.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import hpack
from hpack.exceptions import HPACKError, OversizedHeaderListError

from sluice.gateway.transport.frames import (
    FRAME_BYTES_DEFAULT,
    HEAD_BYTES,
    Buffer,
    ConnectionBreach,
    ErrorCode,
    Flag,
    FrameKind,
    frame,
)

__all__ = ["HeaderBlock", "HeaderReader", "HeaderWriter", "Headers", "header_field", "header_frames"]

Headers = list[tuple[bytes, bytes]]

BLOCK_BYTES_MAX: Final = 64 * 1024
"""Bytes of one block's frames, and of its decoded fields. gRPC core announces 16 KiB for the fields; an
ordinary call has some 300 bytes."""
FIELDS_MAX: Final = 256
"""An ordinary call has about 10."""


@dataclass(slots=True)
class HeaderBlock:
    """A block under assembly."""

    stream_id: int
    ends_stream: bool
    priority: bytes
    """The five bytes of its PRIORITY flag, if set."""
    fragment: bytearray
    began_ns: int
    frame_bytes: int
    is_whole: bool

    @classmethod
    def begin(cls, flags: int, stream_id: int, payload: Buffer, now_ns: int) -> HeaderBlock:
        """Take a HEADERS frame. Raises ConnectionBreach if its padding or priority is too long."""
        start, end = 0, len(payload)
        if flags & Flag.PADDED:
            start = 1
            end -= payload[0] if payload else 1
        priority = b""
        if flags & Flag.PRIORITY:
            priority = bytes(payload[start : start + 5])
            start += 5
        if start > end:
            raise ConnectionBreach(
                "header block", got="padding longer than its frame", expected="a fragment of a block"
            )
        fragment = bytearray(payload[start:end])
        return cls(
            stream_id,
            bool(flags & Flag.END_STREAM),
            priority,
            fragment,
            now_ns,
            HEAD_BYTES + len(payload),
            bool(flags & Flag.END_HEADERS),
        )

    def add(self, kind: int, flags: int, stream_id: int, payload: Buffer) -> None:
        """Take the connection's next frame, which must be the block's CONTINUATION.

        Raises ConnectionBreach if it is another frame, or the block grows too long.
        """
        if kind != FrameKind.CONTINUATION or stream_id != self.stream_id:
            raise ConnectionBreach(
                "header block",
                got=f"a frame of type {kind} on stream {stream_id}",
                expected=f"CONTINUATION on stream {self.stream_id}",
            )
        self.fragment += payload
        self.frame_bytes += HEAD_BYTES + len(payload)
        if self.frame_bytes > BLOCK_BYTES_MAX:
            raise ConnectionBreach(
                "header block",
                got=f"more than {BLOCK_BYTES_MAX} bytes of frames",
                expected=f"at most {BLOCK_BYTES_MAX}",
                code=ErrorCode.ENHANCE_YOUR_CALM,
            )
        self.is_whole = bool(flags & Flag.END_HEADERS)


class HeaderReader:
    """Reads the blocks of one direction, in order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=BLOCK_BYTES_MAX)

    def allow_table(self, size: int) -> None:
        """Note the size that the receiver allows the sender's table."""
        self._decoder.max_allowed_table_size = size

    def read(self, fragment: Buffer | bytearray) -> Headers:
        """Return the fields of a whole block.

        Raises ConnectionBreach if it is not HPACK, refers to an unknown field, or is too long.
        """
        try:
            fields = list(self._decoder.decode(bytes(fragment), raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionBreach(
                "header block",
                got=f"fields of more than {BLOCK_BYTES_MAX} bytes",
                expected=f"at most {BLOCK_BYTES_MAX}",
                code=ErrorCode.ENHANCE_YOUR_CALM,
            ) from error
        except (HPACKError, ValueError, IndexError) as error:
            raise ConnectionBreach(
                "header block",
                got=f"a block that cannot be read ({type(error).__name__})",
                expected="HPACK",
                code=ErrorCode.COMPRESSION_ERROR,
            ) from error
        if len(fields) > FIELDS_MAX:
            raise ConnectionBreach(
                "header block",
                got=f"{len(fields)} fields",
                expected=f"at most {FIELDS_MAX}",
                code=ErrorCode.ENHANCE_YOUR_CALM,
            )
        return [(bytes(name), bytes(value)) for name, value in fields]


class HeaderWriter:
    """Writes blocks for servers that want pseudo-headers by their index in the static table.

    Helidon's servers refuse the literal name `:path` of gRPC core. Nothing goes into the dynamic table
    ("never indexed"): a field too long for it sends Helidon's decoder into an endless loop.
    """

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()

    def write(self, fields: Headers) -> bytes:
        """Return the block of the fields."""
        return self._encoder.encode([(name, value, True) for name, value in fields], huffman=False)


def header_field(name: bytes, value: bytes) -> bytes:
    """Write a short field for the end of any block, as a literal without indexing."""
    assert max(len(name), len(value)) < 127
    return b"".join((bytes((0, len(name))), name, bytes((len(value),)), value))


def header_frames(
    stream_id: int,
    fragment: Buffer | bytearray,
    *,
    ends_stream: bool,
    priority: bytes = b"",
    frame_bytes_max: int = FRAME_BYTES_DEFAULT,
) -> bytes:
    """Write a whole block in as few frames as possible."""
    payload = memoryview(priority + bytes(fragment))
    flags = (Flag.END_STREAM if ends_stream else 0) | (Flag.PRIORITY if priority else 0)
    kind, written = FrameKind.HEADERS, []
    while True:
        piece, payload = payload[:frame_bytes_max], payload[frame_bytes_max:]
        written.append(frame(kind, flags if payload else flags | Flag.END_HEADERS, stream_id, piece))
        if not payload:
            return b"".join(written)
        kind, flags = FrameKind.CONTINUATION, 0
