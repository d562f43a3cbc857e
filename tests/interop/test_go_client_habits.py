"""The original Go client on the wire, byte by byte: each integer in its own write.

TCP_NODELAY is on (Go's default), so every write is a packet; Header comes before Start; the client reads a
Result as one byte, then the rest of its head, then the text.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.file.streamer import DataStreamer
from tests.datastream.serving import ServerThread, read_exactly
from tests.datastream.streams import commit

BOOKMARK = b"\0" + (7).to_bytes(8, "big")
ITEMS = [(0xB0, BOOKMARK), (1, b"start"), (2, b""), (3, b"end")]
RESULT_OK = "ff 0000000b 00000000 4f4b"
STREAMED = (
    "02 0000001a 000000b0 0000000000000000 000000000000000007"
    "02 00000016 00000001 0000000000000001 7374617274"
    "02 00000011 00000002 0000000000000002"
    "02 00000014 00000003 0000000000000003 656e64"
)
HEADER = "01 00000026 01 0000000000000089 0000000000000001 0000000000001055 0000000000000004"


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[ServerThread]:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, *ITEMS)
        with ServerThread(streamer) as serving:
            yield serving


def say(client: socket.socket, *integers: int, then: bytes = b"") -> None:
    """Send each u64 in a write of its own; `then` is a bookmark, after its u32 length."""
    for integer in integers:
        client.sendall(struct.pack(">Q", integer))
    if then:
        client.sendall(struct.pack(">I", len(then)))
        client.sendall(then)


def expect(client: socket.socket, *transcript: str) -> None:
    for text in transcript:
        expected = bytes.fromhex(text)
        assert read_exactly(client, len(expected)).hex() == expected.hex()


def read_result(client: socket.socket) -> tuple[int, str]:
    """As the Go client: one byte, then the length, then the number, then so much text."""
    assert read_exactly(client, 1) == b"\xff"
    (length,) = struct.unpack(">I", read_exactly(client, 4))
    (error_number,) = struct.unpack(">I", read_exactly(client, 4))
    return error_number, read_exactly(client, length - 9).decode()


def connect(serving: ServerThread) -> socket.socket:
    client = serving.connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def test_header_then_start_then_stop(serving: ServerThread) -> None:
    with connect(serving) as client:
        say(client, 3, 1)
        expect(client, RESULT_OK, HEADER)
        say(client, 1, 1, 0)
        expect(client, RESULT_OK, STREAMED)
        say(client, 2, 1)
        expect(client, RESULT_OK)
        say(client, 3, 1)
        expect(client, RESULT_OK, HEADER)


def test_start_from_a_bookmark(serving: ServerThread) -> None:
    with connect(serving) as client:
        say(client, 3, 1)
        expect(client, RESULT_OK, HEADER)
        say(client, 4, 1, then=BOOKMARK)
        expect(client, RESULT_OK, STREAMED)


def test_queries(serving: ServerThread) -> None:
    with connect(serving) as client:
        say(client, 5, 1, 3)
        expect(client, RESULT_OK, "fe 00000014 00000003 0000000000000003 656e64")
        say(client, 6, 1, then=BOOKMARK)
        expect(client, RESULT_OK, "fe 00000016 00000001 0000000000000001 7374617274")
        say(client, 5, 1, 4)
        expect(client, RESULT_OK, "fe 00000011 ffffffff 0000000000000000")


def test_results_are_read_by_their_length(serving: ServerThread) -> None:
    with connect(serving) as client:
        say(client, 1, 1, 5)
        assert read_result(client) == (3, "Bad from entry")
        say(client, 4, 1, then=b"no")
        assert read_result(client) == (4, "Bad from bookmark")
        say(client, 1, 1, 4)
        assert read_result(client) == (0, "OK")
        say(client, 3, 1)
        assert read_result(client) == (1, "Already started")
        assert client.recv(1) == b""
