"""Which peer a standby follows if its own is a standby, too, or hangs: over real gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sluice.gateway.addresses import parse_address
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.node.rules import NodeLimits
from tests.gateway.cluster.test_peer_follower import BLOCKS, FAST, STRANGE, until, until_block
from tests.gateway.fake_peer import FakePeer, Response, end_of, fake_peer, items_of, nonsense_peer, whole
from tests.gateway.store.test_block_store import logged
from tests.nodes import running_node, stream_bytes, wire_to
from tests.serving import free_port

SLOW = FAST | {"catchup_stall_seconds": 40.0}
"""Only a quarter of this silence fits into a test."""

LIMITS = NodeLimits(cluster=ClusterLimits(peer_poll_seconds=0.1, peer_mute_seconds=60.0))
"""Peers are asked ten times as often as in production, and none counts as mute, however slow it is."""


async def endless(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send all present and future blocks."""
    while True:
        for block in peer.blocks[start:]:
            for response in whole(block):
                yield response
            start = block.number + 1
        await asyncio.sleep(0.01)


async def hangs_in_a_block(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send the first half of the last block, then nothing."""
    for response in whole(*peer.blocks[start:-1]):
        yield response
    yield items_of(*peer.blocks[-1].items[:4])
    await asyncio.Event().wait()


async def two_halves(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send the last block in two halves, the second when the follower knows its next peer."""
    for response in whole(*peer.blocks[start:-1]):
        yield response
    last = peer.blocks[-1]
    yield items_of(*last.items[:4])
    await until(lambda: peer.role != "")
    asked_count = peer.status_count
    await until(lambda: peer.status_count >= asked_count + 3)  # the status includes the role
    yield items_of(*last.items[4:])
    yield end_of(last.number)
    await asyncio.Event().wait()


def has_role(peer: FakePeer, role: str) -> FakePeer:
    """Give the peer a role."""
    peer.role = role
    return peer


async def test_a_standby_is_left_for_the_active_node_behind_a_whole_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After some failovers among three nodes, the third one may follow a standby."""

    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(fake_peer(BLOCKS[:3], two_halves))
        active = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:6], endless)), "active")
        node = await stack.enter_async_context(running_node(tmp_path, LIMITS, **SLOW))
        node.following.follow([standby.address, active.address])
        await until(lambda: 2 in node.conductor.arbiter.blocks)
        has_role(standby, "standby")
        await until_block(node, 5)
        assert node.following.followed == active.address
        assert [start for start, _ in standby.asked] == [0]
        assert [start for start, _ in active.asked] == [3], "nothing twice, and nothing is missing"
    assert logged(caplog, "peer ended")[0]["outcome"] == "the peer is a standby, and another one is active"
    assert not logged(caplog, "peer dropped")


@pytest.mark.parametrize("first_role", ["active", "standby", "draining", ""])
async def test_a_peer_is_kept_where_no_other_one_is_better(tmp_path: Path, first_role: str) -> None:
    """Two active peers; an active one that is behind; one that drains; another kind of block node."""

    async with AsyncExitStack() as stack:
        first = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:6], endless)), first_role)
        is_behind = first_role == "standby"
        other_blocks = BLOCKS[:5] if is_behind else BLOCKS[:6]
        active = has_role(await stack.enter_async_context(fake_peer(other_blocks, endless)), "active")
        standby = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:6], endless)), "standby")
        nonsense = await stack.enter_async_context(nonsense_peer())
        node = await stack.enter_async_context(running_node(tmp_path, LIMITS, **SLOW))
        node.following.follow([first.address, active.address, standby.address, nonsense])
        await until(lambda: first.status_count >= 4)
        assert node.following.followed == first.address
        assert len(first.asked) == 1
        assert not active.asked
        assert not standby.asked
        assert (active.status_count > 0) == is_behind


async def test_a_chain_of_standbys_goes_on_where_no_other_peer_is_known(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        standby = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:3], endless)), "standby")
        node = await stack.enter_async_context(running_node(tmp_path, LIMITS, **SLOW))
        node.following.follow([standby.address])
        await until_block(node, 2)
        await until(lambda: standby.status_count >= 3)
        standby.blocks = BLOCKS[:8]
        await until_block(node, 7)
        assert len(standby.asked) == 1


async def test_a_standby_is_not_left_again_for_an_active_node_of_another_chain(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        standby = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:3], endless)), "standby")
        foreign = has_role(await stack.enter_async_context(fake_peer(STRANGE[:9], endless)), "active")
        node = await stack.enter_async_context(running_node(tmp_path, LIMITS, **SLOW))
        node.following.follow([standby.address, foreign.address])
        await until_block(node, 2)
        await until(lambda: bool(foreign.asked))
        asked_count = standby.status_count
        await until(lambda: standby.status_count >= asked_count + 4)
        assert len(foreign.asked) == 1
        standby.blocks = BLOCKS[:5]
        await until_block(node, 4)


async def test_a_peer_that_hangs_in_a_block_is_left_for_another_long_before_it_would_count_as_stalled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If one standby hangs, the other must soon acknowledge to the active node."""
    limits = ClusterLimits(peer_poll_seconds=0.1, peer_mute_seconds=0.1)

    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        hung = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:3], hangs_in_a_block)), "active")
        ahead = has_role(await stack.enter_async_context(fake_peer(BLOCKS[:6], endless)), "standby")
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **FAST | {"catchup_stall_seconds": 12.0})
        )
        node.following.follow([hung.address, ahead.address])
        await until_block(node, 1)
        hung.is_mute = True
        async with asyncio.timeout(10.0):
            await until_block(node, 5)
        assert [start for start, _ in ahead.asked] == [2]
    [dropped] = logged(caplog, "peer dropped")
    assert dropped["outcome"] == "the peer does not answer"
    assert dropped["reason"] == "it does not answer, and another peer has block 5"


async def test_two_standbys_that_follow_each_other_find_the_active_node(tmp_path: Path) -> None:
    """Each is the first peer that the other can reach."""

    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(running_node(tmp_path / "b", LIMITS, **FAST))
        other = await stack.enter_async_context(running_node(tmp_path / "c", LIMITS, **FAST))
        active = f"127.0.0.1:{free_port()}"
        for node, peer in ((one, other), (other, one)):
            node.following.follow([active, str(peer.grpc_address)])
        await until(lambda: one.following.followed == str(other.grpc_address))
        await until(lambda: other.following.followed == str(one.grpc_address))
        settings = {"grpc_address": parse_address(active)}
        node = await stack.enter_async_context(running_node(tmp_path / "a", LIMITS, **settings))
        wire = await stack.enter_async_context(wire_to(node))
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[:5])
        await until_block(one, 4)
        await until_block(other, 4)
    chains = [stream_bytes(tmp_path / name) for name in "abc"]
    assert chains[0] == chains[1] == chains[2]
