"""Helpers of several benchmarks: time a call, run a server process, write a stream, print rows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.datastream import DataStreamer
from sluice.datastream.layout import ENTRY_HEAD_SIZE

__all__ = ["Rows", "print_rows", "running", "seconds_of", "write_small_entries"]

Rows = list[tuple[str, str]]
"""The figures of a benchmark: a label and a text each."""

_ENTRY_DATA = bytes(68 - ENTRY_HEAD_SIZE)
_ENTRIES_PER_COMMIT = 10_000


def print_rows(run: Callable[[bool], Rows]) -> None:
    """Run one benchmark alone, as `python -m benchmarks.NAME [--quick]`."""
    for label, text in run("--quick" in sys.argv):
        print(f"{label}: {text}")


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a module as a server that ends with its standard input; yield the process and its first line."""
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{' '.join(words)}: ended with status {process.wait()}")
        try:
            yield process, line
        finally:
            process.stdin.close()


def write_small_entries(path: Path, size_bytes: int) -> int:
    """Write a stream of about `size_bytes`, in entries of 68 bytes; return the bytes of its entries."""
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < size_bytes:
            streamer.start_atomic_op()
            for _ in range(_ENTRIES_PER_COMMIT):
                streamer.add_stream_entry(1, _ENTRY_DATA)
            streamer.commit_atomic_op(flush=False)
        return streamer.committed.total_entries * (ENTRY_HEAD_SIZE + len(_ENTRY_DATA))
