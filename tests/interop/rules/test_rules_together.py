"""Where rules meet: a publisher's answers when two rules concern the same message."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from sluice.gateway.store.block_store import BlockStore
from tests.gateway.conducting import gate
from tests.interop.rules.scenes import BLOCKS, Stage, begin, broken, finish, offer, played, playing


async def _by_one(stage: Stage) -> None:
    """Blocks 9 to 11, sent as plainly as can be."""
    (alice,) = await stage.publishers("alice")
    await alice.block(*BLOCKS[9:12])
    await alice.expect("ack 9", "ack 10", "ack 11")


async def test_blocks_that_no_end_of_block_parts_are_the_same_blocks(tmp_path: Path) -> None:
    """Rules 2 × 4: whole blocks in a message each; then item by item. The last ends with the stream."""

    async def scene(stage: Stage) -> None:
        alice, bob = await stage.publishers("alice", "bob")
        for block in BLOCKS[9:11]:
            await alice.items(*block.items)
        for item in BLOCKS[11].items:
            await alice.items(item)
        await alice.call.done_writing()
        await alice.expect("ack 9", "ack 10", "ack 11", "closed")
        await bob.expect("ack 9", "ack 10", "ack 11")

    assert await played(tmp_path / "joined", scene) == await played(tmp_path / "parted", _by_one)


async def test_an_end_that_comes_late_or_twice_is_no_end_of_the_next_block(tmp_path: Path) -> None:
    """Rule 4: block 9 is complete when nothing follows its proof."""
    async with playing(tmp_path, publish_stray_messages_max=0) as stage:
        (alice,) = await stage.publishers("alice")
        await alice.items(*BLOCKS[9].items)
        await stage.begun(9)
        stage.clock.jump(2)
        await alice.expect("ack 9")
        await alice.end(9)
        await alice.end(9)
        await alice.block(BLOCKS[10])
        await alice.expect("ack 10")
        await alice.end(9)
        await alice.expect("end INVALID_REQUEST last 10 about 0", "closed")


async def test_an_end_without_a_proof_makes_a_bad_block(tmp_path: Path) -> None:
    """Rules 4 × 6."""
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        await offer(bob, 9)
        await bob.expect("skip 9")
        await alice.end(9)
        await alice.expect("end BAD_BLOCK_PROOF last 8 about 9", "closed")
        await bob.expect("resend 9")


async def test_a_bad_block_takes_the_next_one_of_its_publisher_along(tmp_path: Path) -> None:
    """Rules 6 × 3: Alice is in the middle of 10 when 9 fails. Only 9 is held against her."""
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await alice.items(*broken(BLOCKS[9]))
        await offer(alice, 10)  # which completes block 9
        await alice.expect("end BAD_BLOCK_PROOF last 8 about 9", "closed")
        (alice,) = await stage.publishers("alice")
        await offer(alice, 9)
        await alice.expect("skip 9")
        await alice.block(BLOCKS[10])
        await stage.held(10)
        await bob.block(BLOCKS[9])
        for publisher in (alice, bob):
            await publisher.expect("ack 9", "ack 10")


async def test_one_who_is_back_before_its_block_is_stored_hears_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules 1 × 5: the block is kept when its winner leaves, skipped when it is back, acknowledged there."""
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        with gate(monkeypatch, BlockStore, "begin") as disk:
            await alice.block(BLOCKS[9])
            await disk.reached()
            alice.call.cancel()
            await stage.left(0)
            (alice,) = await stage.publishers("alice")
            await alice.block(BLOCKS[9], BLOCKS[10])
            await alice.expect("skip 9")
            disk.open()
            await alice.expect("ack 9", "ack 10")
        await alice.call.done_writing()
        await alice.expect("closed")


