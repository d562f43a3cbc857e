"""Tests of `gateway.node.event_loop`: one wake-up for all that gRPC has done, and other sockets as ever."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVarTuple

import grpc
import pytest
import uvloop
from grpc import aio

from gateway.node.event_loop import NodeLoop

Ts = TypeVarTuple("Ts")
SERVICE, METHOD = "test.Service", "test"
STREAM_COUNT = 20
SECONDS_MAX = 20.0

sockets_read: list[socket.socket] = []


class _PlainLoop(uvloop.Loop):
    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        sockets_read.append(fd)
        super().add_reader(fd, callback, *args)


class _NodeLoop(NodeLoop):
    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        sockets_read.append(fd)
        super().add_reader(fd, callback, *args)


def _unread(wake: socket.socket) -> int:
    try:
        return len(wake.recv(1024, socket.MSG_PEEK))
    except BlockingIOError:
        return 0


def _stand_still(until: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS_MAX
    while not until():
        assert time.monotonic() < limit
        time.sleep(0.01)


class _Senders:
    """Streams of a client in threads; all send one message more when they are told to."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.go, self.end = threading.Event(), threading.Event()
        method: grpc.StreamUnaryMultiCallable[bytes, bytes] = self._channel.stream_unary(
            f"/{SERVICE}/{METHOD}"
        )
        self._calls = [method.future(self._messages()) for _ in range(STREAM_COUNT)]

    def _messages(self) -> Iterator[bytes]:
        yield b"first"
        self.go.wait(SECONDS_MAX)
        yield b"second"
        self.end.wait(SECONDS_MAX)

    def close(self) -> list[bytes]:
        """End all streams and return their answers."""
        self.go.set()
        self.end.set()
        answers = [call.result(SECONDS_MAX) for call in self._calls]
        self._channel.close()
        return answers


@pytest.mark.parametrize(("loop", "wakes_once"), [(_NodeLoop, True), (_PlainLoop, False)])
def test_what_grpc_has_done_meanwhile_wakes_the_loop_once(
    loop: Callable[[], uvloop.Loop], wakes_once: bool
) -> None:
    heard, all_heard = 0, asyncio.Event()
    sockets_read.clear()

    async def take(_: object, context: aio.ServicerContext[Any, Any]) -> bytes:
        nonlocal heard
        count = 0
        while await context.read() is not aio.EOF:
            heard, count = heard + 1, count + 1
            if heard == STREAM_COUNT:
                all_heard.set()
        return bytes([count])

    async def main() -> None:
        server = aio.server()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(take)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        (wake,) = sockets_read  # by this loop, so far: gRPC's
        senders = _Senders(port)
        await asyncio.wait_for(all_heard.wait(), SECONDS_MAX)
        for _ in range(10 * STREAM_COUNT):  # plain: each reading of a byte has a round of its own
            await asyncio.sleep(0)
        assert _unread(wake) == 0
        senders.go.set()
        _stand_still(until=lambda: _unread(wake) >= STREAM_COUNT)
        for _ in range(8):
            await asyncio.sleep(0)
        assert heard == 2 * STREAM_COUNT  # in a few rounds, either way
        assert (_unread(wake) == 0) == wakes_once
        assert await asyncio.to_thread(senders.close) == [b"\2"] * STREAM_COUNT
        await server.stop(None)

    uvloop.run(main(), loop_factory=loop)


def test_other_sockets_are_left_alone() -> None:
    async def main() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            theirs.send(b"whole")
            asyncio.get_running_loop().add_reader(ours, lambda limit: found.set_result(ours.recv(limit)), 9)
            try:
                return await asyncio.wait_for(found, SECONDS_MAX)
            finally:
                asyncio.get_running_loop().remove_reader(ours)

    assert uvloop.run(main(), loop_factory=NodeLoop) == b"whole"
