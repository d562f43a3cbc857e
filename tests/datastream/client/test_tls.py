"""Clients, followers and the relay against a server with TLS, and against one without."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.datastream import (
    BlockingStreamClient,
    BlockingStreamFollower,
    DataStreamer,
    Entry,
    FollowLimits,
    Relay,
    StreamClient,
    StreamFollower,
    iter_entries,
)
from sluice.datastream.errors import ConnectionEnded
from tests.datastream.serving import ServerThread, contexts
from tests.datastream.streams import commit, entries, operation

ITEMS = [item for number in range(200) for item in operation(number)]
ENTRIES = entries(*ITEMS)
QUICK = FollowLimits(backoff_first_seconds=0.01, backoff_max_seconds=0.05, answer_timeout_seconds=5)


def client_tls() -> ssl.SSLContext:
    return contexts()[1]


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, *ITEMS)
        yield streamer


@pytest.fixture
def serving(streamer: DataStreamer) -> Iterator[ServerThread]:
    with ServerThread(streamer, loop="uvloop, TLS") as serving:
        yield serving


def test_the_blocking_client(streamer: DataStreamer, serving: ServerThread) -> None:
    with BlockingStreamClient(serving.host, serving.port, timeout_seconds=20, tls=client_tls) as client:
        assert client.header() == streamer.header
        assert client.entry(7) == ENTRIES[7]
        client.start(3)
        received: list[Entry] = []
        while len(received) < len(ENTRIES) - 3:
            received += client.receive()
        assert received == ENTRIES[3:]
        commit(streamer, (1, b"live"))
        assert [entry.data for entry in client.receive()] == [b"live"]
        client.stop()
        client.set_timeout(0.05)
        client.start(len(ENTRIES) + 1)
        with pytest.raises(TimeoutError):
            client.receive()


def test_a_blocking_client_ended_by_another_thread(serving: ServerThread) -> None:
    """What it had received stays whole: it does not go on without TLS."""
    with BlockingStreamClient(serving.host, serving.port, tls=client_tls) as client:
        client.start(len(ENTRIES))
        timer = threading.Timer(0.2, client.shut_down)
        timer.start()
        with pytest.raises(ConnectionEnded):
            client.receive()
        timer.join()


async def test_the_asyncio_client(streamer: DataStreamer, serving: ServerThread) -> None:
    async with StreamClient.connect(serving.host, serving.port, tls=client_tls) as client:
        assert await client.header() == streamer.header
        await client.start(0)
        received: list[Entry] = []
        while len(received) < len(ENTRIES):
            received += await client.receive()
        assert received == ENTRIES


async def test_an_asyncio_client_leaves_a_server_that_hangs_at_once() -> None:
    """It does not wait for the server's alert."""

    def hang() -> None:
        sock, _ = listener.accept()
        with contexts()[0].wrap_socket(sock, server_side=True):
            left.wait(20)

    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang)
        thread.start()
        client = await StreamClient.connect(*listener.getsockname(), tls=client_tls)
        begin = time.monotonic()
        await client.close()
        assert time.monotonic() - begin < 5
        left.set()
        thread.join()


def test_the_name_in_the_certificate(serving: ServerThread) -> None:
    with BlockingStreamClient(
        serving.host, serving.port, tls=client_tls, tls_server_name="localhost"
    ) as client:
        client.header()
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        BlockingStreamClient(serving.host, serving.port, tls=client_tls, tls_server_name="another.net")


async def test_a_certificate_of_an_unknown_authority(serving: ServerThread) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        await StreamClient.connect(serving.host, serving.port, tls=ssl.create_default_context)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        BlockingStreamClient(serving.host, serving.port, tls=ssl.create_default_context)


async def test_one_side_without_tls(streamer: DataStreamer, serving: ServerThread) -> None:
    async with StreamClient.connect(serving.host, serving.port) as client:
        with pytest.raises((ConnectionEnded, ConnectionResetError)):
            await client.header()
    with ServerThread(streamer) as bare, pytest.raises((ssl.SSLError, ConnectionError)):
        await StreamClient.connect(bare.host, bare.port, tls=client_tls)


def test_files_that_cannot_be_read_leave_no_socket(serving: ServerThread) -> None:
    def broken() -> ssl.SSLContext:
        raise FileNotFoundError("ca.pem")

    with pytest.raises(FileNotFoundError):
        BlockingStreamClient(serving.host, serving.port, tls=broken)
    serving.in_loop()
    assert serving.server.client_count == 0


def test_iter_entries_and_the_blocking_follower(serving: ServerThread) -> None:
    found = iter_entries(serving.host, serving.port, tls=client_tls)
    assert [next(found) for _ in ENTRIES] == ENTRIES
    nobody = ("127.0.0.1", 1)
    with BlockingStreamFollower(
        [nobody, (serving.host, serving.port)], limits=QUICK, tls=client_tls
    ) as follower:
        received: list[Entry] = []

        def on_entry(entry: Entry) -> None:
            received.append(entry)
            if len(received) == len(ENTRIES):
                timer.start()

        timer = threading.Timer(0.1, follower.stop)  # while it waits for live entries
        follower.run(on_entry)
    assert received == ENTRIES


async def test_a_follower_whose_server_comes_back_with_tls(streamer: DataStreamer) -> None:
    """A server without it counts as one that fails."""
    with ServerThread(streamer) as bare, ServerThread(streamer, loop="uvloop, TLS") as serving:
        servers = [(bare.host, bare.port), (serving.host, serving.port)]
        async with StreamFollower(servers, limits=QUICK, tls=client_tls) as follower:
            assert [await anext(follower) for _ in ENTRIES] == ENTRIES
            assert follower.address == servers[1]


async def test_a_relay_between_tls_and_tls(
    streamer: DataStreamer, serving: ServerThread, tmp_path: Path
) -> None:
    relay = Relay(
        [(serving.host, serving.port)],
        tmp_path / "relay.bin",
        port=0,
        follow_limits=QUICK,
        tls=lambda: contexts()[0],
        master_tls=client_tls,
        master_tls_server_name="localhost",
    )
    running = asyncio.ensure_future(relay.run())
    await asyncio.wait_for(relay.started.wait(), 20)
    async with StreamFollower([relay.address], limits=QUICK, tls=client_tls) as follower:
        assert [await anext(follower) for _ in ENTRIES] == ENTRIES
        commit(streamer, (1, b"live"))
        assert (await anext(follower)).data == b"live"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
