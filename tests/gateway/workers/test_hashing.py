"""Tests of `gateway.workers.hashing`: loop, thread or process, always with the same hashes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop

from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.items import ItemKind, field_item, kinds_of
from sluice.gateway.blocks.merkle import StreamingTree
from sluice.gateway.blocks.root_hash import BlockHasher, Leaves
from sluice.gateway.limits import (
    INLINE_HASH_ITEMS_MAX,
)
from sluice.gateway.race.actions import Append, AttemptId
from sluice.gateway.workers import hashing
from sluice.gateway.workers.hash_process import HashProcess
from sluice.gateway.workers.hashing import (
    HASH_PROCESS_BYTES_MIN,
    HASH_PROCESS_ITEMS_MIN,
    INLINE_HASH_BYTES_MAX,
    Hashing,
    HashLimits,
)
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.gateway.block_makers import body_items, header_item
from tests.gateway.cluster.test_peer_follower import until
from tests.gateway.conducting import Stage, gate, on_stage
from tests.gateway.iterations import Iterations
from tests.nodes import ANSWER_SECONDS, KEY

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


class NotedProcess(HashProcess):
    """Counts its calls."""

    hashed_count = 0

    async def hash(self, trees: Sequence[StreamingTree], leaves: Leaves) -> dict[int, StreamingTree]:
        self.hashed_count += 1
        return await super().hash(trees, leaves)


def test_what_is_quick_depends_on_whether_a_process_is_ready() -> None:
    async def main() -> None:
        process = HashProcess()
        subject = Hashing([process])
        try:
            for items_max, bytes_max in (
                (INLINE_HASH_ITEMS_MAX, INLINE_HASH_BYTES_MAX),
                (HASH_PROCESS_ITEMS_MIN - 1, HASH_PROCESS_BYTES_MIN - 1),
            ):
                assert subject.is_quick([SHORT] * items_max)
                assert not subject.is_quick([SHORT] * (items_max + 1))
                assert subject.is_quick([item_of(bytes_max)])
                assert not subject.is_quick([item_of(bytes_max + 1)])
                process.start()
                await process.ready.wait()
        finally:
            subject.close()

    uvloop.run(main())


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize(
    ("limits", "left"),
    [(HashLimits(batch_bytes=20_000), [4, 1, 0]), (HashLimits(batch_items=3), [7, 4, 1, 0])],
    ids=["bytes", "items"],
)
def test_sets_that_wait_go_together_up_to_a_limit(ready: bool, limits: HashLimits, left: list[int]) -> None:
    sets = [[header_item(), *body_items(3)], *([item_of(8_000)] for _ in range(7))]

    async def main() -> None:
        process = HashProcess()
        subject = Hashing([process] if ready else [], limits=limits)
        try:
            if ready:
                process.start()
                await process.ready.wait()
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


@pytest.mark.parametrize("limit", ["process_items_max", "process_bytes_max"])
def test_what_is_too_much_for_the_process_goes_to_a_thread(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [header_item(), *body_items(200)]
    subjects: list[Hashing] = []
    most = len(items) if limit == "process_items_max" else sum(map(len, items))

    async def main() -> None:
        process = HashProcess()
        try:
            process.start()
            await process.ready.wait()
            with gate(monkeypatch, BlockHasher, "add") as held:
                held.open()
                for value, thread_count in ((most, 0), (most - 1, 1)):
                    subject = Hashing([process], limits=HashLimits(**{limit: value}))
                    subjects.append(subject)
                    hasher = BlockHasher()
                    await subject.add_next(hasher, queue_of(items))
                    assert hasher.subtree_roots() == roots_of(items)
                    assert len([name for name in held.threads if name.startswith("hash")]) == thread_count
        finally:
            process.close()
            for subject in subjects:
                subject.close()

    uvloop.run(main())


def test_a_further_process_takes_what_the_one_before_cannot_keep_up_with() -> None:
    items = [header_item(), *body_items(200)]

    async def main() -> None:
        first, second = processes = NotedProcess(), NotedProcess()
        subject = Hashing(processes, limits=HashLimits(backlog_items=300))
        hashers = [BlockHasher() for _ in range(5)]
        try:
            for process in processes:
                process.start()
            for process in processes:
                await process.ready.wait()
            assert first.pid is not None
            os.kill(first.pid, signal.SIGSTOP)
            works = [
                asyncio.ensure_future(subject.add_next(hasher, queue_of(items))) for hasher in hashers[:3]
            ]
            await works[2]
            assert (first.waiting_items, second.waiting_items) == (402, 0)
            os.kill(first.pid, signal.SIGCONT)
            await asyncio.gather(*works)
            await subject.add_next(hashers[3], queue_of(items))
            assert (first.hashed_count, second.hashed_count) == (3, 1)
            assert (first.waiting_items, second.waiting_items) == (0, 0)
            # A dead process is passed over; a thread hashed its batch.
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: not first.ready.is_set())
            await subject.add_next(hashers[4], queue_of(items))
            assert (first.hashed_count, second.hashed_count) == (3, 2)
            assert all(hasher.subtree_roots() == roots_of(items) for hasher in hashers)
        finally:
            subject.close()
        assert all(process.pid is None for process in processes)

    uvloop.run(main())


def test_a_refusal_comes_from_the_process_path_as_from_the_hasher() -> None:
    items = [header_item(), *body_items(200), header_item()]
    with pytest.raises(BlockRefused) as here:
        BlockHasher().add(items)

    async def main() -> None:
        process = HashProcess()
        subject = Hashing([process])
        try:
            process.start()
            await process.ready.wait()
            hasher = BlockHasher()
            with pytest.raises(BlockRefused) as there:
                await subject.add_next(hasher, queue_of(items))
            assert there.value.refusal == here.value.refusal
            assert hasher.item_count == 0
        finally:
            subject.close()

    uvloop.run(main())


def test_a_process_that_dies_in_mid_block_costs_nothing_but_time(tmp_path: Path) -> None:
    """A thread hashes its request instead; the block is acknowledged, and stored as it came."""
    process = HashProcess(backoff_seconds=600.0)  # nothing replaces it
    maker = BlockMaker(7, KEY, MakerOptions(transactions_per_block=500, item_bytes=256))
    blocks = list(maker.blocks(2))
    size = HASH_PROCESS_ITEMS_MIN  # each set goes to the process

    async def play(stage: Stage) -> None:
        process.start()
        await process.ready.wait()
        alice = stage.publisher("alice")
        alice.items(*blocks[0].items)
        alice.end(0)
        await alice.expect("ack 0")
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        items = blocks[1].items
        alice.items(*items[:size])
        alice.items(*items[size : 2 * size])
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        alice.items(*items[2 * size :])
        alice.end(1)
        await alice.expect("ack 1")
        assert not process.ready.is_set()
        for block in blocks:
            stored = stage.store.read_block(block.number)
            assert stored is not None
            assert stored.items == block.items

    on_stage(tmp_path, play, hash_processes=[process])


def test_a_node_that_stops_while_a_dropped_block_is_hashed_breaks_nothing(tmp_path: Path) -> None:
    process = HashProcess()

    async def play(stage: Stage) -> None:
        process.start()
        await process.ready.wait()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        alice = stage.publisher("alice")
        alice.items(header_item(), *body_items(200))
        await asyncio.sleep(0)
        assert process.waiting_items == 201
        await stage.conductor.stop(ANSWER_SECONDS)
        await asyncio.sleep(0.01)  # a leftover task would fail now
        assert not stage.conductor.broken.done()
        await alice.expect_end("end SUCCESS last None about 0")

    on_stage(tmp_path, play, hash_processes=[process])


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
