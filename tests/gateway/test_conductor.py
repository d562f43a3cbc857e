"""Tests of the conductor: order of flushes and answers, threads, failing disks. Real disk, no gRPC."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from gateway import conductor as conductor_module
from gateway import ledger as ledger_module
from gateway.block import Block
from gateway.items import ItemKind, field_item
from gateway.ledger import Ledger
from gateway.limits import INLINE_HASH_BYTES_MAX, ITEM_OVERHEAD_BYTES
from gateway.outbox import Outbox
from gateway.proof_checks import ProofChecks
from gateway.race_actions import Response
from gateway.race_facts import RaceRules
from gateway.root_hash import BlockHasher, BlockSummary
from gateway.verification import Verdict
from publishers.maker import BlockMaker, MakerOptions
from tests.gateway.conducting import Stage, gate, logged, on_stage
from tests.gateway.racing import text_of
from tests.nodes import ANSWER_SECONDS, KEY, make_blocks

BLOCKS = make_blocks(12)
LARGE_SEED = 2
LARGE_ITEM = field_item(ItemKind.SIGNED_TRANSACTION, bytes(INLINE_HASH_BYTES_MAX))


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


def test_blocks_that_wait_for_a_commit_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block, then five and five more in a group of at most five, then the last one."""

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "append") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await held.reached()
            alice.block(*BLOCKS[1:])
            assert stage.events == []
            assert stage.ledger.last_number is None
            held.open()
            await alice.expect(*(f"ack {number}" for number in range(12)))
        assert stage.events.count("fdatasync") == 2 * 4
        assert {name.split("_")[0] for name in held.threads} == {"commit"}

    grouped = on_stage(tmp_path / "grouped", play, group_blocks_max=5)

    async def one_by_one(stage: Stage) -> None:
        alice = stage.publisher("alice")
        for block in BLOCKS:
            alice.block(block)
            await alice.expect(f"ack {block.number}")
        assert stage.events.count("fdatasync") == 2 * 12

    monkeypatch.undo()
    assert on_stage(tmp_path / "single", one_by_one) == grouped


def test_a_commit_begins_with_the_last_message_of_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the event loop has to do then."""

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "append") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            assert held.was_reached()  # and the event loop has not come round since
            held.open()
            await alice.expect("ack 0")

    on_stage(tmp_path, play)


def test_a_check_of_proofs_is_told_whether_a_further_block_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, bool]] = []

    async def check(
        self: ProofChecks, summary: BlockSummary, _: object, *, block_0_comes: object, more_come: bool
    ) -> Verdict:
        told.append((summary.number, more_come))
        return Verdict(self.check_now(summary), None)

    monkeypatch.setattr(ProofChecks, "at_once", lambda self, summary: False)
    monkeypatch.setattr(ProofChecks, "check", check)

    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await bob.expect("ack 0")
        alice.items(*BLOCKS[1].items)
        bob.items(*BLOCKS[2].items)
        alice.end(1)
        await alice.expect("ack 1")
        bob.end(2)
        await alice.expect("ack 2")

    on_stage(tmp_path, play)
    assert told == [(0, False), (1, True), (2, False)]


def test_blocks_that_waited_for_the_same_one_share_its_commit(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items)
        bob.block(*BLOCKS[1:3])
        assert stage.events == []
        alice.end(0)
        await alice.expect(*(f"ack {number}" for number in range(3)))
        assert stage.events == ["pwrite", "fdatasync", "pwrite", "fdatasync"]

    on_stage(tmp_path, play)


def test_the_snapshot_of_the_chain_is_written_beside_the_loop_and_after_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "CHAIN_SNAPSHOT_BLOCKS", 2)

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "write_snapshot") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await alice.expect("ack 0")
            alice.block(BLOCKS[1])
            await alice.expect("ack 1")
            await held.reached()
            held.open()
            alice.block(BLOCKS[2])
            await alice.expect("ack 2")
        assert {name.split("_")[0] for name in held.threads} == {"commit"}
        assert '"last_number": 1' in (stage.ledger.data_dir / "chain.json").read_text("utf-8")

    on_stage(tmp_path, play)


def test_a_group_that_is_large_enough_takes_no_further_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block before the gate, then two, the second of which reaches the limit, then the last."""
    limit = BLOCKS[1].size_bytes + 1
    monkeypatch.setattr(conductor_module, "COMMIT_GROUP_BYTES_MAX", limit)

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "append") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await held.reached()
            alice.block(*BLOCKS[1:4])
            held.open()
            await alice.expect(*(f"ack {number}" for number in range(4)))
        assert stage.events.count("fdatasync") == 2 * 3

    on_stage(tmp_path, play)


# --- actions in their order ---------------------------------------------------------------------------------


