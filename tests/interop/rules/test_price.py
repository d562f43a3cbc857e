"""The price of failed blocks, which costs nobody else anything, over real gRPC streams.

Source: gateway/README.md, "The price of a block that fails".
"""

from __future__ import annotations

from pathlib import Path

from tests.interop.rules.scenes import BLOCKS, Stage, begin, broken, finish, offer, playing
from tests.nodes import Publisher

TIME = 6.1
"""Seconds after which a winner has had its time."""


async def fail_twice(stage: Stage, honest: Publisher) -> None:
    """Newcomers fail blocks 10 and 11, which somebody brings who has brought block 9."""
    await honest.block(BLOCKS[9])
    await honest.expect("ack 9")
    for number in (10, 11):
        (mallory,) = await stage.publishers(f"mallory-{number}")
        await begin(stage, mallory, number)
        await offer(honest, number)
        await honest.expect(f"skip {number}")
        stage.clock.jump(TIME)
        await mallory.expect(f"end TIMEOUT last {number - 1} about {number}", "closed")
        await honest.expect(f"resend {number}")
        await honest.block(BLOCKS[number])
        await honest.expect(f"ack {number}")
        await stage.left(1)


async def test_who_fails_again_is_skipped_for_a_while_whatever_its_name(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await fail_twice(stage, alice)
        (oscar,) = await stage.publishers("oscar")
        await offer(oscar, 12, 13)
        await oscar.expect("skip 12", "skip 13")
        await alice.block(BLOCKS[12])
        await alice.expect("ack 12")
        stage.clock.jump(2 * TIME)
        await offer(oscar, 13)  # its time is over
        await stage.begun(13)
        await oscar.expect("ack 12")


async def test_who_stands_back_is_asked_when_the_others_have_left_or_let_their_time_go_by(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await fail_twice(stage, alice)
        (oscar,) = await stage.publishers("oscar")
        await offer(oscar, 12)
        await oscar.expect("skip 12")
        stage.clock.jump(TIME)
        await oscar.expect("resend 12")
        await oscar.block(BLOCKS[12])
        await oscar.expect("ack 12")
        await alice.expect("ack 12")


async def test_a_newcomer_that_nobody_can_stand_in_for_wins_its_blocks(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await fail_twice(stage, alice)
        await alice.call.done_writing()
        await alice.expect("closed")
        (oscar,) = await stage.publishers("oscar")
        await oscar.block(BLOCKS[12], BLOCKS[13])
        await oscar.expect("ack 12", "ack 13")


async def test_false_proofs_cost_as_much_as_blocks_that_never_come(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await alice.block(BLOCKS[9])
        await alice.expect("ack 9")
        for number in (10, 11):
            (mallory,) = await stage.publishers("mallory")
            await mallory.items(*broken(BLOCKS[number]))
            await mallory.end(number)
            await mallory.expect(f"end BAD_BLOCK_PROOF last {number - 1} about {number}", "closed")
            await stage.left(1)
            await alice.block(BLOCKS[number])
            await alice.expect(f"ack {number}")
        (oscar,) = await stage.publishers("oscar")
        await offer(oscar, 12)
        await oscar.expect("skip 12")


async def test_a_newcomers_header_alone_gives_way_once_newcomers_have_failed(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await fail_twice(stage, alice)
        (oscar,) = await stage.publishers("oscar")
        stage.clock.jump(2 * TIME)
        await oscar.items(BLOCKS[12].items[0])
        await stage.begun(12)
        await begin(stage, alice, 12)
        await oscar.expect("skip 12")
        await finish(alice, 12)
        await oscar.block(BLOCKS[13])
        for publisher in (alice, oscar):
            await publisher.expect("ack 12", "ack 13")


async def test_one_name_holds_one_block_open_on_all_its_streams(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        (alice,) = await stage.publishers("alice")
        await alice.block(BLOCKS[9])
        await alice.expect("ack 9")
        streams = await stage.publishers(*["mallory"] * 4)
        await streams[0].items(BLOCKS[10].items[0])
        await stage.begun(10)
        for stream in streams[1:]:
            await offer(stream, 10, 11)
            await stream.expect("skip 10", "skip 11")
        await alice.block(BLOCKS[11])
        await stage.held(11)


async def test_the_time_of_a_winner_runs_from_when_its_block_could_be_the_next(tmp_path: Path) -> None:
    async with playing(tmp_path) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)
        await begin(stage, bob, 10)
        stage.clock.jump(5)
        await finish(alice, 9)
        await alice.expect("ack 9")
        await bob.expect("ack 9")
        stage.clock.jump(5)  # of which Bob has had 10 s before, as far as his own clock goes
        await offer(carol, 10)
        await carol.expect("ack 9", "skip 10")
        stage.clock.jump(1.1)
        await bob.expect("end TIMEOUT last 9 about 10", "closed")
