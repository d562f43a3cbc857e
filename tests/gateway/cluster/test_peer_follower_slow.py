"""Peers that send a little again and again: none holds a node for ever if another peer has the block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sluice.gateway.blocks.items import field_item
from sluice.gateway.cluster.catch_up import Range
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.cluster.peer_follower import PEER_BLOCK_DOUBLINGS_MAX, block_seconds
from sluice.gateway.cluster.peer_stream import PeerStream
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.transport.channels import open_channel
from tests.gateway.cluster.test_peer_follower import peers, until, until_block
from tests.gateway.fake_peer import FakePeer, Response, fake_peer, items_of, whole
from tests.gateway.store.test_block_store import logged
from tests.nodes import make_blocks, running_node

BLOCKS = make_blocks(8)
BLOCK_SECONDS = 1_000.0
# Only a silent peer stalls after this time; a dripping one never does, however busy the machine.
SETTINGS = {"catchup_backoff_seconds": 30.0, "catchup_stall_seconds": 5.0}


async def drips(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send two blocks, then small items of the third without end."""
    for response in whole(*BLOCKS[start:2]):
        yield response
    yield items_of(BLOCKS[2].items[0])
    while True:
        await asyncio.sleep(0.02)
        yield items_of(field_item(4, b"drip"))


def test_a_block_has_twice_the_time_with_each_attempt_in_vain_up_to_two_hours() -> None:
    assert [block_seconds(30.0, count) for count in (0, 1, 2)] == [30.0, 60.0, 120.0]
    longest = block_seconds(30.0, PEER_BLOCK_DOUBLINGS_MAX)
    assert longest == block_seconds(30.0, PEER_BLOCK_DOUBLINGS_MAX + 1) == 7_680.0


@pytest.mark.parametrize("live", [False, True], ids=["catching up", "standby"])
async def test_a_peer_that_sends_a_block_in_drops_is_left_for_one_that_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, live: bool
) -> None:
    """It is never silent, and the node must not wait for it as if all were well."""
    limits = ClusterLimits(peer_block_stalls=0.1)
    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        dripping = await stack.enter_async_context(fake_peer(BLOCKS, drips))
        honest = await stack.enter_async_context(fake_peer(BLOCKS))
        both = peers(dripping.address, honest.address)
        role = "standby" if live else "active"
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **SETTINGS, peers=both, role=role)
        )
        await until_block(node, 7)
        assert [start for start, _ in dripping.asked] == [0]
        assert honest.asked[0][0] == 2, "what has come whole is kept"
    dropped = logged(caplog, "peer dropped")[0]
    assert dropped["outcome"] == "the peer sends nothing, or too little, though it has more"
    assert str(dropped["reason"]).startswith("block 2 was waited for ")
    assert str(dropped["reason"]).endswith(" s and has not ended, and another peer has block 7")


async def test_a_peer_that_sends_a_block_in_drops_is_kept_where_no_other_has_it_and_the_node_says_so(
    tmp_path: Path,
) -> None:
    """A large block over a slow line would never arrive if each attempt began anew."""
    limits = ClusterLimits(peer_block_stalls=0.1)
    async with AsyncExitStack() as stack:
        dripping = await stack.enter_async_context(fake_peer(BLOCKS, drips))
        other = await stack.enter_async_context(fake_peer(BLOCKS[:2]))
        both = peers(dripping.address, other.address)
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **SETTINGS, peers=both)
        )
        await until(lambda: node.following.problem is not None)
        problem = f"the node does not come closer to its peers: {dripping.address}: block 2 was waited for "
        assert str(node.following.problem).startswith(problem)
        assert node.reporter.readiness() == [node.following.problem]
        asked_count = other.status_count
        await until(lambda: other.status_count > asked_count + 1)
        assert len(dripping.asked) == 1, "it is not left"


async def test_only_the_time_within_a_block_counts_not_that_before_its_header(tmp_path: Path) -> None:
    """On a quiet network the next header may take long."""
    begun = asyncio.Event()

    async def pauses(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        yield whole(BLOCKS[0])[0]
        yield whole(BLOCKS[0])[1]
        await begun.wait()
        yield items_of(BLOCKS[1].items[0])
        yield items_of(*BLOCKS[1].items[1:3])
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(fake_peer(BLOCKS, pauses))
        node = await stack.enter_async_context(running_node(tmp_path))
        channel = await stack.enter_async_context(open_channel(peer.address))
        stream = PeerStream(
            node.conductor, peer.address, Range(0, None), 10_000.0, block_seconds=BLOCK_SECONDS
        )
        running = asyncio.ensure_future(stream.run(channel, None))

        async def waits_for(number: int, item_count: int) -> None:
            await until(
                lambda: (
                    stream._heard_at is not None
                    and (stream._order.next_number, stream._order._item_count) == (number, item_count)
                )
            )

        await waits_for(1, 0)
        assert stream._heard_at is not None
        stream._heard_at -= 2 * BLOCK_SECONDS  # pretend that much waiting
        assert stream.slowness is None
        begun.set()
        await waits_for(1, 3)
        assert stream.slowness is None
        stream._heard_at -= BLOCK_SECONDS
        assert stream.slowness == "block 1 was waited for 1000 s and has not ended"
        running.cancel()
        await asyncio.wait({running})
