"""Rule 7: time limits, on a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.blocks.item_set import ItemSet
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.limits import INLINE_HASH_ITEMS_MAX
from sluice.gateway.race.tables import StreamState
from sluice.gateway.workers import looking
from sluice.publishers.blocks.maker import key_of_seed
from tests.interop.rules.scenes import BLOCKS, Stage, begin, finish, offer, playing
from tests.nodes import ledger_key, make_blocks


async def test_the_winner_of_the_lowest_block_is_timed_out_and_nobody_else(tmp_path: Path) -> None:
    async with playing(tmp_path, block_time_seconds=10.0) as stage:
        alice, bob, carol, idle = await stage.publishers("alice", "bob", "carol", "idle")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await begin(stage, bob, 10)
        await offer(carol, 9, 10)
        await carol.expect("skip 9", "skip 10")
        stage.clock.jump(15)
        await offer(carol, 9)
        await carol.expect("skip 9")
        stage.clock.jump(15)
        await alice.expect("end TIMEOUT last 8 about 9", "closed")
        for publisher in (bob, carol):
            await publisher.expect(*["skip 9"] * (publisher is bob), "resend 9")
        await carol.block(BLOCKS[9])
        await finish(bob, 10)  # he may finish first what he is at
        for publisher in (bob, carol, idle):
            await publisher.expect("ack 9", "ack 10")


async def test_what_one_that_was_timed_out_still_sends_is_dropped_silently(tmp_path: Path) -> None:
    """The rest of its block and later blocks: it gets one answer, and wins nothing."""
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        alice.polite = False
        await begin(stage, alice, 9)
        stage.clock.jump(6)
        await finish(alice, 9)
        await alice.block(BLOCKS[10])
        await alice.items()  # not even what has no form is answered
        await alice.call.done_writing()
        await alice.expect("end TIMEOUT last 8 about 9", "closed")
        await bob.block(BLOCKS[9], BLOCKS[10])
        await bob.expect("ack 9", "ack 10")


async def test_the_time_is_three_times_the_networks_block_time(tmp_path: Path) -> None:
    async with playing(tmp_path, block_time_seconds=10.0) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        stage.clock.jump(15)
        await offer(bob, 9)
        await bob.expect("skip 9")
        stage.clock.jump(15)
        await alice.expect("end TIMEOUT last 8 about 9", "closed")


async def test_a_winner_is_timed_out_when_another_has_completed_a_block_far_ahead(tmp_path: Path) -> None:
    async with playing(tmp_path, publish_stall_blocks=2) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.block(BLOCKS[10])
        await stage.held(10)
        await offer(carol, 9, 10)
        await carol.expect("skip 9", "skip 10")
        await bob.block(BLOCKS[11])
        await alice.expect("end TIMEOUT last 8 about 9", "closed")
        await bob.expect("skip 9", "resend 9")
        await carol.expect("resend 9")
        await carol.block(BLOCKS[9])
        for publisher in (bob, carol):
            await publisher.expect("ack 9", "ack 10", "ack 11")


async def test_a_publisher_that_never_sends_a_header_is_closed(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        silent, waiting = await stage.publishers("silent", "waiting")
        await offer(waiting, 12)
        await waiting.expect("behind 8")
        stage.clock.jump(301)
        await silent.expect("end TIMEOUT last 8 about 0", "closed")
        await waiting.block(BLOCKS[9])
        await waiting.expect("ack 9")


async def test_time_limits_run_by_themselves(tmp_path: Path) -> None:
    """Without the test's clock: the node's own timer."""
    async with playing(tmp_path, publish_block_timeout_seconds=0.2) as stage:
        alice, _ = await stage.publishers("alice", "bob")
        await alice.items(*BLOCKS[9].items[:2])
        await alice.expect("end TIMEOUT last 8 about 9", "closed")


async def test_a_publisher_that_is_alone_may_take_its_time_until_somebody_else_is_there(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await begin(stage, alice, 9)
        stage.clock.jump(200)
        bob = await stage.publisher("bob")
        await offer(bob, 9)
        await bob.expect("skip 9")
        stage.clock.jump(5.9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        stage.clock.jump(0.2)
        await alice.expect("end TIMEOUT last 8 about 9", "closed")
        await bob.expect("resend 9")


async def test_a_publisher_that_is_alone_and_silent_is_ended(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await begin(stage, alice, 9)
        stage.clock.jump(301)
        await alice.expect("end TIMEOUT last 8 about 9", "closed")


# --- the node's own time ------------------------------------------------------------------------------------

TWO_KEYS: dict[str, Any] = {"ledger_keys": (ledger_key(), ledger_key(key_of_seed(8)))}


def with_second_proof(number: int) -> list[bytes]:
    """A block's items, and the proof of another key behind its own."""
    return [*BLOCKS[number].items, make_blocks(number + 1, key=key_of_seed(8))[number].items[-1]]


