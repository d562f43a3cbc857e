"""Tests of `gateway.node.run`: exit status, process settings, event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVarTuple

import grpc
import pytest
import uvloop
from grpc import aio

from sluice.gateway.blocks.errors import ChainMisuse
from sluice.gateway.errors import StartAbandoned
from sluice.gateway.limits import THREAD_SWITCH_SECONDS
from sluice.gateway.node import run as node_run
from sluice.gateway.node.node import Node
from sluice.gateway.node.run import GC_OBJECTS_MIN, NodeLoop, run_node
from sluice.gateway.store.block_store import BlockStore
from tests.nodes import ANSWER_SECONDS, Publisher, make_blocks, node_settings, wire_to

BLOCKS = make_blocks(1)


def test_a_node_that_opens_its_stream_does_not_go_on_with_it_when_it_is_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_slowly(data_dir: Path, *, go_on: Callable[[], None], **options: object) -> BlockStore:
        signal.raise_signal(signal.SIGTERM)
        ends_at = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < ends_at:
            go_on()
            time.sleep(0.01)
        pytest.fail("it goes on")

    caplog.set_level("INFO")
    monkeypatch.setattr(BlockStore, "open", open_slowly)
    assert run_node(node_settings(tmp_path)) == 0
    assert caplog.messages[-1] == "node stopped before it had started"
    monkeypatch.undo()
    BlockStore.open(tmp_path).close()


async def test_a_node_that_has_opened_its_stream_does_not_listen_when_it_is_to_stop(tmp_path: Path) -> None:
    node = Node(node_settings(tmp_path))
    starting = asyncio.ensure_future(node.start())
    await asyncio.sleep(0)
    node.abandon_start()
    with pytest.raises(StartAbandoned):
        await starting
    assert not hasattr(node, "report")
    BlockStore.open(tmp_path).close()


def test_a_bug_in_the_race_stops_the_node_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The block under way gets committed; the next start goes on behind it."""

    def bug(store: BlockStore, block: object) -> None:
        raise ChainMisuse(7, 0)

    monkeypatch.setattr(BlockStore, "advance", bug)
    publishing, heard = list[asyncio.Task[None]](), list[str]()

    async def publish(node: Node) -> None:
        async with wire_to(node) as wire:
            alice: Publisher = await wire.publisher("alice")
            await alice.block(BLOCKS[0])
            try:
                heard.append(await alice.answer())
            except grpc.aio.AioRpcError as error:
                heard.append(error.code().name)

    class WatchedNode(Node):
        async def start(self) -> None:
            assert type(asyncio.get_running_loop()) is NodeLoop
            await super().start()
            # A time limit's signal does not get through uvloop; this one ends the node with status 0.
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, signal.raise_signal, signal.SIGTERM)
            publishing.append(asyncio.ensure_future(publish(self)))

        async def stop(self) -> None:
            assert (
                self.reporter.readiness()[-1]
                == "the publish race has stopped on an internal error, see the log"
            )
            await super().stop()
            await asyncio.gather(*publishing)

    monkeypatch.setattr(node_run, "Node", WatchedNode)
    keeping: list[object] = []
    monkeypatch.setattr(node_run, "keep_freed_memory", keeping.append)
    # A block is complete at its end only, which may be under way when the node ends.
    assert run_node(node_settings(tmp_path, shutdown_grace_seconds=0.2, publish_proof_idle_ms=10_000)) == 1
    assert keeping == [os.environ]
    assert sys.getswitchinterval() == pytest.approx(THREAD_SWITCH_SECONDS)
    assert (gc.get_threshold()[0], gc.get_freeze_count() > 0) == (GC_OBJECTS_MIN, True)
    assert "the node stops on an internal error" in [record.message for record in caplog.records]
    assert heard[0] in ("CANCELLED", "UNAVAILABLE", "UNKNOWN")  # no acknowledgement
    monkeypatch.undo()
    store = BlockStore.open(tmp_path)
    assert store.last_number == 0
    store.close()


# --- the event loop ----

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
    """Streams of a client in threads; each sends one more message when told to."""

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
        """End all streams; return their answers."""
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
        (wake,) = sockets_read  # gRPC's, the only one so far
        senders = _Senders(port)
        await asyncio.wait_for(all_heard.wait(), SECONDS_MAX)
        for _ in range(10 * STREAM_COUNT):  # by itself, each byte read takes an iteration
            await asyncio.sleep(0)
        assert _unread(wake) == 0
        senders.go.set()
        _stand_still(until=lambda: _unread(wake) >= STREAM_COUNT)
        for _ in range(8):
            await asyncio.sleep(0)
        assert heard == 2 * STREAM_COUNT  # in a few iterations, either way
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
