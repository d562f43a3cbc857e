"""The group commit: which blocks share a pair of flushes, and what follows when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from itertools import accumulate
from pathlib import Path

import pytest

from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.pipeline.dispute import Source
from sluice.gateway.pipeline.group_commit import _needs_loop
from sluice.gateway.pipeline.in_flight import Attempt
from sluice.gateway.pipeline.limits import IDLE_TURN_NS, PipelineLimits
from sluice.gateway.race.actions import AttemptId
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from tests.gateway.block_makers import summary_of
from tests.gateway.conducting import Stage, gate, logged, on_stage
from tests.nodes import ANSWER_SECONDS, make_blocks

BLOCKS = make_blocks(12)
ENTRY_COUNTS = [0, *accumulate(len(block.items) + 2 for block in BLOCKS)]
"""Of so many blocks: bookmarks, items, and the end of each."""


# --- groups -------------------------------------------------------------------------------------------------


def test_blocks_that_wait_for_a_commit_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block 0, then five and five more in groups of at most five, then the last one: two flushes each."""

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockStore, "append") as held:
            alice = stage.publisher("alice")
            alice.block(BLOCKS[0])
            await held.reached()
            alice.block(*BLOCKS[1:])
            assert stage.events == []
            assert stage.store.last_number is None
            held.open()
            await alice.expect(*(f"ack {number}" for number in range(12)))
        assert stage.events.count("fdatasync") == 2 * 4
        assert {name.split("_")[0] for name in held.threads} == {"commit"}

    grouped = on_stage(tmp_path / "grouped", play, limits=PipelineLimits(group_blocks_max=5))

    async def one_by_one(stage: Stage) -> None:
        alice = stage.publisher("alice")
        for block in BLOCKS:
            alice.block(block)
            await alice.expect(f"ack {block.number}")
        assert stage.events.count("fdatasync") == 2 * 12

    monkeypatch.undo()
    assert on_stage(tmp_path / "single", one_by_one) == grouped


