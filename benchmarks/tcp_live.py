"""Live clients: from commit to receipt, clients that do not read, and memory per client.

    python -m benchmarks.tcp_live [--quick]

A commit is one entry of 68 bytes that carries the time just before it was committed (not flushed). The bare
loop is one thread that writes the same bytes to a file and then sends them to one socket after the other. One
process reads for all clients, so the reading time of a thousand clients is in both figures. Server, bare loop
and clients are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.measuring import Rows, print_rows, running
from sluice.datastream import DataStreamer, ServerLimits, StreamServer
from sluice.datastream.layout import ENTRY_HEAD_SIZE

__all__ = ["run"]

_MODULE = "benchmarks.tcp_live"
_ENTRY_SIZE = 68
_STAMP = struct.Struct(">Q")
_START = struct.Struct(">QQQ")
_OK_SIZE = 11
_HISTORY_BYTES = 64 << 20
"""More than the kernel buffers for one client, so one that does not read soon blocks."""
_WRITE_TIMEOUT_SECONDS = 3.0


# --- the servers -----------------------------------------------------------------------------------------


def _stamped() -> bytes:
    """Return an entry's data, which begins with the time."""
    return _STAMP.pack(time.monotonic_ns()).ljust(_ENTRY_SIZE - ENTRY_HEAD_SIZE, b"x")


def _paced(line: str) -> list[float]:
    """Return the times at which to commit, from a line `COUNT INTERVAL`."""
    count, interval = line.split()
    begin = time.monotonic()
    return [begin + number * float(interval) for number in range(int(count))]


def _sleep_until(moment: float) -> None:
    if (pause := moment - time.monotonic()) > 0:
        time.sleep(pause)


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _serve(path: str) -> None:
    """Run our server; each line `COUNT INTERVAL` makes commits and prints figures."""
    _raise_limits()
    loop = uvloop.new_event_loop()
    with DataStreamer.open(path) as streamer:
        server = StreamServer(
            streamer,
            "127.0.0.1",
            0,
            ServerLimits(write_timeout_seconds=_WRITE_TIMEOUT_SECONDS, inactivity_timeout_seconds=0),
        )
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        print(json.dumps([server.address[1], streamer.committed.total_entries]), flush=True)
        for line in sys.stdin:
            for moment in _paced(line):
                _sleep_until(moment)
                streamer.start_atomic_op()
                streamer.add_stream_entry(1, _stamped())
                streamer.commit_atomic_op(flush=False)
            print(json.dumps([_rss_bytes(), server.client_count, time.process_time()]), flush=True)


def _bare(path: str, count: str) -> None:
    """Run the bare loop for `count` clients: a commit is two writes and a send to each client."""
    _raise_limits()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=4096) as listener,
        Path(path + ".bare").open("w+b") as file,
    ):
        print(json.dumps([listener.getsockname()[1], 0]), flush=True)
        clients = []
        for _ in range(int(count)):
            client, _ = listener.accept()
            client.recv(_START.size)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.send(bytes(_OK_SIZE))
            clients.append(client)
        for line in sys.stdin:
            for moment in _paced(line):
                _sleep_until(moment)
                data = struct.pack(">BIIQ", 2, _ENTRY_SIZE, 1, 0) + _stamped()
                os.pwrite(file.fileno(), data, 4096)
                os.pwrite(file.fileno(), bytes(38), 16)
                for client in clients:
                    client.send(data)
            print(json.dumps([_rss_bytes(), len(clients), time.process_time()]), flush=True)


# --- the clients -----------------------------------------------------------------------------------------


def _raise_limits() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _join(port: str, count: str, first: str) -> list[socket.socket]:
    _raise_limits()
    clients = []
    for _ in range(int(count)):
        client = socket.create_connection(("127.0.0.1", int(port)))
        client.sendall(_START.pack(1, 1, int(first)))
        clients.append(client)
    return clients


