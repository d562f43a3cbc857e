"""A worker process of a node: started when needed, asked in order, replaced when lost.

A shell.

    node                                 python -m MODULE
    request  ──► socket            ──►   standard input
    answer   ◄── the same socket   ◄──   `serve(answer)`
    frame    u32 big-endian size, then so many bytes; both ends are ours, and the same Python

Requests are sent ahead; answers come in order. An empty frame reports that the process is ready. It ends with
its socket, however the node ends. A process that dies, or takes too long for a request, is lost with all its
requests (`WorkerProcessLost`); the next request starts another one. Time in which the node itself stood still
does not count.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from sluice.gateway.errors import WorkerProcessLost
from sluice.gateway.logs import log_as_the_node, log_form_for_child
from sluice.gateway.workers.malloc import keep_freed_memory

__all__ = ["WorkerProcess", "serve"]

WORKER_LOOK_LATE_SECONDS_MAX: Final = 1.0
"""A later look at a time limit means that the node was stopped, maybe with the process, which gets its time
again."""

_SIZE: Final = struct.Struct(">I")


class WorkerProcess:
    """The node's end, for one event loop.

    Args:
        seconds_max: time to start, or for one request.
        on_ready: called when a process begins to answer.
        on_lost: called with the reason when one is lost or cannot be started.
    """

    def __init__(
        self,
        name: str,
        module: str,
        seconds_max: float,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_lost: Callable[[str], None] = lambda got: None,
    ) -> None:
        self._name = name
        self._module = module
        self._seconds_max = seconds_max
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_ready = False
        self._asked: deque[asyncio.Future[bytes]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._start_count = 0
        self._over = False

    @property
    def pid(self) -> int | None:
        """Process id."""
        return None if self._process is None else self._process.pid

    @property
    def start_count(self) -> int:
        """Number of processes started."""
        return self._start_count

    @property
    def is_over(self) -> bool:
        """True if it was closed."""
        return self._over

    def start(self) -> None:
        """Start the process if there is none, without waiting for it."""
        if self._over or self._process is not None:
            return
        self._start_count += 1
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= log_form_for_child()
        # What its imports warn of, those of the node did, too.
        words = [sys.executable, "-P", "-W", "ignore", "-m", self._module]
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no file descriptors are left
            self.lose(str(error))
            return
        try:
            with theirs:
                self._process = subprocess.Popen(words, stdin=theirs.fileno(), env=environment)
        except OSError as error:
            ours.close()
            self.lose(str(error))
            return
        self._wire = _Wire(self._take, self.lose)
        self._connecting = asyncio.get_running_loop().create_task(_connect(self._wire, ours))
        self._watch_over()

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; return a future of its answer, which may raise WorkerProcessLost."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked.append(answered)
        if self._over:
            self.lose("its end")
            return answered
        self.start()
        if self._wire is not None:
            self._wire.send(request)
            if self._watch is None:
                self._watch_over()
        return answered

    def close(self) -> None:
        """End the process and wait for it."""
        self._over = True
        self.lose("its end")

    def lose(self, got: str) -> None:
        """Give the process up; its open requests fail."""
        process, self._process = self._process, None
        wire, self._wire = self._wire, None
        for handle in (self._watch, self._connecting):
            if handle is not None:
                handle.cancel()
        self._watch = self._connecting = None
        was_ready, self._is_ready = self._is_ready, False
        if wire is not None:
            wire.cut()
        if process is not None:
            process.kill()  # it keeps nothing
            process.wait()
        self._on_lost(got)
        asked, self._asked = self._asked, deque()
        for index, answered in enumerate(asked):
            if not answered.done():
                answered.set_exception(
                    WorkerProcessLost(self._name, got, is_first=index == 0, was_ready=was_ready)
                )

    def _take(self, answer: bytes) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._on_ready()
        elif not (answered := self._asked.popleft()).done():  # else the caller has given up
            answered.set_result(answer)

    def _watch_over(self) -> None:
        oldest = self._asked[0] if self._asked else None
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + self._seconds_max
        self._watch = loop.call_at(self._look_at, self._look, oldest)

    def _look(self, oldest: asyncio.Future[bytes] | None) -> None:
        self._watch = None
        if asyncio.get_running_loop().time() > self._look_at + WORKER_LOOK_LATE_SECONDS_MAX:
            self._watch_over()  # the node stood still, and maybe the process too
        elif not self._is_ready or (self._asked and self._asked[0] is oldest):
            self.lose(f"no answer in {self._seconds_max:g} s")
        elif self._asked:
            self._watch_over()


class _Wire(asyncio.Protocol):
    """The node's socket to one process."""

    def __init__(self, take: Callable[[bytes], None], lose: Callable[[str], None]) -> None:
        self._take = take
        self._lose = lose
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []  # until there is a transport
        self._received = bytearray()
        self._is_cut = False

    def send(self, request: bytes) -> None:
        parts = (_SIZE.pack(len(request)), request)
        if self._transport is None:
            self._unsent.extend(parts)
        else:
            self._transport.writelines(parts)

    def cut(self) -> None:
        self._is_cut = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no Transport
        if self._is_cut:
            self._transport.abort()
            return
        self._transport.writelines(self._unsent)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _SIZE.size and not self._is_cut:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < _SIZE.size + size:
                return
            answer = bytes(self._received[_SIZE.size : _SIZE.size + size])
            del self._received[: _SIZE.size + size]
            self._take(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_cut:
            self._lose("the end of its socket" if error is None else str(error))


async def _connect(wire: _Wire, ours: socket.socket) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: wire, sock=ours)
    except BaseException:
        ours.close()
        raise


def serve(
    answer: Callable[[list[bytes]], Iterable[bytes]],
    together_max: int = 1,
    gather_seconds: float = 0.0,
    says_more: Callable[[bytes], bool] = lambda request: True,
) -> None:
    """Answer requests in the process, until the socket at standard input ends.

    It ignores signals to the process group: a stopping node still finishes its blocks.

    Args:
        answer: answers waiting requests in order; each answer is sent as it comes.
        gather_seconds: time to wait for more, if there were several last time.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    log_as_the_node(os.environ)
    keep_freed_memory(os.environ)
    node = socket.socket(fileno=0)
    try:
        _send(node, b"")
        wait_seconds = 0.0
        while True:
            requests = [_receive(node)]
            deadline = time.monotonic() + wait_seconds
            while len(requests) < together_max:
                if not _comes(node, deadline if says_more(requests[-1]) else 0.0):
                    break
                requests.append(_receive(node))
            wait_seconds = gather_seconds if len(requests) > 1 else 0.0
            for one in answer(requests):
                _send(node, one)
    except (EOFError, OSError):
        return  # the node has ended


def _send(node: socket.socket, answer: bytes) -> None:
    node.sendall(_SIZE.pack(len(answer)) + answer)


def _comes(node: socket.socket, deadline: float) -> bool:
    return bool(select.select([node], (), (), max(0.0, deadline - time.monotonic()))[0])


def _receive(node: socket.socket) -> bytes:
    (size,) = _SIZE.unpack(_receive_exactly(node, _SIZE.size))
    return _receive_exactly(node, size)


def _receive_exactly(node: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    rest = memoryview(received)
    while rest:
        count = node.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return bytes(received)
