"""Packets of the server: one list of cases, read whole, byte by byte and back to back."""

from __future__ import annotations

import pytest

from sluice.datastream.errors import ServerSpokeWrongly
from sluice.datastream.layout import PAGE_SIZE, Entry, StreamHeader
from sluice.datastream.protocol.packets import (
    NOT_FOUND_ANSWER,
    RESULT_TEXT_BYTES_MAX,
    Answer,
    Packet,
    PacketReader,
    Result,
    encode_result,
)

CASES: list[tuple[str, Packet, bytes]] = [
    ("ok", Result(0, "OK"), bytes.fromhex("ff 0000000b 00000000 4f4b")),
    ("error", Result(3, "Bad from entry"), bytes.fromhex("ff 00000017 00000003") + b"Bad from entry"),
    ("result without text", Result(1, ""), bytes.fromhex("ff 00000009 00000001")),
    (
        "header",
        StreamHeader(1, 137, 1, 4096, 0),
        bytes.fromhex("01 00000026 01 0000000000000089 0000000000000001 0000000000001000 0000000000000000"),
    ),
    ("streamed", Entry(2, 7, b"abc"), bytes.fromhex("02 00000014 00000002 0000000000000007 616263")),
    ("answered", Answer(Entry(2, 7, b"abc")), bytes.fromhex("fe 00000014 00000002 0000000000000007 616263")),
    ("not found", Answer(None), bytes.fromhex("fe 00000011 ffffffff 0000000000000000")),
]


@pytest.mark.parametrize(("name", "packet", "data"), CASES)
def test_one_packet(name: str, packet: Packet, data: bytes) -> None:
    assert PacketReader().feed(data) == [packet]
    reader = PacketReader()
    for byte in data[:-1]:
        assert reader.feed(bytes([byte])) == []
        assert reader._rest
    assert reader.feed(data[-1:]) == [packet]
    assert not reader._rest
    assert reader.feed(data + data[:4]) == [packet]
    assert reader.feed(data[4:]) == [packet]


def test_back_to_back() -> None:
    data = b"".join(data for _, _, data in CASES)
    assert PacketReader().feed(data) == [packet for _, packet, _ in CASES]


def test_encode() -> None:
    assert encode_result(0, "OK") == CASES[0][2]
    assert CASES[-1][2] == NOT_FOUND_ANSWER


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\7\0\0\0\x20", "server: packet type: got 0x7, expected 0x1, 0x2, 0xfe, 0xff"),
        (b"\0\0\0\0\x20", "server: packet type: got 0x0, expected 0x1, 0x2, 0xfe, 0xff"),
        (b"\2\0\0\0\x10", "server: length of a streamed entry: got 16, expected 17 to 1048576"),
        (b"\2\0\x10\0\1", f"server: length of a streamed entry: got 1048577, expected 17 to {PAGE_SIZE}"),
        (b"\xfe\0\0\0\0", "server: length of a query answer: got 0, expected 17 to 1048576"),
        (b"\1\0\0\0\x27", "server: length of a header: got 39, expected 38 to 38"),
        (b"\xff\0\0\0\x08", "server: length of a Result: got 8, expected 9 to 1033"),
        (b"\xff\0\0\4\x0a", "server: length of a Result: got 1034, expected 9 to 1033"),
    ],
)
def test_refusals(data: bytes, message: str) -> None:
    with pytest.raises(ServerSpokeWrongly) as caught:
        PacketReader().feed(data)
    assert str(caught.value) == message


def test_the_longest_text_of_a_result() -> None:
    text = "x" * RESULT_TEXT_BYTES_MAX
    assert PacketReader().feed(encode_result(1, text)) == [Result(1, text)]
    with pytest.raises(ServerSpokeWrongly, match="length of a Result: got 1034, expected 9 to 1033"):
        PacketReader().feed(encode_result(1, text + "x"))
