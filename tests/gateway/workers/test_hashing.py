"""Tests of `gateway.workers.hashing`: loop, thread or process, always with the same hashes."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import pytest
import uvloop

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import ItemKind, field_item, kinds_of
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.limits import (
    INLINE_HASH_ITEMS_MAX,
)
from sluice.gateway.race.actions import Append, AttemptId
from sluice.gateway.workers import hashing
from sluice.gateway.workers.hashing import (
    INLINE_HASH_BYTES_MAX,
    Hashing,
    HashLimits,
)
from tests.gateway.block_makers import body_items, header_item
from tests.gateway.conducting import Stage, gate, on_stage
from tests.gateway.iterations import Iterations
from tests.nodes import ANSWER_SECONDS

SHORT = field_item(ItemKind.SIGNED_TRANSACTION, b"")


def item_of(size: int) -> bytes:
    """An item of so many bytes, 128 to 2 million."""
    for head_size in (3, 4):
        item = field_item(ItemKind.SIGNED_TRANSACTION, bytes(size - head_size))
        if len(item) == size:
            return item
    raise AssertionError(size)


def queue_of(*sets: list[bytes]) -> deque[Append]:
    return deque(Append(AttemptId(1), items, kinds_of(items), sum(map(len, items))) for items in sets)


def roots_of(*sets: list[bytes]) -> list[bytes]:
    hasher = BlockHasher()
    for items in sets:
        hasher.add(items)
    return hasher.subtree_roots()


def test_what_is_quick_has_few_items_and_few_bytes() -> None:
    assert Hashing.is_quick(INLINE_HASH_ITEMS_MAX, INLINE_HASH_BYTES_MAX)
    assert not Hashing.is_quick(INLINE_HASH_ITEMS_MAX + 1, 0)
    assert not Hashing.is_quick(1, INLINE_HASH_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("limits", "left"),
    [(HashLimits(batch_bytes=20_000), [4, 1, 0]), (HashLimits(batch_items=3), [7, 4, 1, 0])],
    ids=["bytes", "items"],
)
def test_sets_that_wait_go_together_up_to_a_limit(limits: HashLimits, left: list[int]) -> None:
    sets = [[header_item(), *body_items(3)], *([item_of(8_000)] for _ in range(7))]

    async def main() -> None:
        subject = Hashing(limits=limits)
        try:
            hasher, waiting = BlockHasher(), queue_of(*sets)
            lengths = []
            while waiting:
                await subject.add_next(hasher, waiting)
                lengths.append(len(waiting))
            assert lengths == left
            assert hasher.subtree_roots() == roots_of(*sets)
        finally:
            subject.close()

    uvloop.run(main())


def test_a_refusal_comes_from_a_thread_as_from_the_hasher() -> None:
    items = [header_item(), *body_items(200), header_item()]
    with pytest.raises(BlockRefused) as here:
        BlockHasher().add(items)

    async def main() -> None:
        subject = Hashing()
        try:
            hasher = BlockHasher()
            with pytest.raises(BlockRefused) as there:
                await subject.add_next(hasher, queue_of(items))
            assert there.value.refusal == here.value.refusal
            assert hasher.item_count == 0
        finally:
            subject.close()

    uvloop.run(main())


def test_a_node_that_stops_while_a_dropped_block_is_hashed_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(stage: Stage) -> None:
        with gate(monkeypatch, BlockHasher, "add") as held:
            alice = stage.publisher("alice")
            alice.items(header_item(), *body_items(INLINE_HASH_ITEMS_MAX))
            await held.reached()
            stopping = asyncio.ensure_future(stage.conductor.stop(ANSWER_SECONDS))
            await alice.expect_end("end SUCCESS last None about 0")
            held.open()
            await stopping
        await asyncio.sleep(0.01)  # a leftover task would fail now
        assert not stage.conductor.broken.done()

    on_stage(tmp_path, play)


def test_batches_of_many_items_begin_their_way_in_an_iteration_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few items do not wait."""
    many = [header_item(), *body_items(200)]
    few = [header_item(), *body_items(10)]

    async def main() -> None:
        iterations, subject = Iterations(), Hashing()
        monkeypatch.setattr(hashing, "_next_batch", taken)
        seen.append(iterations)
        try:
            hashers = [BlockHasher() for _ in range(6)]
            sets = [many, many, few, many, few, many]
            works = [
                subject.add_next(hasher, queue_of(items)) for hasher, items in zip(hashers, sets, strict=True)
            ]
            await asyncio.gather(*works)
            assert [hasher.subtree_roots() for hasher in hashers] == [roots_of(items) for items in sets]
            assert iterations.all == [201, 11, 11, 201, 201, 201]
            assert [noted.count(201) for noted in iterations.noted.values()] == [1] * 4
        finally:
            iterations.stop()
            subject.close()

    seen: list[Iterations] = []
    next_batch = hashing._next_batch

    def taken(waiting: deque[Append], limits: HashLimits) -> Append:
        batch = next_batch(waiting, limits)
        seen[0].note(len(batch.items))
        return batch

    uvloop.run(main())
