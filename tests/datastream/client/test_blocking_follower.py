"""`BlockingStreamFollower` against real servers; `protocol/test_follow_core.py` has the decisions."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from sluice.datastream.client.blocking_follower import BlockingStreamFollower
from sluice.datastream.errors import CommandRefused, ServerSpokeWrongly, StreamContradicts
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry, StreamHeader
from sluice.datastream.limits import FollowLimits
from tests.datastream.masters import Pauses, ScriptedServer
from tests.datastream.serving import ServerThread
from tests.datastream.streams import commit, entries, operation

ITEMS = [item for number in range(8) for item in operation(number)]
ENTRIES = entries(*ITEMS)


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, *ITEMS)
        yield streamer


def test_it_goes_on_with_another_server(streamer: DataStreamer) -> None:
    pauses = Pauses()
    with ServerThread(streamer) as there, ScriptedServer(ENTRIES[:10]).running() as first:
        servers = [first.address, (there.host, there.port)]
        with BlockingStreamFollower(servers, sleep=pauses.pause) as follower:
            assert list(islice(follower, 25)) == ENTRIES[:25]
            assert follower.number_next == 25
            assert list(islice(follower, 15)) == ENTRIES[25:]
            commit(streamer, (1, b"live"))
            assert next(follower) == Entry(1, 40, b"live")
            assert follower.address == (there.host, there.port)
            assert follower.header is not None
            assert follower.header.total_entries == 40
        assert list(follower) == []
    assert pauses.seconds == []


def test_gaps_and_repetitions_are_never_handed_over() -> None:
    script = ([*ENTRIES[:5], *ENTRIES[6:9]], [*ENTRIES[5:9], *ENTRIES[7:30]], b"")
    pauses = Pauses()
    with (
        ScriptedServer(ENTRIES, *script).running() as server,
        BlockingStreamFollower([server.address], sleep=pauses.pause, rng=lambda: 0) as follower,
    ):
        assert list(islice(follower, 40)) == ENTRIES
    assert server.starts == [0, 5, 9, 9]
    assert pauses.seconds == [1, 1, 2]


def test_another_stream_is_refused() -> None:
    with ScriptedServer(ENTRIES, ENTRIES[:5]).running() as server:
        follower = BlockingStreamFollower([server.address], sleep=Pauses().pause)
        assert list(islice(follower, 5)) == ENTRIES[:5]
        server.header = StreamHeader(1, 7, 1, 4096, 40)
        with pytest.raises(StreamContradicts, match=r"another stream: system id: got 7, expected 137$"):
            next(follower)
        server.header = StreamHeader(1, 137, 1, 4096, 40)
        server.entries = [Entry(9, entry.number, b"") for entry in ENTRIES]
        with pytest.raises(
            StreamContradicts, match="server: another stream: entry 0: got number 0, type 0x9"
        ):
            next(follower)
        assert follower.number_next == 5
        server.entries = ENTRIES[:3]
        with pytest.raises(StreamContradicts, match="entry 3: got none, expected number 3"):
            next(follower)
        follower.close()


def test_a_server_of_something_else() -> None:
    with ScriptedServer(ENTRIES, b"HTTP/1.1 400 Bad Request").running() as server:
        server.header = None  # type: ignore[assignment]
        follower = BlockingStreamFollower([server.address], from_bookmark=b"x" * 8, sleep=Pauses().pause)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "tests.datastream.masters.encode_header", lambda header: b"HTTP/1.1 400 Bad Request"
            )
            with pytest.raises(ServerSpokeWrongly, match="server: packet type: got 0x48"):
                next(follower)
        follower.close()


def test_a_bookmark_that_is_not_there(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as serving:
        address = (serving.host, serving.port)
        with (
            BlockingStreamFollower([address], from_bookmark=b"no") as follower,
            pytest.raises(CommandRefused, match="server: StartBookmark: error 4 Bad from bookmark"),
        ):
            next(follower)
        with BlockingStreamFollower([address], from_bookmark=ITEMS[6][1]) as follower:
            assert next(follower) == ENTRIES[6]


def test_stop_ends_a_wait_for_entries_and_a_pause(streamer: DataStreamer) -> None:
    seen: list[Entry] = []
    with ServerThread(streamer) as serving:
        follower = BlockingStreamFollower([(serving.host, serving.port)])
        level = threading.Event()

        def on_entry(entry: Entry) -> None:
            seen.append(entry)
            if entry == ENTRIES[-1]:
                level.set()

        thread = threading.Thread(target=follower.run, args=(on_entry,))
        thread.start()
        assert level.wait(20)
        follower.stop()
        thread.join(20)
        assert not thread.is_alive()
        assert seen == ENTRIES
        follower.close()
        address = (serving.host, serving.port)
    pausing = BlockingStreamFollower([address])  # nobody listens there
    thread = threading.Thread(target=list, args=(pausing,))
    thread.start()
    pausing.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_a_server_that_answers_a_byte_at_a_time_is_left() -> None:
    """The timeout is for the whole answer, not for each piece."""
    dripped = []
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(ConnectionError):
            for byte in bytes.fromhex("ff 00000409 00000000") + bytes(1_024):
                client.sendall(bytes([byte]))
                dripped.append(byte)
                time.sleep(0.01)  # no event: the server itself does this

    thread = threading.Thread(target=drip)
    thread.start()
    limits = FollowLimits(answer_timeout_seconds=0.2)
    with ScriptedServer(ENTRIES).running() as server:
        servers = [listener.getsockname(), server.address]
        with BlockingStreamFollower(servers, limits=limits) as follower:
            assert list(islice(follower, 40)) == ENTRIES
            assert follower.address == server.address
    thread.join(30)
    listener.close()
    assert 0 < len(dripped) < 1_033
