"""Tests of `gateway.pipeline.committing`: laid out in the loop or in the thread, always the same bytes."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastream import DataStreamer
from datastream.errors import CommitFailed
from datastream.file.disk import RealDisk
from datastream.layout import DATA_SIZE_MAX, ENTRY_HEAD_SIZE, PAGE_SIZE
from gateway.blocks.errors import ItemError
from gateway.blocks.items import ItemKind, field_item
from gateway.blocks.stream_layout import BOOKMARK_COUNT, encode
from gateway.limits import (
    STAGE_BLOCK_ITEMS_MIN,
    STAGE_BYTES_MAX,
    STAGE_ITEM_BYTES_MAX,
    STAGE_ITEMS_MAX,
)
from gateway.pipeline.committing import commit
from gateway.store.block_store import BlockStore, VerifiedBlock
from gateway.workers.loop_slots import LoopSlots
from tests.datastream.fake_disk import FailingDisk
from tests.gateway.rounds import Rounds
from tests.nodes import stream_bytes

ROOT_HASH = bytes(range(48))
MANY = STAGE_BLOCK_ITEMS_MIN
Commit = Callable[[Sequence[VerifiedBlock]], Awaitable[None]]


def block(number: int, item_count: int, item_bytes: int = 8) -> VerifiedBlock:
    """A block of so many items of so many bytes; nothing here looks into them."""
    head_size = 2 if item_bytes < 130 else 3
    items = [
        field_item(ItemKind.SIGNED_TRANSACTION, index.to_bytes(item_bytes - head_size, "big"))
        for index in range(item_count)
    ]
    assert set(map(len, items)) == {item_bytes}
    return VerifiedBlock(number, items, ROOT_HASH)


def with_ledger(data_dir: Path, play: Callable[[BlockStore, FailingDisk, Commit], Awaitable[None]]) -> bytes:
    """Play with a ledger on a disk that fails when told to; return the stream file's bytes."""
    data_dir.mkdir()
    path = data_dir / "datastream.bin"
    path.touch()
    disk = FailingDisk(RealDisk(path))
    store = BlockStore.open(data_dir, disk=disk)

    async def main() -> None:
        thread, turns = ThreadPoolExecutor(1, "commit"), LoopSlots()

        async def commit_group(blocks: Sequence[VerifiedBlock]) -> None:
            size_bytes = sum(len(item) for block in blocks for item in block.items)
            began_ns = time.monotonic_ns()
            took_ns = await commit(store, blocks, size_bytes, thread, turns, time.monotonic_ns)
            assert 0 < took_ns <= time.monotonic_ns() - began_ns

        try:
            await play(store, disk, commit_group)
        finally:
            thread.shutdown()

    asyncio.run(main())
    store.close()
    return stream_bytes(data_dir)


@contextmanager
def noted(note: Callable[[str], None]) -> Iterator[None]:
    """Note the thread of each addition of entries to a stream."""
    add = DataStreamer.add_stream_entries

    def spy(streamer: DataStreamer, entry_types: Sequence[int], data: Sequence[bytes]) -> None:
        note(threading.current_thread().name.split("_")[0])
        add(streamer, entry_types, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataStreamer, "add_stream_entries", spy)
        yield


