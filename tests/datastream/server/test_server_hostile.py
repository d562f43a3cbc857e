"""Hostile, broken and slow clients over real sockets do no harm to the others."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.datastream.errors import AddressUnavailable
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Committed
from sluice.datastream.limits import ServerLimits
from sluice.datastream.server.connection import COMMANDS_PER_SLOT, COPIED_BYTES, LINGER_BYTES_MAX
from sluice.datastream.server.descriptors import SPARE_DESCRIPTORS
from sluice.datastream.server.secure_socket import RECORD_BYTES
from sluice.datastream.server.server import (
    KEEPALIVE_PROBES,
    KEEPALIVE_SECONDS,
    LISTEN_BACKLOG_COUNT,
    StreamServer,
    format_address,
)
from tests.datastream.serving import PATIENT, Clock, ServerThread, has_ipv6, read_exactly, read_to_end
from tests.datastream.streams import commit

OK = bytes.fromhex("ff 0000000b 00000000 4f4b")
START_0 = bytes.fromhex("0000000000000001 0000000000000001 0000000000000000")
STOP = bytes.fromhex("0000000000000002 0000000000000001")
HEADER = bytes.fromhex("0000000000000003 0000000000000001")
ENTRY_0 = bytes.fromhex("0000000000000005 0000000000000001 0000000000000000")
UNKNOWN = bytes([0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1])
INVALID_COMMAND = bytes.fromhex("ff 00000018 00000009") + b"Invalid command"
RESET = struct.pack("ii", 1, 0)
BIG = b"x" * 1_000_000
BIG_ENTRY = bytes.fromhex("02 000f4251 00000001 0000000000000000") + BIG


@pytest.fixture(params=["asyncio", "uvloop", "uvloop, TLS"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["asyncio", "uvloop"])
def plain_loop(request: pytest.FixtureRequest) -> str:
    """For tests that use the sockets of clients as they are."""
    return str(request.param)


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    """30 entries of 1 MB, more than the kernel buffers for one client."""
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, *[(1, BIG)] * 30)
        yield streamer


def until(serving: ServerThread, reached: Callable[[], bool], seconds: float = 20.0) -> None:
    """Run the server's loop until a condition holds."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "did not come"
        serving.in_loop()


def until_blocked(serving: ServerThread, count: int = 1) -> None:
    """Run the server's loop until so many clients take no more bytes for several iterations."""
    seen: list[int] = []

    def reached() -> bool:
        writing = sum(connection._writing for connection in set(serving.server._connections))
        seen.append(serving.server.bytes_sent if writing >= count else -len(seen))
        return len(set(seen[-10:])) == 1 and len(seen) >= 10

    until(serving, reached)


@pytest.mark.parametrize("state", ["silent", "half a command", "live", "blocked stream", "blocked answer"])
@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_that_goes_away_is_forgotten(
    streamer: DataStreamer, loop: str, state: str, how: str
) -> None:
    """In any state of the connection, at once, without a timeout."""
    limits = ServerLimits(write_timeout_seconds=0, inactivity_timeout_seconds=0)
    with ServerThread(streamer, loop=loop, limits=limits) as serving:
        client = serving.connect()
        match state:
            case "half a command":
                client.sendall(START_0[:11])
            case "live":
                client.sendall(START_0[:23] + b"\x1e")
                assert read_exactly(client, len(OK)) == OK
            case "blocked stream":
                client.sendall(START_0)
                until_blocked(serving)
            case "blocked answer":
                client.sendall(ENTRY_0 * 100)
                until_blocked(serving)
        until(serving, lambda: serving.server.client_count == 1)
        if how == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        until(serving, lambda: serving.server.client_count == 0)


def test_a_reset_right_behind_a_command_is_noticed(streamer: DataStreamer, loop: str) -> None:
    """The loop sees both at once: uvloop reports such a socket once, with the bytes, and never again."""
    limits = ServerLimits(write_timeout_seconds=0, inactivity_timeout_seconds=0)
    with ServerThread(streamer, loop=loop, limits=limits) as serving:
        client = serving.connect()
        until(serving, lambda: serving.server.client_count == 1)
        gone = threading.Event()
        serving._loop.call_soon_threadsafe(gone.wait, 20)
        client.sendall(START_0[:11])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        gone.set()
        until(serving, lambda: serving.server.client_count == 0)
        assert not serving.server._connections


