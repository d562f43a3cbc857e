"""TCP history: our server against a bare `sendfile` loop over the same bytes, in the same run.

    python -m benchmarks.tcp_history [--quick]

The stream holds entries of 68 bytes, as in the measurement of the Go reference. Server, bare loop and clients
are processes of their own, with the same sockets and options; the clients receive and drop. The bare loop
sends in chunks of a page, of 256 KiB and without a limit, and the quickest counts. *Cold* is the first pass
over the file after opening, when the server learns where each page's data ends; *warm* is the next one.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Rows, print_rows, running, write_small_entries
from benchmarks.tcp_processes import receive
from sluice.datastream import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE

__all__ = ["run"]

_MIB = 1 << 20
_START = struct.pack(">QQQ", 1, 1, 0)
_OK_SIZE = 11
_CHUNKS = (1 << 18, 1 << 20, 1 << 40)
_CLIENTS = 8
_ROUNDS = 3


def _bare_seconds(path: Path, size: int, count: int) -> float:
    best = float("inf")
    for chunk in _CHUNKS:
        with running("benchmarks.tcp_processes", "bare", str(path), str(chunk)) as (_, port):
            best = min(best, *(receive(int(port), count, size, _START) for _ in range(2)))
    return best


def _served_seconds(path: Path, size: int) -> tuple[float, float, float]:
    """Return the seconds of the first pass, of later passes, and of eight clients at once."""
    with running("benchmarks.tcp_processes", "serve", str(path)) as (_, port):
        cold = receive(int(port), 1, size + _OK_SIZE, _START)
        warm = min(receive(int(port), 1, size + _OK_SIZE, _START) for _ in range(4))
        eight = min(receive(int(port), _CLIENTS, size + _OK_SIZE, _START) for _ in range(2))
    return cold, warm, eight


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows.

    Args:
        quick: a file of 64 MiB instead of 256 MiB.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.bin"
        size = write_small_entries(path, (64 if quick else 256) * _MIB)
        with DataStreamer.open(path) as streamer:
            bare_size = streamer.committed.total_length - HEADER_PAGE_SIZE  # padding too
        _bare_seconds(path, bare_size, 1)  # warms page cache and CPU for both
        bare: list[float] = []
        bare_eight: list[float] = []
        served: list[tuple[float, float, float]] = []
        for _ in range(1 if quick else _ROUNDS):  # alternating: a busy machine slows both
            bare.append(_bare_seconds(path, bare_size, 1))
            served.append(_served_seconds(path, size))
            bare_eight.append(_bare_seconds(path, bare_size, _CLIENTS))
    cold, warm, eight = (min(column) for column in zip(*served, strict=True))
    mib = size / _MIB

    def rate(seconds: float, beside: float, count: int = 1) -> str:
        return f"{mib * count / seconds:,.0f} MiB/s, ratio {beside / seconds:.2f} of bare sendfile"

    return [
        ("TCP history, data", f"{mib:.0f} MiB of 68-byte entries, best of {len(bare)} rounds"),
        ("TCP history, bare sendfile", f"{mib / min(bare):,.0f} MiB/s"),
        ("TCP history, warm", rate(warm, min(bare))),
        ("TCP history, cold", rate(cold, min(bare))),
        ("TCP history, bare to 8 clients", f"{mib * _CLIENTS / min(bare_eight):,.0f} MiB/s in total"),
        ("TCP history, 8 clients", rate(eight, min(bare_eight), _CLIENTS)),
        ("when and where", f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs"),
    ]


if __name__ == "__main__":
    print_rows(run)