def test_blocks_that_waited_for_the_same_one_share_its_commit(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.items(*BLOCKS[0].items)
        bob.block(*BLOCKS[1:3])
        assert stage.events == []
        alice.end(0)
        await alice.expect(*(f"ack {number}" for number in range(3)))
        assert stage.events == ["pwrite", "fdatasync", "pwrite", "fdatasync"] * 2
        stage.events.clear()
        alice.items(*BLOCKS[3].items)
        bob.block(*BLOCKS[4:6])
        alice.end(3)
        await alice.expect(*(f"ack {number}" for number in range(3, 6)))
        assert stage.events == ["pwrite", "fdatasync", "pwrite", "fdatasync"]

    on_stage(tmp_path, play)


def test_a_group_is_finished_with_the_flush_that_begins_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is acknowledged then, while the next one is unfinished."""

    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        stage.events.clear()
        with (
            gate(monkeypatch, BlockStore, "begin") as begun,
            gate(monkeypatch, BlockStore, "finish") as finished,
        ):
            alice.block(BLOCKS[1])
            await begun.reached()
            alice.block(*BLOCKS[2:4])
            begun.open()
            await finished.reached()
            await alice.expect("ack 1")
            assert stage.store.last_number == 1
            assert stage.events == ["pwrite", "fdatasync", "pwrite", "pwrite", "fdatasync"]
            alice.block(BLOCKS[4])  # begins when those before it are finished: the thread has looked already
            finished.open()
            await alice.expect("ack 2", "ack 3", "ack 4")
        assert stage.events[5:] == ["pwrite", "fdatasync"] + ["pwrite", "fdatasync"] * 2
        assert begun.threads == ["commit"] * 3
        assert finished.threads == ["commit"] * 2
        assert (
            stage.metrics.registry.get_sample_value("sluice_flushes_total")
            == stage.events.count("fdatasync") + 2
        )  # those of block 0

    on_stage(tmp_path, play)


def test_behind_a_group_of_several_blocks_the_next_ones_gather_while_the_loop_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(turns: int) -> None:
        for _ in range(turns):
            time.sleep(2 * IDLE_TURN_NS / 1e9)  # noqa: ASYNC251
            await asyncio.sleep(0)

    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        alice.items(*BLOCKS[1].items)
        bob.block(BLOCKS[2])
        alice.end(1)
        work = asyncio.ensure_future(busy(10**6))
        await alice.expect("ack 1", "ack 2")
        stage.events.clear()
        with gate(monkeypatch, BlockStore, "begin") as begun:
            begun.open()
            alice.block(BLOCKS[3])
            await busy(50)
            assert begun.threads == []
            alice.block(BLOCKS[4])
            work.cancel()
            await alice.expect("ack 3", "ack 4")
            assert begun.threads == ["commit"]
        assert stage.events == ["pwrite", "fdatasync"] * 2
        alice.block(BLOCKS[5])  # the loop is idle: it does not wait
        await alice.expect("ack 5")

    on_stage(tmp_path, play, limits=PipelineLimits(gather_ns=10**12))


def test_a_group_that_is_large_has_flushes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group before it does not wait for it."""

    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        stage.events.clear()
        with gate(monkeypatch, BlockStore, "begin") as held:
            alice.block(BLOCKS[1])
            await held.reached()
            alice.block(BLOCKS[2])
            held.open()
            await alice.expect("ack 1", "ack 2")
        assert stage.events == ["pwrite", "fdatasync"] * 4
        assert stage.metrics.registry.get_sample_value("sluice_flushes_total") == 2 * 3

    on_stage(tmp_path, play, limits=PipelineLimits(shared_flush_bytes_max=BLOCKS[2].size_bytes - 1))


def test_what_a_stored_block_leads_to_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug stops the node while the thread goes on."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        monkeypatch.setattr(stage.conductor._group_commit, "_stored", fail)
        alice.block(BLOCKS[1])
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await asyncio.wait_for(stage.conductor.broken, ANSWER_SECONDS)
        stage.conductor.broken = asyncio.get_running_loop().create_future()

    on_stage(tmp_path, play, stop_seconds=0.1)


def test_the_snapshot_of_the_chain_is_written_beside_the_loop_and_after_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockStore, "write_snapshot") as held:
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
        assert '"last_number": 1' in (stage.store.data_dir / "chain.json").read_text("utf-8")

    on_stage(tmp_path, play, snapshot_blocks=2)