def test_half_closed_and_never_read(streamer: DataStreamer, loop: str) -> None:
    """The write timeout holds for a catch-up after a half-close, also once the kernel has all bytes."""
    limits = ServerLimits(write_timeout_seconds=0.4)
    with ServerThread(streamer, loop=loop, limits=limits) as serving:
        for request in (START_0, ENTRY_0 * 4):
            client = serving.connect()
            until(serving, lambda: serving.server.client_count == 1)
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            until(serving, lambda: serving.server.client_count == 0)
            assert not serving.server._connections
            client.close()


def test_a_bad_command_while_blocked(streamer: DataStreamer, loop: str) -> None:
    """The current entry is finished, the Result follows, then nothing; later commands are dropped."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(START_0)
        until_blocked(serving)
        client.sendall(UNKNOWN + HEADER * 10)
        received = read_to_end(client)
        assert received.startswith(OK + BIG_ENTRY)
        assert received.endswith(INVALID_COMMAND)
        assert (len(received) - len(OK) - len(INVALID_COMMAND)) % len(BIG_ENTRY) == 0
        assert len(received) < 30 * len(BIG_ENTRY)


def test_more_commands_than_a_turn_allows(streamer: DataStreamer, loop: str) -> None:
    count = 3 * COMMANDS_PER_SLOT + 5
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(HEADER * count + STOP)
        received = read_to_end(client)
        assert received.count(OK + b"\1\0\0\0\x26") == count
        assert received.endswith(b"Already stopped")


def test_more_bytes_than_a_turn_allows(streamer: DataStreamer, loop: str) -> None:
    """Answers longer than a slot come whole, and the server reads nothing from the client before."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        sender = threading.Thread(target=client.sendall, args=(ENTRY_0 * 60 + STOP,))
        sender.start()
        answer = OK + b"\xfe" + BIG_ENTRY[1:]
        for _ in range(60):
            assert read_exactly(client, len(answer)) == answer
        assert read_to_end(client).endswith(b"Already stopped")
        sender.join()


def test_a_flood_of_queries_that_nobody_reads(streamer: DataStreamer, loop: str) -> None:
    """The kernel keeps the flood: the server reads little of it and holds almost nothing."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as quick:
        floods = [serving.connect() for _ in range(20)]
        for flood in floods:
            flood.setblocking(False)
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                while True:
                    flood.send(ENTRY_0 * 1000)
        until_blocked(serving, 20)
        for connection in set(serving.server._connections):
            held = sum(len(piece) for piece in connection._queue if isinstance(piece, bytes))
            record = 0 if connection._secure is None else RECORD_BYTES
            assert held + len(connection._core._buffer) <= 4096 + 36 + len(OK) + 1 + record
            assert connection._secure is None or len(connection._secure._unsent) <= 2 * COPIED_BYTES
        quick.sendall(HEADER)
        assert read_exactly(quick, len(OK) + 38).startswith(OK)
        for flood in floods:
            flood.close()


def test_a_slow_line_is_not_a_client_that_does_not_read(streamer: DataStreamer, loop: str) -> None:
    """Within the write timeout, it takes less than the kernel wants free before it reports room."""
    limits = ServerLimits(write_timeout_seconds=1_000, inactivity_timeout_seconds=0)
    with ServerThread(streamer, loop=loop, limits=limits) as serving:
        clock = Clock(serving.context.loop)
        serving.context.loop = clock  # type: ignore[assignment]
        with serving.connect(receive_bytes=4096) as client:
            client.sendall(START_0)
            until_blocked(serving)
            (connection,) = serving.server._connections
            for _ in range(5):
                before = connection._count_unacknowledged()
                while connection._count_unacknowledged() == before:
                    assert client.recv(4096)
                clock.ahead_seconds += 900
                serving.in_loop(lambda: connection.sweep(clock.time()))
                assert serving.server.client_count == 1
        until(serving, lambda: serving.server.client_count == 0)


def test_no_file_descriptor_left(
    streamer: DataStreamer, plain_loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients wait in the kernel, the loop does not spin, and then they are served."""
    limits = replace(PATIENT, accept_pause_seconds=0.3)
    with ServerThread(streamer, loop=plain_loop, limits=limits) as serving, serving.connect() as first:
        until(serving, lambda: serving.server.client_count == 1)
        clients = [socket.socket() for _ in range(5)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 1, hard))
        spare = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    spare.append(first.dup())
            for client in clients:
                client.settimeout(20)
                client.connect((serving.host, serving.port))
                client.sendall(HEADER)
            begin = time.monotonic()
            until(serving, lambda: "cannot accept clients" in caplog.text)
            first.sendall(HEADER)  # present clients are served as before
            assert read_exactly(first, len(OK) + 38).startswith(OK)
            assert serving.server.client_count == 1
        finally:
            for duplicate in spare:
                duplicate.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in clients:
            assert read_exactly(client, len(OK) + 38).startswith(OK)
            client.close()
        count_max = 2 + (time.monotonic() - begin) / 0.3
        logged = caplog.text.count("cannot accept clients for 0.3 s: [Errno 24] Too many open files")
        assert 1 <= logged <= count_max


