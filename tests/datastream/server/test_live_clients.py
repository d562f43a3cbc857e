"""Tests of `datastream.server.live_clients`: one call sends to many, and each client keeps its own place."""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.layout import page_start
from sluice.datastream.server.connection import Connection
from sluice.datastream.server.live_clients import IS_COMPILED, LiveClients, LiveTail, Settled
from tests.datastream.serving import ServerThread, read_exactly, read_to_end

NO_LIMIT = 1 << 64
OK_SIZE = 11
Pair = tuple[socket.socket, socket.socket]
needs_module = pytest.mark.skipif(not IS_COMPILED, reason="needs a C compiler")


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "stream.bin") as opened:
        commit(opened, b"first")
        yield opened


@pytest.fixture(params=["asyncio", "uvloop", "uvloop, TLS"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    """Connected sockets: the server's side, not blocking, and the client's."""
    made = [socket.socketpair() for _ in range(5)]
    for ours, theirs in made:
        ours.setblocking(False)
        theirs.settimeout(5)
    yield made
    for pair in made:
        for one in pair:
            one.close()


def commit(streamer: DataStreamer, *data: bytes) -> None:
    streamer.start_atomic_op()
    for one in data:
        streamer.add_stream_entry(1, one)
    streamer.commit_atomic_op()


def standing(position: int) -> Settled:
    return Settled(position, 0, 1.0, 0, 1.0)


def live(pairs: list[Pair], position: int) -> LiveClients[str]:
    clients: LiveClients[str] = LiveClients()
    for at, (ours, _) in enumerate(pairs):
        clients.add(ours.fileno(), f"client {at}", standing(position), is_alone=False)
    return clients


@needs_module
def test_all_at_one_place_get_a_commit_in_one_call(streamer: DataStreamer, pairs: list[Pair]) -> None:
    position = streamer.committed.total_length
    clients = live(pairs, position)
    commit(streamer, b"second")
    size = streamer.committed.total_length - position
    sent = clients.send(clients.numbers(), LiveTail(streamer), 7, NO_LIMIT, 2.5)
    assert sent == (len(pairs) * size, [])
    for ours, theirs in pairs:
        assert read_exactly(theirs, size).endswith(b"second")
        assert clients.position_of(ours.fileno()) == position + size
        assert clients.settle(ours.fileno()) == Settled(position + size, size, 2.5, 7, 1.0)
    assert clients.send(clients.numbers(), LiveTail(streamer), 8, NO_LIMIT, 3.0) == (0, [])  # they have it


@needs_module
def test_who_is_elsewhere_is_looked_at_alone(streamer: DataStreamer, pairs: list[Pair]) -> None:
    """At another place, alone by rule, full, gone; one that waits no more is passed over."""
    position = streamer.committed.total_length
    clients = live(pairs, position)
    numbers = [ours.fileno() for ours, _ in pairs]
    everyone = clients.numbers()
    clients.add(numbers[1], "elsewhere", standing(page_start(1)), is_alone=False)
    clients.add(numbers[2], "alone", standing(position), is_alone=True)
    pairs[3][1].close()
    clients.discard(numbers[4])
    commit(streamer, b"second")
    sent_bytes, rest = clients.send(everyone, LiveTail(streamer), 0, NO_LIMIT, 2.5)
    assert (sent_bytes, rest) == (
        streamer.committed.total_length - position,
        ["elsewhere", "alone", "client 3"],
    )
    assert [clients.position_of(number) for number in numbers[1:3]] == [page_start(1), None]
    assert [clients.settle(number) for number in numbers[1:]] == [
        standing(page_start(1)),
        None,
        standing(position),
        None,
    ]


@needs_module
def test_a_full_socket_keeps_the_place_behind_what_it_took(streamer: DataStreamer, pairs: list[Pair]) -> None:
    position = streamer.committed.total_length
    clients = live(pairs, position)
    ours, theirs = pairs[0]
    filled = 0
    while True:
        try:
            filled += ours.send(bytes(1 << 20))
        except BlockingIOError:
            break
    dropped = len(theirs.recv(40_000))  # room for some
    data = Random(5).randbytes(60_000)
    commit(streamer, data)
    _, rest = clients.send(clients.numbers(), LiveTail(streamer), 0, NO_LIMIT, 2.5)
    assert rest == ["client 0"]
    settled = clients.settle(ours.fileno())
    assert settled is not None
    taken = settled.position - position
    assert settled.unacknowledged_bytes == taken
    ours.close()
    received = read_to_end(theirs)
    assert received[len(received) - taken :] == streamer.read_bytes(taken, position)
    assert (dropped + len(received), 0 < taken < len(data)) == (filled + taken, True)


def test_whoever_stands_behind_a_cut_gets_nothing(streamer: DataStreamer, pairs: list[Pair]) -> None:
    position = streamer.committed.total_length
    clients = live(pairs, position)
    commit(streamer, b"instead")
    sent = clients.send(clients.numbers(), LiveTail(streamer), 0, position - 1, 2.5)
    assert sent == (0, [f"client {at}" for at in range(len(pairs))])


def test_a_client_of_another_socket_is_absent() -> None:
    clients: LiveClients[str] = LiveClients()
    clients.discard(3)
    assert (clients.settle(9), clients.position_of(9), clients.numbers()) == (None, None, array("i"))


@needs_module
def test_who_took_all_is_active_and_the_others_are_looked_at(streamer: DataStreamer) -> None:
    """One that took all, one that took nothing, one that was sent nothing for long, and a lively one."""
    position = streamer.committed.total_length
    clients: LiveClients[str] = LiveClients()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours, theirs = [], []
        for at, active_at in enumerate((1.0, 1.0, 1.0, 9.0)):
            theirs.append(stack.enter_context(socket.create_connection(listener.getsockname())))
            ours.append(stack.enter_context(listener.accept()[0]))
            settled = standing(position)._replace(active_at=active_at)
            clients.add(ours[at].fileno(), f"client {at}", settled, is_alone=False)
        ours[1].setblocking(False)
        with suppress(BlockingIOError):
            while True:
                ours[1].send(bytes(1 << 20))
        commit(streamer, b"second")
        numbers = array("i", [one.fileno() for one in ours])
        clients.send(numbers[:1], LiveTail(streamer), 0, NO_LIMIT, 5.0)
        theirs[0].recv(100)
        assert clients.idle(numbers, 10.0, 8.0) == ["client 1", "client 2"]
        assert clients.idle(numbers, 10.0, 0.0) == ["client 1"]
        end = streamer.committed.total_length
        assert clients.settle(numbers[0]) == Settled(end, 0, 5.0, 0, 10.0)
        assert clients.settle(numbers[3]) == standing(position)._replace(active_at=9.0)


@needs_module
def test_no_state_is_written_for_a_socket_that_has_none() -> None:
    from sluice.datastream.server._many_clients import idle, send

    for number in (-1, 1, 1 << 30):
        numbers, state = array("i", [number]), array("Q", [0] * 5)
        with pytest.raises(ValueError, match=f"got socket {number}, expected one that `state` has"):
            send(numbers, state, 0, 0, b"data", 0, 0)
        with pytest.raises(ValueError, match=f"got socket {number}, expected one that `state` has"):
            idle(numbers, state, 0, 0)


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param(LiveClients, id="many", marks=needs_module),
        pytest.param(lambda: LiveClients(is_compiled=False), id="one"),
    ],
)
def test_every_client_gets_every_byte(
    streamer: DataStreamer, loop: str, clients: Callable[[], LiveClients[Connection]]
) -> None:
    random = Random(5)
    with ServerThread(streamer, loop=loop) as serving, ExitStack() as stack:
        serving.in_loop(lambda: setattr(serving.context, "live", clients()))
        joined = []
        for _ in range(20):
            sock = stack.enter_context(serving.connect())
            sock.sendall(struct.pack(">QQQ", 1, 1, streamer.committed.total_entries))
            read_exactly(sock, OK_SIZE)
            joined.append((sock, streamer.committed.total_length))
            for _ in range(random.randrange(1, 9)):
                commit(streamer, *(random.randbytes(random.randrange(3_000)) for _ in range(3)))
        end = streamer.committed.total_length
        for sock, start in joined:
            assert read_exactly(sock, end - start) == streamer.read_bytes(end - start, start)
        assert serving.server.bytes_sent == sum(OK_SIZE + end - start for _, start in joined)
