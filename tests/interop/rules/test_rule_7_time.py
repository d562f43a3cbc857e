"""Rule 7: time limits, on a clock that the test moves."""

from __future__ import annotations

from pathlib import Path

from tests.interop.rules.scenes import BLOCKS, Stage, begin, finish, offer, play


def test_the_winner_of_the_lowest_block_is_timed_out_and_nobody_else(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
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

    play(tmp_path, scene, block_time_seconds=10.0)


def test_what_one_that_was_timed_out_still_sends_is_dropped_silently(tmp_path: Path) -> None:
    """The rest of its block, and the blocks behind it: it hears one answer, and wins nothing."""

    async def scene(stage: Stage) -> None:
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

    play(tmp_path, scene)


def test_the_time_is_three_times_the_networks_block_time(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        alice, bob = await stage.publishers("alice", "bob")
        await begin(stage, alice, 9)
        stage.clock.jump(15)
        await offer(bob, 9)
        await bob.expect("skip 9")
        stage.clock.jump(15)
        await alice.expect("end TIMEOUT last 8 about 9", "closed")

    play(tmp_path, scene, block_time_seconds=10.0)


def test_a_winner_is_timed_out_when_another_has_completed_a_block_far_ahead(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
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

    play(tmp_path, scene, publish_stall_blocks=2)


def test_a_publisher_that_never_sends_a_header_is_closed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        silent, waiting = await stage.publishers("silent", "waiting")
        await offer(waiting, 12)
        await waiting.expect("behind 8")
        stage.clock.jump(301)
        await silent.expect("end TIMEOUT last 8 about 0", "closed")
        await waiting.block(BLOCKS[9])
        await waiting.expect("ack 9")

    play(tmp_path, scene)


def test_time_limits_run_by_themselves(tmp_path: Path) -> None:
    """Without the test's clock: the node's own timer."""

    async def scene(stage: Stage) -> None:
        (alice,) = await stage.publishers("alice")
        await alice.items(*BLOCKS[9].items[:2])
        await alice.expect("end TIMEOUT last 8 about 9", "closed")

    play(tmp_path, scene, publish_block_timeout_seconds=0.2)