def test_the_last_descriptors_are_not_for_clients(
    streamer: DataStreamer, plain_loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The process can still open files, and serve its clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each client takes two, one of them ours; an event loop takes some twenty, a first one more.
    with socket.socket() as probe:
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno() + SPARE_DESCRIPTORS + 100, hard))
    clients: list[socket.socket] = []
    try:
        with ServerThread(streamer, loop=plain_loop) as serving:
            while len(clients) < 200:
                clients.append(serving.connect())
                answer = b""
                with contextlib.suppress(ConnectionError):  # closed with a command unread: reset
                    clients[-1].sendall(HEADER)
                    answer = clients[-1].recv(1)
                if not answer:
                    break
                assert answer == OK[:1]
            assert 10 < len(clients) < 200
            files = [path.open("rb") for path in [streamer.path] * 10]
            for file in files:
                file.close()
            first = clients.pop(0)
            assert read_exactly(first, len(OK) - 1 + 38)[: len(OK) - 1] == OK[1:]
            first.close()
            until(serving, lambda: serving.server.client_count == len(clients) - 1)
            with serving.connect() as next_one:
                next_one.sendall(HEADER)
                assert read_exactly(next_one, len(OK) + 38).startswith(OK)
            for client in clients:
                client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "closed, the last files that this process may open are not for clients; 1 refused" in caplog.text


def test_a_thousand_connects_at_once(streamer: DataStreamer, plain_loop: str) -> None:
    """As many as the kernel queues connect before the server accepts; each is served."""
    with ServerThread(streamer, loop=plain_loop) as serving:
        clients = [socket.socket() for _ in range(400)]
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect((serving.host, serving.port))
        for client in clients:
            client.settimeout(20)
            client.sendall(HEADER)
        for client in clients:
            assert read_exactly(client, len(OK) + 38).startswith(OK)
        assert serving.server.client_count == 400
        for client in clients:
            client.close()
        until(serving, lambda: serving.server.client_count == 0)


def test_too_many_clients_are_logged_once(streamer: DataStreamer, caplog: pytest.LogCaptureFixture) -> None:
    with (
        ServerThread(streamer, limits=ServerLimits(connections_max=1)) as serving,
        serving.connect() as first,
    ):
        until(serving, lambda: serving.server.client_count == 1)
        for _ in range(50):
            with serving.connect() as other:
                assert other.recv(1) == b""
        assert caplog.text.count("closed, 1 are connected already; 1 refused so far") == 1
        assert caplog.text.count("connected already") == 1
        first.sendall(HEADER)
        assert read_exactly(first, len(OK) + 38).startswith(OK)


def test_more_clients_than_files(streamer: DataStreamer, caplog: pytest.LogCaptureFixture) -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with ServerThread(streamer, limits=ServerLimits(connections_max=files)):
        needed = files + SPARE_DESCRIPTORS
        assert (
            f"this process may open {files} files (ulimit -n); {files} clients need {needed}" in caplog.text
        )


def test_what_a_connection_inherits(streamer: DataStreamer, loop: str) -> None:
    with ServerThread(streamer, loop=loop) as serving, serving.connect():
        until(serving, lambda: serving.server.client_count == 1)
        (connection,) = serving.server._connections
        sock = connection._socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_SECONDS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == KEEPALIVE_SECONDS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == KEEPALIVE_PROBES
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert not sock.getblocking()


@pytest.mark.parametrize("host", ["::1", "", "localhost", "127.0.0.1"])
async def test_addresses(streamer: DataStreamer, host: str) -> None:
    """A name, or "" for all, is listened to on each of its addresses, with the same port."""
    if host == "::1" and not has_ipv6():
        pytest.skip("needs IPv6, which the kernel has switched off here")

    async with StreamServer(streamer, host, 0) as server:
        port = server.address[1]
        families = {listener.family for listener in server._listeners}
        assert {listener.getsockname()[1] for listener in server._listeners} == {port}
        if host == "" and has_ipv6():
            assert families == {socket.AF_INET, socket.AF_INET6}
        # The kernel may listen on :: where ::1 cannot be reached.
        for family in families if has_ipv6() else families & {socket.AF_INET}:
            target = "::1" if family == socket.AF_INET6 else "127.0.0.1"
            reader, writer = await asyncio.open_connection(target, port)
            writer.write(HEADER)
            assert (await reader.readexactly(len(OK) + 38)).startswith(OK)
            (peer,) = {connection.peer for connection in server._connections}
            assert peer == format_address(writer.get_extra_info("sockname"))
            writer.close()
            await writer.wait_closed()
            while server.client_count:  # noqa: ASYNC110
                await asyncio.sleep(0)  # turns of the loop, not time


