"""One attempt with one peer: what the race answers. `test_following` has the attempts themselves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.catch_up import Outcome, Range
from gateway.channels import open_channel
from gateway.peer_stream import ENDINGS, PeerStream
from gateway.race_tables import EndStatus
from tests.gateway.fake_peer import fake_peer, says, whole
from tests.nodes import make_blocks, running_node, wire_to

BLOCKS = make_blocks(8)


def test_every_end_of_a_stream_has_a_meaning() -> None:
    assert set(ENDINGS) == set(EndStatus)


async def attempt(tmp_path: Path, begun: int, plan: Range, *sent: int) -> tuple[Outcome, str, int | None]:
    """Have a node that holds `begun` blocks take the blocks `sent`; how that ended, and the node's last."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(
            fake_peer(BLOCKS, says(*whole(*[BLOCKS[number] for number in sent])))
        )
        node = await stack.enter_async_context(running_node(tmp_path))
        wire = await stack.enter_async_context(wire_to(node))
        if begun:
            publisher = await wire.publisher()
            await publisher.block(*BLOCKS[:begun])
            await publisher.answers(begun)
        channel = open_channel(peer.address)
        stream = PeerStream(node.conductor, peer.address, plan, 5.0)
        ending = await stream.run(channel, None)
        await channel.close()
        assert node.conductor.arbiter.publisher_count == (1 if begun else 0), "it has left the race"
        return *ending, node.ledger.last_number


def test_a_block_that_the_node_has_by_now_begins_the_attempt_anew(tmp_path: Path) -> None:
    outcome, reason, last = asyncio.run(attempt(tmp_path, 4, Range(2, None), 2, 3))
    assert (outcome, reason) == (Outcome.RACED, "got the header of block 2, expected 4 or later")
    assert last == 3


def test_a_block_that_is_too_far_ahead_begins_the_attempt_anew(tmp_path: Path) -> None:
    outcome, reason, last = asyncio.run(attempt(tmp_path, 4, Range(6, None), 6))
    assert (outcome, reason) == (Outcome.RACED, "a block before it is needed again")
    assert last == 3


@pytest.mark.parametrize("retired", [False, True])
def test_a_node_that_sends_publishers_away_takes_blocks_from_peers(tmp_path: Path, retired: bool) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            peer = await stack.enter_async_context(fake_peer(BLOCKS))
            node = await stack.enter_async_context(running_node(tmp_path))
            if retired:
                conductor = node.conductor
                conductor.perform(conductor.arbiter.retire("a standby", conductor.now_ns()))
            channel = open_channel(peer.address)
            stream = PeerStream(node.conductor, peer.address, Range(0, 7), 5.0)
            outcome, reason = await stream.run(channel, None)
            await channel.close()
            assert (outcome, reason) == (Outcome.COMPLETE, "it has sent everything up to block 7")
            assert stream.offered_next == 8
            assert node.ledger.last_number == 7

    asyncio.run(scenario())
