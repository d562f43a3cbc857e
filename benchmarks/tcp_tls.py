"""TCP history with TLS: our server against a bare `SSLSocket.sendall` loop, and against itself without TLS.

    python -m benchmarks.tcp_tls [--quick]

The stream and the processes are those of `tcp_history`. The clients receive and drop without decrypting, so
that the server is what is measured. The bare loop sends in chunks of 64 KiB, 256 KiB and a page, a thread for
each client, and the quickest counts.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Rows, print_rows, running, write_small_entries
from benchmarks.tcp_processes import receive, receive_tls
from tests.certificates import Authority

__all__ = ["run"]

_MIB = 1 << 20
_START = struct.pack(">QQQ", 1, 1, 0)
_OK_SIZE = 11
_CHUNKS = (1 << 16, 1 << 18, 1 << 20)
_CLIENTS = 8
_ROUNDS = 3


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows.

    Args:
        quick: a file of 64 MiB instead of 256 MiB.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.bin"
        size = write_small_entries(path, (64 if quick else 256) * _MIB)
        files = [str(file) for file in Authority(Path(folder)).issue("server")]

        def bare(count: int) -> float:
            best = float("inf")
            for chunk in _CHUNKS:
                with running("benchmarks.tcp_processes", "bare_tls", str(path), *files, str(chunk)) as (
                    _,
                    port,
                ):
                    best = min(best, *(receive_tls(int(port), count, _START) for _ in range(2)))
            return best

        rounds: list[tuple[float, ...]] = []
        for _ in range(1 if quick else _ROUNDS):  # alternating: a busy machine slows all
            bare_one, bare_eight = bare(1), bare(_CLIENTS)
            with running("benchmarks.tcp_processes", "serve_tls", str(path), *files) as (_, port):
                one = min(receive_tls(int(port), 1, _START) for _ in range(4))
                eight = min(receive_tls(int(port), _CLIENTS, _START) for _ in range(2))
            with running("benchmarks.tcp_processes", "serve", str(path)) as (_, port):
                plain = min(receive(int(port), 1, size + _OK_SIZE, _START) for _ in range(4))
            rounds.append((bare_one, bare_eight, one, eight, plain))
    bare_one, bare_eight, one, eight, plain = (min(column) for column in zip(*rounds, strict=True))
    mib = size / _MIB
    return [
        ("TCP with TLS, data", f"{mib:.0f} MiB of 68-byte entries, best of {len(rounds)} rounds"),
        ("TCP with TLS, bare", f"{mib / bare_one:,.0f} MiB/s"),
        (
            "TCP with TLS, one client",
            f"{mib / one:,.0f} MiB/s, ratio {bare_one / one:.2f} of bare, {plain / one:.2f} of without TLS",
        ),
        ("TCP with TLS, bare to 8 clients", f"{mib * _CLIENTS / bare_eight:,.0f} MiB/s in total"),
        (
            "TCP with TLS, 8 clients",
            f"{mib * _CLIENTS / eight:,.0f} MiB/s, ratio {bare_eight / eight:.2f} of bare",
        ),
        ("when and where", f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs"),
    ]


if __name__ == "__main__":
    print_rows(run)
