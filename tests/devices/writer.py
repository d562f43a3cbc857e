"""A process that appends operations to a stream and reports the acknowledged ones; it may be killed.

    python -m tests.devices.writer PATH SEED

It prints a line for each event: `found N` operations in the opened stream, `ack N` for operations on disk,
`refused WHY`, `well`. It ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import sys
import time
from pathlib import Path

from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.streamer import DataStreamer
from tests.datastream.streams import Item, add, bookmark

PROBE_SECONDS = 0.02
PAUSE_SECONDS = 0.002


def operation(number: int) -> tuple[Item, ...]:
    """Return the items of an operation: always the same, mostly small."""
    rng = random.Random(number)
    size = rng.choice([20, 500, 3_000, 6_000, 40_000, 200_000, 700_000])
    return bookmark(number), (1, rng.randbytes(size)), (2, b"end %d" % number)


ITEMS_PER_OPERATION = 3


def say(words: str) -> None:
    """Print a line."""
    os.write(1, f"{words}\n".encode())


class Writer:
    """Appends operations one after the other."""

    def __init__(self, streamer: DataStreamer, rng: random.Random) -> None:
        self._streamer, self._rng = streamer, rng
        self._begun: int | None = None

    @property
    def next_number(self) -> int:
        """The number of the next operation."""
        return self._streamer.committed.total_entries // ITEMS_PER_OPERATION

    def step(self) -> None:
        """Commit an operation, or half of one.

        Raises:
            CommitFailed: the disk refuses.
        """
        streamer = self._streamer
        number = self.next_number + (self._begun is not None)
        streamer.start_atomic_op()
        add(streamer, operation(number))
        if self._begun is None and self._rng.random() < 0.5:
            streamer.commit_atomic_op()
            say(f"ack {number + 1}")
            return
        before, self._begun = self._begun, None
        streamer.begin_commit()
        if before is not None:
            say(f"ack {before + 1}")
        self._begun = number
        if self._rng.random() < 0.3:
            self._begun = None
            streamer.finish_commit()
            say(f"ack {number + 1}")

    def await_disk(self) -> None:
        """Retry until the disk accepts writes, as a node does."""
        self._begun = None
        self._streamer.rollback_commit()
        while not ended():
            try:
                self._streamer.recover()
            except CommitFailed as error:
                say(f"still {error}")
                time.sleep(PROBE_SECONDS)
            else:
                say("well")
                return


def ended() -> bool:
    """Whether the input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main(path: Path, seed: int) -> None:
    with DataStreamer.open(path, initial_pages=4, growth_pages=2) as streamer:
        writer = Writer(streamer, random.Random(seed))
        say(f"found {writer.next_number}")
        while not ended():
            try:
                writer.step()
            except CommitFailed as error:
                say(f"refused {error}")
                writer.await_disk()
            time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(CommitFailed):
            streamer.finish_commit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