def test_a_group_that_is_large_enough_takes_no_further_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block 0, then one before the gate, then two, the second of which reaches the limit, then the last."""
    limit = BLOCKS[2].size_bytes + 17 * len(BLOCKS[2].items) + 1

    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        with gate(monkeypatch, BlockStore, "begin") as held:
            alice.block(BLOCKS[1])
            await held.reached()
            alice.block(*BLOCKS[2:5])
            held.open()
            await alice.expect(*(f"ack {number}" for number in range(1, 5)))
        assert held.threads == ["commit"] * 3

    on_stage(tmp_path, play, limits=PipelineLimits(group_bytes_max=limit))


# --- a disk that refuses ------------------------------------------------------------------------------------

FULL, BROKEN = "No space left on device", "Input/output error"
DISK_FAULTS: list[tuple[str, dict[str, list[int | None]], str, int]] = [
    ("full", {"pwrite": [errno.ENOSPC] * 2}, f"1 entries: {FULL}", 1),
    ("first flush", {"fdatasync": [errno.EIO]}, f"2 flush: {BROKEN}", 1),
    ("full for those behind it", {"pwrite": [None, errno.ENOSPC]}, f"1 entries: {FULL}", 2),
    ("header", {"pwrite": [None, None, errno.EIO]}, f"3 header: {BROKEN}", 1),
    ("flush of both", {"fdatasync": [None, errno.EIO, errno.EIO]}, f"4 flush: {BROKEN}", 1),
    (
        "full for those behind it, and then broken",
        {"pwrite": [None, errno.ENOSPC, None], "fdatasync": [None, errno.EIO]},
        f"4 flush: {BROKEN}",
        1,
    ),
    ("header of those behind it", {"pwrite": [None, None, None, errno.EIO]}, f"3 header: {BROKEN}", 2),
    ("flush of those behind it", {"fdatasync": [None, None, errno.EIO]}, f"4 flush: {BROKEN}", 2),
]


@pytest.mark.parametrize(
    ("plan", "step", "number"), [case[1:] for case in DISK_FAULTS], ids=[case[0] for case in DISK_FAULTS]
)
def test_a_disk_that_refuses_ends_every_stream_and_is_forgiven(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    plan: dict[str, list[int | None]],
    step: str,
    number: int,
) -> None:
    """Blocks 2 and 3 wait behind block 1; `number` is the first one that the disk refuses."""
    caplog.set_level(logging.INFO)
    probe = BlockStore.probe
    probe_outcomes: list[OSError | None] = [OSError(errno.ENOSPC, "No space left on device"), None]

    def failing_probe(store: BlockStore) -> None:
        outcome = probe_outcomes.pop(0)
        if outcome is not None:
            raise outcome
        probe(store)

    monkeypatch.setattr(BlockStore, "probe", failing_probe)

    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        alice.block(BLOCKS[0])
        await alice.expect("ack 0")
        await bob.expect("ack 0")
        with gate(monkeypatch, BlockStore, "begin") as held:
            stage.disk.plan = plan
            alice.block(BLOCKS[1])
            await held.reached()
            bob.block(*BLOCKS[2:4])  # linked
            held.open()
            for publisher in (alice, bob):
                if number == 2:
                    await publisher.expect("ack 1")
                await publisher.expect_end(f"end PERSISTENCE_FAILED last {number - 1} about {number}")
        assert stage.store.last_number == number - 1
        assert stage.store.streamer.committed.total_entries == ENTRY_COUNTS[number]
        assert stage.conductor.arbiter.inflight_bytes == 0
        late = stage.publisher("late")
        await late.expect_end(f"end PERSISTENCE_FAILED last {number - 1} about {number}")
        assert stage.conductor.arbiter.persistence_failed is not None
        async with asyncio.timeout(ANSWER_SECONDS):
            while stage.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        carol = stage.publisher("carol")
        carol.block(*BLOCKS[number:])
        await carol.expect(*(f"ack {number}" for number in range(number, 12)))

    async def without_failure(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(*BLOCKS)
        await alice.expect(*(f"ack {number}" for number in range(12)))

    failed = on_stage(tmp_path / "failing", play)
    monkeypatch.undo()
    assert failed == on_stage(tmp_path / "good", without_failure)
    (line,) = logged(caplog, "commit failed")
    assert line["block"] == number
    assert line["got"] == f"{tmp_path}/failing/datastream.bin: commit failed at step {step}"
    assert [one["got"] for one in logged(caplog, "the disk still cannot be written")] == [
        "[Errno 28] No space left on device"
    ]
    assert logged(caplog, "the disk takes writes again") == [{"last_block": number - 1}]


def test_a_disk_that_refuses_again_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each new reason is logged as a warning, not each try."""
    caplog.set_level(logging.DEBUG)
    probe = BlockStore.probe
    whys = ["full", "full", "broken"]

    def failing_probe(store: BlockStore) -> None:
        if whys:
            raise OSError(errno.EIO, whys.pop(0))
        probe(store)

    monkeypatch.setattr(BlockStore, "probe", failing_probe)
    shown: set[str | None] = set()

    async def play(stage: Stage) -> None:
        for number in range(3):
            stage.disk.plan = {"fdatasync": [errno.EIO]}
            alice = stage.publisher("alice")
            alice.block(BLOCKS[number])
            last = number - 1 if number else None
            await alice.expect_end(f"end PERSISTENCE_FAILED last {last} about {number}")
            async with asyncio.timeout(ANSWER_SECONDS):
                while stage.conductor.arbiter.persistence_failed is not None:
                    shown.add(stage.conductor.disk_failure)
                    await asyncio.sleep(0.002)
            alice = stage.publisher("alice")
            alice.block(BLOCKS[number])
            await alice.expect(f"ack {number}")

    on_stage(tmp_path, play)
    said_of_tries = {str(one).partition("; tried again: ")[2] for one in shown}  # for status and /readyz
    assert {"[Errno 5] full", "[Errno 5] broken"} < said_of_tries
    assert all("commit failed at step 2 flush" in str(one) for one in shown)
    said = [
        (record.levelname, record.sluice_fields["got"])  # type: ignore[attr-defined]
        for record in caplog.records
        if record.message == "the disk still cannot be written"
    ]
    assert said == [
        ("WARNING", "[Errno 5] full"),
        ("DEBUG", "[Errno 5] full"),
        ("WARNING", "[Errno 5] broken"),
    ]
    assert len(logged(caplog, "the disk takes writes again")) == 3


