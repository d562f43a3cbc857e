"""TCP history: our server against a bare `sendfile` loop over the same bytes, in the same run.

    python -m benchmarks.tcp_history [--quick]

The stream holds entries of 68 bytes, as in the measurement of the Go reference. The receiver is the same for
both: a process that receives and drops. *Cold* is the first time through the file after opening, when the
server learns where each page's data ends; *warm* is the next time.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from datastream import DataStreamer, StreamServer
from datastream.layout import ENTRY_HEAD_SIZE, HEADER_PAGE_SIZE

__all__ = ["main", "run"]

_MIB = 1 << 20
_DATA_SIZE = 68 - ENTRY_HEAD_SIZE
_OPERATION_ENTRIES = 10_000
_START = struct.pack(">QQQ", 1, 1, 0)
_OK_SIZE = 11
_REPEATS = 3

_RECEIVER = """
import socket, sys, time
host, port, size, request = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
sock = socket.create_connection((host, port))
buffer = bytearray(1 << 20)
sock.sendall(request)
begin = time.perf_counter()
while size > 0:
    count = sock.recv_into(buffer)
    if not count:
        sys.exit("the server closed too early")
    size -= count
sys.stdout.write(repr(time.perf_counter() - begin))
"""


def _receive(port: int, size: int, request: bytes) -> float:
    """Receive `size` bytes in a process of its own; return the seconds it took."""
    arguments = [sys.executable, "-c", _RECEIVER, "127.0.0.1", str(port), str(size), request.hex()]
    return float(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def _make_stream(path: Path, size: int) -> int:
    """Write a stream of about `size` bytes; return how many bytes its entries have."""
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < size:
            streamer.start_atomic_op()
            for _ in range(_OPERATION_ENTRIES):
                streamer.add_stream_entry(1, bytes(_DATA_SIZE))
            streamer.commit_atomic_op(flush=False)
        return streamer.committed.total_entries * (ENTRY_HEAD_SIZE + _DATA_SIZE)


def _bare_seconds(path: Path, size: int) -> float:
    """Send `size` bytes of the file with nothing but `sendfile`, waiting with `poll` when the socket is full.

    On a blocking socket `sendfile` is slower: the kernel wakes the sender for every little room.
    """

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, path.open("rb") as file:
            client.recv(len(_START))
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the server does
            room = select.poll()
            room.register(client, select.POLLOUT)
            offset, end = HEADER_PAGE_SIZE, HEADER_PAGE_SIZE + size
            while offset < end:
                try:
                    offset += os.sendfile(client.fileno(), file.fileno(), offset, end - offset)
                except BlockingIOError:
                    room.poll()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        seconds = _receive(listener.getsockname()[1], size, _START)
        thread.join()
    return seconds


@contextmanager
def _serving(streamer: DataStreamer) -> Iterator[int]:
    """Serve from a thread; yield the port."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = StreamServer(streamer, "127.0.0.1", 0)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server.address[1]
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _served_seconds(path: Path, size: int) -> tuple[float, list[float]]:
    """Return the seconds of the first time through the file, and of the times after."""
    with DataStreamer.open(path) as streamer, _serving(streamer) as port:
        cold, *warm = (_receive(port, size + _OK_SIZE, _START) for _ in range(1 + _REPEATS))
    return cold, warm


def run(quick: bool = False) -> list[tuple[str, str]]:
    """Measure, and return (label, text) rows.

    Args:
        quick: a file of 64 MiB instead of 512 MiB.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.bin"
        size = _make_stream(path, (64 if quick else 512) * _MIB)
        begin = time.perf_counter()
        DataStreamer.open(path).close()
        opening = time.perf_counter() - begin
        _bare_seconds(path, size)  # the page cache and the CPU are warm now for both
        bare: list[float] = []
        cold: list[float] = []
        warm: list[float] = []
        for _ in range(_REPEATS):  # in turns, so that a busy machine slows both
            bare.extend(_bare_seconds(path, size) for _ in range(_REPEATS))
            first, others = _served_seconds(path, size)
            cold.append(first)
            warm.extend(others)
    rates = [size / _MIB / min(seconds) for seconds in (bare, warm, cold)]
    return [
        ("TCP history, data", f"{size / _MIB:.0f} MiB of 68-byte entries, one client, best of {_REPEATS}"),
        ("TCP history, bare sendfile", f"{rates[0]:.0f} MiB/s"),
        ("TCP history, warm", f"{rates[1]:.0f} MiB/s, ratio {rates[1] / rates[0]:.2f} of bare sendfile"),
        ("TCP history, cold", f"{rates[2]:.0f} MiB/s, ratio {rates[2] / rates[0]:.2f} of bare sendfile"),
        ("opening the file", f"{opening * 1000:.0f} ms"),
        ("when and where", f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs"),
    ]


def main() -> None:
    """Print the rows."""
    for label, text in run(quick="--quick" in sys.argv[1:]):
        print(f"{label:28} {text}")


if __name__ == "__main__":
    main()