@pytest.mark.parametrize(
    ("window", "answers"), [(0, ("end DUPLICATE_BLOCK last 9 about 0", "closed")), (3, ("skip 9",))]
)
async def test_one_who_comes_back_for_a_block_that_another_was_faster_with(
    tmp_path: Path, window: int, answers: tuple[str, ...]
) -> None:
    """Rules 6 × 1: asked for 9, Carol comes when it is stored: a duplicate, or inside the window skipped."""
    async with playing(tmp_path, publish_duplicate_skip_window=window) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)
        for publisher in (bob, carol):
            await offer(publisher, 9)
            await publisher.expect("skip 9")
        alice.call.cancel()
        for publisher in (bob, carol):
            await publisher.expect("resend 9")
        await bob.block(BLOCKS[9])
        await bob.expect("ack 9")
        await carol.block(BLOCKS[9])
        await carol.expect("ack 9", *answers)
        if "closed" not in answers:
            await carol.block(BLOCKS[10])
            await carol.expect("ack 10")


async def test_who_starts_a_block_over_that_it_had_failed_stays_its_winner(tmp_path: Path) -> None:
    """Rules 3 × 1: Alice failed 9, won it again as nobody else was there, and starts it over beside Bob."""
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await begin(stage, alice, 9)
        await offer(alice, 10)
        await alice.expect("behind 8")
        await begin(stage, alice, 9)
        (bob,) = await stage.publishers("bob")
        await alice.block(BLOCKS[9])
        for publisher in (alice, bob):
            await publisher.expect("ack 9")


async def test_a_timeout_ends_the_stream_in_order_and_its_publisher_goes_on_with_the_next_block(
    tmp_path: Path,
) -> None:
    """Rules 7 × 1: back at once, Alice is not chosen for 9 again while Bob is there, but wins 10."""
    async with playing(tmp_path) as stage:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        stage.clock.jump(6)
        await alice.expect("end TIMEOUT last 8 about 9", "closed")
        assert await alice.call.code() is grpc.StatusCode.OK
        (alice,) = await stage.publishers("alice")
        await alice.block(BLOCKS[9], BLOCKS[10])
        await alice.expect("skip 9")
        await stage.held(10)
        await bob.block(BLOCKS[9])
        for publisher in (alice, bob):
            await publisher.expect("ack 9", "ack 10")


async def test_two_streams_of_one_publisher_that_are_far_apart_time_out_as_any(tmp_path: Path) -> None:
    """Rules 7 × 1: what Alice completes on one does not end the other, but its time does.

    Nobody else is there, so she may go on.
    """
    async with playing(tmp_path) as stage:
        slow, fast = await stage.publishers("alice", "alice")
        await begin(stage, slow, 9)
        await fast.block(*BLOCKS[9:13])
        await stage.held(12)
        stage.clock.jump(6)
        await slow.expect("end TIMEOUT last 8 about 9", "closed")
        await fast.expect("skip 9", "resend 9")
        await fast.block(BLOCKS[9])
        await fast.expect("ack 9", "ack 10", "ack 11", "ack 12")


async def test_two_begin_an_empty_node_at_once(tmp_path: Path) -> None:
    """Rules 1 × 6: 7 was offered first, so 5 is not taken. When 7 fails, it may begin with 5."""
    async with playing(tmp_path, committed=0, first_block="any") as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 7)
        await offer(bob, 5)
        await bob.expect("end ERROR last none about 5", "closed")
        await begin(stage, carol, 8)  # which is to follow 7
        alice.call.cancel()
        await carol.expect("resend 7")
        bob = await stage.publisher("bob")
        await bob.block(BLOCKS[5])
        await bob.expect("ack 5")
        await carol.expect("ack 5", "resend 6")
        await bob.block(BLOCKS[6], BLOCKS[7])
        for publisher in (bob, carol):
            await publisher.expect("ack 6", "ack 7")
        await finish(carol, 8)  # it was dropped with 7
        await carol.block(BLOCKS[8])
        for publisher in (bob, carol):
            await publisher.expect("ack 8")
