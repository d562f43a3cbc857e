"""Several peers bring blocks at once, over real gRPC: slow links, and peers that lie, stall and vanish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.cluster.peer_ranges import HeldCall
from sluice.gateway.cluster.ranges import RangeRules
from sluice.gateway.node.rules import NodeLimits
from sluice.publishers.blocks.maker import key_of_seed
from tests.gateway.cluster.test_peer_follower import peers, spoiled, until, until_block
from tests.gateway.cluster.test_ranges import plan_of
from tests.gateway.fake_peer import Code, FakePeer, Response, Script, end_of, fake_peer, items_of, whole
from tests.gateway.store.test_block_store import logged
from tests.nodes import make_blocks, running_node, stream_bytes
from tests.publishers.node_thread import store

BLOCKS = make_blocks(150)
LAST = BLOCKS[-1].number
RULES = RangeRules(blocks_min=8, seconds=0.1, late_factor=1_000.0)
LIMITS = NodeLimits(cluster=ClusterLimits(peer_poll_seconds=0.05, peer_share_seconds=0.05, ranges=RULES))
# A peer that was left is not tried again, and none is given up for its silence on a busy machine.
SETTINGS: dict[str, Any] = {
    "catchup_backoff_seconds": 30.0,
    "catchup_max_backoff_seconds": 60.0,
    "catchup_stall_seconds": 60.0,
}
IMPATIENT = SETTINGS | {"catchup_stall_seconds": 1.0}


async def slow(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send a block each 10 ms, so that the node mostly waits."""
    for block in peer.blocks[start : end + 1]:
        await asyncio.sleep(0.01)
        for response in whole(block):
            yield response
    if end < len(peer.blocks):
        yield Response(status=Code.SUCCESS)
    else:
        await asyncio.Event().wait()


def from_block(number: int, otherwise: Callable[[FakePeer, int], AsyncIterator[Response]]) -> Script:
    """Return a script that is slow, and does something else from a block on."""

    async def script(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        async for response in slow(peer, start, min(end, number - 1)):
            if not response.HasField("status"):
                yield response
        if end < number:
            yield Response(status=Code.SUCCESS)
            return
        async for response in otherwise(peer, max(start, number)):
            yield response

    return script


async def stalls(peer: FakePeer, number: int) -> AsyncIterator[Response]:
    yield items_of(*peer.blocks[number].items[:3])
    await asyncio.Event().wait()


async def breaks_off(peer: FakePeer, number: int) -> AsyncIterator[Response]:
    yield items_of(*peer.blocks[number].items[:3])


async def lies(peer: FakePeer, number: int) -> AsyncIterator[Response]:
    for response in whole(spoiled(BLOCKS[number]), *peer.blocks[number + 1 :]):
        yield response


async def sends_nonsense(peer: FakePeer, number: int) -> AsyncIterator[Response]:
    yield end_of(number)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.parametrize("role", ["active", "standby"])
async def test_a_node_far_behind_takes_blocks_from_several_peers_at_once(
    tmp_path: Path, log: pytest.LogCaptureFixture, role: str
) -> None:
    store(tmp_path / "a", BLOCKS)
    async with AsyncExitStack() as stack:
        three = [await stack.enter_async_context(fake_peer(BLOCKS, slow)) for _ in range(3)]
        settings = SETTINGS | {"peers": peers(*(peer.address for peer in three)), "role": role}
        node = await stack.enter_async_context(running_node(tmp_path / "b", LIMITS, **settings))
        await until_block(node, LAST)
        assert all(peer.asked for peer in three)
        assert node.following.problem is None
        begun = logged(log, "several peers bring blocks")
        assert begun[0]["peers"] == ", ".join(peer.address for peer in three)
        assert begun[0]["end"] == LAST
    asked = sorted(one for peer in three for one in peer.asked if one[1] <= LAST and one != (0, LAST))
    for (_, end), (start, _) in pairwise(asked):
        assert start == end + 1, "no block is asked for twice"
    assert stream_bytes(tmp_path / "a") == stream_bytes(tmp_path / "b")
    assert not logged(log, "peer dropped")


async def test_the_status_names_all_peers_that_bring_blocks(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(fake_peer(BLOCKS, slow)) for _ in range(2)]
        settings = SETTINGS | {"peers": peers(*(peer.address for peer in both))}
        node = await stack.enter_async_context(running_node(tmp_path, LIMITS, **settings))
        named = ", ".join(sorted(peer.address for peer in both))
        await until(lambda: node.following.followed == named)
        await node.following.stop()
        assert node.following.followed is None
        assert node.conductor.arbiter.source_count == 0
        node.following.catch_up([peer.address for peer in both])
        node.following._aim(node.following._machine, LAST)  # type: ignore[arg-type]
        node.following._changed.set()
        await until_block(node, LAST)


@pytest.mark.parametrize("script", [stalls, breaks_off, lies, sends_nonsense])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "helper"])
async def test_a_rogue_among_them_is_named_and_the_others_go_on(
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
    script: Callable[[FakePeer, int], AsyncIterator[Response]],
    is_first: bool,
) -> None:
    store(tmp_path / "a", BLOCKS)
    async with AsyncExitStack() as stack:
        rogue = await stack.enter_async_context(fake_peer(BLOCKS, from_block(60, script)))
        honest = [await stack.enter_async_context(fake_peer(BLOCKS, slow)) for _ in range(2)]
        every = [rogue, *honest] if is_first else [*honest, rogue]
        settings = (IMPATIENT if script is stalls else SETTINGS) | {
            "peers": peers(*(peer.address for peer in every))
        }
        node = await stack.enter_async_context(running_node(tmp_path / "b", LIMITS, **settings))
        await until_block(node, LAST)
        assert rogue.asked
        assert node.following.problem is None
    assert {one["peer"] for one in logged(log, "peer dropped")} == {rogue.address}, "for one range or two"
    assert stream_bytes(tmp_path / "a") == stream_bytes(tmp_path / "b")


async def test_nothing_is_read_behind_an_item_set_of_no_valid_form() -> None:
    """It takes no room in the plan's account, and a liar could send such messages for ever."""
    error = ItemError("item set", "no items", "at least one")
    messages: list[ItemError] = []

    class Call:
        async def read(self) -> ItemError:
            await asyncio.sleep(0)
            messages.append(error)
            return error

    plan = plan_of("a:1", "b:1")
    assert plan.next_for("a:1") is not None
    held = HeldCall(Call(), plan, 0, asyncio.Event().wait, lambda: None)
    async with asyncio.timeout(10):
        assert not await held.fill()
        assert await held.read() is error
    assert messages == [error]


async def test_a_peer_whose_blocks_are_all_forged_is_to_blame_for_them_alone(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        honest = await stack.enter_async_context(fake_peer(BLOCKS, slow))
        forger = await stack.enter_async_context(fake_peer(make_blocks(150, key=key_of_seed(8)), slow))
        settings = SETTINGS | {"peers": peers(honest.address, forger.address)}
        node = await stack.enter_async_context(running_node(tmp_path, LIMITS, **settings))
        await until_block(node, LAST)
    dropped = {(one["peer"], one["outcome"]) for one in logged(log, "peer dropped")}
    assert dropped == {(forger.address, "the peer sent what cannot be")}, "for one range or two"