def test_a_name_with_an_address_that_is_not_here(
    streamer: DataStreamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name often stands for ::1 on hosts without IPv6; one working address is enough."""
    elsewhere = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))

    async def scenario(found: list[object]) -> tuple[str, int]:
        async def resolve(*args: object, **kwargs: object) -> list[object]:
            return found

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        async with StreamServer(streamer, "name", 0) as server:
            return server.address

    assert asyncio.run(scenario([elsewhere, here]))[0] == "127.0.0.1"
    with pytest.raises(AddressUnavailable) as caught:
        asyncio.run(scenario([elsewhere]))
    assert str(caught.value) == "name:0: cannot listen: Cannot assign requested address"


def test_format_address() -> None:
    assert format_address(("127.0.0.1", 6900)) == "127.0.0.1:6900"
    assert format_address(("::1", 6900)) == "[::1]:6900"


async def test_the_same_port_again(streamer: DataStreamer) -> None:
    """The server's end closes first, so connections linger in the kernel; the port is free nonetheless."""

    async def scenario(port: int) -> None:
        async with StreamServer(streamer, "127.0.0.1", port):
            with pytest.raises(AddressUnavailable) as caught:
                await StreamServer(streamer, "127.0.0.1", port).start()
            expected = f"127.0.0.1:{port}: cannot listen: Address already in use"
            assert str(caught.value).startswith(expected)

    with ServerThread(streamer) as serving:
        client = serving.connect()
        client.sendall(HEADER)
        read_exactly(client, len(OK) + 38)
    assert read_to_end(client) == b""
    client.close()
    await scenario(serving.port)


def test_closing_with_clients_in_every_state(streamer: DataStreamer, loop: str) -> None:
    with ServerThread(streamer, loop=loop, limits=replace(PATIENT, linger_seconds=600.0)) as serving:
        clients = [serving.connect() for _ in range(4)]
        _, half, blocked, ended = clients
        half.sendall(START_0[:11])
        blocked.sendall(START_0)
        ended.sendall(UNKNOWN)
        until_blocked(serving)
        assert read_exactly(ended, len(INVALID_COMMAND)) == INVALID_COMMAND
        until(serving, lambda: serving.server.client_count == 4)
    assert serving.server.client_count == 0
    for client in clients:
        with contextlib.suppress(ConnectionResetError):
            read_to_end(client)
        client.close()


def test_a_truncation_under_live_clients(tmp_path: Path, loop: str) -> None:
    """Clients with dropped entries are reset; the others get the new entries."""
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, (1, b"kept"))
        with ServerThread(streamer, loop=loop) as serving, serving.connect() as before:
            before.sendall(START_0)
            head = bytes.fromhex("02 00000015 00000001 0000000000000000")
            assert read_exactly(before, len(OK) + 21) == OK + head + b"kept"
            before.sendall(STOP)
            assert read_exactly(before, len(OK)) == OK
            commit(streamer, (1, b"lost"))
            with serving.connect() as after:
                after.sendall(START_0)
                assert read_exactly(after, len(OK) + 42).endswith(b"lost")
                until(serving, lambda: len(_waiting(serving)) == 1)
                streamer.truncate_file(1)
                with pytest.raises(ConnectionResetError):
                    after.recv(1)
            before.sendall(START_0[:23] + b"\1")
            assert read_exactly(before, len(OK)) == OK
            commit(streamer, (1, b"instead"))
            assert read_exactly(before, 24).endswith(b"instead")


def _waiting(serving: ServerThread) -> set[object]:
    context = serving.server._context
    assert context is not None
    return set(context.live.numbers())


@pytest.mark.parametrize("change", ["update", "truncate"])
def test_a_change_under_a_client_in_the_middle_of_an_entry(
    streamer: DataStreamer, loop: str, change: str
) -> None:
    """It never gets half of each entry; a client at another entry continues."""
    with (
        ServerThread(streamer, loop=loop) as serving,
        serving.connect() as other,
        serving.connect() as client,
    ):
        client.sendall(START_0)
        other.sendall(START_0[:23] + b"\x1c")
        until_blocked(serving)
        (position,) = {
            connection._position
            for connection in set(serving.server._connections)
            if connection._writing and connection.peer == format_address(client.getsockname())
        }
        number = (position - 4096) // (1 << 20)  # one entry on each page
        assert number < 28
        assert position > 4096 + (number << 20)
        if change == "update":
            streamer.update_entry_data(number, 1, b"y" * len(BIG))
        else:
            streamer.truncate_file(number)
        received = bytearray()
        with pytest.raises(ConnectionResetError):
            read_into(client, received)
        assert b"y" not in received
        if change == "update":
            assert len(read_exactly(other, len(OK) + 2 * len(BIG_ENTRY))) > 0


