"""Several publishers in one process, against a node that lets them race."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tenacity import wait_none

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.client.racing import Racer, race
from sluice.publishers.errors import PublishFailed, SourceCancelled
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.nodes import make_blocks
from tests.publishers.fake_node import NO_BLOCK, FakeNode, FakeStream, racing

BLOCKS = make_blocks(60)
NOBODY = "127.0.0.1:1"
OPTIONS = ClientOptions(machine=MachineLimits(deadline_ns=20 * SECOND_NS), wait=wait_none())
IMPATIENT = ClientOptions(machine=MachineLimits(deadline_ns=SECOND_NS // 5))


async def source(count: int = 60, *, fails: bool = False) -> AsyncIterator[Block]:
    for block in BLOCKS[:count]:
        yield block
    if fails:
        raise LookupError("the source broke")


async def test_every_block_is_stored_once_and_everybody_knows() -> None:
    async with FakeNode(default=racing) as node:
        racers = [Racer(f"r{number}", (node.address,)) for number in range(3)]
        reports = await race(source(), racers, OPTIONS, ahead_bytes_max=2000)
    assert sorted(block.number for block in node.received) == list(range(60))
    assert [report.publisher_id for report in reports] == ["r0", "r1", "r2"]
    assert all(report.safe_through == 59 for report in reports)


async def test_one_that_gives_up_does_not_hold_up_the_others() -> None:
    async def refuse(stream: FakeStream) -> None:
        await stream.block()
        await stream.end("BAD_BLOCK_PROOF", NO_BLOCK)
        await stream.drain()

    async with FakeNode() as node, FakeNode(default=refuse) as refusing:
        racers = [Racer("lost", (refusing.address,)), Racer("good", (node.address,))]
        lost, good = await race(source(), racers, OPTIONS, ahead_bytes_max=2000)
    assert lost.failure is not None
    assert "was refused 3 times with BAD_BLOCK_PROOF" in lost.failure
    assert (good.failure, good.safe_through) == (None, 59)
    assert node.received == BLOCKS


async def test_all_give_up() -> None:
    racers = [Racer("a", (NOBODY,)), Racer("b", (NOBODY,))]
    with pytest.raises(PublishFailed) as caught:
        await race(source(), racers, IMPATIENT, 2000)
    assert caught.value.report.publisher_id == "a"


@pytest.mark.parametrize("count", [1, 2])
async def test_what_the_source_raises_is_raised(count: int) -> None:
    async def drain(stream: FakeStream) -> None:
        await stream.drain()

    async def run() -> None:
        async with FakeNode(default=drain) as node:
            racers = [Racer(f"r{number}", (node.address,)) for number in range(count)]
            await race(source(3, fails=True), racers, OPTIONS, 2000)

    with pytest.raises(LookupError, match="the source broke"):
        await run()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_source_that_is_cancelled_is_no_end_of_the_source(count: int) -> None:
    async def broken_off() -> AsyncIterator[Block]:
        for block in BLOCKS[:3]:
            yield block
        raise asyncio.CancelledError

    async def run() -> None:
        async with FakeNode(default=racing) as node:
            racers = [Racer(f"r{number}", (node.address,)) for number in range(count)]
            await race(broken_off(), racers, OPTIONS, 2000)

    with pytest.raises(SourceCancelled) as caught:
        await run()
    assert caught.value.last_block == 2
