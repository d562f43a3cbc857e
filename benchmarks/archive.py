"""Archived history: the TCP server reading through, against local history and a bare loop of GETs.

    python -m benchmarks.archive [--quick]

The archive is a folder, so the figures are ours and not a store's. The stream has entries of 517 bytes, half
of them random, and the cache is shorter than the stream: each pass reads all of it again. The bare loop reads
the same objects in the same ranges, and drops them.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Rows, print_rows, running
from benchmarks.tcp_processes import receive
from sluice.datastream import DataStreamer
from sluice.datastream.layout import ENTRY_HEAD_SIZE
from sluice.gateway.archive.archive import ArchiveOptions, Archives
from sluice.gateway.archive.objects import StoreOptions, open_store
from sluice.gateway.archive.reader import READ_AHEAD_PAGES
from sluice.gateway.archive.segment import segment_name
from sluice.gateway.archive.segment_check import read_segment_index, segment_names

__all__ = ["run"]

_MIB = 1 << 20
_START = struct.pack(">QQQ", 1, 1, 0)
_OK_SIZE = 11
_DATA_BYTES = 500
_ENTRIES_PER_COMMIT = 1_000
_CLIENTS = 16
_ROUNDS = 3


def _write(path: Path, size_bytes: int) -> int:
    """Write a stream of about `size_bytes`; return the bytes of its entries."""
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < size_bytes:
            streamer.start_atomic_op()
            for _ in range(_ENTRIES_PER_COMMIT):
                streamer.add_stream_entry(1, os.urandom(_DATA_BYTES // 2) + bytes(_DATA_BYTES // 2))
            streamer.commit_atomic_op(flush=False)
        return streamer.committed.total_entries * (ENTRY_HEAD_SIZE + _DATA_BYTES)


def _archive(path: Path, url: str) -> float:
    """Archive all but the last segment of a stream, and give it up; return the seconds."""
    options = ArchiveOptions(url, StoreOptions(), 64 * _MIB, 0, 256 * _MIB)
    with DataStreamer.open(path) as streamer:
        streamer.start_atomic_op()
        streamer.commit_atomic_op()  # flushes
        (stream,) = Archives(options, [streamer], None, lambda: True).streams
        begun = time.perf_counter()
        while stream.uploader.step():
            pass
        seconds = time.perf_counter() - begun
        stream.reader.close()
    return seconds


def _bare_seconds(url: str) -> float:
    store = open_store(url)
    segments = [read_segment_index(store, name) for name in segment_names(store)]
    begun = time.perf_counter()
    for segment in segments:
        for place in range(0, len(segment.index.pages), READ_AHEAD_PAGES):
            store.get_range(
                segment_name(*segment.name), *segment.frames(segment.first_page + place, READ_AHEAD_PAGES)
            )
    return time.perf_counter() - begun


def _served_seconds(path: Path, size: int, *archive: str) -> tuple[float, float]:
    """Return the seconds of one client, and of all clients at once."""
    with running("benchmarks.tcp_processes", "serve", str(path), *archive) as (_, port):
        receive(int(port), 1, size + _OK_SIZE, _START)
        one = min(receive(int(port), 1, size + _OK_SIZE, _START) for _ in range(2))
        many = receive(int(port), _CLIENTS, size + _OK_SIZE, _START)
    return one, many


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows.

    Args:
        quick: a file of 192 MiB instead of 512 MiB.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, url = Path(folder) / "history.bin", f"file://{folder}/archive"
        size = _write(path, (192 if quick else 512) * _MIB)
        local = _served_seconds(path, size)
        upload_seconds = _archive(path, url)
        rounds = [
            (_bare_seconds(url), *_served_seconds(path, size, url)) for _ in range(1 if quick else _ROUNDS)
        ]
    bare, one, many = (min(column) for column in zip(*rounds, strict=True))
    mib = size / _MIB
    return [
        ("archive, data", f"{mib:.0f} MiB of entries of 517 bytes, best of {len(rounds)} rounds"),
        ("archive, uploaded", f"{mib / upload_seconds:,.0f} MiB/s, read back too"),
        ("archive, bare loop of GETs", f"{mib / bare:,.0f} MiB/s of the stream's bytes"),
        ("archive, local history", f"{mib / local[0]:,.0f} MiB/s"),
        (
            "archive, one client",
            (
                f"{mib / one:,.0f} MiB/s, ratio {local[0] / one:.2f} of local history, "
                f"{bare / one:.2f} of the bare loop"
            ),
        ),
        (
            f"archive, {_CLIENTS} clients of the same range",
            f"{mib * _CLIENTS / many:,.0f} MiB/s in total, ratio {local[1] / many:.2f} of local history",
        ),
        ("when and where", f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs"),
    ]


if __name__ == "__main__":
    print_rows(run)
