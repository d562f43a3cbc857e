"""The conductor: the order of flushes and answers, room, time, stopping. Real disk, no gRPC."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from sluice.gateway.limits import (
    ITEM_OVERHEAD_BYTES,
)
from sluice.gateway.pipeline.conductor import STOOD_STILL_SECONDS_MIN, Outbox
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.race.actions import Action, Response
from sluice.gateway.race.records import RaceRules
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.conducting import Stage, gate, logged, on_stage
from tests.gateway.racing import text_of
from tests.nodes import ANSWER_SECONDS, make_blocks

BLOCKS = make_blocks(12)


# --- acknowledged means on disk -----------------------------------------------------------------------------


def test_no_acknowledgement_precedes_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Outbox.put

    async def play(stage: Stage) -> None:
        def spy(outbox: Outbox, response: Response) -> None:
            stage.events.append(f"{outbox.name} {text_of(response)}")
            put(outbox, response)

        monkeypatch.setattr(Outbox, "put", spy)
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        for block in BLOCKS[:3]:
            alice.block(block)
            await bob.expect(f"ack {block.number}")
        commit = ["pwrite", "fdatasync", "pwrite", "fdatasync"]
        expected = []
        for number in range(3):
            expected += [*commit, f"alice ack {number}", f"bob ack {number}"]
        assert stage.events == expected

    on_stage(tmp_path, play)


# --- actions in their order ---------------------------------------------------------------------------------


def test_a_bad_block_that_the_next_header_completes_is_asked_of_others(tmp_path: Path) -> None:
    """The verdict on block 0 comes among the actions that begin block 1 of the same publisher."""
    bad = [*BLOCKS[0].items[:-1], _flip_last_bit(BLOCKS[0].items[-1])]

    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*bad)
        bob.block(BLOCKS[0])
        alice.items(*BLOCKS[1].items[:2])
        await alice.expect_end("end BAD_BLOCK_PROOF last None about 0")
        await bob.expect("skip 0", "resend 0")
        bob.block(*BLOCKS[:2])
        await bob.expect("ack 0", "ack 1")
        assert stage.conductor.arbiter.inflight_bytes == 0

    on_stage(tmp_path, play)


def _flip_last_bit(item: bytes) -> bytes:
    return item[:-1] + bytes((item[-1] ^ 1,))


# --- pushing back -------------------------------------------------------------------------------------------


def test_beyond_the_limit_only_the_next_block_is_read(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        room = stage.conductor.room_for
        alice.items(*BLOCKS[0].items[:3])
        await room(bob.outbox)
        bob.items(*BLOCKS[1].items[:3])
        waiting = asyncio.ensure_future(room(bob.outbox))
        await room(alice.outbox)  # only block 0 frees memory
        await asyncio.sleep(0)
        assert not waiting.done()
        alice.items(*BLOCKS[0].items[3:])
        alice.end(0)
        await asyncio.wait_for(waiting, ANSWER_SECONDS)
        bob.items(*BLOCKS[1].items[3:])
        bob.end(1)
        await bob.expect("ack 0", "ack 1")

    limit = sum(map(len, BLOCKS[0].items[:3])) + 3 * ITEM_OVERHEAD_BYTES + 1
    on_stage(tmp_path, play, rules=RaceRules(inflight_bytes_max=limit))


def test_who_has_waited_for_room_has_its_time_from_then_on(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        bob.items(*BLOCKS[1].items[:3])
        waiting = asyncio.ensure_future(stage.conductor.room_for(bob.outbox))
        await asyncio.sleep(0)
        alice.items(*BLOCKS[0].items[3:])
        alice.end(0)
        await asyncio.wait_for(waiting, ANSWER_SECONDS)
        await bob.expect("ack 0")
        await bob.expect_end("end TIMEOUT last 0 about 1")

    limit = sum(map(len, BLOCKS[0].items[:3])) + 3 * ITEM_OVERHEAD_BYTES + 1
    on_stage(tmp_path, play, rules=RaceRules(inflight_bytes_max=limit, block_timeout_ns=500_000_000))


def test_a_publisher_that_waits_for_room_is_let_go_when_its_stream_ends(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        waiting = asyncio.ensure_future(stage.conductor.room_for(bob.outbox))
        await asyncio.sleep(0)
        assert not waiting.done()
        stage.conductor.disconnect(bob.outbox, "gone")
        await asyncio.wait_for(waiting, ANSWER_SECONDS)
        stage.conductor.disconnect(bob.outbox, "gone a second time")
        assert stage.conductor.arbiter.publisher_count == 1

    on_stage(tmp_path, play, rules=RaceRules(inflight_bytes_max=1))


# --- time, stopping, and bugs -------------------------------------------------------------------------------


def test_a_block_that_is_not_completed_in_time_goes_to_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        bob.block(BLOCKS[0])
        await alice.expect_end("end TIMEOUT last None about 0")
        await bob.expect("skip 0", "resend 0")
        bob.block(BLOCKS[0])
        await bob.expect("ack 0")

    on_stage(tmp_path, play, rules=RaceRules(block_timeout_ns=20_000_000))
    (line,) = logged(caplog, "block dropped")
    assert line == {
        "block": 0,
        "publisher": "alice",
        "failure": "TIMED_OUT",
        "reason": "not complete after 0.02 s",
    }


def test_after_a_pause_publishers_are_heard_before_their_time_is_looked_at(tmp_path: Path) -> None:
    """Timers come before messages, so Alice's messages were unread when her time seemed over."""

    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.items(*BLOCKS[0].items[:3])
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - the pause
        for _ in range(3):
            await asyncio.sleep(0)
        alice.items(*BLOCKS[0].items[3:])
        alice.end(0)
        await alice.expect("ack 0")

    on_stage(tmp_path, play, rules=RaceRules(block_timeout_ns=100_000_000))


