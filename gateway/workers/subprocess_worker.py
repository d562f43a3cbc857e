"""A process that works for a node: started when it is needed, asked in order, replaced when it is lost.

A shell. Python holds its lock while it computes, in whatever thread, and the event loop of the node waits for
it; another process has its own lock.

    node                                 python -m MODULE
    request  ──► socket            ──►   standard input
    answer   ◄── the same socket   ◄──   `serve(answer)`
    frame    u32 big-endian size, then so many bytes; both ends are ours, and the same Python

Requests are sent as they are asked, so that the process goes on to the next one without waiting for the node,
and answered in their order. The process says that it is ready by an empty frame, and ends with its socket,
that is with the node, however the node ends. One that dies, or takes too long for one request, is lost, and
with it everything that was asked of it: `WorkerProcessLost`. The next request starts another one. Time
in which the node itself stood still, as in a container that was paused, does not count.
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

from gateway.errors import WorkerProcessLost
from gateway.workers.malloc import keep_freed_memory

__all__ = ["WorkerProcess", "serve"]

HELPER_LOOK_LATE_SECONDS_MAX: Final = 1.0
"""How late the node may look whether a process has answered in time. Its event loop is late by milliseconds;
by more than this, it was stopped itself, maybe with the process, and gives it its time again."""

_SIZE: Final = struct.Struct(">I")


class WorkerProcess:
    """The node's end. It lives in one event loop.

    Args:
        name: for errors, `proof process`.
        module: what the process runs; it calls `serve`.
        seconds_max: how long it may take to start, or for one request.
        on_ready: is told that a process answers from now on.
        on_lost: is told what became of one that does not any more, or that could not be started.
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
        """Process id, None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def start_count(self) -> int:
        """Processes so far: whether this one is the same as before."""
        return self._start_count

    @property
    def is_over(self) -> bool:
        """Whether it was closed."""
        return self._over

    def start(self) -> None:
        """Start the process if there is none; this does not wait for it. `ask` does it too."""
        if self._over or self._process is not None:
            return
        self._start_count += 1
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [sys.executable, "-P", "-m", self._module]
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
        """Send a request; its answer comes as the result of what is returned.

        That raises HelperProcessLost if there is none, or will be none.
        """
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
        """End the process and wait for it; it is not started again."""
        self._over = True
        self.lose("its end")

    def lose(self, got: str) -> None:
        """Give the process up, for this reason; who has asked hears of it."""
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
        """Hand out answers in the order of the requests."""
        if not self._is_ready:
            self._is_ready = True
            self._on_ready()
        elif not (answered := self._asked.popleft()).done():  # done: whoever asked has given up
            answered.set_result(answer)

    def _watch_over(self) -> None:
        """See to it that what is asked now is answered in time."""
        oldest = self._asked[0] if self._asked else None
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + self._seconds_max
        self._watch = loop.call_at(self._look_at, self._look, oldest)

    def _look(self, oldest: asyncio.Future[bytes] | None) -> None:
        self._watch = None
        if asyncio.get_running_loop().time() > self._look_at + HELPER_LOOK_LATE_SECONDS_MAX:
            self._watch_over()  # the node was stopped, and maybe the process with it; an answer may have come
        elif not self._is_ready or (self._asked and self._asked[0] is oldest):
            self.lose(f"no answer in {self._seconds_max:g} s")
        elif self._asked:
            self._watch_over()


class _Wire(asyncio.Protocol):
    """The node's side of the socket to one process."""

    def __init__(self, take: Callable[[bytes], None], lose: Callable[[str], None]) -> None:
        self._take = take
        self._lose = lose
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []  # until there is a transport
        self._received = bytearray()
        self._is_cut = False

    def send(self, request: bytes) -> None:
        """Send a frame, as soon as the socket can be written."""
        parts = (_SIZE.pack(len(request)), request)
        if self._transport is None:
            self._unsent.extend(parts)
        else:
            self._transport.writelines(parts)

    def cut(self) -> None:
        """Close it; what still comes of it is of no interest."""
        self._is_cut = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is read and written from now on."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if self._is_cut:
            self._transport.abort()
            return
        self._transport.writelines(self._unsent)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Take whole frames out of what has come."""
        self._received += data
        while len(self._received) >= _SIZE.size and not self._is_cut:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < _SIZE.size + size:
                return
            answer = bytes(self._received[_SIZE.size : _SIZE.size + size])
            del self._received[: _SIZE.size + size]
            self._take(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """The process is gone, if it was not given up here."""
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
    """Answer requests until the socket that is standard input ends; for the process.

    Signals that reach the whole group do not end it: a stopping node still finishes the blocks it has.

    Args:
        answer: gives the answers to requests that wait together, in order; each is sent as it comes.
        together_max: how many requests it takes at most.
        gather_seconds: how long to wait for further requests, when the last time there were several. So who
            waits for an answer before the next request never waits longer.
        says_more: tells of a request whether another one is on its way; behind one that says no, none is
            waited for.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
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
    """Wait for a further request, or the begin of one, or the end of the node; tell whether it is there."""
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
