"""The TCP server over real sockets, with bytes spelled out, without our client."""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.datastream.errors import AddressUnavailable
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.limits import ServerLimits
from sluice.datastream.server.server import StreamServer
from tests.datastream.serving import ServerThread, read_exactly, read_to_end
from tests.datastream.streams import commit, operation

OK = bytes.fromhex("ff 0000000b 00000000 4f4b")
START_0 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000000")
START_2 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000002")
START_3 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000003")
START_4 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000004")
STOP = bytes.fromhex("0000000000000002 0000000000000001")
HEADER = bytes.fromhex("0000000000000003 0000000000000001")
START_MARK = bytes.fromhex("0000000000000004 0000000000000001 00000002 6262")
ENTRY_1 = bytes.fromhex("0000000000000005 0000000000000001 0000000000000001")
ENTRY_9 = bytes.fromhex("0000000000000005 0000000000000001 0000000000000009")
MARK = bytes.fromhex("0000000000000006 0000000000000001 00000002 6262")
# The fixture's stream:
E0 = bytes.fromhex("02 00000013 000000b0 0000000000000000 6262")
E1 = bytes.fromhex("02 00000016 00000007 0000000000000001") + b"hello"
E2 = bytes.fromhex("02 00000011 00000008 0000000000000002")
HEADER_ENTRY = bytes.fromhex(
    "01 00000026 01 0000000000000089 0000000000000001 000000000000103a 0000000000000003"
)
NOT_FOUND = bytes.fromhex("fe 00000011 ffffffff 0000000000000000")


@pytest.fixture
def streamer(tmp_path: Path) -> DataStreamer:
    streamer = DataStreamer.open(tmp_path / "s.bin")
    commit(streamer, (0xB0, b"bb"), (7, b"hello"), (8, b""))
    return streamer


