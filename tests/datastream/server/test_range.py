"""RangeBookmark over real sockets, with bytes spelled out, and what clients make of it."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.client.blocking_client import BlockingStreamClient
from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import CommandRefused, ConnectionEnded
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry, encode_entry
from tests.datastream.serving import ServerThread, read_exactly, read_to_end
from tests.datastream.streams import commit

OK = bytes.fromhex("ff 0000000b 00000000 4f4b")
ALREADY_STOPPED = bytes.fromhex("ff 00000018 00000002") + b"Already stopped"
ALREADY_STARTED = bytes.fromhex("ff 00000018 00000001") + b"Already started"
BAD_FROM = bytes.fromhex("ff 0000001a 00000004") + b"Bad from bookmark"
BAD_TO = bytes.fromhex("ff 00000018 00000005") + b"Bad to bookmark"
START_0 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000000")
STOP = bytes.fromhex("0000000000000002 0000000000000001")
HEADER = bytes.fromhex("0000000000000003 0000000000000001")
BIG = b"x" * 400_000
"""Two entries of it are on a page, and padding."""
COUNT = 30


def mark(number: int) -> bytes:
    """Return the bookmark of an operation; its entry is number 2 * `number`."""
    return b"m%d" % number


def request(first: bytes, last: bytes) -> bytes:
    """Return the bytes of a RangeBookmark command."""
    head = bytes.fromhex("0000000000000007 0000000000000001")
    return head + b"".join(struct.pack(">I", len(bookmark)) + bookmark for bookmark in (first, last))


def entry(number: int) -> Entry:
    """Return an entry of the stream of the fixture."""
    return Entry(7, number, BIG) if number % 2 else Entry(0xB0, number, mark(number // 2))


def answer(first: int, last: int) -> bytes:
    """Return the answer with these operations' bookmarks."""
    entries = b"".join(encode_entry(entry(number)) for number in range(2 * first, 2 * last + 1))
    return OK + struct.pack(">Q", 2 * last) + entries


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        for number in range(COUNT):
            commit(streamer, (0xB0, mark(number)), (7, BIG))
        yield streamer


