"""Rogue peers over real gRPC: the node reaches the end of the chain through an honest peer."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.api import node_pb2_grpc
from sluice.gateway.blocks.items import field_item
from sluice.gateway.cluster import peer_follower as following
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.cluster.peer_stream import PeerStream
from sluice.gateway.node.rules import NodeLimits
from tests.gateway.cluster.test_peer_follower import peers, until, until_block
from tests.gateway.cluster.test_peer_follower_slow import drips
from tests.gateway.fake_peer import (
    Code,
    FakePeer,
    Response,
    Script,
    end_of,
    fake_peer,
    items_of,
    silent,
    whole,
)
from tests.gateway.store.test_block_store import logged
from tests.nodes import make_blocks, running_node

BLOCKS = make_blocks(40)
SETTINGS: dict[str, Any] = {"catchup_backoff_seconds": 30.0, "catchup_stall_seconds": 5.0}


async def crawls(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send block after block, in time and in pieces, but slower than the network makes them."""
    for block in peer.blocks[start:]:
        for item in block.items:
            yield items_of(item)
            await asyncio.sleep(0.2 / len(block.items))
        yield end_of(block.number)
    await asyncio.Event().wait()


@pytest.mark.parametrize("live", [False, True], ids=["catching up", "standby"])
async def test_a_peer_that_brings_fewer_blocks_than_the_network_makes_is_left_for_one_that_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, live: bool
) -> None:
    """No block is late, yet the node would never catch up."""
    limits = ClusterLimits(peer_block_stalls=0.1, peer_pace_share_min=20.0)
    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(fake_peer(BLOCKS, crawls))
        honest = await stack.enter_async_context(fake_peer(BLOCKS))
        both, role = peers(slow.address, honest.address), "standby" if live else "active"
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **SETTINGS, peers=both, role=role)
        )
        await until_block(node, 39)
        assert len(slow.asked) == 1
        assert 0 < honest.asked[0][0] < 39, "what has come whole is kept"
    [dropped] = logged(caplog, "peer dropped")
    assert dropped["outcome"] == "the peer sends nothing, or too little, though it has more"
    assert " s in which it was waited for, and another peer has block 39" in str(dropped["reason"])


async def test_a_peer_that_crawls_is_kept_where_no_other_has_its_blocks(tmp_path: Path) -> None:
    limits = ClusterLimits(peer_block_stalls=0.1, peer_pace_share_min=20.0)
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(fake_peer(BLOCKS[:10], crawls))
        other = await stack.enter_async_context(fake_peer(BLOCKS[:2]))
        both = peers(slow.address, other.address)
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **SETTINGS, peers=both)
        )
        await until_block(node, 9)
        assert len(slow.asked) == 1


async def test_a_peer_that_crawls_and_says_that_it_has_no_more_is_found_out_by_what_others_have(
    tmp_path: Path,
) -> None:
    limits = ClusterLimits(
        peer_block_stalls=0.5, peer_pace_share_min=20.0, peer_poll_seconds=0.05, peer_mute_seconds=0.05
    )

    async def lies_and_crawls(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        peer.last = start - 1 if start else None
        async for response in crawls(peer, start, end):
            if response.HasField("end_of_block"):
                peer.last = response.end_of_block.block_number
            yield response

    async with AsyncExitStack() as stack:
        liar = await stack.enter_async_context(fake_peer(BLOCKS, lies_and_crawls))
        liar.last = None
        honest = await stack.enter_async_context(fake_peer(BLOCKS))
        settings = SETTINGS | {"catchup_stall_seconds": 1.0}
        both = peers(liar.address, honest.address)
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **settings, peers=both, role="standby")
        )
        await until_block(node, 39)
        assert liar.asked
        assert honest.asked[0][0] < 35


