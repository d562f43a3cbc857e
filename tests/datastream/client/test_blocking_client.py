"""The blocking client against our server, and against a server that violates the protocol."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.datastream.client.blocking_client import (
    CLIENT_KEEPALIVE_IDLE_SECONDS,
    CLIENT_KEEPALIVE_INTERVAL_SECONDS,
    CLIENT_KEEPALIVE_PROBES_COUNT,
    BlockingStreamClient,
    iter_entries,
)
from sluice.datastream.errors import (
    BookmarkNotFound,
    CommandRefused,
    ConnectionEnded,
    EntryNotFound,
    RemoteError,
    ServerSpokeWrongly,
    StreamContradicts,
)
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from sluice.datastream.limits import ServerLimits
from sluice.datastream.protocol.packets import encode_result
from tests.datastream.serving import ServerThread
from tests.datastream.streams import commit, entries, operation

ITEMS = [item for number in range(200) for item in operation(number)]


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        for number in range(200):
            commit(streamer, *operation(number))
        yield streamer


def test_blocking_client(streamer: DataStreamer) -> None:
    expected = entries(*ITEMS)
    with (
        ServerThread(streamer) as serving,
        BlockingStreamClient(serving.host, serving.port, timeout_seconds=20) as client,
    ):
        assert client.header() == streamer.header
        assert client.entry(7) == expected[7]
        assert client.bookmark(ITEMS[5][1]) == expected[7]
        with pytest.raises(EntryNotFound, match="entry 1000: not found"):
            client.entry(1000)
        with pytest.raises(BookmarkNotFound, match="bookmark 6e6f: not found"):
            client.bookmark(b"no")
        with pytest.raises(CommandRefused, match="server: Start: error 3 Bad from entry"):
            client.start(1001)
        with pytest.raises(CommandRefused, match="server: StartBookmark: error 4 Bad from bookmark"):
            client.start_bookmark(b"no")
        client.start(990)
        stream = client.entries()
        assert [next(stream) for _ in range(10)] == expected[990:]
        commit(streamer, (1, b"live"))
        assert next(stream) == Entry(1, 1000, b"live")
        assert client.stop() == []
        assert list(client.entries()) == []
        client.start_bookmark(ITEMS[0][1])
        assert next(client.entries()) == expected[0]
        rest = client.stop()
        assert rest == expected[1 : 1 + len(rest)] or rest[-1] == Entry(1, 1000, b"live")
        assert client.header().total_entries == 1001
        with pytest.raises(CommandRefused, match="server: Stop: error 2 Already stopped"):
            client.stop()
        with pytest.raises(ConnectionEnded, match="server: closed the connection while answering Header"):
            client.header()


def test_iter_entries(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as serving:
        stream = iter_entries(serving.host, serving.port, 5)
        assert [next(stream) for _ in range(995)] == entries(*ITEMS)[5:]
        commit(streamer, (1, b"live"))
        assert next(stream) == Entry(1, 1000, b"live")
        stream.close()  # type: ignore[attr-defined]


def test_iter_entries_goes_on_after_a_pause(streamer: DataStreamer) -> None:
    """A reader that pauses for longer than the write timeout is reset, with entries in its socket."""
    big = [Entry(9, 1000 + number, bytes([number]) * 500_000) for number in range(40)]
    commit(streamer, *((entry.type, entry.data) for entry in big))
    limits = ServerLimits(write_timeout_seconds=0.3)
    with ServerThread(streamer, limits=limits) as serving:
        stream = iter_entries(serving.host, serving.port, 1000)
        found = []
        for number in range(40):
            found.append(next(stream))
            if number in (3, 20):
                until(lambda: serving.server.client_count == 0)
        assert found == big
        stream.close()  # type: ignore[attr-defined]


def test_iter_entries_does_not_go_on_in_another_stream(streamer: DataStreamer) -> None:
    big = [(9, bytes([number]) * 500_000) for number in range(40)]
    commit(streamer, *big)
    with ServerThread(streamer) as serving:
        stream = iter_entries(serving.host, serving.port, 1000)
        last = next(stream).number
        streamer.truncate_file(last)
        commit(streamer, *((9, bytes([number + 100]) * 500_000) for number in range(40)))
        with pytest.raises(
            StreamContradicts, match=r"another stream: entry 1.*got number 1.*type 0x9, 500000 bytes"
        ):
            list(stream)
        streamer.truncate_file(last)
        with pytest.raises(CommandRefused, match="error 3 Bad from entry"):
            next(iter_entries(serving.host, serving.port, last + 1))


def test_iter_entries_ends_when_nothing_comes() -> None:
    with server_that_says(OK) as port, pytest.raises(ConnectionEnded):
        next(iter_entries("127.0.0.1", port))


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, 20 seconds at most."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


OK = encode_result(0, "OK")


@contextmanager
def server_that_says(answer: bytes) -> Iterator[int]:
    """Listen once, answer anything with these bytes, and close."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(100)
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(10)
    listener.close()


