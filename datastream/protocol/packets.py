"""The packets of a server, to bytes and back: results, the header, answers, streamed entries. Pure.

Every packet but a range end begins with its type (u8) and its length (u32).

Source: docs/spec/stream-file.md section 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sluice.datastream.errors import ServerSpokeWrongly
from sluice.datastream.layout import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    HEADER_SIZE,
    NOT_FOUND_TYPE,
    PACKET_ANSWER,
    PACKET_DATA,
    PACKET_HEADER,
    PACKET_RESULT,
    PAGE_SIZE,
    Entry,
    StreamHeader,
    decode_header,
    encode_entry,
)

__all__ = ["NOT_FOUND_ANSWER", "Answer", "Packet", "PacketReader", "RangeEnd", "Result", "encode_result"]

RESULT_TEXT_BYTES_MAX = 1_024
"""Longest Result text that a client accepts; the longest known has 18 bytes."""

_RESULT_HEAD = struct.Struct(">BII")
_PACKET_HEAD = struct.Struct(">BI")
_U64 = struct.Struct(">Q")

NOT_FOUND_ANSWER = encode_entry(Entry(NOT_FOUND_TYPE, 0, b""), PACKET_ANSWER)
"""The answer to an Entry or Bookmark command that found nothing, 17 bytes."""


@dataclass(frozen=True, slots=True)
class Result:
    """The first answer to every command."""

    error_number: int
    """0 is OK."""
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The entry that answers an Entry or Bookmark command."""

    entry: Entry | None
    """None: not found."""


@dataclass(frozen=True, slots=True)
class RangeEnd:
    """The number of the last entry of a range."""

    number: int


Packet = Result | StreamHeader | Answer | Entry | RangeEnd

_SIZES: dict[int, tuple[str, int, int]] = {
    PACKET_RESULT: ("Result", _RESULT_HEAD.size, _RESULT_HEAD.size + RESULT_TEXT_BYTES_MAX),
    PACKET_HEADER: ("header", HEADER_SIZE, HEADER_SIZE),
    PACKET_ANSWER: ("query answer", ENTRY_HEAD_SIZE, PAGE_SIZE),
    PACKET_DATA: ("streamed entry", ENTRY_HEAD_SIZE, PAGE_SIZE),
}
"""packet type -> (name, smallest length, greatest length), in bytes."""


def encode_result(error_number: int, text: str) -> bytes:
    """Return the bytes of a Result."""
    data = text.encode("ascii")
    return _RESULT_HEAD.pack(PACKET_RESULT, _RESULT_HEAD.size + len(data), error_number) + data


class PacketReader:
    """Splits a server's bytes into packets."""

    def __init__(self) -> None:
        self._rest = b""
        self.awaits_range_end = False
        """True if a range end follows the next Result, if that is OK. Set by who asks for a range."""
        self._is_range_end = False
        """True if the next packet is a range end."""

    def feed(self, data: bytes) -> list[Packet]:
        """Add bytes; return the packets that they complete, in order.

        Raises:
            ServerSpokeWrongly: an unknown packet type or an impossible length; the connection is useless.
        """
        if self._rest:
            data = self._rest + data
        packets: list[Packet] = []
        position, end = 0, len(data)
        unpack_head = ENTRY_HEAD.unpack_from
        while end - position >= _PACKET_HEAD.size:
            if self._is_range_end:
                if end - position < _U64.size:
                    break
                packets.append(RangeEnd(*_U64.unpack_from(data, position)))
                self._is_range_end = False
                position += _U64.size
                continue
            packet_type, size = _PACKET_HEAD.unpack_from(data, position)
            following = position + size
            if packet_type == PACKET_DATA and ENTRY_HEAD_SIZE <= size <= PAGE_SIZE:
                if following > end:
                    break
                _, _, entry_type, number = unpack_head(data, position)
                packets.append(Entry(entry_type, number, data[position + ENTRY_HEAD_SIZE : following]))
            else:
                self._check(packet_type, size)
                if following > end:
                    break
                packet = _decode(packet_type, data[position:following])
                packets.append(packet)
                if self.awaits_range_end and isinstance(packet, Result):
                    self.awaits_range_end, self._is_range_end = False, packet.error_number == 0
            position = following
        self._rest = data[position:] if position else data
        return packets

    @staticmethod
    def _check(packet_type: int, size: int) -> None:
        if packet_type not in _SIZES:
            expected = ", ".join(f"{known:#x}" for known in sorted(_SIZES))
            raise ServerSpokeWrongly("packet type", f"{packet_type:#x}", expected)
        name, size_min, size_max = _SIZES[packet_type]
        if not size_min <= size <= size_max:
            raise ServerSpokeWrongly(f"length of a {name}", str(size), f"{size_min} to {size_max}")


def _decode(packet_type: int, data: bytes) -> Packet:
    if packet_type == PACKET_RESULT:
        _, _, error_number = _RESULT_HEAD.unpack_from(data)
        return Result(error_number, data[_RESULT_HEAD.size :].decode("ascii", "replace"))
    if packet_type == PACKET_HEADER:
        return decode_header(data).header
    assert packet_type == PACKET_ANSWER
    _, _, entry_type, number = ENTRY_HEAD.unpack_from(data)
    if entry_type == NOT_FOUND_TYPE:
        return Answer(None)
    return Answer(Entry(entry_type, number, data[ENTRY_HEAD_SIZE:]))
