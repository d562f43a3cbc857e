"""Relays as processes: killed at any moment, behind a master that comes and goes, one behind the other."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from sluice.datastream.client.blocking_follower import BlockingStreamFollower
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE
from sluice.datastream.limits import FollowLimits
from tests.datastream.serving import ServerThread
from tests.datastream.streams import commit, operation, sample_file
from tests.reference_data import needs_stream
from tests.serving import free_port

QUICK = FollowLimits(backoff_first_seconds=0.02, backoff_max_seconds=0.1)
RELAY = """
import asyncio, sys
from sluice.datastream.limits import FollowLimits
from sluice.datastream.server.relay import Relay
path, port, *masters = sys.argv[1:]
async def main():
    limits = FollowLimits(backoff_first_seconds=0.02, backoff_max_seconds=0.1)
    relay = Relay([("127.0.0.1", int(at)) for at in masters], path, port=int(port), follow_limits=limits)
    running = asyncio.ensure_future(relay.run())
    await relay.started.wait()
    print("up", flush=True)
    await running
asyncio.run(main())
"""


class RelayProcess:
    """A relay in a process of its own, on a port that stays the same."""

    def __init__(self, path: Path, *masters: int) -> None:
        self.path = path
        self.port = free_port()
        self._masters = masters
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = [str(self.path), str(self.port), *map(str, self._masters)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", RELAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def wait_until_up(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == b"up\n", self._process.communicate(timeout=10)[1].decode()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=10)
            self._process = None


@contextmanager
def relays(*made: RelayProcess) -> Iterator[None]:
    try:
        for relay in made:
            relay.start()
            relay.wait_until_up()
        yield
    finally:
        for relay in made:
            relay.kill()


def pages(path: Path, total_length: int) -> bytes:
    with path.open("rb") as file:
        return file.read(total_length)[HEADER_PAGE_SIZE:]


@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_at_any_moment(tmp_path: Path, kills: int) -> None:
    """A master that keeps writing and restarts, a relay that is killed again and again, a relay behind it."""
    rng = random.Random(5)
    stop = threading.Event()
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:

        def write() -> None:
            number = 0
            while not stop.wait(0.0005):
                commit(streamer, *operation(number), (1, rng.randbytes(rng.randrange(9_000))))
                number += 1

        writer = threading.Thread(target=write)
        serving = ServerThread(streamer)
        serving.__enter__()
        relay = RelayProcess(tmp_path / "r1.bin", serving.port)
        behind = RelayProcess(tmp_path / "r2.bin", relay.port)
        with relays(relay, behind):
            follower = BlockingStreamFollower([("127.0.0.1", behind.port)], limits=QUICK)
            writer.start()
            for kill in range(kills):
                list(islice(follower, rng.randrange(200)))
                relay.kill()
                relay.start()
                if kill % 3 == 0:
                    behind.kill()
                    behind.start()
                if kill % 3 != 1:  # else it is killed while it starts
                    relay.wait_until_up()
            stop.set()
            writer.join(10)
            committed = streamer.committed
            number = follower.number_next or 0
            rest = list(islice(follower, committed.total_entries - number))
            assert rest == list(streamer.read_entries(number))
            follower.close()
        serving.__exit__(None, None, None)
        expected = pages(streamer.path, committed.total_length)
    for path in (relay.path, behind.path):
        assert pages(path, committed.total_length) == expected
        with DataStreamer.open(path) as copy:
            assert copy.committed == committed
            bookmark = operation(3)[0][1]
            assert copy.get_bookmark(bookmark) == 18


@needs_stream
def test_the_sample_through_two_relays(tmp_path: Path) -> None:
    sample = sample_file(tmp_path)
    with DataStreamer.open(sample) as streamer, ServerThread(streamer) as serving:
        relay = RelayProcess(tmp_path / "r1.bin", serving.port)
        behind = RelayProcess(tmp_path / "r2.bin", relay.port)
        committed, header = streamer.committed, streamer.header
        with relays(relay, behind):
            with BlockingStreamFollower([("127.0.0.1", behind.port)], limits=QUICK) as follower:
                entries = list(islice(follower, committed.total_entries))
            assert entries == list(streamer.read_entries(0))
    for path in (relay.path, behind.path):
        with DataStreamer.open(path) as copy:
            assert copy.header == header
        # Its padding is not zeros: what the Go server left there. Entries and their places are the same.
        ours, theirs = pages(path, committed.total_length), pages(sample, committed.total_length)
        assert len(ours) == len(theirs)


def test_another_master_takes_over(tmp_path: Path) -> None:
    with (
        DataStreamer.open(tmp_path / "a.bin", initial_pages=1) as first,
        DataStreamer.open(tmp_path / "b.bin", initial_pages=1) as second,
    ):
        for streamer in (first, second):
            for number in range(30):
                commit(streamer, *operation(number))
        serving = ServerThread(first)
        serving.__enter__()
        with ServerThread(second) as other:
            relay = RelayProcess(tmp_path / "r.bin", serving.port, other.port)
            with relays(relay), BlockingStreamFollower([("127.0.0.1", relay.port)]) as follower:
                assert len(list(islice(follower, 150))) == 150
                serving.__exit__(None, None, None)
                commit(second, *operation(30))
                assert list(islice(follower, 5)) == list(second.read_entries(150))
