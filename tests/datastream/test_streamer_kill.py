"""A writer process is killed with SIGKILL while it commits; what it had reported is there afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from datastream.streamer import DataStreamer
from tests.datastream.streams import bookmark, commit, entries, operation

WRITER = """
import os, sys
from datastream.streamer import DataStreamer
from tests.datastream.streams import commit, operation
streamer = DataStreamer.open(sys.argv[1], initial_pages=1, growth_pages=1)
number = streamer.committed.total_entries // 5
while True:
    commit(streamer, *operation(number), flush=number % 3 == 0)
    number += 1
    os.write(1, number.to_bytes(8, "big"))
"""


@pytest.mark.parametrize("seed", range(4))
def test_sigkill(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "s.bin"
    rng = random.Random(seed)
    count = 0
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.read(8 * rng.randrange(1, 400))
        writer.kill()
        rest, _ = writer.communicate(timeout=30)
        with DataStreamer.open(path) as streamer:
            committed = list(streamer.read_entries(0))
            assert len(committed) % 5 == 0
            reported = int.from_bytes(rest[-8:], "big") if len(rest) >= 8 else 0
            assert len(committed) // 5 in (reported, reported + 1) or not rest
            assert len(committed) // 5 > count
            count = len(committed) // 5
            assert committed == entries(*(item for number in range(count) for item in operation(number)))
            for number in (0, count // 2, count - 1):
                assert streamer.get_bookmark(bookmark(number)[1]) == 5 * number


def test_a_commit_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.read(8)
    writer.kill()
    writer.communicate(timeout=30)
    with DataStreamer.open(path) as streamer:
        number = streamer.committed.total_entries
        assert commit(streamer, (1, b"after"), flush=True) == [number]