def test_a_bad_block_that_the_next_header_completes_is_asked_of_others(tmp_path: Path) -> None:
    """The verdict on block 0 comes in the middle of the actions that begin block 1 of the same publisher."""
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


# --- hashing in a thread ------------------------------------------------------------------------------------


def large_block() -> Block:
    """Block 0, with an item of 6 MB between small ones."""
    options = MakerOptions(
        rounds_per_block=1, events_per_round=1, transactions_per_block=4, item_bytes=6_000_000
    )
    (block,) = BlockMaker(LARGE_SEED, KEY, options).blocks(1)
    return block


def test_a_large_set_is_hashed_in_a_thread_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = large_block()
    cut = next(index for index, item in enumerate(large.items) if len(item) > INLINE_HASH_BYTES_MAX)

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockHasher, "add") as held:
            alice, bob = stage.publisher("alice"), stage.publisher("bob")
            alice.items(*large.items[:cut])
            alice.items(large.items[cut])
            await held.reached()
            for item in large.items[cut + 1 :]:  # small ones too: they wait behind the large one
                alice.items(item)
            alice.end(0)
            bob.items(*BLOCKS[1].items[:-1])  # hashed here and now, while the thread stands still
            bob.items(BLOCKS[0].items[0])
            await bob.expect("skip 0")
            held.open()
            await alice.expect("ack 0")
            await bob.expect("ack 0")
        assert {name.split("_")[0] for name in held.threads} == {"hash"}
        assert len(held.threads) == len(large.items) - cut
        stored = stage.ledger.read_block(0)
        assert stored is not None
        assert stored.items == large.items

    on_stage(tmp_path, play)


def test_a_set_at_the_limit_is_hashed_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = BLOCKS[0].items[0]

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockHasher, "add") as held:
            held.open()
            alice = stage.publisher("alice")
            alice.items(header)
            alice.items(_item_of(INLINE_HASH_BYTES_MAX))
            assert held.threads == []
            alice.items(_item_of(INLINE_HASH_BYTES_MAX + 1))
            await held.reached()

    on_stage(tmp_path, play)


def _item_of(size: int) -> bytes:
    item = field_item(ItemKind.SIGNED_TRANSACTION, bytes(size - 5))
    item = field_item(ItemKind.SIGNED_TRANSACTION, bytes(2 * size - 5 - len(item)))
    assert len(item) == size
    return item


def test_a_refusal_in_the_thread_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(BLOCKS[0].items[0], LARGE_ITEM, field_item(14, b""))
        bob.block(BLOCKS[0])
        await alice.expect_end("end BAD_BLOCK_PROOF last None about 0")
        await bob.expect("skip 0", "resend 0")
        bob.block(BLOCKS[0])
        await bob.expect("ack 0")

    on_stage(tmp_path, play)
    (line,) = logged(caplog, "block refused")
    assert (line["block"], line["publisher"], line["kind"]) == (0, "alice", "unsupported")


def test_a_refusal_of_a_block_that_was_dropped_meanwhile_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockHasher, "add") as held:
            alice = stage.publisher("alice")
            alice.items(BLOCKS[0].items[0], LARGE_ITEM, field_item(14, b""))
            await held.reached()
            hashing = next(iter(stage.conductor._attempts.values())).hashing
            assert hashing is not None
            alice.items(*BLOCKS[0].items)  # begins the block again
            held.open()
            await asyncio.wait({hashing})
            alice.end(0)
            await alice.expect("ack 0")

    on_stage(tmp_path, play)
    assert logged(caplog, "block refused") == []


# --- a disk that refuses ------------------------------------------------------------------------------------

DISK_FAULTS: list[tuple[str, dict[str, list[int | None]], str]] = [
    ("full", {"pwrite": [errno.ENOSPC] * 2}, "1 entries: No space left on device"),
    ("full at the header", {"pwrite": [None, errno.ENOSPC]}, "3 header: No space left on device"),
    ("first flush", {"fdatasync": [errno.EIO]}, "2 flush: Input/output error"),
    ("second flush", {"fdatasync": [None, errno.EIO, errno.EIO]}, "4 flush: Input/output error"),
]


