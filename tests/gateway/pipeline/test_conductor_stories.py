"""Stories of the conductor: what the simulation found, and blocks of another chain."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sluice.datastream.errors import StreamReadOnly
from sluice.datastream.file.appending import Appender
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.merkle import EMPTY_HASH, tree_root
from sluice.gateway.pipeline.conductor import Outbox
from sluice.gateway.race.actions import Acknowledgement, EndOfStream, PublisherId
from sluice.gateway.race.tables import EndStatus
from sluice.gateway.store.block_store import BlockStore
from tests.gateway.block_makers import block_items, summary_of
from tests.gateway.conducting import Stage, on_stage
from tests.nodes import ANSWER_SECONDS, KEY, make_blocks


def test_a_proof_that_is_refused_as_it_comes_has_its_consequences(tmp_path: Path) -> None:
    """Mallory ends block 0 with the proof of block 1, in a message of its own; Alice waits.

    The refusal comes while the message is added to the block, and must reach both.
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


async def test_after_an_answer_without_room_come_no_further_ones() -> None:
    """A publisher does not read: one answer is too many. After it has read two, the node has another one.

    That one must not be sent, or an acknowledgement would be missing before it.
    """

    outbox = Outbox(PublisherId(1), "slow", 2)
    for number in (6, 7, 8):
        outbox.put(Acknowledgement(number))
    assert outbox.overflow.is_set()
    assert await outbox.get() == [Acknowledgement(6), Acknowledgement(7)]
    outbox.put(EndOfStream(EndStatus.DUPLICATE_BLOCK, 8))
    outbox.close()
    assert await outbox.get() == []


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


def test_commits_need_no_further_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no more threads after the node's start.

    A commit that seems not to have begun would be made twice.
    """

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def play(stage: Stage) -> None:
        alice = stage.publisher("Alice")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            alice.block(*make_blocks(3))
            await alice.expect("ack 0", "ack 1", "ack 2")

    on_stage(tmp_path, play)


async def test_a_stream_that_takes_no_further_commit_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out after a commit's header, and again in its roll-back.

    The reopened stream has the block: on disk and never acknowledged, which is allowed.
    """
    (first,) = make_blocks(1)

    def run_out(*_: object) -> None:
        raise MemoryError

    stage = Stage(tmp_path, None)
    with monkeypatch.context() as patch:
        patch.setattr(BookmarkIndex, "record", run_out)
        patch.setattr(Appender, "roll_back", run_out)
        alice = stage.publisher("Alice")
        alice.block(first)
        await alice.expect_end("end PERSISTENCE_FAILED last None about 0")
        with pytest.raises(StreamReadOnly):
            await asyncio.wait_for(asyncio.shield(stage.conductor.broken), ANSWER_SECONDS)
    await stage.conductor.stop(ANSWER_SECONDS)
    stage.store.close()
    store = BlockStore.open(tmp_path)
    assert store.last_number == 0
    store.close()
