"""Small atomic operations: ours against a bare loop of the writes that they need, in the same run.

    python -m benchmarks.append [--quick]

An operation has two bookmarks of 9 bytes and three entries of 20 bytes, as in the measurement of the Go
reference. For each operation the bare loop makes one `pwrite` of the same bytes and one of the header. *Not
flushed* commits each operation; *group of 64* seals 64 and commits them under one pair of flushes, as the
bare loop then does too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.measuring import Rows, print_rows, seconds_of
from sluice.datastream import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE, HEADER_SIZE

__all__ = ["run"]

_EVENT = b"x" * 20
_OPERATION_SIZE = 2 * (17 + 9) + 3 * (17 + len(_EVENT))
_GROUP = 64
_REPEATS = 15
"""Runs, alternating with the bare loop; each is long enough for several batches of bookmarks to the DB."""


def _bare(folder: Path, count: int, group: int | None) -> float:
    """Return the seconds of the writes alone; `group` operations share one write and two flushes."""
    path = folder / "bare.bin"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, HEADER_PAGE_SIZE + (count + 1) * _OPERATION_SIZE)
    data, header = bytes(_OPERATION_SIZE * (group or 1)), bytes(HEADER_SIZE)

    def write() -> None:
        offset = HEADER_PAGE_SIZE
        for _ in range(count // (group or 1)):
            os.pwrite(fd, data, offset)
            if group:
                os.fdatasync(fd)
            os.pwrite(fd, header, 16)
            if group:
                os.fdatasync(fd)
            offset += len(data)

    try:
        return seconds_of(write)
    finally:
        os.close(fd)
        path.unlink()


def _ours(folder: Path, count: int, group: int | None) -> float:
    path = folder / "ours.bin"
    with DataStreamer.open(path, initial_pages=1 + (count + 1) * _OPERATION_SIZE // (1 << 20)) as streamer:
        start, bookmark, entry = (
            streamer.start_atomic_op,
            streamer.add_stream_bookmark,
            streamer.add_stream_entry,
        )
        commit, seal = streamer.commit_atomic_op, streamer.seal_atomic_op
        names = [number.to_bytes(8, "big") for number in range(count)]
        bookmarks = [(b"\0" + name, b"\1" + name) for name in names]

        def append() -> None:
            for number, (first, second) in enumerate(bookmarks, 1):
                start()
                bookmark(first)
                bookmark(second)
                entry(1, _EVENT)
                entry(2, _EVENT)
                entry(3, _EVENT)
                if group is None:
                    commit(flush=False)
                elif number % group:
                    seal()
                else:
                    commit()

        seconds = seconds_of(append)
        assert streamer.committed.total_entries == 5 * count
    shutil.rmtree(path.with_name("ours.db"))
    path.unlink()
    return seconds


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows.

    Args:
        quick: a tenth of the operations.
    """
    rows = [("append, an operation", f"{_OPERATION_SIZE} bytes: 2 bookmarks, 3 entries; best of {_REPEATS}")]
    for label, group, count in (("not flushed", None, 64_000), (f"group of {_GROUP}", _GROUP, 19_200)):
        count //= 10 if quick else 1
        bare, ours = [], []
        with tempfile.TemporaryDirectory() as name:
            for _ in range(_REPEATS):  # alternating: a busy machine slows both
                bare.append(_bare(Path(name), count, group))
                ours.append(_ours(Path(name), count, group))
        rates = count / min(bare), count / min(ours)
        rows.append((f"append, {label}, bare", f"{rates[0]:,.0f} operations/s"))
        rows.append(
            (f"append, {label}", f"{rates[1]:,.0f} operations/s, ratio {rates[1] / rates[0]:.2f} of bare")
        )
    return rows


if __name__ == "__main__":
    print_rows(run)