@pytest.fixture(params=["asyncio", "uvloop", "uvloop, TLS"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("pieces", ["whole", "each integer", "bytes"])
def test_ranges(streamer: DataStreamer, loop: str, pieces: str) -> None:
    """Each ends behind its last entry, and the client is idle again."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        for first, last in ((0, 0), (3, 9), (COUNT - 1, COUNT - 1), (0, COUNT - 1)):
            sent = request(mark(first), mark(last))
            step = {"whole": len(sent), "each integer": 8, "bytes": 1}[pieces]
            for position in range(0, len(sent), step):
                client.sendall(sent[position : position + step])
            expected = answer(first, last)
            assert read_exactly(client, len(expected)) == expected
        client.sendall(HEADER)
        assert read_exactly(client, len(OK) + 38)[: len(OK)] == OK


def test_commands_behind_a_range_are_answered_behind_it(streamer: DataStreamer, loop: str) -> None:
    """Also a Stop: there is nothing to stop, before and after. Live entries are for others."""
    with ServerThread(streamer, loop=loop, on_command_error="keep") as serving, serving.connect() as client:
        client.sendall(request(mark(1), mark(20)) + STOP + request(mark(2), mark(3)) + START_0)
        commit(streamer, (0xB0, b"live"))
        expected = answer(1, 20) + ALREADY_STOPPED + answer(2, 3) + OK + encode_entry(entry(0))
        assert read_exactly(client, len(expected)) == expected


def test_a_client_that_reads_slowly_gets_all_of_it(streamer: DataStreamer, loop: str) -> None:
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(request(mark(0), mark(COUNT - 1)))
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.2)  # the server is blocked
        assert read_to_end(client) == answer(0, COUNT - 1)


BAD: list[tuple[str, bytes, bytes, bool]] = [
    ("no first", request(b"no", mark(1)), BAD_FROM, False),
    ("no last", request(mark(1), b"no"), BAD_TO, False),
    ("neither", request(b"no", b"no"), BAD_FROM, False),
    ("last before first", request(mark(2), mark(1)), BAD_TO, False),
    ("an empty first", request(b"", mark(1)), b"", True),
    ("an empty last", request(mark(1), b""), b"", True),
    ("a long first", request(b"x" * 17, mark(1)), b"", True),
    ("a long last", request(mark(1), b"x" * 17), b"", True),
    ("another stream type", request(mark(1), mark(1))[:15] + b"\2", b"", True),
]


@pytest.mark.parametrize(("name", "sent", "answered", "closes"), BAD, ids=[case[0] for case in BAD])
def test_bad_ranges(
    streamer: DataStreamer, loop: str, name: str, sent: bytes, answered: bytes, closes: bool
) -> None:
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(sent)
        assert read_exactly(client, len(answered)) == answered
        if closes:
            assert client.recv(1) == b""
        else:
            client.sendall(request(mark(1), mark(1)))
            assert read_exactly(client, len(answer(1, 1))) == answer(1, 1)


def test_not_while_streaming(streamer: DataStreamer, loop: str) -> None:
    """The streamed entries go on behind the error."""
    with ServerThread(streamer, loop=loop, on_command_error="keep") as serving, serving.connect() as client:
        client.sendall(START_0[:-1] + b"\x3a" + request(mark(1), mark(1)))
        streamed = encode_entry(entry(58)) + encode_entry(entry(59))
        received = read_exactly(client, len(OK) + len(streamed) + len(ALREADY_STARTED))
        assert received.replace(ALREADY_STARTED, b"") == OK + streamed


def test_a_truncation_resets_a_client_in_a_range_that_is_cut(streamer: DataStreamer, loop: str) -> None:
    """It was promised entries that are gone; one whose range ends before the cut gets all of it."""
    with (
        ServerThread(streamer, loop=loop) as serving,
        serving.connect() as client,
        serving.connect() as other,
    ):
        for sock, last in ((client, COUNT - 1), (other, 20)):
            sock.sendall(request(mark(0), mark(last)))
            read_exactly(sock, len(OK) + 8)
        serving.in_loop()
        streamer.truncate_file(2 * 25)
        with pytest.raises(ConnectionResetError):
            read_to_end(client)
        expected = answer(0, 20)[len(OK) + 8 :]
        assert read_exactly(other, len(expected)) == expected


# --- our clients --------------------------------------------------------------------------------------------


def test_the_blocking_client(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as serving, BlockingStreamClient(serving.host, serving.port) as client:
        assert list(client.range(mark(2), mark(9))) == [entry(number) for number in range(4, 19)]
        assert next(client.range(mark(0), mark(COUNT - 1))) == entry(0)
        assert client.header() == streamer.header  # the rest of the range is dropped
        with pytest.raises(CommandRefused, match="RangeBookmark: error 5 Bad to bookmark"):
            next(client.range(mark(2), mark(1)))
        assert list(client.range(mark(1), mark(1))) == [entry(2)]


async def test_the_asyncio_client(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as serving:
        async with StreamClient.connect(serving.host, serving.port) as client:
            found = [got async for got in client.range(mark(2), mark(9))]
            assert found == [entry(number) for number in range(4, 19)]
            async for got in client.range(mark(0), mark(COUNT - 1)):
                assert got == entry(0)
                break
            assert await client.entry(5) == entry(5)
            with pytest.raises(CommandRefused, match="RangeBookmark: error 4 Bad from bookmark"):
                await anext(client.range(b"no", mark(1)))


def test_a_server_that_ends_in_the_middle_of_a_range() -> None:
    sent = answer(0, 1)
    for size in (len(OK) + 3, len(OK) + 8, len(sent) - 1):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = BlockingStreamClient(*listening.getsockname(), timeout_seconds=20)
            with client, listening.accept()[0] as peer:
                peer.sendall(sent[:size])
                peer.shutdown(socket.SHUT_WR)
                with pytest.raises(ConnectionEnded, match="while answering RangeBookmark"):
                    list(client.range(mark(0), mark(1)))
