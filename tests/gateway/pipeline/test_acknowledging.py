"""Blocks that wait for standbys: what publishers hear and when, on a real block store; no gRPC."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.item_set import inspect
from sluice.gateway.pipeline.acknowledging import RACE_HISTORY_BLOCKS, RaceHistory, Won
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.pipeline.replication_quorum import DurableHeight, ReplicationQuorum
from sluice.gateway.race.records import RaceRules
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.conducting import Hand, Stage, gate, logged, on_stage
from tests.gateway.racing import text_of
from tests.nodes import ANSWER_SECONDS, make_blocks

BLOCKS = make_blocks(12)


class Scene(Stage):
    """A stage with one standby."""

    def __init__(self, data_dir: Path, rules: RaceRules | None, **options: Any) -> None:
        self.standbys = ReplicationQuorum(1, "this-process", ["b:1"])
        super().__init__(data_dir, rules, standbys=self.standbys, **options)
        chain = self.store.chain
        if chain.last_number is not None and chain.last_root_hash is not None:
            self.standbys.stored(chain.last_number, chain.last_root_hash)
        self.acknowledging = self.conductor.acknowledging

    def report(self, number: int) -> None:
        root_hash = self.store.root_hash_at(number)
        assert root_hash is not None
        self.standbys.heard("b:1", DurableHeight("that-process", number, root_hash))
        self.acknowledging.release()

    def lose(self) -> None:
        """The standby disconnects."""
        self.standbys.lost("b:1", "gone")
        self.acknowledging.release()

    async def publisher_that_stored(self, *blocks: Block) -> Hand:
        """Connect Alice, who sends blocks, and wait until they are on disk here."""
        alice = self.publisher("alice")
        alice.block(*blocks)
        await self.stored(blocks[-1].number)
        return alice

    async def stored(self, number: int) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            while self.store.last_number is None or self.store.last_number < number:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def metric(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(name)
        assert value is not None
        return value


@pytest.fixture
def on_scene(tmp_path: Path) -> Callable[..., bytes]:
    """Return `on_stage` with a standby."""
    return partial(on_stage, tmp_path, stage_type=Scene)


# --- waiting ------------------------------------------------------------------------------------------------


def test_a_block_is_stored_at_once_and_acknowledged_when_the_standby_has_it(
    on_scene: Callable[..., None],
) -> None:
    async def play(scene: Scene) -> None:
        bob = scene.publisher("bob")
        # None waits for the confirmation of the one before it.
        alice = await scene.publisher_that_stored(*BLOCKS[:4])
        assert scene.acknowledging.awaiting == (0, 3)
        assert scene.metric("sluice_blocks_awaiting_standbys") == 4
        assert scene.metric("sluice_blocks_acknowledged_total") == 0
        assert scene.metric("sluice_last_block") == -1
        assert (scene.conductor.next_to_store, scene.conductor.arbiter.next_number) == (4, 0)
        scene.report(1)
        for publisher in (alice, bob):
            await publisher.expect("ack 0", "ack 1")
        assert scene.acknowledging.awaiting == (2, 3)
        scene.report(3)
        for publisher in (alice, bob):
            await publisher.expect("ack 2", "ack 3")
        assert scene.acknowledging.awaiting is None
        assert scene.acknowledging.awaiting_seconds == 0
        assert scene.metric("sluice_blocks_awaiting_standbys") == 0
        assert scene.metric("sluice_standby_wait_seconds_count") == 4
        assert scene.metric("sluice_last_block") == 3
        assert scene.metric("sluice_standbys") == scene.metric("sluice_min_standbys") == 1
        assert [won.number for won in scene.acknowledging.history.blocks] == [0, 1, 2, 3]

    on_scene(play)


def test_how_long_the_first_block_has_waited_is_told(on_scene: Callable[..., None]) -> None:
    """For the status page and an alarm's metric."""
    now_ns = 1_000_000_000

    async def play(scene: Scene) -> None:
        nonlocal now_ns
        alice = await scene.publisher_that_stored(BLOCKS[0])
        now_ns += 3_000_000_000
        alice.block(BLOCKS[1])
        await scene.stored(1)
        now_ns += 4_500_000_000
        assert scene.acknowledging.awaiting_seconds == 7.5
        assert scene.metric("sluice_awaiting_standbys_seconds") == 7.5
        scene.report(0)
        assert scene.acknowledging.awaiting_seconds == 4.5
        assert scene.acknowledging.history.blocks[-1].seconds == 7.5
        scene.report(1)
        assert scene.acknowledging.awaiting_seconds == 0
        assert scene.conductor.next_to_store == 2
        assert scene.metric("sluice_standby_wait_seconds_sum") == 7.5 + 4.5
        assert scene.metric("sluice_acknowledgement_latency_seconds_sum") == 7.5 + 4.5
        assert scene.metric("sluice_blocks_acknowledged_total") == 2
        assert scene.metrics.registry.get_sample_value("sluice_blocks_won_total", {"publisher": "alice"}) == 2
        assert scene.acknowledging.acknowledged_at is not None

    on_scene(play, now_ns=lambda: now_ns)