def read_into(client: socket.socket, received: bytearray) -> None:
    """Append received bytes until the connection ends."""
    while more := client.recv(1 << 20):
        received += more


def test_a_closing_client_may_send_so_much_and_no_more(streamer: DataStreamer, plain_loop: str) -> None:
    limits = replace(PATIENT, linger_seconds=600.0)
    with ServerThread(streamer, loop=plain_loop, limits=limits) as serving, serving.connect() as client:
        client.sendall(UNKNOWN)
        assert read_to_end(client) == INVALID_COMMAND  # the server sends nothing more
        (connection,) = serving.server._connections
        client.sendall(bytes(LINGER_BYTES_MAX))
        until(serving, lambda: connection._lingered_bytes == LINGER_BYTES_MAX)
        assert serving.server.client_count == 1
        client.sendall(b"x")
        until(serving, lambda: serving.server.client_count == 0)


def test_more_clients_than_are_accepted_or_woken_in_one_slot(streamer: DataStreamer, plain_loop: str) -> None:
    """The defaults are 128 and 512: the rest follows in later slots."""
    limits = replace(PATIENT, accept_batch_count=2, wakes_per_slot=2)
    with ServerThread(streamer, loop=plain_loop, limits=limits) as serving, contextlib.ExitStack() as stack:
        held = threading.Event()
        serving._loop.call_soon_threadsafe(held.wait, 20)
        clients = [stack.enter_context(serving.connect()) for _ in range(5)]
        held.set()
        for client in clients:
            client.sendall(START_0[:23] + b"\x1e")
            assert read_exactly(client, len(OK)) == OK
        commit(streamer, (1, b"last"))
        for client in clients:
            assert read_exactly(client, 17 + 4).endswith(b"last")


def test_more_clients_than_are_swept_in_one_slot(streamer: DataStreamer, loop: str) -> None:
    """The default is 2,048: the rest follows in later slots, and then the next sweep."""
    limits = ServerLimits(
        write_timeout_seconds=0, inactivity_timeout_seconds=1, sweep_interval_seconds=0.1, swept_per_slot=2
    )
    with ServerThread(streamer, loop=loop, limits=limits) as serving, contextlib.ExitStack() as stack:
        for _ in range(2):
            for client in [stack.enter_context(serving.connect()) for _ in range(5)]:
                assert read_to_end(client) == b""


def test_a_server_that_does_not_get_to_accept_has_a_queue_in_the_kernel(
    streamer: DataStreamer, plain_loop: str
) -> None:
    """As long as the limit, or as the kernel allows."""
    allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    with ServerThread(streamer, loop=plain_loop) as serving:
        (listener,) = serving.server._listeners
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert struct.unpack_from("I", info, 28)[0] == min(LISTEN_BACKLOG_COUNT, allowed)


def test_a_truncation_before_a_client_that_has_ended_has_all(streamer: DataStreamer, loop: str) -> None:
    """It waits for all 30 entries and is still before the dropped ones: it gets the others."""
    with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
        client.sendall(START_0)
        client.shutdown(socket.SHUT_WR)
        until_blocked(serving)
        streamer.truncate_file(29)
        received = bytearray()
        read_into(client, received)
        assert len(received) == len(OK) + 29 * len(BIG_ENTRY)
        assert received[-len(BIG_ENTRY) :][17:] == BIG


def test_a_commit_while_the_server_starts_hides_no_truncation(
    tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truncation is to the length that the server saw first."""
    with DataStreamer.open(tmp_path / "s.bin") as streamer:
        commit(streamer, (1, b"kept"))
        really_subscribe = streamer.on_commit

        def subscribe(callback: Callable[[Committed], None]) -> Callable[[], None]:
            commit(streamer, (1, b"lost"))
            return really_subscribe(callback)

        monkeypatch.setattr(streamer, "on_commit", subscribe)
        with ServerThread(streamer, loop=loop) as serving, serving.connect() as client:
            client.sendall(START_0)
            assert read_exactly(client, len(OK) + 42).endswith(b"lost")
            until(serving, lambda: len(_waiting(serving)) == 1)
            streamer.truncate_file(1)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