def items_stored(stage: Stage, number: int) -> list[bytes]:
    """A block's items as they are on disk."""
    stored = stage.node.store.read_block(number)
    assert stored is not None
    return list(stored.items)


async def test_a_second_proof_that_the_node_is_slow_to_take_is_kept(tmp_path: Path) -> None:
    """The node takes two messages a second, so nothing seems to follow the first proof."""
    async with playing(tmp_path, committed=0, publish_max_messages_per_second=2, **TWO_KEYS) as stage:
        (alice,) = await stage.publishers("alice")
        items = with_second_proof(0)
        await alice.items(*items[:5])
        await alice.items(*items[5:-1])
        await alice.items(items[-1])
        await alice.end(0)
        await alice.expect("ack 0")
        assert items_stored(stage, 0) == items


@pytest.mark.slow
async def test_a_second_proof_that_comes_while_the_node_stands_still_is_kept(tmp_path: Path) -> None:
    async with playing(tmp_path, **TWO_KEYS) as stage:
        (alice,) = await stage.publishers("alice")
        items = with_second_proof(9)
        await alice.items(*items[:-1])
        arbiter = stage.node.conductor.arbiter
        await stage.until(lambda: any(one.state is StreamState.PROVEN for one in arbiter.streams.values()))
        await alice.items(items[-1])
        time.sleep(0.5)  # noqa: ASYNC251 - the node and its timers, but not the network
        await alice.expect("ack 9")
        assert items_stored(stage, 9) == items


async def test_nobody_is_timed_out_because_the_node_stood_still(tmp_path: Path) -> None:
    """Alice's time had only begun when the node stood still."""
    async with playing(tmp_path, publish_block_timeout_seconds=2.0, block_time_seconds=1.0) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        time.sleep(2.5)  # noqa: ASYNC251
        await finish(alice, 9)
        for publisher in (alice, bob):
            await publisher.expect("ack 9")


@pytest.mark.slow
async def test_a_pace_at_which_a_block_takes_longer_than_its_time_is_no_reason_to_time_out(
    tmp_path: Path,
) -> None:
    """Alice sends at full speed, but the node takes only four messages a second."""
    async with playing(
        tmp_path,
        committed=0,
        publish_max_messages_per_second=4,
        publish_block_timeout_seconds=1.0,
        block_time_seconds=0.5,
    ) as stage:
        (alice,) = await stage.publishers("alice")
        for item in BLOCKS[0].items:
            await alice.items(item)
        await alice.end(0)
        await alice.expect("ack 0")


async def test_time_in_which_the_node_looks_at_messages_of_very_many_items_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alice's message waits for Bob's; looking at it takes longer than a block may."""
    crowd = [field_item(ItemKind.EVENT_HEADER, b"")] * (8 * INLINE_HASH_ITEMS_MAX)
    look = looking._look
    begun: list[int] = []

    def look_slowly(items: Sequence[bytes]) -> ItemSet:
        begun.append(len(items))
        time.sleep(0.6)
        return look(items)

    async with playing(
        tmp_path, publish_block_timeout_seconds=0.5, block_time_seconds=0.25, publish_stray_messages_max=0
    ) as stage:
        monkeypatch.setattr(looking, "_look", look_slowly)
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await bob.items(*crowd)
        await stage.until(lambda: bool(begun))
        await alice.items(*crowd)
        await bob.expect("end INVALID_REQUEST last 8 about 0", "closed")
        await finish(alice, 9)
        await alice.expect("end BAD_BLOCK_PROOF last 8 about 9", "closed")
        assert begun == [len(crowd)] * 2