Verb = Callable[[BlockingStreamClient], object]


@pytest.mark.parametrize(
    ("name", "answer", "verb", "error", "message"),
    [
        (
            "garbage",
            b"HTTP/1.1 400 Bad Request",
            lambda client: client.header(),
            ServerSpokeWrongly,
            "server: packet type: got 0x48, expected 0x1, 0x2, 0xfe, 0xff",
        ),
        (
            "closes",
            b"",
            lambda client: client.header(),
            ConnectionEnded,
            "server: closed the connection while answering Header",
        ),
        (
            "closes inside an answer",
            OK + b"\xfe\0\0",
            lambda client: client.entry(1),
            ConnectionEnded,
            "server: closed the connection while answering Entry",
        ),
        (
            "no result first",
            b"\xfe\0\0\0\x11\xff\xff\xff\xff" + bytes(8),
            lambda client: client.entry(1),
            ServerSpokeWrongly,
            "server: answer: got Answer, expected a Result",
        ),
        (
            "an entry for a header",
            OK + b"\xfe\0\0\0\x11\xff\xff\xff\xff" + bytes(8),
            lambda client: client.header(),
            ServerSpokeWrongly,
            "server: answer to Header: got Answer, expected a header",
        ),
        (
            "a result for an entry",
            OK + OK,
            lambda client: client.entry(1),
            ServerSpokeWrongly,
            "server: answer to Entry: got Result, expected an entry",
        ),
        (
            "an answer in the stream",
            OK + b"\xfe\0\0\0\x11\xff\xff\xff\xff" + bytes(8),
            lambda client: (client.start(0), list(client.entries())),
            ServerSpokeWrongly,
            "server: packet in the stream: got Answer, expected an entry",
        ),
    ],
)
def test_servers_that_speak_wrongly(
    name: str, answer: bytes, verb: Verb, error: type[RemoteError], message: str
) -> None:
    with (
        server_that_says(answer) as port,
        BlockingStreamClient("127.0.0.1", port, timeout_seconds=20) as client,
        pytest.raises(error) as caught,
    ):
        verb(client)
    assert str(caught.value) == message


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        next(iter_entries("127.0.0.1", port))


def test_the_kernel_looks_after_a_silent_connection(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as serving, BlockingStreamClient(serving.host, serving.port) as client:
        sock = client._socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == CLIENT_KEEPALIVE_IDLE_SECONDS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == CLIENT_KEEPALIVE_INTERVAL_SECONDS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == CLIENT_KEEPALIVE_PROBES_COUNT
        client.start(1000)
        client.set_timeout(0.01)
        with pytest.raises(TimeoutError):
            client.receive()
        client.set_timeout(None)
        commit(streamer, (1, b"live"))
        assert client.receive() == [Entry(1, 1000, b"live")]