def test_a_pause_is_no_time_of_the_publishers(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        (block,) = stage.conductor.arbiter.blocks.values()
        began_ns = block.timed_from_ns
        stage.conductor.stood_still(STOOD_STILL_SECONDS_MIN / 2)  # as is usual
        assert block.timed_from_ns == began_ns
        time.sleep(0.3)  # noqa: ASYNC251
        stage.conductor.stood_still(0.25)
        assert block.timed_from_ns == began_ns + 250_000_000
        await alice.expect_end("end TIMEOUT last None about 0")
        bob.block(BLOCKS[0])
        await bob.expect("ack 0")

    on_stage(tmp_path, play, rules=RaceRules(block_timeout_ns=100_000_000))


def test_a_timer_that_comes_late_waits_once_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time limits hold on a machine that is always late."""

    async def play(stage: Stage) -> None:
        alice, _ = stage.publisher("alice"), stage.publisher("bob")
        real_tick, real_on_time = stage.conductor.arbiter.tick, stage.conductor._on_time
        came: list[str] = []

        def tick(now_ns: int) -> list[Action]:
            came.append("tick")
            return real_tick(now_ns)

        def on_time() -> None:
            came.append("timer")
            real_on_time()

        monkeypatch.setattr(stage.conductor.arbiter, "tick", tick)
        monkeypatch.setattr(stage.conductor, "_on_time", on_time)
        alice.items(*BLOCKS[0].items[:3])
        await alice.expect_end("end TIMEOUT last None about 0")
        assert came[:3] == ["timer", "timer", "tick"]

    on_stage(
        tmp_path,
        play,
        rules=RaceRules(block_timeout_ns=20_000_000),
        limits=PipelineLimits(timer_late_seconds_max=-1.0),  # every timer is
    )


def test_behind_a_message_that_was_kept_time_runs_again(tmp_path: Path) -> None:
    """Even if the timer came meanwhile and found nothing to do."""

    async def play(stage: Stage) -> None:
        alice, _ = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        with stage.conductor.delaying(alice.outbox):
            await asyncio.sleep(0.2)
        await alice.expect_end("end TIMEOUT last None about 0")

    on_stage(tmp_path, play, rules=RaceRules(block_timeout_ns=50_000_000))


def test_a_publisher_that_leaves_while_its_message_is_kept_is_not_missed(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        with stage.conductor.delaying(alice.outbox):
            stage.conductor.disconnect(alice.outbox, "gone")
        assert stage.conductor.arbiter.publisher_count == 0

    on_stage(tmp_path, play)


def test_stopping_finishes_what_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockStore, "append") as held:
            alice, bob = stage.publisher("alice"), stage.publisher("bob")
            alice.block(*BLOCKS[:2])
            bob.items(*BLOCKS[2].items[:3])
            await held.reached()
            stopping = asyncio.ensure_future(stage.conductor.stop(ANSWER_SECONDS))
            await asyncio.sleep(0)
            late = stage.publisher("late")
            held.open()
            await stopping
            await late.expect_end("end SUCCESS last None about 0")
            for publisher in (alice, bob):
                await publisher.expect("ack 0", "ack 1")
                await publisher.expect_end("end SUCCESS last 1 about 0")
        assert stage.store.last_number == 1

    on_stage(tmp_path, play)


def test_who_is_taken_back_and_retired_again_finishes_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(stage: Stage) -> None:
        await stage.conductor.retire("for a standby")
        stage.conductor.reinstate()
        with gate(monkeypatch, BlockStore, "append") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await held.reached()
            retiring = asyncio.ensure_future(stage.conductor.retire("for another"))
            for _ in range(3):
                await asyncio.sleep(0)
            assert not stage.conductor.idle.is_set()
            held.open()
            await retiring
            await alice.expect("ack 0")
            await alice.expect_end("end SUCCESS last 0 about 0")

    on_stage(tmp_path, play)


def test_what_an_address_holds_makes_that_address_wait_and_no_other(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = (stage.publisher(name, address="192.0.2.1") for name in ("alice", "bob"))
        carol = stage.publisher("carol", address="192.0.2.2")
        alice.items(*BLOCKS[0].items[:3])
        rooms = [asyncio.ensure_future(stage.conductor.room_for(one.outbox)) for one in (alice, bob, carol)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert [room.done() for room in rooms] == [True, False, True]
        stage.conductor.disconnect(bob.outbox, "he is gone")
        await asyncio.gather(*rooms)
        alice.items(*BLOCKS[0].items[3:])
        alice.end(0)
        await alice.expect("ack 0")

    on_stage(tmp_path, play, rules=RaceRules(address_bytes_max=1))


def test_stopping_waits_no_longer_than_it_may_but_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockStore, "append") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await held.reached()
            stopping = asyncio.ensure_future(stage.conductor.stop(0.01))
            async with asyncio.timeout(ANSWER_SECONDS):
                while not logged(caplog, "blocks in flight were not finished"):  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            assert not stopping.done()
            held.open()
            await stopping
        assert stage.store.last_number == 0

    on_stage(tmp_path, play)


def test_other_parts_of_the_node_hear_of_targets_and_of_the_end_of_all_sources(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        conductor, targets, errors = stage.conductor, list[int](), list[str]()
        told = asyncio.Event()
        conductor.on_catch_up_target(targets.append)
        conductor.on_source_error(lambda: errors.append("source error"))
        conductor.on_source_error(told.set)
        alice = stage.publisher("alice")
        alice.items(*BLOCKS[3].items)
        await alice.expect("behind None")
        publisher_id = alice.outbox.publisher_id
        actions = conductor.arbiter.end_stream(publisher_id, 0, target=7, is_error=True)
        conductor.perform(actions)
        async with asyncio.timeout(ANSWER_SECONDS):
            await told.wait()
        assert (targets, errors) == ([3, 7], ["source error"])
        assert conductor.catch_up_target == 7

    on_stage(tmp_path, play)


async def test_a_bug_in_the_race_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, None)
    monkeypatch.setattr(stage.store, "advance", lambda block: 1 / 0)
    alice = stage.publisher("alice")
    alice.block(BLOCKS[0])
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(stage.conductor.broken), ANSWER_SECONDS)
    await stage.conductor.stop(0.01)
    stage.store.close()
    reopened = BlockStore.open(tmp_path)
    assert reopened.last_number == 0  # on disk, and never acknowledged: that is allowed
    reopened.close()


def test_metrics_follow_the_race(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        bob.items(BLOCKS[0].items[0])
        values = stage.metrics.registry.get_sample_value
        stage.conductor.connect("peer", is_peer=True)  # this node's subscription is no publisher
        assert values("sluice_publishers") == 2
        alice.items(*BLOCKS[0].items[3:])
        held = (BLOCKS[0].items, BLOCKS[0].items[:3])
        assert values("sluice_inflight_bytes") in [
            sum(map(len, items)) + len(items) * ITEM_OVERHEAD_BYTES for items in held
        ]
        alice.end(0)
        await alice.expect("ack 0")
        names = ("received", "verified", "acknowledged", "skipped")
        assert [values(f"sluice_blocks_{name}_total") for name in names] == [1, 1, 1, 1]
        assert values("sluice_blocks_won_total", {"publisher": "alice"}) == 1
        assert values("sluice_flush_seconds_count") == 1
        assert values("sluice_acknowledgement_latency_seconds_count") == 1
        assert values("sluice_last_block") == 0
        assert values("sluice_inflight_bytes") == 0

    on_stage(tmp_path, play)