@pytest.mark.parametrize(
    ("plan", "step"), [case[1:] for case in DISK_FAULTS], ids=[case[0] for case in DISK_FAULTS]
)
def test_a_disk_that_refuses_ends_every_stream_and_is_forgiven(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    plan: dict[str, list[int | None]],
    step: str,
) -> None:
    monkeypatch.setattr(conductor_module, "DISK_PROBE_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    probe = Ledger.probe
    probe_outcomes: list[OSError | None] = [OSError(errno.ENOSPC, "No space left on device"), None]

    def failing_probe(ledger: Ledger) -> None:
        outcome = probe_outcomes.pop(0)
        if outcome is not None:
            raise outcome
        probe(ledger)

    monkeypatch.setattr(Ledger, "probe", failing_probe)

    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await bob.expect("ack 0")
        before = stage.ledger.streamer.committed
        stage.disk.plan = plan
        alice.block(BLOCKS[1])
        bob.block(*BLOCKS[2:4])  # linked, and waiting behind the block that fails
        for publisher in (alice, bob):
            await publisher.expect_end("end PERSISTENCE_FAILED last 0 about 1")
        assert stage.ledger.streamer.committed == before
        assert stage.conductor.arbiter.inflight_bytes == 0
        late = stage.publisher("late")
        await late.expect_end("end PERSISTENCE_FAILED last 0 about 1")
        assert stage.conductor.arbiter.persistence_failed is not None
        async with asyncio.timeout(ANSWER_SECONDS):
            while stage.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        carol = stage.publisher("carol")
        carol.block(*BLOCKS[1:])
        await carol.expect(*(f"ack {number}" for number in range(1, 12)))

    async def without_failure(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(*BLOCKS)
        await alice.expect(*(f"ack {number}" for number in range(12)))

    failed = on_stage(tmp_path / "failing", play)
    monkeypatch.undo()
    assert failed == on_stage(tmp_path / "good", without_failure)
    (line,) = logged(caplog, "commit failed")
    assert line["block"] == 1
    assert line["got"] == f"{tmp_path}/failing/datastream.bin: commit failed at step {step}"
    assert [one["got"] for one in logged(caplog, "the disk still cannot be written")] == [
        "[Errno 28] No space left on device"
    ]
    assert logged(caplog, "the disk takes writes again") == [{"last_block": 0}]


def test_blocks_that_wait_behind_a_commit_that_fails_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were linked to a block that is not there."""
    monkeypatch.setattr(conductor_module, "DISK_PROBE_SECONDS", 0.01)

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "append") as held:
            alice = stage.publisher("alice")
            stage.disk.plan = {"fdatasync": [errno.EIO]}
            alice.block(BLOCKS[0])
            await held.reached()
            alice.block(*BLOCKS[1:4])
            held.open()
            await alice.expect_end("end PERSISTENCE_FAILED last None about 0")
        async with asyncio.timeout(ANSWER_SECONDS):
            while stage.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert stage.ledger.streamer.committed.total_entries == 0
        bob = stage.publisher("bob")
        bob.block(*BLOCKS)
        await bob.expect(*(f"ack {number}" for number in range(12)))

    on_stage(tmp_path, play)


def test_any_error_of_a_commit_is_one_of_persistence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def play(stage: Stage) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "append", fail)
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await alice.expect_end("end PERSISTENCE_FAILED last None about 0")

    on_stage(tmp_path, play)
    (record,) = [record for record in caplog.records if record.message == "commit failed"]
    assert record.exc_info is not None  # unlike a disk that refuses, this shows where


# --- pushing back -------------------------------------------------------------------------------------------


def test_beyond_the_limit_only_the_next_block_is_read(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        room = stage.conductor.room_for
        alice.items(*BLOCKS[0].items[:3])
        await room(bob.outbox)
        bob.items(*BLOCKS[1].items[:3])
        waiting = asyncio.ensure_future(room(bob.outbox))
        await room(alice.outbox)  # block 0 frees memory, and only it does
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


def test_stopping_finishes_what_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "append") as held:
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
        assert stage.ledger.last_number == 1

    on_stage(tmp_path, play)


def test_stopping_waits_no_longer_than_it_may_but_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, Ledger, "append") as held:
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
        assert stage.ledger.last_number == 0

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
        actions = conductor.arbiter.end_stream(publisher_id, 0, latest=7, is_error=True)
        conductor.perform(actions)
        async with asyncio.timeout(ANSWER_SECONDS):
            await told.wait()
        assert (targets, errors) == ([3, 7], ["source error"])
        assert conductor.catch_up_target == 7

    on_stage(tmp_path, play)


def test_a_bug_in_the_race_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        stage = Stage(tmp_path, None)
        monkeypatch.setattr(stage.ledger, "advance", lambda block: 1 / 0)
        alice = stage.publisher("alice")
        alice.block(BLOCKS[0])
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(asyncio.shield(stage.conductor.broken), ANSWER_SECONDS)
        await stage.conductor.stop(0.01)
        stage.ledger.close()

    asyncio.run(main())
    reopened = Ledger.open(tmp_path)
    assert reopened.last_number == 0  # on disk, and never acknowledged: that is allowed
    reopened.close()


def test_metrics_follow_the_race(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items[:3])
        bob.items(BLOCKS[0].items[0])
        values = stage.metrics.registry.get_sample_value
        stage.conductor.connect("peer", is_peer=True)  # the node's own subscription is no publisher
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
