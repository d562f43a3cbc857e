"""Tests of `gateway.node.run`: the exit status of a node, and what is set for its process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from gateway.blocks.errors import ChainMisuse
from gateway.errors import StartAbandoned
from gateway.limits import THREAD_SWITCH_SECONDS
from gateway.node import run as node_run
from gateway.node.event_loop import NodeLoop
from gateway.node.node import Node
from gateway.node.run import GC_OBJECTS_MIN, run_node
from gateway.store.block_store import BlockStore
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


def test_a_node_that_has_opened_its_stream_does_not_listen_when_it_is_to_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(node_settings(tmp_path))
        starting = asyncio.ensure_future(node.start())
        await asyncio.sleep(0)
        node.abandon_start()
        with pytest.raises(StartAbandoned):
            await starting
        assert not hasattr(node, "report")

    asyncio.run(scenario())
    BlockStore.open(tmp_path).close()


def test_a_bug_in_the_race_stops_the_node_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The block that was being committed is on disk, so that the next start goes on behind it."""

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
            # A time limit's signal does not get through uvloop. This one ends the node, with status 0.
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, signal.raise_signal, signal.SIGTERM)
            publishing.append(asyncio.ensure_future(publish(self)))

        async def stop(self) -> None:
            assert (
                self.report.readiness()[-1]
                == "the publish race has stopped on an internal error, see the log"
            )
            await super().stop()
            await asyncio.gather(*publishing)

    monkeypatch.setattr(node_run, "Node", WatchedNode)
    keeping: list[object] = []
    monkeypatch.setattr(node_run, "keep_freed_memory", keeping.append)
    # No block is complete before its end has come: she could be at that when the node is gone.
    assert run_node(node_settings(tmp_path, shutdown_grace_seconds=0.2, publish_proof_idle_ms=10_000)) == 1
    assert keeping == [os.environ]
    assert sys.getswitchinterval() == pytest.approx(THREAD_SWITCH_SECONDS)
    assert (gc.get_threshold()[0], gc.get_freeze_count() > 0) == (GC_OBJECTS_MIN, True)
    assert "the node stops on an internal error" in [record.message for record in caplog.records]
    assert heard[0] in ("CANCELLED", "UNAVAILABLE", "UNKNOWN")  # not an acknowledgement
    monkeypatch.undo()
    store = BlockStore.open(tmp_path)
    assert store.last_number == 0
    store.close()
