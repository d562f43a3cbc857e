"""Stories of the conductor, each of who did what: what the simulation found, and blocks of another chain."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

from datastream.errors import StreamReadOnly
from datastream.file.appending import Appender
from datastream.file.bookmarks import BookmarkIndex
from gateway.blocks.block import Block
from gateway.blocks.errors import LayoutError
from gateway.blocks.merkle import EMPTY_HASH, tree_root
from gateway.limits import STAGE_BLOCK_ITEMS_MIN
from gateway.pipeline import group_commit as group_commit_module
from gateway.pipeline.outbox import Outbox
from gateway.race.actions import Acknowledgement, EndOfStream, PublisherId
from gateway.race.tables import EndStatus
from gateway.store.block_store import BlockStore
from publishers.blocks.maker import BlockMaker, MakerOptions
from tests.gateway.block_makers import block_items, summary_of
from tests.gateway.conducting import Stage, on_stage
from tests.nodes import ANSWER_SECONDS, KEY, make_blocks

MANY_ITEMS = MakerOptions(transactions_per_block=STAGE_BLOCK_ITEMS_MIN // 2, item_bytes=256)


def test_a_proof_that_is_refused_as_it_comes_has_its_consequences(tmp_path: Path) -> None:
    """Mallory ends block 0 with the proof of block 1, in a message of its own; Alice waits.

    The refusal came while the message was added to the block, and what the arbiter wanted done about it was
    lost: Mallory heard nothing, and Alice was never asked for the block.
    """
    first, second = make_blocks(2)

    async def play(stage: Stage) -> None:
        mallory, alice = stage.publisher("Mallory"), stage.publisher("Alice")
        mallory.items(*first.items[:-1])
        alice.block(first)
        await alice.expect("skip 0")
        mallory.items(second.items[-1])
        await mallory.expect_end("end BAD_BLOCK_PROOF last None about 0")
        await alice.expect("resend 0")
        alice.block(first)
        await alice.expect("ack 0")

    on_stage(tmp_path, play)


def test_after_an_answer_without_room_come_no_further_ones() -> None:
    """A publisher does not read; one answer is too many, then it reads two, then the node has another one.

    That one was sent, although the one before it never was: an acknowledgement was missing in their order.
    """

    async def main() -> None:
        outbox = Outbox(PublisherId(1), "slow", 2)
        for number in (6, 7, 8):
            outbox.put(Acknowledgement(number))
        assert outbox.overflow.is_set()
        assert await outbox.get() == [Acknowledgement(6), Acknowledgement(7)]
        outbox.put(EndOfStream(EndStatus.DUPLICATE_BLOCK, 8))
        outbox.close()
        assert await outbox.get() == []

    asyncio.run(main())


@pytest.mark.parametrize("field", [1, 2])
def test_a_block_that_links_to_another_chain_is_refused_whoever_signed_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: int
) -> None:
    """Mallory brings block 2 with one link that is not this chain's; its signature holds."""
    chain: list[Block] = []
    links = [EMPTY_HASH, EMPTY_HASH]
    roots: list[bytes] = []
    for number in range(3):
        items = block_items(number, *links, key=KEY)
        chain.append(Block.from_items(items))
        roots.append(summary_of(items).root_hash)
        links = [roots[-1], tree_root(roots)]
    own = [roots[1], tree_root(roots[:2])]
    strange = [b"x" * 48 if at == field else link for at, link in enumerate(own, start=1)]
    forked = Block.from_items(block_items(2, *strange, key=KEY))

    async def play(stage: Stage) -> None:
        mallory, alice = stage.publisher("Mallory"), stage.publisher("Alice")
        mallory.block(*chain[:2])
        await mallory.expect("ack 0", "ack 1")
        await alice.expect("ack 0", "ack 1")
        mallory.block(forked)
        await mallory.expect_end("end BAD_BLOCK_PROOF last 1 about 2")
        assert stage.store.last_number == 1
        alice.block(chain[2])
        await alice.expect("ack 2")

    on_stage(tmp_path, play)
    [refused] = [record for record in caplog.records if "refused" in record.getMessage()]
    assert f"block footer field {field} (" in str(refused.__dict__)


# --- a commit that ends before it has waited for anything ---------------------------------------------------


