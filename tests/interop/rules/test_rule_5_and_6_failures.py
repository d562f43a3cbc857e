"""Rules 5 and 6: acknowledgements, and what follows a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.interop.rules.scenes import BLOCKS, begin, broken, finish, offer, playing
from tests.nodes import Publisher


async def test_every_stream_hears_of_each_block_once_and_no_older_ones(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, idle = await stage.publishers("alice", "bob", "idle")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await finish(alice, 9)
        await alice.expect("ack 9")
        late = await stage.publisher("late")
        await alice.block(BLOCKS[10], BLOCKS[11])
        await alice.expect("ack 10", "ack 11")
        await bob.expect("ack 9", "ack 10", "ack 11")
        await idle.expect("ack 9", "ack 10", "ack 11")
        await late.expect("ack 10", "ack 11")
        for publisher in (alice, bob, idle, late):
            await publisher.call.done_writing()
            await publisher.expect("closed")


async def _cancel(alice: Publisher) -> None:
    alice.call.cancel()


async def _half_close(alice: Publisher) -> None:
    await alice.call.done_writing()
    await alice.expect("closed")


async def _reset(alice: Publisher) -> None:
    await alice.end_stream(1, 9, 9)
    await alice.expect("closed")


async def _begin_another(alice: Publisher) -> None:
    await offer(alice, 11)


@pytest.mark.parametrize("leave", [_cancel, _half_close, _reset, _begin_another])
async def test_a_winner_that_breaks_off_hears_nothing_and_the_others_are_asked(
    tmp_path: Path, leave: Callable[[Publisher], Awaitable[None]]
) -> None:
    """Bob was skipped for 9, Carol is at a later block, Dave has not come to 9: he offers it by himself."""
    async with playing(tmp_path) as stage:
        alice, bob, carol, dave = await stage.publishers("alice", "bob", "carol", "dave")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await offer(carol, 9)
        await begin(stage, carol, 10)
        await bob.expect("skip 9")
        await carol.expect("skip 9")
        await leave(alice)
        await bob.expect("resend 9")
        await carol.expect("resend 9")
        await dave.block(BLOCKS[9])
        await dave.expect("ack 9")
        await bob.expect("ack 9")


async def test_a_bad_block_is_told_to_its_winner_and_asked_of_the_others(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        items = broken(BLOCKS[9])
        await alice.items(*items[:3])
        await stage.begun(9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.items(*items[3:])
        await alice.end(9)
        await alice.expect("end BAD_BLOCK_PROOF last 8 about 9", "closed")
        await bob.expect("resend 9")
        await carol.block(BLOCKS[9])
        for publisher in (bob, carol):
            await publisher.expect("ack 9")


async def test_a_resend_waits_until_all_before_it_is_stored(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.items(*broken(BLOCKS[10]))
        await bob.end(10)
        await bob.expect("skip 9", "end BAD_BLOCK_PROOF last 8 about 10", "closed")
        await offer(carol, 9)
        await carol.expect("skip 9")
        await stage.opened(10)
        await begin(stage, carol, 10)  # and the answer to its header is not Skip
        carol.call.cancel()
        await stage.left(1)
        dave = await stage.publisher("dave")
        await offer(dave, 9)
        await begin(stage, dave, 10)
        await begin(stage, dave, 11)  # breaks off 10
        await finish(alice, 9)
        await alice.expect("ack 9")
        await dave.expect("skip 9", "ack 9")
        await alice.block(BLOCKS[10])
        await alice.expect("ack 10")


async def test_one_that_was_sent_back_is_not_told_again(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol, dave = await stage.publishers("alice", "bob", "carol", "dave")
        await begin(stage, alice, 9)
        for publisher in (bob, carol, dave):
            await offer(publisher, 9)
            await publisher.expect("skip 9")
        alice.call.cancel()
        for publisher in (bob, carol, dave):
            await publisher.expect("resend 9")
        await begin(stage, carol, 9)
        await offer(dave, 9)
        await dave.expect("skip 9")
        carol.call.cancel()
        await dave.expect("resend 9")  # she had come back, and was skipped for it again
        await bob.block(BLOCKS[9])  # he was still on his way
        for publisher in (bob, dave):
            await publisher.expect("ack 9")


async def test_complete_later_blocks_are_kept_and_broken_off_ones_are_open_again(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.block(BLOCKS[10])
        await stage.held(10)
        await offer(carol, 9, 10)
        await begin(stage, carol, 11)
        alice.call.cancel()
        await carol.expect("skip 9", "skip 10", "resend 9")
        await begin(stage, carol, 9)  # 11 is dropped …
        await stage.opened(11)
        await finish(carol, 9)
        await carol.expect("ack 9", "ack 10")
        await carol.block(BLOCKS[11])  # … and she wins it again
        await carol.expect("ack 11")
        await bob.expect("skip 9", "resend 9", "ack 9", "ack 10", "ack 11")
