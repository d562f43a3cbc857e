"""Entry and Bookmark queries over a whole file, cold and warm, and the time to open a large one.

    python -m benchmarks.queries [--quick]

The stream holds operations of one bookmark and nine entries of 68 bytes. *Cold* is the first query to a page
after opening, *warm* a later one; one query to each page, in random order. The page cache holds the file. The
Bookmark query returns the first event after the bookmark, as the TCP command does.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import Rows, print_rows, seconds_of
from sluice.datastream import DataStreamer
from sluice.datastream.layout import PAGE_SIZE

__all__ = ["run"]

_DATA = bytes(68 - 17)
_OPERATIONS_PER_COMMIT = 2_000
_MIB = 1 << 20


def _bookmark(number: int) -> bytes:
    return b"\0" + number.to_bytes(8, "big")


def _make(path: Path, size: int) -> int:
    """Write a stream of about `size` bytes; return its number of operations."""
    number = 0
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < size:
            streamer.start_atomic_op()
            for _ in range(_OPERATIONS_PER_COMMIT):
                streamer.add_stream_bookmark(_bookmark(number))
                for _ in range(9):
                    streamer.add_stream_entry(1, _DATA)
                number += 1
            streamer.commit_atomic_op(flush=False)
    return number


def _make_large(path: Path, size: int) -> None:
    """Write a stream of about `size` bytes quickly: one entry fills each page."""
    with DataStreamer.open(path, initial_pages=size // PAGE_SIZE) as streamer:
        streamer.start_atomic_op()
        for number in range(size // PAGE_SIZE):
            streamer.add_stream_entry(1, bytes(PAGE_SIZE - 17))
            if number % 64 == 63:
                streamer.commit_atomic_op(flush=False)
                streamer.start_atomic_op()
        streamer.commit_atomic_op(flush=False)


def _milliseconds(call: Callable[[], object]) -> float:
    return seconds_of(call) * 1000


def _medians(path: Path, operations: int, kind: str) -> tuple[float, float]:
    """Return the median milliseconds of the first query to each page, and of the second."""
    rng = random.Random(1)
    with DataStreamer.open(path) as streamer:
        per_page = max(1, operations * PAGE_SIZE // streamer.committed.total_length)
        pages = list(range(operations // per_page))
        times: tuple[list[float], list[float]] = ([], [])
        for found in times:
            rng.shuffle(pages)
            for page in pages:
                number = page * per_page + rng.randrange(per_page)
                if kind == "Entry":
                    found.append(_milliseconds(lambda: streamer.get_entry(10 * number + 5)))  # noqa: B023
                else:
                    name = _bookmark(number)
                    found.append(
                        _milliseconds(lambda: streamer.get_first_event_after_bookmark(name))  # noqa: B023
                    )
    return statistics.median(times[0]), statistics.median(times[1])


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows.

    Args:
        quick: a file of 32 MiB instead of 256 MiB, and no file of 2 GiB.
    """
    rows = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "queries.bin"
        size = (32 if quick else 256) * _MIB
        operations = _make(path, size)
        rows.append(("queries, data", f"{size / _MIB:.0f} MiB, 68-byte entries, medians over all pages"))
        for kind in ("Entry", "Bookmark"):
            cold, warm = _medians(path, operations, kind)
            text = f"cold {cold:.3f} ms, warm {warm:.3f} ms"
            rows.append((f"queries, {kind}", text))
        path.unlink()
    if not quick:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "large.bin"
            _make_large(path, 2048 * _MIB)
            seconds = min(seconds_of(lambda: DataStreamer.open(path).close()) for _ in range(3))
            rows.append(("opening 2 GiB, clean", f"{seconds:.3f} s"))
    return rows


if __name__ == "__main__":
    print_rows(run)