async def recovered(stage: Stage) -> None:
    """Wait until the node takes blocks again."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while stage.conductor.arbiter.persistence_failed is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@cache
def blocks_of_many_items() -> list[Block]:
    """Three blocks that are laid out in the event loop."""
    blocks = list(BlockMaker(7, KEY, MANY_ITEMS).blocks(3))
    assert all(len(block.items) >= STAGE_BLOCK_ITEMS_MIN for block in blocks)
    return blocks


async def send_three(stage: Stage) -> None:
    """What the stories below come to."""
    alice = stage.publisher("Alice")
    alice.block(*blocks_of_many_items())
    await alice.expect("ack 0", "ack 1", "ack 2")


def test_a_block_whose_laying_out_fails_at_once_is_not_the_last_that_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit had ended before there was a task for it; the task was taken for a commit that runs.

    From then on every block was verified, and none was ever committed: a node that hangs and says nothing.
    """
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)
    first, *_ = blocks = blocks_of_many_items()

    def fail(*_: object) -> Generator[None, None, None]:
        raise LayoutError("block 0", "a bug", "none")
        yield

    async def play(stage: Stage) -> None:
        alice = stage.publisher("Alice")
        with monkeypatch.context() as patch:
            patch.setattr(BlockStore, "stage", fail)
            alice.block(first)
            await alice.expect_end("end PERSISTENCE_FAILED last None about 0")
        await recovered(stage)
        bob = stage.publisher("Bob")
        bob.block(*blocks)
        await bob.expect("ack 0", "ack 1", "ack 2")
        await stage.conductor.retire("for a standby")

    assert on_stage(tmp_path / "failing", play) == on_stage(tmp_path / "good", send_three)


def test_a_group_that_no_thread_could_commit_is_not_in_the_stream_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has no more threads when the first block is laid out, and has some a moment later.

    The block stayed in the stream's open group, was sent again as it had to be, and was committed twice.
    """
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)
    first, *_ = blocks = blocks_of_many_items()
    start = threading.Thread.start
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "commit" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def play(stage: Stage) -> None:
        alice = stage.publisher("Alice")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            alice.block(first)
            await alice.expect_end("end PERSISTENCE_FAILED last None about 0")
            await recovered(stage)
        bob = stage.publisher("Bob")
        bob.block(*blocks)
        await bob.expect("ack 0", "ack 1", "ack 2")

    assert on_stage(tmp_path / "failing", play) == on_stage(tmp_path / "good", send_three)
    assert refused == ["commit"]


DISK_FAULTS: list[dict[str, list[int | None]]] = [
    {"pwrite": [errno.ENOSPC, errno.ENOSPC]},
    {"fdatasync": [errno.EIO]},
    {"fdatasync": [None, errno.EIO, errno.EIO]},
]


@pytest.mark.parametrize("plan", DISK_FAULTS)
def test_a_group_that_was_laid_out_when_the_disk_refused_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, list[int | None]]
) -> None:
    """Two blocks in one group; the second time a third is with them."""
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)
    blocks = blocks_of_many_items()

    async def play(stage: Stage) -> None:
        alice = stage.publisher("Alice")
        stage.disk.plan = {method: list(errors) for method, errors in plan.items()}
        alice.block(*blocks[:2])
        await alice.expect_end("end PERSISTENCE_FAILED last None about 0")
        assert stage.store.streamer.committed.total_entries == 0
        await recovered(stage)
        bob = stage.publisher("Bob")
        bob.block(*blocks)
        await bob.expect("ack 0", "ack 1", "ack 2")

    assert on_stage(tmp_path / "failing", play) == on_stage(tmp_path / "good", send_three)


def test_a_node_that_stops_in_the_middle_of_laying_out_finishes_the_block(tmp_path: Path) -> None:
    blocks = blocks_of_many_items()

    async def play(stage: Stage) -> None:
        alice, bob = stage.publisher("Alice"), stage.publisher("Bob")
        alice.block(*blocks)
        group = stage.store.streamer._group
        async with asyncio.timeout(ANSWER_SECONDS):
            while not group.buffer:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert stage.store.streamer.committed.total_entries == 0
        await stage.conductor.stop(ANSWER_SECONDS)
        acknowledged = stage.store.last_number
        assert acknowledged is not None
        for publisher in (alice, bob):
            await publisher.expect(*(f"ack {number}" for number in range(acknowledged + 1)))
            await publisher.expect_end(f"end SUCCESS last {acknowledged} about 0")
        assert not group.buffer

    on_stage(tmp_path, play)


def test_a_stream_that_takes_no_further_commit_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is out of memory behind a commit's header, and when that is to be taken back.

    Opening the stream again finds the block: on disk, and never acknowledged, which is allowed.
    """
    monkeypatch.setattr(group_commit_module, "DISK_PROBE_SECONDS", 0.01)
    (first,) = make_blocks(1)

    def run_out(*_: object) -> None:
        raise MemoryError

    async def main() -> None:
        stage = Stage(tmp_path, None)
        with monkeypatch.context() as patch:
            patch.setattr(BookmarkIndex, "record", run_out)
            patch.setattr(Appender, "take_back", run_out)
            alice = stage.publisher("Alice")
            alice.block(first)
            await alice.expect_end("end PERSISTENCE_FAILED last None about 0")
            with pytest.raises(StreamReadOnly):
                await asyncio.wait_for(asyncio.shield(stage.conductor.broken), ANSWER_SECONDS)
        await stage.conductor.stop(ANSWER_SECONDS)
        stage.store.close()

    asyncio.run(main())
    store = BlockStore.open(tmp_path)
    assert store.last_number == 0
    store.close()
