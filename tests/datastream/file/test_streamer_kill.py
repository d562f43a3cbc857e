"""A writer process is killed with SIGKILL at random moments; everything it had reported is there afterwards.

It appends (flushed, unflushed, in groups), updates in place and truncates. `SLUICE_LONG=1` kills it hundreds
of times instead of a dozen.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.datastream.check.check import check_stream
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE
from tests.datastream.streams import Item, add, bookmark, commit, entries, operation

LONG = "SLUICE_LONG" in os.environ
KILLS = 300 if LONG else 12
"""With `--slow`; four else."""
KILLS_PER_STREAM = 12
"""A longer stream takes longer to compare."""
WRITER = """
import os, sys
from sluice.datastream.limits import StreamLimits
from sluice.datastream.file.streamer import DataStreamer
from tests.datastream.file.test_streamer_kill import step
limits = StreamLimits(pending_bookmarks_max=7)  # batches behind unflushed commits are on their way, too
streamer = DataStreamer.open(sys.argv[1], initial_pages=1, growth_pages=1, limits=limits)
items = [(entry.type, entry.data) for entry in streamer.read_entries(0)]
number = int(sys.argv[2])
while True:
    step(number, items, streamer)
    number += 1
    os.write(1, number.to_bytes(8, "big"))
"""


def step(number: int, items: list[Item], streamer: DataStreamer | None = None) -> None:
    """Apply step `number` to the stream and to `items`, its expected entries."""
    if number % 11 == 7 and any(kind != BOOKMARK_TYPE and data for kind, data in items):
        place = number * 37 % len(items)
        while items[place][0] == BOOKMARK_TYPE or not items[place][1]:
            place = (place + 1) % len(items)
        kind, data = items[place]
        items[place] = (kind, bytes([number % 256]) * len(data))
        if streamer is not None:
            streamer.update_entry_data(place, *items[place])
    elif number % 13 == 9:
        place = max(0, len(items) - number % 9)
        del items[place:]
        if streamer is not None:
            streamer.truncate_file(place)
    else:
        operations = [operation(number), operation(number + 1000)][: 1 + number % 2]
        for added in operations:
            large = (9, bytes(100_000 if number % 5 == 0 else 0))
            items.extend((*added, large))
            if streamer is not None:
                streamer.start_atomic_op()
                add(streamer, (*added, large))
                streamer.seal_atomic_op()
        if streamer is not None:
            streamer.commit_atomic_op(flush=number % 3 == 0)


def kill_a_writer(path: Path, first_step: int, rng: random.Random) -> int:
    """Start a writer and kill it; return the step after the last reported one."""
    command = [sys.executable, "-c", WRITER, str(path), str(first_step)]
    # Unbuffered: `communicate` would miss buffered bytes.
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
    assert writer.stdout is not None
    wanted, reported = 8 * rng.randrange(1, 60), b""
    while len(reported) < wanted:
        reported += writer.stdout.read(wanted - len(reported))
    writer.kill()
    reported += writer.communicate(timeout=60)[0]
    assert len(reported) % 8 == 0
    return int.from_bytes(reported[-8:], "big")


@pytest.mark.timeout(1800)
def test_sigkill(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rng = random.Random("kill")
    items: list[Item] = []
    done = 0
    for kill in range(KILLS if LONG or request.config.getoption("slow") else 4):
        if kill % KILLS_PER_STREAM == 0:
            path, items, done = tmp_path / f"s{kill}.bin", [], 0
        reported = kill_a_writer(path, done, rng)
        for number in range(done, reported):
            step(number, items)
        following = list(items)
        step(reported, following)
        with DataStreamer.open(path) as streamer:
            found = list(streamer.read_entries(0))
            assert found in (entries(*items), entries(*following)), f"after step {reported}"
            done = reported
            if found != entries(*items):
                items, done = following, reported + 1
            newest = {data: at for at, (kind, data) in enumerate(items) if kind == BOOKMARK_TYPE}
            for name in rng.sample(sorted(newest), min(20, len(newest))):
                assert streamer.get_bookmark(name) == newest[name]
        assert check_stream(path).findings == []


def test_a_commit_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    kill_a_writer(path, 0, random.Random(1))
    with DataStreamer.open(path) as streamer:
        number = streamer.committed.total_entries
        assert commit(streamer, bookmark(99_999), (1, b"after"), flush=True) == [number, number + 1]
        assert streamer.get_bookmark(bookmark(99_999)[1]) == number