def _listen(port: str, count: str, first: str, commits: str) -> None:
    """Receive `commits` with each client; print median and 99th percentile of the latencies (ns)."""
    clients = _join(port, count, first)
    poller = select.epoll()
    by_fd = {client.fileno(): client for client in clients}
    for client in clients:
        assert len(client.recv(_OK_SIZE, socket.MSG_WAITALL)) == _OK_SIZE
        client.setblocking(False)
        poller.register(client, select.EPOLLIN)
    print("ready", flush=True)
    missing = len(clients) * int(commits)
    latencies = []
    while missing > 0:
        for fd, _ in poller.poll():
            data = by_fd[fd].recv(_ENTRY_SIZE * 1000)
            now = time.monotonic_ns()
            for position in range(ENTRY_HEAD_SIZE, len(data), _ENTRY_SIZE):
                latencies.append(now - _STAMP.unpack_from(data, position)[0])
                missing -= 1
            if not data:
                raise SystemExit("the server closed too early")
    latencies.sort()
    print(json.dumps([latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]]), flush=True)


def _ignore(port: str, count: str, first: str) -> None:
    """Join and never read; print the seconds until the last client was reset."""
    clients = _join(port, count, first)
    begin = time.monotonic()
    print("ready", flush=True)
    poller = select.poll()
    for client in clients:
        poller.register(client, 0)
    left = len(clients)
    while left:
        for fd, _ in poller.poll():
            poller.unregister(fd)
            left -= 1
    print(json.dumps(time.monotonic() - begin), flush=True)


def _idle(port: str, count: str, first: str) -> None:
    """Join, and wait for the end of standard input."""
    clients = _join(port, count, first)
    for client in clients:
        assert len(client.recv(_OK_SIZE, socket.MSG_WAITALL)) == _OK_SIZE
    print("ready", flush=True)
    sys.stdin.read()


# --- measuring -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Figures:
    median_ns: int
    p99_ns: int
    rss_bytes: int
    client_count: int
    cpu_seconds: float

    def __str__(self) -> str:
        return f"median {self.median_ns / 1e6:.2f} ms, p99 {self.p99_ns / 1e6:.2f} ms"


