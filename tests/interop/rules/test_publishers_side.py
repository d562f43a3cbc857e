"""The publisher's side against a real node: laggards, routine resets, blocks that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions, PublishClient, publish_blocks
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from sluice.publishers.report import PublishReport
from tests.interop.rules.scenes import BLOCKS, playing


async def chain(start: int = 0, stop: int = len(BLOCKS)) -> AsyncIterator[Block]:
    """The blocks from `start` on."""
    for block in BLOCKS[start:stop]:
        yield block


async def test_a_laggard_does_not_send_what_it_was_told_is_stored(tmp_path: Path) -> None:
    async with playing(tmp_path, committed=0) as stage:
        go_on = asyncio.Event()

        async def lagging() -> AsyncIterator[Block]:
            yield BLOCKS[0]
            await go_on.wait()
            for block in BLOCKS[1:6]:
                yield block

        client = PublishClient([str(stage.node.grpc_address)], "laggard")
        publishing = asyncio.ensure_future(client.publish(lagging()))
        await stage.until(lambda: stage.node.store.last_number == 0)
        fast = await stage.publisher("fast")
        await fast.block(*BLOCKS[1:6])
        await fast.expect(*(f"ack {number}" for number in range(1, 6)))
        streams = stage.node.conductor.arbiter.streams.values()
        (stream,) = [stream for stream in streams if stream.name == "claimed:laggard"]
        await stage.until(lambda: client._machine.safe_through == 5)
        go_on.set()
        report = await publishing
        assert (report.blocks, report.won, report.skipped, report.acknowledged) == (6, 1, 0, 6)
        assert stream.offered_max == 0


async def test_a_routine_reset_between_blocks_loses_and_repeats_nothing(tmp_path: Path) -> None:
    options = ClientOptions(machine=MachineLimits(reset_interval_ns=SECOND_NS // 20))
    async with playing(tmp_path, committed=0) as stage:

        async def slow() -> AsyncIterator[Block]:
            async for block in chain():
                # Not all of them while one stream is opened, however long that takes.
                await stage.until(lambda: stage.node.conductor.next_to_store == block.number)  # noqa: B023
                await asyncio.sleep(0.02)
                yield block

        report = await publish_blocks(slow(), [str(stage.node.grpc_address)], "alice", options)
        assert (report.blocks, report.acknowledged, report.unacknowledged) == (len(BLOCKS), len(BLOCKS), 0)
        assert report.reconnects >= 2
        assert stage.node.store.last_number == len(BLOCKS) - 1


async def test_a_node_that_wants_what_is_not_held_any_more_hears_the_range(tmp_path: Path) -> None:
    """The publisher has blocks 5 and 6, the node 0 to 2: TOO_FAR_BEHIND makes 6 the target of catch-up."""
    async with playing(tmp_path, committed=3) as stage:
        publishing: asyncio.Future[PublishReport] = asyncio.ensure_future(
            publish_blocks(chain(5, 7), [str(stage.node.grpc_address)], "alice")
        )
        await stage.until(lambda: stage.node.conductor.catch_up_target == 6)
        bob = await stage.publisher("bob")
        await bob.block(*BLOCKS[3:5])
        await bob.expect("ack 3", "ack 4")
        report = await publishing  # it tries again until the node has caught up
        assert (report.won, report.unacknowledged) == (2, 0)
