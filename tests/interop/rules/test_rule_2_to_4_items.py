"""Rules 2, 3 and 4: items, a header before its time, and what makes a block complete.

The forms of bad requests are in tests/gateway/services/test_publish_service.py; here they meet other
publishers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.race.tables import StreamState
from tests.interop.rules.scenes import BLOCKS, Stage, begin, finish, offer, played, playing
from tests.nodes import Publisher

EVENT = field_item(ItemKind.EVENT_HEADER, b"")


async def _skipped(stage: Stage, alice: Publisher, bob: Publisher) -> None:
    await begin(stage, bob, 9)
    await offer(alice, 9)
    await alice.expect("skip 9")


async def _behind(stage: Stage, alice: Publisher, bob: Publisher) -> None:
    await begin(stage, bob, 9)
    await offer(alice, 12)
    await alice.expect("behind 8")


@pytest.mark.parametrize("answer", [_skipped, _behind])
async def test_items_after_skip_or_behind_are_dropped_until_the_next_header(
    tmp_path: Path, answer: Callable[[Stage, Publisher, Publisher], Awaitable[None]]
) -> None:
    async def scene(stage: Stage) -> None:
        alice, bob = await stage.publishers("alice", "bob")
        await answer(stage, alice, bob)
        await alice.items(EVENT, EVENT)
        await alice.items(BLOCKS[9].items[-1])  # a proof
        await alice.items(EVENT)
        await alice.end(9)
        await alice.block(BLOCKS[10])
        await stage.held(10)
        await finish(bob, 9)
        for publisher in (alice, bob):
            await publisher.expect("ack 9", "ack 10")

    assert await played(tmp_path / "raced", scene) == await played(tmp_path / "alone", _by_one(9, 10))


def _by_one(*numbers: int) -> Callable[[Stage], Awaitable[None]]:
    async def scene(stage: Stage) -> None:
        (alice,) = await stage.publishers("alice")
        await alice.block(*(BLOCKS[number] for number in numbers))
        await alice.expect(*(f"ack {number}" for number in numbers))

    return scene


async def test_a_bad_request_in_mid_block_opens_the_block_for_others(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.items()
        await alice.expect("end INVALID_REQUEST last 8 about 9", "closed")
        await bob.expect("resend 9")
        await bob.block(BLOCKS[9])
        await bob.expect("ack 9")


async def test_a_block_above_the_limit_is_refused_and_open_for_others(tmp_path: Path) -> None:
    large = field_item(ItemKind.SIGNED_TRANSACTION, bytes(40_000))
    async with playing(tmp_path, publish_max_block_bytes=64 * 1024) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.items(large)
        await alice.items(large)
        await alice.expect("end INVALID_REQUEST last 8 about 9", "closed")
        await bob.expect("resend 9")
        await bob.block(BLOCKS[9])
        await bob.expect("ack 9")


async def test_a_header_before_the_block_is_complete_drops_it(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await begin(stage, bob, 10)
        await begin(stage, alice, 11)  # her stream goes on
        await bob.expect("skip 9", "resend 9")
        await bob.block(BLOCKS[9])  # which drops his 10
        await alice.expect("ack 9", "resend 10")
        await bob.expect("ack 9")
        await bob.block(BLOCKS[10])
        await finish(alice, 11)
        for publisher in (alice, bob):
            await publisher.expect("ack 10", "ack 11")


async def test_the_same_header_again_starts_the_block_over_with_the_same_winner(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.block(BLOCKS[9])
        for publisher in (alice, bob):
            await publisher.expect("ack 9")

    assert await played(tmp_path / "raced", scene) == await played(tmp_path / "alone", _by_one(9))


async def test_another_blocks_end_is_refused(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.end(10)
        await alice.expect("end INVALID_REQUEST last 8 about 9", "closed")
        await bob.expect("resend 9")


async def test_without_an_end_the_proof_completes_the_block_when_nothing_follows(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await alice.items(*BLOCKS[9].items)
        await stage.begun(9)
        stage.clock.jump(0.1)
        await alice.expect("ack 9")


async def test_blocks_that_are_complete_above_the_next_wait_and_go_out_in_order(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await begin(stage, bob, 10)
        await offer(carol, 9, 10)
        await carol.block(BLOCKS[11])
        await stage.held(11)
        await finish(bob, 10)
        await stage.held(10)
        assert (await stage.status()).last_available_block == 8
        await finish(alice, 9)
        await alice.expect("ack 9", "ack 10", "ack 11")
        await bob.expect("skip 9", "ack 9", "ack 10", "ack 11")
        await carol.expect("skip 9", "skip 10", "ack 9", "ack 10", "ack 11")


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_side_that_is_closed_behind_a_proof_completes_the_block_and_a_broken_stream_drops_it(
    tmp_path: Path, is_broken: bool
) -> None:
    """Another proof may have been on its way, and a block must not depend on when a line broke."""
    async with playing(tmp_path, publish_proof_idle_ms=1000000) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await alice.items(*BLOCKS[9].items)
        arbiter = stage.node.conductor.arbiter
        await stage.until(lambda: any(one.state is StreamState.PROVEN for one in arbiter.streams.values()))
        await offer(bob, 9)
        await bob.expect("skip 9")
        if is_broken:
            alice.call.cancel()
        else:
            await alice.call.done_writing()
        await bob.expect("resend 9" if is_broken else "ack 9")
