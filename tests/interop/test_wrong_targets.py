"""What nodes make of a target that nobody has, and of a peer that is the node itself."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX
from sluice.gateway.cluster.catch_up import TOLD_AHEAD_BLOCKS_MAX
from tests.chaos.link import Link
from tests.gateway.block_makers import header_item
from tests.gateway.cluster.test_peer_follower import BLOCKS, FAST, peers, readiness_of, until, until_block
from tests.gateway.fake_peer import fake_peer
from tests.gateway.store.test_block_store import logged
from tests.nodes import Request, running_node, wire_to
from tests.serving import free_port


async def test_a_block_in_the_far_future_does_not_keep_a_node_out_of_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher tells of a block that nobody has; the next one's target is looked for all the same."""
    far = 2 + TOLD_AHEAD_BLOCKS_MAX

    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS[:3]))
        settings = FAST | {"catchup_max_stalled_attempts": 3, "catchup_unconfirmed_seconds": 600.0}
        settings |= {"catchup_stall_seconds": 30.0}  # by itself it asks its peers only then
        node = await stack.enter_async_context(running_node(tmp_path, **settings, peers=peers(peer.address)))
        wire = await stack.enter_async_context(wire_to(node))
        await until_block(node, 2)
        liar = await wire.publisher()
        await liar.end_stream(Request.EndStream.Code.TOO_FAR_BEHIND, 12, far)
        await until(lambda: node.following.problem is not None)
        assert (await asyncio.to_thread(readiness_of, node))[0] == 503
        machine = node.following._machine
        assert machine is not None
        machine.rules = replace(machine.rules, unconfirmed_ns=300_000_000)
        await until(lambda: node.following.problem is None)
        assert (node.reporter.readiness(), node.following.distance) == ([], 0)
        assert node.conductor.catch_up_target is None
        assert "sluice_catch_up_targets_given_up_total 1.0" in node.metrics.exposition().decode()
        another = await wire.publisher()
        await another.end_stream(Request.EndStream.Code.TOO_FAR_BEHIND, 12, far)
        await until(lambda: node.metrics.catch_up_targets_given_up._value.get() == 2)
        assert node.following._was_problem is False, "said once, and not again before a block comes"
        peer.blocks, peer.last = BLOCKS[:8], 7
        honest = await wire.publisher()
        await honest.block(BLOCKS[7])
        await honest.expect("behind 2")
        await until_block(node, 7)
    given_up = logged(
        caplog,
        "a block that publishers told of is not looked for any more: no peer has it, or one before it",
    )
    assert [(line["target"], line["next"]) for line in given_up] == [(far, 3), (far, 3)]
    assert len(logged(caplog, "catch-up stands still")) == 1


async def test_a_standby_that_is_led_back_to_itself_says_so(tmp_path: Path) -> None:
    """As where its peer is a load balancer that has no other node left."""

    async with AsyncExitStack() as stack:
        itself, way = (Address("127.0.0.1", free_port()) for _ in range(2))
        link = Link(way, itself)
        await link.open()
        settings = FAST | {"grpc_address": itself, "peers": (way,), "role": "standby"}
        settings |= {"catchup_stall_seconds": 5.0}  # which is the time for an answer, too
        node = await stack.enter_async_context(running_node(tmp_path, **settings))
        expected = f"the node has nobody to follow: {way} leads to the node itself"
        await until(lambda: node.reporter.readiness() == [expected])
        assert await node.following.is_itself(str(way))
        await link.close()
        assert not await node.following.is_itself(str(way))


@pytest.mark.parametrize(
    ("earliest", "latest"),
    [
        (25, 24),
        pytest.param(25, 1 << 63, marks=pytest.mark.slow),
        pytest.param(25, U64_MAX, marks=pytest.mark.slow),
        (U64_MAX, U64_MAX),
        (25, BLOCK_NUMBER_MAX),
        pytest.param(10**15, 24, marks=pytest.mark.slow),
    ],
)
async def test_a_node_that_is_level_is_led_nowhere_by_the_range_of_a_publisher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, earliest: int, latest: int
) -> None:
    """As consensus nodes say that nothing is acknowledged, or none; and what nobody can have."""
    too_far_behind = Request.EndStream.Code.TOO_FAR_BEHIND

    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS))
        node = await stack.enter_async_context(running_node(tmp_path, **FAST, peers=peers(peer.address)))
        wire = await stack.enter_async_context(wire_to(node))
        await until_block(node, 29)
        for _ in range(2):
            publisher = await wire.publisher()
            await publisher.end_stream(too_far_behind, earliest, latest)
            await publisher.expect("closed")
        publisher = await wire.publisher()
        for number in (U64_MAX, 1 << 63, 10**15):
            await publisher.items(header_item(number))
            await publisher.expect("behind 29")
        await asyncio.sleep(0.5)
        assert (node.following.distance, node.following.problem) == (0, None)
        assert node.reporter.readiness() == []
        assert node.conductor.catch_up_target is None
        assert peer.asked == [(0, 29)]
    assert not logged(caplog, "EndStream breaks the protocol")
    assert (
        len(logged(caplog, "a publisher told of a block that is implausibly far ahead; it is not looked for"))
        == 1
    )
