"""The blocks in flight, through the conductor: what is hashed where, and which verdict counts."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.blocks import verification
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, field_item
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from sluice.gateway.blocks.verification import Verdict
from sluice.gateway.pipeline import dispute
from sluice.gateway.pipeline.in_flight import Lack
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.workers.hashing import HASH_THREADS, INLINE_HASH_BYTES_MAX
from sluice.gateway.workers.proof_checks import ProofChecks
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.gateway.block_makers import proof_item
from tests.gateway.conducting import Stage, gate, logged, on_stage
from tests.nodes import ANSWER_SECONDS, KEY, make_blocks

BLOCKS = make_blocks(3)
LARGE_SEED = 2
LARGE_ITEM = field_item(ItemKind.SIGNED_TRANSACTION, bytes(INLINE_HASH_BYTES_MAX))

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
            bob.items(*BLOCKS[1].items[:-1])  # hashed at once, while the thread stands still
            bob.items(BLOCKS[0].items[0])
            await bob.expect("skip 0")
            held.open()
            await alice.expect("ack 0")
            await bob.expect("ack 0")
        assert {name.split("_")[0] for name in held.threads} == {"hash"}
        assert len(held.threads) == 2  # the large one, then all the others together
        stored = stage.store.read_block(0)
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
        await alice.expect_end("end ERROR last None about 0")
        await bob.expect("skip 0", "resend 0")
        bob.block(BLOCKS[0])
        await bob.expect("ack 0")

    on_stage(tmp_path, play)
    (line,) = logged(caplog, "block cannot be checked")
    assert (line["block"], line["publisher"], line["kind"]) == (0, "alice", "unsupported")


def test_a_refusal_of_a_block_that_was_dropped_meanwhile_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockHasher, "add") as held:
            alice = stage.publisher("alice")
            alice.items(BLOCKS[0].items[0], LARGE_ITEM, field_item(14, b""))
            await held.reached()
            hashing = next(iter(stage.conductor.in_flight.attempts.values())).hashing
            assert hashing is not None
            alice.items(*BLOCKS[0].items)  # begins the block again
            held.open()
            await asyncio.wait({hashing})
            alice.end(0)
            await alice.expect("ack 0")

    on_stage(tmp_path, play)
    assert logged(caplog, "block refused") == []


def test_a_block_that_was_dropped_meanwhile_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no footer and would be refused, but it has failed with the disk, and fails once."""

    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockHasher, "add") as held:
            conductor, alice = stage.conductor, stage.publisher("alice")
            alice.items(BLOCKS[0].items[0], LARGE_ITEM)
            await held.reached()
            (attempt,) = conductor.in_flight.attempts.values()
            hashing = attempt.hashing
            assert hashing is not None
            alice.end(0)
            conductor.perform(conductor.arbiter.commit_failed(attempt.attempt_id, "no space", 0))
            held.open()
            await asyncio.wait({hashing})
            await alice.expect_end("end PERSISTENCE_FAILED last None about 0")

    on_stage(tmp_path, play)
    assert logged(caplog, "block refused") == []


