"""Catching up between processes: killed in the middle, and with publishers that come meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import aio
from tenacity import wait_fixed

from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.protocol.machine import MachineLimits
from tests.nodes import ANSWER_SECONDS, make_blocks, stream_bytes, until
from tests.publishers.node_thread import store
from tests.serving import Listener, ServeProcess, free_port

BLOCKS = make_blocks(120)
HELD = 100
"""Blocks that the first node has from the beginning."""
KILLS = 10 if "SLUICE_LONG" in os.environ else 2
OPTIONS = ClientOptions(
    machine=MachineLimits(deadline_ns=90_000_000_000), wait=wait_fixed(0.05), connect_timeout_seconds=1.0
)


async def last_of(node: ServeProcess) -> int:
    """The node's last block, -1 for none."""
    async with aio.insecure_channel(str(node.grpc_address)) as channel:
        stub = node_pb2_grpc.BlockNodeServiceStub(channel)
        status = await stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=ANSWER_SECONDS)
        return status.next_expected_block - 1


async def has_block(node: ServeProcess, number: int) -> bool:
    """Whether the node has committed a block."""
    return await last_of(node) >= number


@pytest.mark.slow
async def test_a_node_that_is_killed_while_it_catches_up_goes_on_where_it_was(tmp_path: Path) -> None:
    store(tmp_path / "a", BLOCKS[:HELD])

    peer = f"127.0.0.1:{free_port()}"
    own = f"127.0.0.1:{free_port()}"

    kills_are_over = asyncio.Event()

    async def source() -> AsyncIterator[Block]:
        yield BLOCKS[HELD]
        await kills_are_over.wait()
        for block in BLOCKS[HELD + 1 :]:
            yield block

    catching_up = ("--grpc", own, "--peer", peer, "--catchup-backoff-seconds", "0.05")
    with (
        ServeProcess(tmp_path / "a", "--grpc", peer) as first,
        ServeProcess(tmp_path / "b", *catching_up) as second,
    ):
        await first.start()
        # A publisher of the latest blocks, which has none of those that the node misses.
        publisher = Listener([own], "latest", OPTIONS)
        publishing = asyncio.ensure_future(publisher.publish(source()))
        lasts = [-1]
        for _ in range(KILLS):
            await second.start()
            # Where this process has no time, the node may have come to all that there is.
            await until(lambda: has_block(second, min(lasts[-1] + 1, HELD)))
            lasts.append(await last_of(second))
            await second.kill()
        assert lasts == sorted(lasts)
        kills_are_over.set()
        await second.start()
        async with asyncio.timeout(4 * ANSWER_SECONDS):
            report = await publishing
        assert report.unacknowledged == 0
        assert publisher.acknowledged[-1] == BLOCKS[-1].number
        assert (await Listener([peer], "latest", OPTIONS).publish(source())).unacknowledged == 0
    assert stream_bytes(tmp_path / "a") == stream_bytes(tmp_path / "b")
