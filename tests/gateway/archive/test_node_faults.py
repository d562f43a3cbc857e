"""A node whose store fails: readers of local pages notice nothing, the page says it, and it catches up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.client.client import StreamClient
from sluice.datastream.errors import CommandRefused, ConnectionEnded
from sluice.gateway.api import node_pb2
from sluice.gateway.node.node import Node
from tests.gateway.archive.chains import ARCHIVED_PAGES, BLOCKS, blocks_of_a_page
from tests.gateway.archive.stores import BUCKET, FaultProxy, as_s3_user, s3_server
from tests.nodes import Wire, running_node, until, wire_to

LONG = os.environ.get("SLUICE_LONG") == "1"
MIB = 1 << 20
OLD, NEW = 20, BLOCKS - 1
LOCAL_SECONDS = 1.0
"""A slow store takes two."""
NOT_AVAILABLE = node_pb2.BlockResponse.Code.NOT_AVAILABLE


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """An empty bucket behind a proxy."""
    with as_s3_user(), s3_server() as port, FaultProxy(port) as opened:
        yield opened


def settings(proxy: FaultProxy) -> dict[str, object]:
    return {
        "archive_url": f"s3://{BUCKET}/chain",
        "archive_endpoint": f"http://127.0.0.1:{proxy.port}",
        "archive_local_bytes": 64 * MIB,
        "archive_cache_bytes": MIB,
    }


def words_of(node: Node) -> str:
    return "; ".join(finding.text for finding in node.reporter.report().findings)


async def read_local(node: Node, wire: Wire) -> None:
    """Read the newest block in each way, in a time that no store takes part in."""
    began = time.monotonic()
    assert (await wire.get_block(NEW)).block.items
    assert len(await (await wire.subscribe(NEW, NEW)).rest()) == 2
    last = node.store.streamer.committed.total_entries - 1
    address = node.tcp_address
    async with StreamClient.connect(address.host, address.port) as client:
        assert (await client.entry(last)).number == last
    assert time.monotonic() - began < LOCAL_SECONDS


@pytest.mark.slow
async def test_a_store_that_does_not_take_segments(folder: Path, proxy: FaultProxy) -> None:
    proxy.fault = "403"
    async with running_node(folder, **settings(proxy)) as node, wire_to(node) as wire:
        await until(lambda: "403" in words_of(node))
        await read_local(node, wire)
        assert not node.reporter.readiness()  # there is room for days
        assert node.store.streamer.remote.archived_pages == 0
        proxy.fault = "503"
        await until(lambda: "503" in words_of(node))
        await read_local(node, wire)
        if LONG:  # as 503 to the node, and 14 s more; test_uploader.py has every fault
            proxy.fault = "refused"
            await until(lambda: "error sending request" in words_of(node))
            await read_local(node, wire)
        assert node.store.streamer.remote.end == 0  # nothing was given up
        proxy.fault = None
        remote = node.store.streamer.remote
        await until(lambda: remote.archived_pages == ARCHIVED_PAGES and remote.end >= 120)
        await until(lambda: "archive" not in words_of(node))
        assert list((await wire.get_block(OLD)).block.items) == list(list(blocks_of_a_page())[OLD].items)


@pytest.mark.slow
async def test_a_store_that_does_not_give_pages(folder: Path, proxy: FaultProxy) -> None:
    blocks = list(blocks_of_a_page())
    async with running_node(folder, **settings(proxy)) as node, wire_to(node) as wire:
        remote = node.store.streamer.remote
        await until(lambda: remote.archived_pages == ARCHIVED_PAGES and remote.end >= 120)
        for place, (fault, words) in enumerate(
            [
                ("403", "are the credentials right"),
                ("cut", "body"),
                ("wrong", "these are others"),
                ("lost", "error sending request"),
            ]
        ):
            old = OLD + 10 * place
            proxy.fault = fault
            assert (await wire.get_block(old)).status == NOT_AVAILABLE
            if LONG or fault in ("403", "wrong"):  # each read of another one retries for seconds
                assert await (await wire.subscribe(old, old)).rest() == ["NOT_AVAILABLE"]
                address = node.tcp_address
                async with StreamClient.connect(address.host, address.port) as client:
                    with pytest.raises((CommandRefused, ConnectionEnded)):
                        await client.entry(6 * old)
            assert words in words_of(node)
            await read_local(node, wire)
            proxy.fault = None
            assert list((await wire.get_block(old)).block.items) == list(blocks[old].items)
            assert "archive" not in words_of(node)


async def test_who_waits_for_a_slow_store_holds_up_nobody(folder: Path, proxy: FaultProxy) -> None:
    async with running_node(folder, **settings(proxy)) as node, wire_to(node) as wire:
        remote = node.store.streamer.remote
        await until(lambda: remote.archived_pages == ARCHIVED_PAGES and remote.end >= 120)
        proxy.fault = "slow"
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(wire.get_block(number)) for number in range(OLD, OLD + 30, 3)]
            await until(lambda: proxy.faults_count)
            for _ in range(3):
                await read_local(node, wire)
            assert not any(task.done() for task in waiting)
            proxy.fault = None
        assert all(task.result().block.items for task in waiting)