def test_a_publisher_that_begins_its_block_again_and_again_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unhashed items of a dropped block are freed at once, not by a full collection."""
    begun: list[weakref.ref[BlockHasher]] = []

    class WatchedHasher(BlockHasher):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            begun.append(weakref.ref(self))

    monkeypatch.setattr(verification, "BlockHasher", WatchedHasher)

    async def play(stage: Stage) -> None:
        gc.collect()
        gc.disable()
        try:
            with gate(monkeypatch, BlockHasher, "add") as held:
                alice, bob = stage.publisher("alice"), stage.publisher("bob")
                for _ in range(20):
                    alice.items(BLOCKS[0].items[0], LARGE_ITEM)
                    await asyncio.sleep(0)
                await held.reached()
                await asyncio.sleep(0)
                kept = [hasher for hasher in begun if hasher() is not None]
                assert len(begun) == 20
                assert len(kept) <= HASH_THREADS + 1  # and the current one
                alice.items(BLOCKS[0].items[0], LARGE_ITEM, field_item(14, b""))
                held.open()
                await alice.expect_end("end ERROR last None about 0")
                bob.block(BLOCKS[0])
                await bob.expect("ack 0")
                assert len(held.threads) <= HASH_THREADS + 1
                async with asyncio.timeout(ANSWER_SECONDS):  # a thread may still let go of the last one
                    while any(hasher() is not None for hasher in begun):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        finally:
            gc.enable()

    on_stage(tmp_path, play)


# --- proofs -------------------------------------------------------------------------------------------------


def test_a_check_of_proofs_is_told_whether_a_further_block_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, bool]] = []

    async def check(
        self: ProofChecks, summary: BlockSummary, _: object, *, block_0_comes: object, more_come: bool
    ) -> Verdict:
        told.append((summary.number, more_come))
        return Verdict(self._verifier.check(summary).summary, None, is_root_signed=True)

    monkeypatch.setattr(ProofChecks, "check_now", lambda self, summary: None)
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


# --- the dispute over the last stored block -----------------------------------------------------------------


def test_a_false_link_to_a_block_that_is_not_stored_yet_is_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That block may still fail; and nobody disputes a signed block."""
    claims: list[int] = []
    claim = dispute.Dispute.claim

    def noted(self: dispute.Dispute, number: int, *rest: Any) -> None:
        claims.append(number)
        claim(self, number, *rest)

    monkeypatch.setattr(dispute.Dispute, "claim", noted)
    others = make_blocks(2, seed=8)

    async def play(stage: Stage) -> None:
        in_flight = stage.conductor.in_flight
        alice, bob, carol = (stage.publisher(name, address=name) for name in ("alice", "bob", "carol"))
        with gate(monkeypatch, BlockStore, "append") as held:
            alice.block(BLOCKS[0])
            await held.reached()
            bob.block(others[1])
            await bob.expect_end("end BAD_BLOCK_PROOF last None about 1")
            assert claims == []
            held.open()
            await alice.expect("ack 0")
        carol.block(others[1])
        await carol.expect("ack 0", "end BAD_BLOCK_PROOF last 0 about 1")
        assert claims == [0]
        assert in_flight.disputed is None
        alice.block(BLOCKS[1])
        await alice.expect("ack 1")

    on_stage(tmp_path, play, limits=PipelineLimits(dispute_settle_ns=0))


def test_a_block_that_the_node_cannot_check_is_its_own_lack_until_one_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The publisher hears ERROR. It may send the block again, and so may others with another proof."""
    foreign = [*BLOCKS[0].items[:-1], proof_item(0, bytes(2920))]

    async def play(stage: Stage) -> None:
        in_flight = stage.conductor.in_flight
        alice, bob = stage.publisher("alice"), stage.publisher("bob")
        assert in_flight.lack_of(0) is None
        alice.items(*foreign)
        alice.end(0)
        await alice.expect_end("end ERROR last None about 0")
        [line] = logged(caplog, "block cannot be checked")
        lack = in_flight.lack_of(0)
        assert lack is not None
        assert lack.startswith(
            "block 0 of alice cannot be checked: missing verification data: TSS block proof: "
        )
        assert f"got {line['got']}, expected {line['expected']}" in lack
        assert in_flight.lack_of(1) is None
        bob.block(BLOCKS[0])
        await bob.expect("ack 0")
        assert in_flight.lack_of(stage.conductor.next_to_store) is None

    on_stage(tmp_path, play)
    assert logged(caplog, "block refused") == []


def test_the_lowest_block_that_could_not_be_checked_is_remembered(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        in_flight = stage.conductor.in_flight
        in_flight.note_lack(Lack(2, "two"))
        in_flight.note_lack(Lack(5, "five"))
        assert (in_flight.lack_of(2), in_flight.lack_of(5)) == ("two", None)
        in_flight.note_lack(Lack(1, "one"))
        in_flight.note_lack(Lack(1, "one again"))
        assert in_flight.lack_of(1) == "one again"
        alice = stage.publisher("alice")
        alice.block(*BLOCKS)
        await alice.expect("ack 0", "ack 1", "ack 2")
        in_flight.note_lack(Lack(4, "four"))
        assert (in_flight.lack_of(1), in_flight.lack_of(4)) == (None, "four")

    on_stage(tmp_path, play)
