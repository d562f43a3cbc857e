"""Joining a growing stream at every moment: no gap, no repetition, no half-written byte.

SLUICE_LONG=1 makes the tests longer.
"""

from __future__ import annotations

import os
import random
import struct
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry, encode_entry
from sluice.datastream.protocol.commands import Command, encode_command
from sluice.datastream.protocol.packets import PacketReader
from tests.datastream.serving import ServerThread, read_exactly
from tests.datastream.streams import commit, operation

LONG = bool(os.environ.get("SLUICE_LONG"))
OK = bytes.fromhex("ff 0000000b 00000000 4f4b")
STOP = bytes.fromhex("0000000000000002 0000000000000001")


@pytest.fixture(params=["asyncio", "uvloop", "uvloop, TLS"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Written:
    """The committed stream as a client should see it: entries without padding."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.starts = [0]
        """Where each entry begins in `data`, and where the next one will."""

    def commit(self, streamer: DataStreamer, number: int) -> None:
        """Commit an operation of five entries."""
        items = operation(number)
        commit(streamer, *items)
        for kind, data in items:
            self.data += encode_entry(Entry(kind, len(self.starts) - 1, data))
            self.starts.append(len(self.data))


@dataclass
class Joined:
    """A client that has sent Start and read nothing yet."""

    serving: ServerThread
    first: int

    def __post_init__(self) -> None:
        """Connect, and send the command in the pieces that known clients send."""
        self.sock = self.serving.connect()
        for piece in struct.unpack("8s8s8s", encode_command(Command.START, 1, self.first)):
            self.sock.sendall(piece)

    def check(self, written: Written) -> None:
        """Read the committed entries, then stop; each byte from the first entry on comes once."""
        with self.sock:
            begin = written.starts[self.first]
            assert read_exactly(self.sock, len(OK)) == OK
            expected = written.data[begin:]
            assert read_exactly(self.sock, len(expected)) == expected
            self.sock.sendall(STOP)
            assert read_exactly(self.sock, len(OK)) == OK


@pytest.mark.parametrize("behind", [0, 400])
def test_joining_at_every_commit(
    tmp_path: Path, loop: str, behind: int, request: pytest.FixtureRequest
) -> None:
    """A client joins between any two commits: at the end, or up to 400 entries before it.

    The next commit follows after a random time, from nothing to longer than the answer takes, so that it
    meets the server anywhere between accept and waiting.
    """
    rng = random.Random(behind)
    joined: deque[Joined] = deque()
    written = Written()
    with (
        DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer,
        ServerThread(streamer, loop=loop) as serving,
    ):
        for number in range(10_000 if LONG else 1_000 if request.config.getoption("slow") else 300):
            entry_count = len(written.starts) - 1
            joined.append(Joined(serving, max(0, entry_count - rng.randrange(behind + 1))))
            for _ in range(rng.choice((0, 0, 100, 1_000, 3_000))):
                pass  # the random length is the point
            written.commit(streamer, number)
            if len(joined) > 20:
                joined.popleft().check(written)
        while joined:
            joined.popleft().check(written)


def entry_size(number: int) -> int:
    """Return the size of an entry of the fast writer: all kinds of page ends result."""
    return random.Random(number).choice([0, 1, 17, 1_000, 60_000, 200_000, 400_000, 1_048_559])


def entry_data(number: int) -> bytes:
    return bytes([1 + number % 255]) * entry_size(number)


def test_no_reader_sees_a_half_written_byte(tmp_path: Path, loop: str) -> None:
    """A writer crosses page ends at full speed; several readers check every byte."""
    total = 2_000 if LONG else 200
    failures: list[BaseException] = []

    def read(first: int) -> None:
        try:
            reader = PacketReader()
            number = first
            with serving.connect() as client:
                client.sendall(encode_command(Command.START, 1, first))
                assert read_exactly(client, len(OK)) == OK
                while number < total:
                    for packet in reader.feed(client.recv(1 << 20)):
                        assert packet == Entry(7, number, entry_data(number))
                        number += 1
        except BaseException as error:
            failures.append(error)
            raise

    with (
        DataStreamer.open(tmp_path / "s.bin", initial_pages=1, growth_pages=1) as streamer,
        ServerThread(streamer, loop=loop) as serving,
    ):
        readers = [threading.Thread(target=read, args=(0,)) for _ in range(3)]
        for thread in readers:
            thread.start()
        number = 0
        while number < total:
            if number == total // 2:  # one more joins in the middle
                readers.append(threading.Thread(target=read, args=(number,)))
                readers[-1].start()
            count = 1 + number % 4  # operations of one to four entries, some across page ends
            commit(streamer, *[(7, entry_data(each)) for each in range(number, min(number + count, total))])
            number = min(number + count, total)
        for thread in readers:
            thread.join(120)
    assert not failures