def _commit(server: subprocess.Popen[str], count: int, interval: float) -> tuple[int, int, float]:
    """Make commits; return the server's resident bytes, clients and CPU seconds so far."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{count} {interval}\n")
    server.stdin.flush()
    rss_bytes, clients, seconds = json.loads(server.stdout.readline())
    return rss_bytes, clients, seconds


def _result(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    return found if isinstance(found, list) else [found]


def _latency(role: str, path: Path, clients: int, commits: int, interval: float) -> _Figures:
    """Measure from commit to receipt with live clients."""
    words = [_MODULE, role, str(path)] + ([str(clients)] if role == "bare" else [])
    with running(*words) as (server, line):
        port, first = json.loads(line)
        with running(_MODULE, "listen", str(port), str(clients), str(first), str(commits)) as (reader, _):
            before = _commit(server, 0, 0)[2] if role == "serve" else 0.0
            rss_bytes, count, seconds = _commit(server, commits, interval)
            median, p99 = _result(reader)
    return _Figures(int(median), int(p99), rss_bytes, count, seconds - before)


@dataclass(frozen=True, slots=True)
class _Night:
    """The figures of a round of commits to readers alone, and of one beside clients that never read."""

    alone: _Figures
    beside: _Figures
    grown_bytes: int
    """How much the server grew from before the clients that never read came."""
    closed_seconds: float
    """The seconds until the last of them was closed."""


def _with_sleepers(path: Path, readers: int, sleepers: int, commits: int, interval: float) -> _Night:
    with running(_MODULE, "serve", str(path)) as (server, line), ExitStack() as stack:
        port, first = json.loads(line)
        rounds = []
        for count in (0, sleepers):
            reading = ("listen", str(port), str(readers), str(first), str(commits))
            with running(_MODULE, *reading) as (listener, _):
                before = _commit(server, 0, 0)[0]
                if count:
                    words = ("ignore", str(port), str(count), "0")
                    ignorer, _ = stack.enter_context(running(_MODULE, *words))
                after, clients, _ = _commit(server, commits, interval)
                median, p99 = _result(listener)
            rounds.append(_Figures(int(median), int(p99), after, clients, 0))
            first += commits
        return _Night(rounds[0], rounds[1], after - before, _result(ignorer)[0])


def _sleeper_rows(label: str, nights: list[_Night]) -> Rows:
    alone, another, *_ = sorted((night.alone for night in nights), key=_by_p99) * 2
    best = min(nights, key=lambda night: night.beside.p99_ns)
    ratios = (
        f"ratio of p99 {best.beside.p99_ns / alone.p99_ns:.2f}; "
        f"of two rounds without them {another.p99_ns / alone.p99_ns:.2f}"
    )
    closed = f"closed after {best.closed_seconds:.1f} s (write timeout {_WRITE_TIMEOUT_SECONDS:.0f} s)"
    return [
        (label, f"the others: {best.beside}; without them: {alone}; {ratios}"),
        (label, f"{closed}, memory of the server {best.grown_bytes / 1e6:+.1f} MB"),
    ]


def _by_p99(figures: _Figures) -> int:
    return figures.p99_ns


def _idle_bytes(path: Path, count: int) -> float:
    with running(_MODULE, "serve", str(path)) as (server, line):
        port, first = json.loads(line)
        with running(_MODULE, "idle", str(port), "10", str(first)):
            before, few, _ = _commit(server, 0, 0)
            with running(_MODULE, "idle", str(port), str(count), str(first)):
                after, many, _ = _commit(server, 0, 0)
                assert (few, many) == (10, 10 + count), (few, many)
    return (after - before) / count


def run(quick: bool = False) -> Rows:
    """Measure, and return (label, text) rows.

    Args:
        quick: fewer clients, commits and rounds.
    """
    scale = 5 if quick else 1
    crowd, sleepers, idle = 10_000 // scale, 100 // scale, 5_000 // scale
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.bin"
        with DataStreamer.open(path) as streamer:
            while streamer.committed.total_length < _HISTORY_BYTES:
                streamer.start_atomic_op()
                streamer.add_stream_entry(1, bytes(1_000_000))
                streamer.commit_atomic_op(flush=False)
        for clients, commits, interval in (
            (1, 1_000 // scale, 0.002),
            (crowd // 10, 80 // scale, 0.05),
            (crowd, 40 // scale, 0.25),
        ):
            rounds = [
                (
                    _latency("serve", path, clients, commits, interval),
                    _latency("bare", path, clients, commits, interval),
                )
                for _ in range(1 if quick else 3)
            ]
            served, bare = (min(column, key=_by_p99) for column in zip(*rounds, strict=True))
            name = "1 live client" if clients == 1 else f"{clients:,} live clients"
            rows.append((f"TCP live, {name}", f"commit to receipt {served}"))
            text = f"{bare}; ratio of medians {bare.median_ns / served.median_ns:.2f}"
            rows.append((f"TCP live, {name}, bare send", text))
        nights = [
            _with_sleepers(path, crowd - sleepers, sleepers, 40 // scale, 0.25)
            for _ in range(1 if quick else 2)
        ]
        rows += _sleeper_rows(f"TCP live, {sleepers} of {crowd:,} never read", nights)
        rows.append(
            ("TCP live, memory", f"{_idle_bytes(path, idle) / 1000:.1f} kB per idle client of {idle:,}")
        )
    return rows


_ROLES: dict[str, Callable[..., None]] = {
    "serve": _serve,
    "bare": _bare,
    "listen": _listen,
    "ignore": _ignore,
    "idle": _idle,
}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _ROLES:
        _ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        print_rows(run)