@pytest.mark.parametrize(
    ("item_counts", "item_bytes", "in_loop"),
    [
        ([MANY - 1], 8, False),
        ([MANY], 8, True),
        ([1, 2 * MANY - 2], 8, False),
        ([1, 2 * MANY - 1], 8, True),
        ([3 * MANY + 7, 1], 8, True),
        ([MANY], STAGE_ITEM_BYTES_MAX, True),
        ([MANY], STAGE_ITEM_BYTES_MAX + 1, False),
    ],
)
def test_what_is_on_disk_does_not_depend_on_where_it_was_laid_out(
    tmp_path: Path, item_counts: list[int], item_bytes: int, in_loop: bool
) -> None:
    blocks = [block(number, item_count, item_bytes) for number, item_count in enumerate(item_counts)]
    threads: set[str] = set()

    async def play(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        disk.calls.clear()
        with noted(threads.add):
            await commit(blocks)
        assert disk.calls == ["pwrite", "fdatasync", "pwrite", "fdatasync"]

    async def append(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        store.append(blocks)

    assert with_ledger(tmp_path / "new", play) == with_ledger(tmp_path / "plain", append)
    assert threads == {"MainThread" if in_loop else "commit"}


SHAPES = st.one_of(
    st.tuples(st.sampled_from([1, 3, STAGE_ITEMS_MAX - 1, STAGE_ITEMS_MAX, STAGE_ITEMS_MAX + 1]), st.just(0)),
    st.tuples(st.integers(1, 700), st.integers(0, 900)),
    st.tuples(
        st.integers(1, 2),
        st.sampled_from([300_000, PAGE_SIZE // 2, DATA_SIZE_MAX - 4, DATA_SIZE_MAX, PAGE_SIZE * 2]),
    ),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(SHAPES, min_size=1, max_size=2), min_size=1, max_size=3), st.integers(-40, 40))
def test_staged_blocks_are_the_plain_entries_of_each(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[tuple[int, int]]], gap: int
) -> None:
    """Two groups: a block that ends `gap` bytes from the end of a page, then blocks of any shapes."""
    folder, zeros = tmp_path_factory.mktemp("same"), bytes(3 * PAGE_SIZE)
    end_bytes = ENTRY_HEAD_SIZE + 8 + len(ROOT_HASH)
    first_bytes = PAGE_SIZE - gap - end_bytes - ENTRY_HEAD_SIZE - 2 * ENTRY_HEAD_SIZE - (2 + 9) - 4
    blocks = [VerifiedBlock(0, [field_item(ItemKind.STATE_CHANGES, zeros[:first_bytes])], ROOT_HASH)]
    for number, parts in enumerate(shapes, start=1):
        items = [
            field_item(1 + kind, zeros[:size])
            for kind, (count, size) in enumerate(parts)
            for _ in range(count)
        ]
        blocks.append(VerifiedBlock(number, items, ROOT_HASH))
    store = BlockStore.open(folder / "staged")
    for group in (blocks[:1], blocks[1:]):
        for _ in store.stage(group):
            pass
        store.commit_staged()
    plain = DataStreamer.open(folder / "plain.bin")
    for block in blocks:
        plain.start_atomic_op()
        for index, (entry_type, data) in enumerate(encode(block.number, block.items, block.root_hash)):
            if index < BOOKMARK_COUNT:
                plain.add_stream_bookmark(data)
            else:
                plain.add_stream_entry(entry_type, data)
        plain.commit_atomic_op()
    assert store.streamer.committed == plain.committed
    for block in blocks:
        store.advance(block)
        stored = store.read_block(block.number)
        assert stored is not None
        assert list(stored.items) == block.items
    length = plain.committed.total_length
    store.close()
    plain.close()
    assert stream_bytes(folder / "staged")[:length] == (folder / "plain.bin").read_bytes()[:length]


def test_no_round_of_the_loop_takes_more_than_one_piece(tmp_path: Path) -> None:
    """A block of four pieces, then two small ones that are laid out in one go with its last piece."""
    blocks = [block(0, 3 * STAGE_ITEMS_MAX + 100), block(1, 300), block(2, 300), block(3, STAGE_ITEMS_MAX)]

    async def play(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        rounds = Rounds()
        try:
            with noted(rounds.note):
                await commit(blocks)
            assert [len(pieces) for pieces in rounds.noted.values()] == [1, 1, 1, 3, 1]
        finally:
            rounds.stop()

    with_ledger(tmp_path / "data", play)


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    blocks = [block(0, 2 * MANY), block(1, 10)]

    async def play(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        disk.plan = {"fdatasync": [errno.EIO]}
        with pytest.raises(CommitFailed, match="commit failed at step 2 flush: Input/output error"):
            await commit(blocks)
        assert store.streamer.committed.total_entries == 0
        await commit(blocks)

    async def without_failure(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        await commit(blocks)

    assert with_ledger(tmp_path / "failing", play) == with_ledger(tmp_path / "good", without_failure)


def test_a_block_that_cannot_be_laid_out_drops_its_group(tmp_path: Path) -> None:
    good, bad = block(0, 2 * MANY), VerifiedBlock(1, [b"\xff"], ROOT_HASH)

    async def play(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        with pytest.raises(ItemError):
            await commit([good, bad])
        assert store.streamer.committed.total_entries == 0
        await commit([good])

    async def without_it(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        await commit([good])

    assert with_ledger(tmp_path / "tried", play) == with_ledger(tmp_path / "good", without_it)


def test_a_group_whose_laying_out_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    """As when the node is torn down in the middle of it."""
    blocks = [block(0, 3 * MANY), block(1, 10)]

    async def play(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        steps = store.stage(blocks)
        next(steps)
        steps.close()
        assert store.streamer.committed.total_entries == 0
        await commit(blocks)

    async def without_it(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        await commit(blocks)

    assert with_ledger(tmp_path / "begun", play) == with_ledger(tmp_path / "good", without_it)


def test_no_piece_has_more_bytes_than_a_turn_may_lay_out(tmp_path: Path) -> None:
    """The longest items that are laid out in turns; with as many as a turn takes, they are too many bytes."""
    assert STAGE_ITEMS_MAX * STAGE_ITEM_BYTES_MAX > STAGE_BYTES_MAX
    sizes: list[list[int]] = []

    async def play(store: BlockStore, disk: FailingDisk, commit: Commit) -> None:
        add = DataStreamer.add_stream_entries

        def spy(streamer: DataStreamer, entry_types: Sequence[int], data: Sequence[bytes]) -> None:
            sizes.append(list(map(len, data)))
            add(streamer, entry_types, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DataStreamer, "add_stream_entries", spy)
            await commit([block(0, STAGE_ITEMS_MAX, STAGE_ITEM_BYTES_MAX)])

    with_ledger(tmp_path / "data", play)
    assert len(sizes) > 1
    for piece, following in pairwise(sizes):
        assert sum(piece) <= STAGE_BYTES_MAX < sum(piece) + following[0]
