"""A subscription that outlives its connections: from gateway to gateway, without gap or repeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import field_item
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.sources.block_follower import BlockFollower, Start
from tests.gateway.fake_peer import (
    Code,
    FakePeer,
    Response,
    fake_peer,
    honest,
    items_of,
    nonsense_peer,
    says,
    whole,
)
from tests.nodes import make_blocks, running_node, wire_to

BLOCKS = make_blocks(12)
NOBODY = "127.0.0.1:1"


async def two_and_a_half(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send two blocks and break off in the third."""
    for response in whole(*peer.blocks[start : start + 2]):
        yield response
    if start + 2 < len(peer.blocks):
        yield items_of(*peer.blocks[start + 2].items[:3])


async def follow(
    addresses: list[str], start: Start, end: int | None = None, **options: Any
) -> tuple[list[Block], list[str]]:
    """Follow to the end; the blocks, and the troubles on the way."""
    troubles: list[str] = []
    follower = BlockFollower(addresses, start, end, on_trouble=troubles.append, **options)
    return [received.block async for received in follower.blocks()], troubles


async def test_a_range_of_one_node(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS)
        await publisher.answers(12)
        assert await follow([str(node.grpc_address)], 3, 7) == (BLOCKS[3:8], [])
        assert await follow([str(node.grpc_address)], "first", 2) == (BLOCKS[:3], [])


async def test_new_blocks_are_those_after_the_last_one_there(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_to(node) as wire:
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[:4])
        await publisher.answers(4)
        blocks = BlockFollower([str(node.grpc_address)], "new").blocks()
        first = asyncio.ensure_future(anext(blocks))
        while not node.subscribe_service.stream_count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await publisher.block(*BLOCKS[4:])
        assert (await first).block == BLOCKS[4]
        assert (await anext(blocks)).block == BLOCKS[5]
        await blocks.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("start", ["first", "new"])
async def test_a_chain_may_begin_elsewhere_than_its_empty_node_expected(tmp_path: Path, start: Start) -> None:
    async with running_node(tmp_path, first_block="any") as node, wire_to(node) as wire:
        following = asyncio.ensure_future(follow([str(node.grpc_address)], start, 8))
        while not node.subscribe_service.stream_count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        publisher = await wire.publisher()
        await publisher.block(*BLOCKS[5:])
        await publisher.answers(7)
        assert await following == (BLOCKS[5:9], [])


async def test_what_an_empty_gateway_refuses_again_is_an_error() -> None:
    async with fake_peer([], says(Response(status=Code.INVALID_START_BLOCK_NUMBER))) as peer:
        with pytest.raises(SourceRefused) as caught:
            await follow([peer.address], "first")
        says_it = f"{peer.address} says INVALID_START_BLOCK_NUMBER"
        assert str(caught.value) == f"cannot get block 0: {says_it}"
        assert (peer.status_count, len(peer.asked)) == (2, 2)


async def test_connections_that_break_leave_no_gap_and_no_repeat() -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(fake_peer(BLOCKS, two_and_a_half)) for _ in range(2)]
        addresses = [NOBODY, *(peer.address for peer in peers)]
        blocks, troubles = await follow(addresses, 0, 11)
        assert blocks == BLOCKS
        assert {start for peer in peers for start, _ in peer.asked} == {0, 2, 4, 6, 8, 10}
        assert any(trouble.startswith(f"{NOBODY}: UNAVAILABLE: ") for trouble in troubles)
        assert f"{peers[0].address}: the subscription ended with no status" in troubles


async def test_a_quiet_time_before_a_connection_breaks_is_no_impatience() -> None:
    async def quiet_after_two(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        for response in whole(*peer.blocks[start : start + 2]):
            yield response
        await asyncio.sleep(1.0 if start == 0 else 0.0)

    async def scenario() -> None:
        async with fake_peer(BLOCKS[:4], quiet_after_two) as peer:
            blocks, troubles = await follow([peer.address], 0, 3, patience_seconds=0.5)
            assert blocks == BLOCKS[:4]
            assert troubles == [f"{peer.address}: the subscription ended with no status"]

    await scenario()


async def test_a_gateway_that_lies_is_left() -> None:
    async with AsyncExitStack() as stack:
        liar = await stack.enter_async_context(fake_peer(BLOCKS, says(*whole(BLOCKS[0], BLOCKS[2]))))
        good = await stack.enter_async_context(fake_peer(BLOCKS, honest))
        blocks, troubles = await follow([liar.address, good.address], 0, 11)
        assert blocks == BLOCKS
        expected = "subscription, before block 1: got the header of block 2, expected that of block 1"
        assert troubles == [f"{liar.address}: {expected}"]
        assert len(liar.asked) == 1


@pytest.mark.parametrize(
    ("start", "what"),
    [(0, "subscription: {}a SubscribeStreamResponse"), ("first", "its status: {}a ServerStatusResponse")],
)
async def test_a_gateway_whose_answers_do_not_parse_is_left(start: Start, what: str) -> None:
    async with nonsense_peer() as nonsense, fake_peer(BLOCKS, honest) as good:
        blocks, troubles = await follow([nonsense, good.address], start, 11)
        assert blocks == BLOCKS
        assert troubles == [f"{nonsense}: {what.format('got a message that does not parse, expected ')}"]


async def test_what_every_gateway_refuses_is_an_error_at_once() -> None:
    async with AsyncExitStack() as stack:
        refuses = says(Response(status=Code.INVALID_START_BLOCK_NUMBER))
        pruned = await stack.enter_async_context(fake_peer(BLOCKS[5:], refuses))
        behind = await stack.enter_async_context(fake_peer(BLOCKS, says(Response(status=Code.NOT_AVAILABLE))))
        with pytest.raises(SourceRefused) as caught:
            await follow([pruned.address, behind.address], 2, 9)
        answers = sorted(
            (
                f"{pruned.address} says INVALID_START_BLOCK_NUMBER",
                f"{behind.address} says NOT_AVAILABLE",
            )
        )
        assert str(caught.value) == f"cannot get block 2: {'; '.join(answers)}"
        blocks, _ = await follow([pruned.address, (await _good(stack)).address], 2, 9)
        assert blocks == BLOCKS[2:10]


async def _good(stack: AsyncExitStack) -> FakePeer:
    return await stack.enter_async_context(fake_peer(BLOCKS))


@pytest.mark.parametrize(("start", "what"), [(4, "block 4"), ("new", "the new block")])
async def test_when_nobody_is_there_patience_ends(start: Start, what: str) -> None:
    with pytest.raises(SourceUnreachable) as caught:
        await follow([NOBODY], start, patience_seconds=0.2)
    assert str(caught.value).startswith(f"{what} did not come within 0.2 s ({NOBODY}: UNAVAILABLE: ")


async def test_an_item_longer_than_is_taken_ends_the_following_at_once_and_says_what_to_change() -> None:
    async with AsyncExitStack() as stack:
        large = Block(0, (BLOCKS[0].items[0], field_item(4, bytes(5_000_000))))
        peer = await stack.enter_async_context(fake_peer([large]))
        assert (await follow([peer.address], 0, 0)) == ([large], [])
        with pytest.raises(SourceRefused) as caught:
            await follow([peer.address], 0, 0, message_bytes_max=4_000_000, patience_seconds=0)
        said = str(caught.value)
        assert said.startswith(f"cannot get block 0: {peer.address}: message: got 50000")
        assert said.endswith(", expected at most 4000000; raise --max-message-bytes here")
