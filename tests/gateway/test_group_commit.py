"""Tests of the group commit: which blocks share a pair of flushes, and what a disk that refuses leads to."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from gateway import group_commit as group_commit_module
from gateway import ledger as ledger_module
from gateway.ledger import Ledger
from tests.gateway.conducting import Stage, gate, logged, on_stage
from tests.nodes import ANSWER_SECONDS, make_blocks

BLOCKS = make_blocks(12)


# --- groups -------------------------------------------------------------------------------------------------


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
    limit = BLOCKS[1].size_bytes + 17 * len(BLOCKS[1].items) + 1
    monkeypatch.setattr(group_commit_module, "COMMIT_GROUP_BYTES_MAX", limit)

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
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)
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


def test_a_disk_that_refuses_again_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And while it refuses, why is said as a warning where that changes, not with each try."""
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)
    caplog.set_level(logging.DEBUG)
    probe = Ledger.probe
    whys = ["full", "full", "broken"]

    def failing_probe(ledger: Ledger) -> None:
        if whys:
            raise OSError(errno.EIO, whys.pop(0))
        probe(ledger)

    monkeypatch.setattr(Ledger, "probe", failing_probe)

    async def play(stage: Stage) -> None:
        for number in range(3):
            stage.disk.plan = {"fdatasync": [errno.EIO]}
            alice = stage.publisher("alice")
            alice.block(BLOCKS[number])
            last = number - 1 if number else None
            await alice.expect_end(f"end PERSISTENCE_FAILED last {last} about {number}")
            async with asyncio.timeout(ANSWER_SECONDS):
                while stage.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            alice = stage.publisher("alice")
            alice.block(BLOCKS[number])
            await alice.expect(f"ack {number}")

    on_stage(tmp_path, play)
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
    """They were linked to a block that is not there."""
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)

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
