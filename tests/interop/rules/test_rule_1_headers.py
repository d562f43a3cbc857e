"""Rule 1: a publisher's answers to a header, and its name."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc
import pytest

from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.conducting import gate, logged
from tests.interop.rules.scenes import BLOCKS, Stage, begin, broken, finish, offer, played, playing


async def test_a_stored_block_is_a_duplicate_and_only_that_stream_ends(tmp_path: Path) -> None:
    async with playing(tmp_path, publish_duplicate_skip_window=0) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        for number in (0, 7, 8):
            late = await stage.publisher("late")
            await late.block(BLOCKS[number])
            await late.expect("end DUPLICATE_BLOCK last 8 about 0", "closed")
            assert await late.call.code() is grpc.StatusCode.OK
        await alice.block(BLOCKS[9])
        for publisher in (alice, bob):
            await publisher.expect("ack 9")


async def test_the_answer_is_read_by_one_who_is_in_the_middle_of_a_large_block(tmp_path: Path) -> None:
    """It writes 24 MB without reading, and then reads: drained, not reset."""
    item = field_item(ItemKind.SIGNED_TRANSACTION, bytes(4 << 20))
    async with playing(tmp_path, publish_duplicate_skip_window=0) as stage:
        (alice,) = await stage.publishers("alice")
        alice.polite = False
        await offer(alice, 8)
        for _ in range(6):
            await alice.items(item)
        await alice.end(8)
        await alice.call.done_writing()
        await alice.expect("end DUPLICATE_BLOCK last 8 about 0", "closed")
        assert await alice.call.code() is grpc.StatusCode.OK


async def test_inside_the_window_a_duplicate_is_skipped_and_its_publisher_goes_on(tmp_path: Path) -> None:
    async with playing(tmp_path, publish_duplicate_skip_window=2) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await offer(alice, 7, 8)
        await alice.expect("skip 7", "skip 8")
        await alice.block(BLOCKS[9])
        await alice.expect("ack 9")
        await offer(bob, 7)
        await bob.expect("ack 9", "end DUPLICATE_BLOCK last 9 about 0", "closed")


async def test_what_was_skipped_inside_the_window_is_acknowledged_late(tmp_path: Path) -> None:
    async with playing(tmp_path, publish_duplicate_skip_window=2) as stage:
        (alice,) = await stage.publishers("alice")
        await offer(alice, 8)
        await alice.expect("skip 8")
        stage.clock.jump(1)
        await alice.expect("ack 8")


async def test_the_next_unstreamed_block_is_won_and_those_below_it_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol, dave = await stage.publishers("alice", "bob", "carol", "dave")
        await begin(stage, alice, 9)
        await offer(bob, 9)  # is being sent
        await begin(stage, bob, 10)
        await offer(carol, 9, 10)
        await begin(stage, carol, 11)
        with gate(monkeypatch, BlockStore, "begin") as disk:
            await finish(alice, 9)
            await stage.held(9)
            await offer(dave, 9)  # is complete, and not acknowledged
            await dave.expect("skip 9")
            disk.open()
            for publisher in (alice, dave):
                await publisher.expect("ack 9")
            await bob.expect("skip 9", "ack 9")
            await carol.expect("skip 9", "skip 10", "ack 9")


async def test_a_failed_block_goes_to_the_first_to_offer_it_but_not_to_who_failed_it(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await alice.items(*broken(BLOCKS[9]))
        await alice.end(9)
        await alice.expect("end BAD_BLOCK_PROOF last 8 about 9", "closed")
        alice = await stage.publisher("alice")
        await offer(alice, 9)
        await alice.expect("skip 9")
        await begin(stage, carol, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await finish(carol, 9)
        for publisher in (alice, bob, carol):
            await publisher.expect("ack 9")


async def test_who_failed_a_block_goes_on_behind_it_and_may_send_it_when_alone(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        alice.call.cancel()
        await stage.left(1)
        alice = await stage.publisher("alice")
        await offer(alice, 9)
        await alice.expect("skip 9")
        await alice.block(BLOCKS[10])
        await stage.held(10)
        bob.call.cancel()
        await alice.expect("resend 9")
        await alice.block(BLOCKS[9])
        await alice.expect("ack 9", "ack 10")


async def test_who_failed_a_block_may_send_it_when_others_let_their_time_go_by(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, _silent = await stage.publishers("alice", "silent")
        await begin(stage, alice, 9)
        alice.call.cancel()
        await stage.left(1)
        alice = await stage.publisher("alice")
        await offer(alice, 9)
        await alice.expect("skip 9")
        stage.clock.jump(6)
        await alice.expect("resend 9")
        await alice.block(BLOCKS[9])
        await alice.expect("ack 9")


async def test_a_block_too_far_ahead_is_behind_and_the_highest_is_the_target(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        targets: list[int] = []
        stage.node.conductor.on_catch_up_target(targets.append)
        alice, bob = await stage.publishers("alice", "bob")
        await alice.block(BLOCKS[12])  # its items are dropped
        await alice.expect("behind 8")
        await bob.block(BLOCKS[11])
        await bob.expect("behind 8")
        await bob.block(BLOCKS[9])
        for publisher in (alice, bob):
            await publisher.expect("ack 9")
        await alice.block(BLOCKS[12])  # asked again: today's L
        await alice.expect("behind 9")
        await alice.block(*BLOCKS[10:13])
        for publisher in (alice, bob):
            await publisher.expect("ack 10", "ack 11", "ack 12")
        assert (targets, stage.node.conductor.catch_up_target) == ([12], 12)


async def test_an_empty_node_begins_at_0(tmp_path: Path) -> None:
    async with playing(tmp_path, committed=0) as stage:
        (alice,) = await stage.publishers("alice")
        await alice.block(BLOCKS[1])
        await alice.expect("behind none")
        await alice.block(BLOCKS[0])
        await alice.expect("ack 0")


async def test_an_empty_node_begins_where_it_is_told(tmp_path: Path) -> None:
    async with playing(tmp_path, committed=0, first_block=5) as stage:
        (alice,) = await stage.publishers("alice")
        await alice.block(BLOCKS[6])
        await alice.expect("behind none")
        await alice.block(BLOCKS[5], BLOCKS[6])
        await alice.expect("ack 5", "ack 6")
        bob = await stage.publisher("bob")
        await offer(bob, 4)
        await bob.expect("end ERROR last none about 4", "closed")


async def test_nobody_is_told_that_a_block_below_the_first_one_is_stored(tmp_path: Path) -> None:
    """Neither at an empty node, nor inside the window of one that has begun, nor after a restart."""

    async def early(stage: Stage, number: int) -> None:
        publisher = await stage.publisher("early")
        await offer(publisher, number)
        await publisher.expect(f"end ERROR last none about {number}", "closed")

    async def empty(stage: Stage) -> None:
        await early(stage, 0)
        await early(stage, 4)
        (alice,) = await stage.publishers("alice")
        await alice.block(BLOCKS[5])
        await alice.expect("ack 5")
        await early(stage, 4)

    async def begun(stage: Stage) -> None:
        await early(stage, 4)
        (alice,) = await stage.publishers("alice")
        await offer(alice, 5)
        await alice.expect("skip 5")

    await played(tmp_path, empty, committed=0, first_block=5)
    await played(tmp_path, begun, committed=0)


async def test_an_empty_node_may_begin_with_whatever_comes_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with playing(tmp_path, committed=0, first_block="any") as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 7)
        await offer(bob, 9)
        await bob.expect("behind none")
        await finish(alice, 7)
        for publisher in (alice, bob):
            await publisher.expect("ack 7")
    assert len(logged(caplog, "the chain begins after block 0")) == 1


# --- by what a publisher is known ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "is_same"), [("alice", "alice", True), ("alice", "bob", False), (None, None, False)]
)
async def test_a_publisher_is_known_by_its_id_and_never_by_its_address_alone(
    tmp_path: Path, first: str | None, second: str | None, is_same: bool
) -> None:
    """The publisher that failed block 9 comes back on another connection, from the same address."""
    async with playing(tmp_path) as stage:
        loser = await stage.publisher(first)
        await stage.publisher("carol")
        await begin(stage, loser, 9)
        loser.call.cancel()
        await stage.left(1)
        again = await stage.publisher(second)
        await again.block(BLOCKS[9])
        await again.expect("skip 9" if is_same else "ack 9")


async def test_two_streams_of_one_connection_are_one_publisher_where_nothing_else_tells_them_apart(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path) as stage:
        channel = stage.channel()
        first = await stage.publisher(channel=channel)
        second = await stage.publisher(channel=channel)
        names = {stream.name for stream in stage.node.conductor.arbiter.streams.values()}
        assert len(names) == 1
        address, _, port = names.pop().rpartition(":")
        assert address == "ipv4:127.0.0.1"
        assert int(port) != stage.node.grpc_address.port
        await asyncio.gather(first.call.done_writing(), second.call.done_writing())
        await second.expect("closed")


async def test_two_streams_of_one_publisher_race_as_any_and_share_the_blame(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        one, other, carol = await stage.publishers("alice", "alice", "carol")
        await begin(stage, one, 9)
        await offer(other, 9)
        await begin(stage, other, 10)
        await offer(carol, 9, 10)
        await carol.expect("skip 9", "skip 10")
        one.call.cancel()
        await carol.expect("resend 9")  # alice failed it, whichever stream it was
        await finish(other, 10)
        await stage.held(10)
        carol.call.cancel()
        await other.expect("skip 9", "resend 9")  # nobody else is left
        await other.block(BLOCKS[9])
        await other.expect("ack 9", "ack 10")


async def test_a_publisher_that_is_back_while_its_old_stream_lives_gets_its_block_when_that_is_timed_out(
    tmp_path: Path,
) -> None:
    """The publisher has lost its first connection, but the node does not know yet."""
    async with playing(tmp_path) as stage:
        (old,) = await stage.publishers("alice")
        await begin(stage, old, 9)
        new = await stage.publisher("alice")
        await offer(new, 9)
        await new.expect("skip 9")
        await new.block(BLOCKS[10])
        await stage.held(10)
        stage.clock.jump(6)
        await old.expect("end TIMEOUT last 8 about 9", "closed")
        await new.expect("resend 9")
        await new.block(BLOCKS[9])
        await new.expect("ack 9", "ack 10")