def test_blocks_that_wait_behind_a_commit_that_fails_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They link to a block that is not there."""

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockStore, "append") as held:
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
        assert stage.store.streamer.committed.total_entries == 0
        bob = stage.publisher("bob")
        bob.block(*BLOCKS)
        await bob.expect(*(f"ack {number}" for number in range(12)))

    on_stage(tmp_path, play)


@pytest.mark.parametrize(("method", "number"), [("append", 0), ("begin", 1), ("finish", 1)])
def test_any_error_of_a_commit_is_one_of_persistence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    number: int,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def play(stage: Stage) -> None:
        alice = stage.publisher("alice")
        for block in BLOCKS[:number]:
            alice.block(block)
            await alice.expect(f"ack {block.number}")
        with monkeypatch.context() as patch:
            patch.setattr(BlockStore, method, fail)
            alice.block(BLOCKS[number])
            last = number - 1 if number else None
            await alice.expect_end(f"end PERSISTENCE_FAILED last {last} about {number}")
        assert not stage.store.has_begun
        async with asyncio.timeout(ANSWER_SECONDS):
            while stage.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        bob = stage.publisher("bob")
        bob.block(*BLOCKS[number:3])
        await bob.expect(*(f"ack {number}" for number in range(number, 3)))

    async def without_failure(stage: Stage) -> None:
        alice = stage.publisher("alice")
        alice.block(*BLOCKS[:3])
        await alice.expect("ack 0", "ack 1", "ack 2")

    assert on_stage(tmp_path / "failing", play) == on_stage(tmp_path / "good", without_failure)
    (record,) = [record for record in caplog.records if record.message == "commit failed"]
    assert record.exc_info is not None  # unlike a disk that refuses, a bug shows where
    assert "a bug" in str(record.exc_info[1])


def test_a_block_that_settles_a_root_is_the_first_of_its_group(tmp_path: Path) -> None:
    """The end of the block before it is rewritten when that is on disk and nothing else is begun."""

    async def play(stage: Stage) -> None:
        group_commit = stage.conductor._group_commit
        for block in BLOCKS[:4]:
            summary = summary_of(list(block.items))
            settles = summary.previous_root_hash if block.number in (1, 3) else None
            attempt = Attempt(
                AttemptId(block.number), block.number, Source("alice", ""), BlockHasher(), 0, settles=settles
            )
            attempt.items, attempt.summary = list(block.items), summary
            attempt.block = VerifiedBlock(block.number, attempt.items, summary.root_hash)
            group_commit.queue.append(attempt)
        groups = []
        while group_commit.queue:
            assert _needs_loop(group_commit.queue[0]) == (group_commit.queue[0].number != 2)
            groups.append([block.number for block in group_commit._next_group().blocks])
        assert groups == [[0], [1], [2], [3]]

    on_stage(tmp_path, play)