def test_a_standby_that_goes_away_and_comes_back_with_less_holds_what_it_does_not_have(
    on_scene: Callable[..., None],
) -> None:
    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(*BLOCKS[:2])
        scene.report(1)
        await alice.expect("ack 0", "ack 1")
        scene.lose()
        alice.block(BLOCKS[2])
        await scene.stored(2)
        scene.report(0)
        assert scene.acknowledging.awaiting == (2, 2)
        scene.report(2)
        await alice.expect("ack 2")

    on_scene(play)


def test_a_block_that_waits_is_skipped_and_never_called_a_duplicate(on_scene: Callable[..., None]) -> None:
    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(*BLOCKS[:2])
        scene.report(0)
        await alice.expect("ack 0")
        bob, carol, dave = scene.publisher("bob"), scene.publisher("carol"), scene.publisher("dave")
        bob.items(*BLOCKS[1].items)
        await bob.expect("skip 1")
        carol.items(*BLOCKS[5].items)
        await carol.expect("behind 0")
        dave.items(*BLOCKS[0].items)
        await dave.expect_end("end DUPLICATE_BLOCK last 0 about 0")
        scene.report(1)
        await bob.expect("ack 1")

    on_scene(play)


def test_the_winner_may_leave_while_its_block_waits(on_scene: Callable[..., None]) -> None:
    async def play(scene: Scene) -> None:
        bob = scene.publisher("bob")
        alice = await scene.publisher_that_stored(BLOCKS[0])
        scene.conductor.disconnect(alice.outbox, "gone")
        scene.report(0)
        await bob.expect("ack 0")
        assert scene.acknowledging.history.counts() == [("alice", 1)]

    on_scene(play)


def test_no_time_limit_runs_for_a_block_that_waits(on_scene: Callable[..., None]) -> None:
    times = [0]

    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(BLOCKS[0])
        times[0] = 3600 * 10**9
        scene.conductor.perform(scene.conductor.arbiter.tick(times[0]))
        assert scene.acknowledging.awaiting_seconds == 3600
        assert scene.metric("sluice_awaiting_standbys_seconds") == 3600
        scene.report(0)
        await alice.expect("ack 0")

    on_scene(play, rules=RaceRules(block_timeout_ns=1), now_ns=lambda: times[0])


def test_what_waits_pushes_publishers_back_until_it_is_confirmed(on_scene: Callable[..., None]) -> None:
    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(BLOCKS[0])
        waiting = asyncio.ensure_future(scene.conductor.room_for(alice.outbox))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert scene.conductor.arbiter.inflight_bytes > 1
        scene.report(0)
        await asyncio.wait_for(waiting, ANSWER_SECONDS)
        assert scene.conductor.arbiter.inflight_bytes == 0
        await alice.expect("ack 0")

    on_scene(play, rules=RaceRules(inflight_bytes_max=1))


def test_after_a_long_wait_blocks_are_acknowledged_some_at_a_time(on_scene: Callable[..., None]) -> None:

    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(*BLOCKS)
        scene.report(11)
        assert scene.acknowledging.awaiting == (5, 11)
        await alice.expect(*(f"ack {number}" for number in range(12)))

    on_scene(play, limits=PipelineLimits(released_blocks_max=5))


# --- a disk that refuses, while blocks wait -----------------------------------------------------------------


def test_a_commit_that_fails_leaves_alone_what_waits(on_scene: Callable[..., None]) -> None:

    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(*BLOCKS[:2])
        scene.disk.plan = {"fdatasync": [errno.EIO]}
        alice.block(BLOCKS[2])
        await alice.expect_end("end PERSISTENCE_FAILED last None about 2")
        scene.conductor.arbiter.check()
        assert scene.acknowledging.awaiting == (0, 1)
        async with asyncio.timeout(ANSWER_SECONDS):
            while scene.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        bob = scene.publisher("bob")
        bob.block(*BLOCKS[:3])
        await bob.expect("skip 0", "skip 1")
        await scene.stored(2)
        scene.report(2)
        await bob.expect("ack 0", "ack 1", "ack 2")
        scene.conductor.arbiter.check()

    on_scene(play)