async def test_many_peers_that_drip_cost_as_much_time_as_each_of_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience with one peer must not grow with the time that others cost."""
    limits = ClusterLimits(peer_block_stalls=0.05)
    patience: list[float] = []

    def opened(*arguments: Any, block_seconds: float, **more: Any) -> PeerStream:
        patience.append(block_seconds)
        return PeerStream(*arguments, block_seconds=block_seconds, **more)

    monkeypatch.setattr(following, "PeerStream", opened)

    async with AsyncExitStack() as stack:
        dripping = [await stack.enter_async_context(fake_peer(BLOCKS, drips)) for _ in range(3)]
        honest = await stack.enter_async_context(fake_peer(BLOCKS))
        every = peers(*(peer.address for peer in (*dripping, honest)))
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **SETTINGS, peers=every)
        )
        await until_block(node, 39)
    assert patience == [0.25] * 4


async def test_a_peer_that_says_it_has_more_and_does_not_bring_it_is_not_gone_to_again_and_again(
    tmp_path: Path,
) -> None:
    """A standby must not leave the honest peer for it each time."""
    limits = ClusterLimits(peer_poll_seconds=0.05)
    settings = SETTINGS | {"catchup_stall_seconds": 0.4, "catchup_backoff_seconds": 0.02}

    async def honest_and_live(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        for response in whole(*peer.blocks[start:]):
            yield response
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        honest = await stack.enter_async_context(fake_peer(BLOCKS, honest_and_live))
        liar = await stack.enter_async_context(fake_peer(BLOCKS, silent))
        liar.last = (1 << 63) - 1
        both = peers(honest.address, liar.address)
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **settings, peers=both, role="standby")
        )
        await until_block(node, 39)
        await until(lambda: bool(liar.asked))
        begun_at = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - begun_at > 2.0)
        assert len(liar.asked) == 1
        assert node.following.followed == honest.address
        await until(lambda: node.reporter.readiness() == [])


async def test_what_a_peer_says_of_itself_is_one_line_and_not_long(tmp_path: Path) -> None:
    """It appears in the reasons of /readyz, one a line."""

    class Talkative(FakePeer):
        async def serverStatus(self, request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.INTERNAL, "no\nready\n\x1b[2J" + "x" * 6_000)

    server = aio.server()
    node_pb2_grpc.add_BlockNodeServiceServicer_to_server(Talkative(BLOCKS), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    settings = SETTINGS | {"catchup_backoff_seconds": 0.01}
    async with running_node(tmp_path, **settings, peers=peers(address), role="standby") as node:
        await until(lambda: node.following.problem is not None)
        [reason] = node.reporter.readiness()
        assert "INTERNAL: no\\nready\\n\\x1b[2Jxxx" in reason
        assert len(reason) < 700
    await server.stop(0)


# --- many at once -----------------------------------------------------------------------------------------


async def beyond(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send an unrequested block."""
    yield items_of(*make_blocks(41)[40].items)
    yield end_of(40)
    await asyncio.Event().wait()


async def again(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send one block for ever."""
    while True:
        for response in whole(peer.blocks[min(start, 39)]):
            yield response


async def without_end(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send items of one block for ever, at full speed."""
    yield items_of(peer.blocks[min(start, 39)].items[0])
    while True:
        yield items_of(*[field_item(4, b"x" * 65_536)] * 16)


async def many_small(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """The same with the smallest items."""
    yield items_of(peer.blocks[min(start, 39)].items[0])
    while True:
        yield items_of(*[field_item(4, b"x")] * 10_000)


async def huge(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send an item that is too long."""
    yield items_of(peer.blocks[min(start, 39)].items[0], field_item(4, bytes(140_000_000)))


async def deep(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send an endlessly nested header and item."""
    item = b""
    for _ in range(20_000):
        item = field_item(1, item)[-60_000:]
    yield items_of(item)
    yield items_of(field_item(9, item))


async def only_empty(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send empty sets."""
    while True:
        yield items_of()


async def ends_at_once(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Report success twice."""
    yield Response(status=Code.SUCCESS)
    yield Response(status=Code.SUCCESS)


ROGUES: tuple[Script, ...] = (
    beyond,
    again,
    without_end,
    many_small,
    huge,
    deep,
    only_empty,
    ends_at_once,
    silent,
    drips,
    crawls,
)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["active", "standby"])
async def test_all_rogues_at_once_beside_one_honest_peer(tmp_path: Path, role: str) -> None:
    limits = ClusterLimits(peer_block_stalls=0.5, peer_pace_share_min=20.0)
    settings = SETTINGS | {"catchup_stall_seconds": 0.5, "catchup_backoff_seconds": 0.1}

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with AsyncExitStack() as stack:
        rogues = [await stack.enter_async_context(fake_peer(BLOCKS, script)) for script in ROGUES]
        for rogue in rogues[::2]:
            rogue.role, rogue.last = "active", (1 << 63) - 1
        mute = await stack.enter_async_context(fake_peer(BLOCKS))
        mute.is_mute = True
        honest = await stack.enter_async_context(fake_peer(BLOCKS))
        every = peers(*(peer.address for peer in (*rogues, mute, honest)))
        node = await stack.enter_async_context(
            running_node(tmp_path, NodeLimits(cluster=limits), **settings, peers=every, role=role)
        )
        async with asyncio.timeout(150):
            while (node.store.last_number or 0) < 39:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    # One message of the greatest length, in gRPC and in Python, and blocks in flight.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 1_500_000