@pytest.fixture(params=["asyncio", "uvloop", "uvloop, TLS"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


QUERIES = [
    ("header", HEADER, OK + HEADER_ENTRY),
    ("entry", ENTRY_1, OK + b"\xfe" + E1[1:]),
    ("entry that is not there", ENTRY_9, OK + NOT_FOUND),
    ("bookmark", MARK, OK + b"\xfe" + E1[1:]),
    ("bookmark that is not there", MARK[:-1] + b"x", OK + NOT_FOUND),
]


@pytest.mark.parametrize("pieces", ["whole", "each integer", "bytes"])
def test_queries(streamer: DataStreamer, loop: str, pieces: str) -> None:
    with streamer, ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _, request, answer in QUERIES:
            step = {"whole": len(request), "each integer": 8, "bytes": 1}[pieces]
            for position in range(0, len(request), step):
                client.sendall(request[position : position + step])
            assert read_exactly(client, len(answer)) == answer
        assert serving.server.client_count == 1


def test_pipelined_commands_are_answered_in_order(streamer: DataStreamer, loop: str) -> None:
    with streamer, ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(b"".join(request for _, request, _ in QUERIES) + START_0 + STOP + START_2)
        answer = b"".join(answer for _, _, answer in QUERIES)
        rest = read_exactly(client, len(answer) + len(OK))
        assert rest == answer + OK
        # Stop came with Start: an unknown number of whole entries precedes it.
        streamed = read_exactly(client, len(OK))
        while not streamed.endswith(OK + OK + E2):
            streamed += read_exactly(client, 1)
        assert streamed[: -len(OK + OK + E2)] in (b"", E0, E0 + E1, E0 + E1 + E2)


def test_history_then_live(streamer: DataStreamer, loop: str) -> None:
    with streamer, ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(START_0)
        assert read_exactly(client, len(OK + E0 + E1 + E2)) == OK + E0 + E1 + E2
        streamer.start_atomic_op()
        streamer.add_stream_entry(9, b"not yet")
        streamer.rollback_atomic_op()
        commit(streamer, (9, b"live"))
        live = bytes.fromhex("02 00000015 00000009 0000000000000003") + b"live"
        assert read_exactly(client, len(live)) == live
        client.sendall(STOP)
        assert read_exactly(client, len(OK)) == OK
        commit(streamer, (9, b"after Stop"))
        client.sendall(HEADER)
        assert read_exactly(client, len(OK)) == OK  # nothing before it
        client.sendall(STOP)
        rest = read_to_end(client)
        assert rest[38:] == bytes.fromhex("ff 00000018 00000002") + b"Already stopped"


@pytest.mark.parametrize(
    ("name", "request_bytes", "answer"),
    [
        ("start at the end", START_3, OK),
        ("start past the end", START_4, bytes.fromhex("ff 00000017 00000003") + b"Bad from entry"),
        (
            "start at an unknown bookmark",
            START_MARK[:-1] + b"x",
            bytes.fromhex("ff 0000001a 00000004") + b"Bad from bookmark",
        ),
        ("start at a bookmark", START_MARK, OK + E0 + E1 + E2),
    ],
)
def test_starts(streamer: DataStreamer, name: str, request_bytes: bytes, answer: bytes) -> None:
    with streamer, ServerThread(streamer) as serving, serving.connect() as client:
        client.sendall(request_bytes)
        assert read_exactly(client, len(answer)) == answer
        if "unknown" in name or "past" in name:
            client.sendall(HEADER)  # still open
            assert read_exactly(client, len(OK) + 38) == OK + HEADER_ENTRY
        else:
            commit(streamer, (1, b""))
            assert read_exactly(client, 17)[9:] == bytes([0, 0, 0, 0, 0, 0, 0, 3])


CLOSING = [
    ("stop when stopped", STOP, bytes.fromhex("ff 00000018 00000002") + b"Already stopped"),
    (
        "unknown command",
        b"\0" * 7 + b"\x08" + STOP[8:],
        bytes.fromhex("ff 00000018 00000009") + b"Invalid command",
    ),
    ("other stream type", HEADER[:15] + b"\2", b""),
    ("empty bookmark", MARK[:16] + bytes(4), b""),
    ("long bookmark", MARK[:16] + b"\0\0\0\x11" + bytes(17), b""),
    ("start twice", START_3 + START_3, OK + bytes.fromhex("ff 00000018 00000001") + b"Already started"),
    (
        "query while streaming",
        START_3 + HEADER,
        OK + bytes.fromhex("ff 00000018 00000001") + b"Already started",
    ),
]


@pytest.mark.parametrize(("name", "request_bytes", "answer"), CLOSING, ids=[case[0] for case in CLOSING])
def test_what_closes_a_connection(
    streamer: DataStreamer, loop: str, name: str, request_bytes: bytes, answer: bytes
) -> None:
    closing = ServerThread(streamer, loop=loop, on_command_error="close")
    with streamer, closing as serving, serving.connect() as client:
        client.sendall(request_bytes + b"more that nobody reads" * 10)
        assert read_to_end(client) == answer


def test_keep_on_command_error(streamer: DataStreamer) -> None:
    with streamer, ServerThread(streamer, on_command_error="keep") as serving, serving.connect() as client:
        client.sendall(STOP + START_3 + HEADER)
        expected = (
            bytes.fromhex("ff 00000018 00000002")
            + b"Already stopped"
            + OK
            + bytes.fromhex("ff 00000018 00000001")
            + b"Already started"
        )
        assert read_exactly(client, len(expected)) == expected
        commit(streamer, (9, b"live"))
        assert read_exactly(client, 21).endswith(b"live")


@pytest.mark.parametrize(
    ("name", "sent", "answer"),
    [
        ("nothing", b"", b""),
        ("half a command", START_0[:13], b""),
        ("queries", HEADER + ENTRY_1, OK + HEADER_ENTRY + OK + b"\xfe" + E1[1:]),
        ("a catch-up", START_0, OK + E0 + E1 + E2),
    ],
    ids=["nothing", "half a command", "queries", "a catch-up"],
)
def test_half_closed(streamer: DataStreamer, loop: str, name: str, sent: bytes, answer: bytes) -> None:
    with streamer, ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client) == answer


def test_half_closed_before_a_long_catch_up(tmp_path: Path, loop: str) -> None:
    with DataStreamer.open(tmp_path / "long.bin") as streamer:
        commit(streamer, *[(1, bytes([number]) * 700_000) for number in range(30)])
        with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
            client.sendall(START_0)
            client.shutdown(socket.SHUT_WR)
            received = read_to_end(client)
            assert len(received) == len(OK) + 30 * 700_017
            assert received[-700_000:] == bytes([29]) * 700_000


def test_a_reset_hurts_nobody(streamer: DataStreamer) -> None:
    with streamer, ServerThread(streamer) as serving, serving.connect() as other:
        other.sendall(START_3)
        read_exactly(other, len(OK))
        for _ in range(20):
            client = serving.connect()
            client.sendall(START_0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        for number in range(20):
            commit(streamer, (1, bytes([number])))
            assert read_exactly(other, 18)[-1] == number


def test_one_connection_too_many(streamer: DataStreamer) -> None:
    with streamer, ServerThread(streamer, limits=ServerLimits(connections_max=2)) as serving:
        with serving.connect() as first, serving.connect() as second:
            for client in (first, second):
                client.sendall(HEADER)
                read_exactly(client, len(OK) + 38)
            with serving.connect() as third:
                assert third.recv(1) == b""
            assert serving.server.client_count == 2
            first.shutdown(socket.SHUT_WR)
            assert read_to_end(first) == b""
        with serving.connect() as fourth:
            fourth.sendall(HEADER)
            assert read_exactly(fourth, len(OK) + 38) == OK + HEADER_ENTRY


def test_one_address_does_not_keep_out_the_others(streamer: DataStreamer) -> None:
    """Even if it takes all places."""
    limits = ServerLimits(connections_max=20)
    with streamer, ServerThread(streamer, limits=limits) as serving, ExitStack() as stack:
        reader = stack.enter_context(serving.connect("127.0.0.3"))
        crowd = [stack.enter_context(serving.connect("127.0.0.2")) for _ in range(30)]
        for late in crowd[19:]:
            assert late.recv(1) == b""
        others = [stack.enter_context(serving.connect(f"127.0.0.{number}")) for number in (3, 4, 5)]
        for one in (reader, *others, crowd[0]):
            one.sendall(HEADER)
            assert read_exactly(one, len(OK) + 38) == OK + HEADER_ENTRY
        assert [late.recv(1) for late in crowd[16:19]] == [
            b""
        ] * 3  # the newest of the address with most clients
        assert serving.server.client_count == 20


def test_a_client_that_does_not_read_is_closed_and_the_others_go_on(tmp_path: Path, loop: str) -> None:
    limits = ServerLimits(write_timeout_seconds=0, sweep_interval_seconds=0.1)
    with (
        DataStreamer.open(tmp_path / "s.bin") as streamer,
        ServerThread(streamer, limits=limits, loop=loop) as serving,
        serving.connect() as slow,
        serving.connect() as quick,
    ):
        commit(streamer, *[(1, b"x" * 1_000_000)] * 30)
        slow.sendall(START_0)
        quick.sendall(START_0)
        assert len(read_exactly(quick, len(OK) + 30 * 1_000_017)) > 0
        # Only now: the fast client is no faster than this machine.
        serving.context.limits = ServerLimits(write_timeout_seconds=0.5)
        reset = select.poll()
        reset.register(slow, 0)  # the test reads nothing and awaits the reset
        assert reset.poll(20_000)[0][1] & select.POLLERR
        commit(streamer, (1, b"live"))
        assert read_exactly(quick, 21).endswith(b"live")


def test_an_inactive_client_is_closed(streamer: DataStreamer, loop: str) -> None:
    limits = ServerLimits(inactivity_timeout_seconds=0.2)
    with streamer, ServerThread(streamer, limits=limits, loop=loop) as serving, serving.connect() as client:
        assert read_to_end(client) == b""


def test_padding_is_never_sent(tmp_path: Path, loop: str) -> None:
    """Entries with every kind of gap at page ends come as if there were no pages."""
    rng = random.Random(5)
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        sent = bytearray()
        with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
            client.sendall(START_0)
            assert read_exactly(client, len(OK)) == OK
            for number in range(40):
                data = rng.randbytes(rng.choice([0, 1, 300_000, 500_000, 1_048_559, 1_048_542]))
                commit(streamer, (1, data))
                sent += b"\2" + struct.pack(">IIQ", 17 + len(data), 1, number) + data
            assert read_exactly(client, len(sent)) == sent
        streamer.close()
        with (
            DataStreamer.open(tmp_path / "s.bin") as again,  # where pages end is learned anew
            ServerThread(again, loop=loop) as serving,
            serving.connect() as client,
        ):
            client.sendall(START_0)
            assert read_exactly(client, len(OK) + len(sent)) == OK + sent


def test_joining_while_commits_run(tmp_path: Path, loop: str) -> None:
    """Clients join at any moment and get every entry once, in order."""
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        total = 4000
        done = threading.Event()

        def write() -> None:
            for number in range(total):
                commit(streamer, *operation(number))
                if len(joins) <= 4:
                    time.sleep(0.005)  # until the clients are there, too
            done.set()

        def join(seed: int) -> None:
            rng = random.Random(seed)
            stays = False
            while not done.is_set():
                first = rng.randrange(streamer.committed.total_entries + 1)
                with serving.connect() as client:
                    client.sendall(struct.pack(">QQQ", 1, 1, first))
                    assert read_exactly(client, len(OK)) == OK
                    if stays:
                        read_entries(client, first, 5 * total)
                    else:
                        read_entries(client, first, min(first + rng.randrange(1, 200), 5 * total))
                joins.append(first)
                stays = rng.random() >= 0.8

        joins: list[int] = []
        failures: list[BaseException] = []

        def guarded(seed: int) -> None:
            try:
                join(seed)
            except BaseException as error:
                failures.append(error)
                raise

        with ServerThread(streamer, loop=loop) as serving:
            threads = [threading.Thread(target=write)]
            threads += [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        assert not failures
        assert len(joins) > 4


def read_entries(client: socket.socket, first: int, end: int) -> None:
    """Receive the entries from `first` up to `end`; check numbers and data."""
    for number in range(first, end):
        head = read_exactly(client, 17)
        packet_type, size, entry_type, got = struct.unpack(">BIIQ", head)
        kind, data = operation(number // 5)[number % 5]
        assert (packet_type, got, entry_type) == (2, number, kind)
        assert (read_exactly(client, size - 17) if size > 17 else b"") == data


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("127.0.0.1", "Address already in use"),
        ("no.such.host.invalid", ""),
        ("h" * 64, "encoding with 'idna'"),
    ],
)
async def test_addresses_that_cannot_be(streamer: DataStreamer, host: str, message: str) -> None:
    async def scenario(port: int) -> None:
        server = StreamServer(streamer, host, port)
        with pytest.raises(AddressUnavailable) as caught:
            await server.start()
        assert str(caught.value).startswith(f"{host}:{port}: cannot listen: {message}")
        await server.close()

    with streamer, ServerThread(streamer) as serving:
        await scenario(serving.port)
        with pytest.raises(ValueError, match="on_command_error: got 'ignore', expected 'keep' or 'close'"):
            StreamServer(streamer, on_command_error="ignore")  # type: ignore[arg-type]


def test_bytes_sent_and_closing(streamer: DataStreamer) -> None:
    with streamer:
        with ServerThread(streamer) as serving:
            client = serving.connect()
            client.sendall(HEADER)
            read_exactly(client, len(OK) + 38)
            serving.in_loop()
            assert serving.server.bytes_sent == len(OK) + 38
        assert read_to_end(client) == b""
        client.close()
        assert serving.server.client_count == 0
        commit(streamer, (1, b"nobody listens"))