def test_confirmed_while_the_disk_refuses(
    on_scene: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:

    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(BLOCKS[0])
        with gate(monkeypatch, BlockStore, "begin") as held:
            scene.disk.plan = {"fdatasync": [errno.EIO]}
            alice.block(BLOCKS[1])
            await held.reached()
            scene.report(0)
            await alice.expect("ack 0")
            held.open()
            await alice.expect_end("end PERSISTENCE_FAILED last 0 about 1")
        assert scene.conductor.arbiter.last_number == 0

    on_scene(play)


# --- roles and stopping -------------------------------------------------------------------------------------


def test_a_node_that_drains_waits_for_its_standby_and_then_tells_the_last_block(
    on_scene: Callable[..., None],
) -> None:
    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(*BLOCKS[:2])
        draining = asyncio.ensure_future(scene.conductor.retire("a standby"))
        await asyncio.sleep(0)
        assert not scene.acknowledging.is_standby
        scene.report(1)
        await asyncio.wait_for(draining, ANSWER_SECONDS)
        await alice.expect("ack 0", "ack 1")
        await alice.expect_end("end SUCCESS last 1 about 0")

    on_scene(play)


def test_without_a_term_nothing_is_acknowledged(on_scene: Callable[..., None]) -> None:
    async def play(scene: Scene) -> None:
        has_term = False
        scene.acknowledging.has_term = lambda: has_term
        alice = await scene.publisher_that_stored(*BLOCKS[:2])
        scene.report(1)
        assert scene.acknowledging.awaiting == (0, 1)
        has_term = True
        scene.acknowledging.release()
        await alice.expect("ack 0", "ack 1")

    on_scene(play)


def test_a_node_that_steps_down_ends_its_publishers_at_once_and_acknowledges_nothing(
    on_scene: Callable[..., None],
) -> None:
    """What waits stays on disk. A node that leads again waits for its standby before it lets anybody in."""

    async def play(scene: Scene) -> None:
        has_term = True
        scene.acknowledging.has_term = lambda: has_term
        alice = await scene.publisher_that_stored(BLOCKS[0])
        scene.report(0)
        await alice.expect("ack 0")
        alice.block(BLOCKS[1])
        await scene.stored(1)
        alice.items(BLOCKS[2].items[0])  # a block that is not complete
        has_term = False
        await asyncio.wait_for(scene.conductor.step_down("a standby"), ANSWER_SECONDS)
        await alice.expect_end("end SUCCESS last 0 about 0")
        assert scene.acknowledging.awaiting is None
        assert scene.store.last_number == 1
        has_term = True
        scene.conductor.reinstate()
        assert "publishers are refused until block 1" in str(scene.acknowledging.refusal())
        scene.report(1)
        assert scene.acknowledging.refusal() is None
        bob = scene.publisher("bob")
        bob.block(BLOCKS[2])
        await scene.stored(2)
        scene.report(2)
        await bob.expect("ack 2")

    on_scene(play)


def test_a_node_that_is_resumed_in_the_middle_goes_on_waiting(on_scene: Callable[..., None]) -> None:
    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(BLOCKS[0])
        draining = asyncio.ensure_future(scene.conductor.retire("a standby"))
        await asyncio.sleep(0)
        draining.cancel()
        scene.conductor.reinstate()
        alice.block(BLOCKS[1])
        await scene.stored(1)
        assert scene.acknowledging.awaiting == (0, 1)
        scene.report(1)
        await alice.expect("ack 0", "ack 1")

    on_scene(play)


def test_a_standby_waits_for_nobody_and_when_it_becomes_active_refuses_until_its_last_block_is_confirmed(
    on_scene: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def play(scene: Scene) -> None:
        await scene.conductor.retire("the node is a standby")
        outbox = scene.conductor.connect("peer", is_peer=True)
        for block in BLOCKS[:2]:
            arbiter, now_ns = scene.conductor.arbiter, scene.conductor.now_ns()
            scene.conductor.offer(outbox, inspect(block.items))
            scene.conductor.perform(arbiter.block_end(outbox.publisher_id, block.number, now_ns))
        await scene.stored(1)
        assert [text_of(one) for one in await outbox.get()] == ["ack 0", "ack 1"]
        assert scene.acknowledging.awaiting is None
        assert scene.acknowledging.refusal() == "the node is a standby"
        scene.report(1)
        assert scene.acknowledging.refusal() is None  # EndOfStream may name block 1
        scene.lose()
        scene.conductor.disconnect(outbox, "it is active")
        scene.conductor.reinstate()
        refusal = (
            "publishers are refused until block 1, the last one here, is known to be on disk at 1 other node "
            "(commit.min_standbys): b:1 does not report: gone"
        )
        assert scene.acknowledging.refusal() == refusal
        assert logged(caplog, "publishers are refused") == [{"reason": refusal}]
        scene.standbys.min_standbys = 2
        assert scene.acknowledging.refusal() == refusal.replace("1 other node", "2 other nodes")
        scene.standbys.min_standbys = 1
        scene.report(0)
        assert scene.acknowledging.refusal() is not None
        assert len(logged(caplog, "publishers are refused")) == 1  # not with each report
        scene.report(1)
        assert scene.acknowledging.refusal() is None
        assert logged(caplog, "publishers are accepted") == [{"last_block": 1}]
        told = [record.levelno for record in caplog.records if record.getMessage() == "standby"]
        assert told == [logging.INFO, logging.WARNING, logging.WARNING]
        assert [entry["what"] for entry in logged(caplog, "standby")] == [
            "reports block 1",
            "does not report: gone",
            "has block 0, and had block 1: was its disk replaced?",
        ]
        scene.lose()
        assert scene.acknowledging.refusal() is None  # it was on both disks: only new blocks wait

    on_scene(play)


def test_an_empty_node_hears_publishers_at_once(on_scene: Callable[..., None]) -> None:
    async def play(scene: Scene) -> None:
        assert scene.acknowledging.refusal() is None

    on_scene(play)


def test_stopping_waits_for_standbys_as_long_as_it_may_and_then_tells_publishers_what_is_acknowledged(
    on_scene: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def play(scene: Scene) -> None:
        alice = await scene.publisher_that_stored(*BLOCKS[:2])
        scene.report(0)
        await alice.expect("ack 0")
        await scene.conductor.stop(0.01)
        assert scene.acknowledging.awaiting == (1, 1)
        await alice.expect_end("end SUCCESS last 0 about 0")
        assert logged(caplog, "blocks in flight were not finished") == [
            {"grace_seconds": 0.01, "awaiting_standbys": 1}
        ]
        scene.report(1)  # too late

    async def again(scene: Scene) -> None:
        assert scene.conductor.arbiter.last_number == 1
        assert scene.acknowledging.refusal() is not None
        scene.report(1)
        alice = await scene.publisher_that_stored(BLOCKS[2])
        scene.report(2)
        await alice.expect("ack 2")

    on_scene(play)
    on_scene(again)


def test_a_node_that_stops_before_its_last_block_is_confirmed_hears_nobody(
    on_scene: Callable[..., None],
) -> None:
    """It is idle but no standby, and an EndOfStream would say that the block is safe."""

    async def store(scene: Scene) -> None:
        await scene.publisher_that_stored(BLOCKS[0])
        scene.report(0)

    async def stop(scene: Scene) -> None:
        await scene.conductor.stop(ANSWER_SECONDS)
        assert scene.conductor.arbiter.idle
        refusal = scene.acknowledging.refusal()
        assert refusal is not None
        assert refusal.startswith(
            "publishers are refused until block 0, the last one here, is known to be on"
        )

    on_scene(store)
    on_scene(stop)


def test_without_standbys_to_wait_for_nothing_is_kept(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(*BLOCKS)
        await alice.expect(*(f"ack {number}" for number in range(12)))
        acknowledging = stage.conductor.acknowledging
        assert (acknowledging.quorum, acknowledging.awaiting, acknowledging.refusal()) == (None, None, None)
        assert stage.metrics.registry.get_sample_value("sluice_standby_wait_seconds_count") == 0

    on_stage(tmp_path, play)


# --- the winners of the last blocks -------------------------------------------------------------------------


def test_winners_are_counted_most_first_and_then_by_name() -> None:
    history = RaceHistory()
    assert (history.blocks, history.counts(), history.median_seconds()) == ((), [], None)
    for number, name in enumerate(("bob", "alice", "carol", "carol")):
        history.won(number, name, 0.01 * number)
    assert history.counts() == [("carol", 2), ("alice", 1), ("bob", 1)]
    assert history.blocks[-1] == Won(3, "carol", 0.03)
    assert history.median_seconds() == 0.02


def test_the_oldest_winners_are_forgotten() -> None:
    history = RaceHistory()
    for number in range(RACE_HISTORY_BLOCKS + 5):
        history.won(number, "alice", 0.0)
    assert history.blocks[0].number == 5
    assert history.counts() == [("alice", RACE_HISTORY_BLOCKS)]
