"""The native layout on disk: both files hold the same blocks, wherever a commit is interrupted or refused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Entry,
    StreamHeader,
    encode_header_page,
)
from sluice.gateway.blocks.items import stream_entry_item
from sluice.gateway.blocks.stream_layout import StoredBlock
from sluice.gateway.errors import Fatal
from sluice.gateway.services.block_reader import BlockReader, Position
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.store.chain_file import read_snapshot
from sluice.publishers.blocks.stream_grouping import Grouping, StreamBlocks
from tests.datastream.fake_disk import FailingDisk, MemoryDisk, PowerLost
from tests.datastream.streams import contents, sample_file
from tests.gateway.block_makers import footer_item, header_item, proof_item
from tests.reference_data import needs_stream

Pair = tuple[int, bytes]


def block(number: int, *parts: Pair | bytes) -> VerifiedBlock:
    """Return a block of these parts between header and footer: entries of the network, or other items."""
    body = [part if isinstance(part, bytes) else stream_entry_item(*part) for part in parts]
    items = [header_item(number), *body, footer_item(), proof_item(number)]
    return VerifiedBlock(number, items, bytes([(number + 1) % 256]) * 48)


def batch(number: int, *sizes: int) -> VerifiedBlock:
    """Return a block with a bookmark and entries of these sizes."""
    return block(
        number, (BOOKMARK_TYPE, b"b%d" % number), *((2, bytes([number % 256]) * size) for size in sizes)
    )


OTHER = b"\x1a\x07round 1"
BLOCKS = [
    batch(0, 10, 0),
    batch(1, 600_000),
    batch(2, 600_000, 5),  # turns the page
    block(3),  # no entry of the network
    block(4, (3, b"x"), OTHER, (BOOKMARK_TYPE, b"inner"), OTHER, (0xFFFF, b"")),
    batch(5, 700_000, 700_000, 10, 400_000),  # several marks
    block(6),
    batch(7, 3),
]


def network_entries(blocks: Sequence[VerifiedBlock]) -> list[Entry]:
    """Return the entries of the network's stream, decoded here by hand."""
    found: list[Entry] = []
    for one in blocks:
        for item in one.items:
            if item[:2] == b"\x82\x3f":
                entry_type, data = by_hand(item)
                found.append(Entry(entry_type, len(found), data))
    return found


def by_hand(item: bytes) -> Pair:
    """Return type and data of a stream entry item."""
    at = 2
    while item[at] & 0x80:
        at += 1
    body, entry_type, data = item[at + 1 :], 0, b""
    if body[:1] == b"\x08":
        shift, at = 0, 1
        while True:
            entry_type |= (body[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not body[at - 1] & 0x80:
                break
        body = body[at:]
    if body:
        assert body[0] == 0x12
        at = 1
        while body[at] & 0x80:
            at += 1
        data = body[at + 1 :]
    return entry_type, data


def opened(folder: Path, blocks: MemoryDisk | None = None, network: MemoryDisk | None = None) -> BlockStore:
    return BlockStore.open(folder, layout="native", disk=blocks, network_disk=network)


def check(store: BlockStore, count: int, where: str = "") -> None:
    """Assert that the store has the first `count` blocks, and the network's stream their entries."""
    assert store.pair is not None
    assert (store.last_number, store.chain.next_number) == (count - 1 if count else None, count), where
    for one in BLOCKS[:count]:
        assert store.read_block(one.number) == StoredBlock(one.number, tuple(one.items), one.root_hash), where
    network = store.pair.network
    expected = network_entries(BLOCKS[:count])
    assert list(network.read_entries(0)) == expected, where
    for entry in expected:
        if entry.type == BOOKMARK_TYPE:
            assert network.get_bookmark(entry.data) == entry.number, where


def grow(store: BlockStore, *blocks: VerifiedBlock) -> None:
    store.append(blocks)
    for one in blocks:
        store.advance(one)


def test_blocks_are_stored_in_two_files_and_read_back(tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path)) as store:
        grow(store, *BLOCKS[:3])
        grow(store, *BLOCKS[3:])
        check(store, len(BLOCKS))
    for layout in (None, "native"):
        with contextlib.closing(BlockStore.open(tmp_path, layout=layout)) as store:
            assert store.layout == 3
            check(store, len(BLOCKS))
    with pytest.raises(Fatal, match=r"stream.layout: got block, expected native, as in "):
        BlockStore.open(tmp_path, layout="block")


def test_subscribers_see_a_block_when_it_is_in_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(opened(tmp_path)) as store:
        grow(store, *BLOCKS[:2])
        assert store.pair is not None
        reader = BlockReader(store, set_bytes_max=1 << 24)
        finish = store.pair.network.finish_commit
        total_entries, seen = store.total_entries, []

        def look_before() -> None:
            """Read while the block stream is committed, and the network's is not."""
            assert store.streamer.committed.total_entries > total_entries
            seen.append(asyncio.run(reader.read(Position(0, 0, in_block=False))).following)
            finish()

        monkeypatch.setattr(store.pair.network, "finish_commit", look_before)
        grow(store, BLOCKS[2])
        reader.close()
        assert seen == [Position(total_entries, 2, in_block=False)]
        assert store.total_entries == store.streamer.committed.total_entries > total_entries


def test_a_folder_of_blocks_does_not_become_native(tmp_path: Path) -> None:
    BlockStore.open(tmp_path).close()
    with pytest.raises(Fatal, match=r"stream.layout: got native, expected block, as in "):
        opened(tmp_path)


@needs_stream
@pytest.mark.parametrize(
    "by",
    [
        "batch",
        pytest.param("l2block", marks=pytest.mark.slow),
        pytest.param("bookmark", marks=pytest.mark.slow),
        "7",
    ],
)
def test_a_networks_stream_comes_out_byte_for_byte(tmp_path: Path, by: str) -> None:
    sample = sample_file(tmp_path)
    maker = StreamBlocks(Grouping.parse(by))
    with DataStreamer.open(sample, read_only=True) as streamer:
        header, made = streamer.header, []
        for entry in streamer.read_entries(0):
            made.append(maker.feed(entry.number, entry.type, entry.data))
    blocks = [one for one in (*made, maker.finish()) if one is not None]
    folder = tmp_path / "node"
    options = {"stream_type": header.stream_type, "system_id": header.system_id, "version": header.version}
    with contextlib.closing(BlockStore.open(folder, layout="native", **options)) as store:  # type: ignore[arg-type]
        for start in range(0, len(blocks), 50):
            group = [VerifiedBlock(one.number, one.items, bytes(48)) for one in blocks[start : start + 50]]
            grow(store, *group)
        for one in blocks[:: max(1, len(blocks) // 50)]:
            stored = store.read_block(one.number)
            assert stored is not None
            assert stored.items == one.items
    expected, got = sample.read_bytes()[: header.total_length], (folder / "datastream.bin").read_bytes()
    assert got[: header.total_length] == expected


# --- power failures -----------------------------------------------------------------------------------------


@dataclass
class Run:
    """The progress of a workload when the power failed."""

    acknowledged: int = 0
    offered: int = 0


Work = Callable[[BlockStore, Run], None]


def one_by_one(store: BlockStore, run: Run) -> None:
    for one in BLOCKS:
        run.offered += 1
        grow(store, one)
        run.acknowledged += 1


def in_halves(store: BlockStore, run: Run) -> None:
    begun: list[VerifiedBlock] = []
    for size in (1, 2, 1, 1, 2, 1):
        start = run.acknowledged + len(begun)
        group = BLOCKS[start : start + size]
        run.offered = start + size
        store.begin(group)
        for one in begun:
            store.advance(one)
        run.acknowledged += len(begun)
        begun = group
    store.finish()
    run.acknowledged += len(begun)


def disks() -> tuple[MemoryDisk, MemoryDisk]:
    """Two disks with small empty streams, which count their steps together."""
    page = encode_header_page(StreamHeader(1, 137, 1, HEADER_PAGE_SIZE, 0)) + bytes(PAGE_SIZE)
    blocks, network = MemoryDisk.of(page), MemoryDisk.of(page)
    network.steps = blocks.steps
    return blocks, network


def release(store: BlockStore) -> None:
    """Release the locks, without the writes of an orderly close."""
    for streamer in store.streamers:
        streamer._bookmarks.close()


def steps_of(folder: Path, work: Work) -> int:
    blocks, network = disks()
    store = opened(folder, blocks, network)
    blocks.steps.clear()
    work(store, Run())
    release(store)
    shutil.rmtree(folder)
    return len(blocks.steps)


@pytest.mark.parametrize("work", [pytest.param(one_by_one, marks=pytest.mark.slow), in_halves])
def test_every_boundary(memory_path: Path, work: Work) -> None:
    """Before each step of a workload, what a power failure may leave then is opened, each state once."""
    chance = {how: random.Random(f"crash {how}") for how in ("none", "all", "prefix", "sectors")}
    run, (blocks, network), folder, left = Run(), disks(), memory_path / "node", memory_path / "left"
    checked: set[int] = set()

    def crash() -> None:
        for how, rng in chance.items():
            images = tuple(disk.image_after_crash(how, rng) for disk in (blocks, network))
            state = hash((images, contents(folder), run.acknowledged, run.offered))
            if state not in checked:
                checked.add(state)
                shutil.copytree(folder, left)
                check_left(left, images, run, f"crash before step {len(blocks.steps) - 1} ({how})")
                shutil.rmtree(left)

    store = opened(folder, blocks, network)
    blocks.steps.clear()
    blocks.fail = network.fail = lambda step: crash()
    work(store, run)
    crash()
    release(store)
    assert len(blocks.steps) > 40
    assert len(checked) > 40


def check_left(folder: Path, images: tuple[bytes, ...], run: Run, where: str) -> None:
    """Open what a crash left, check it, and let it grow to its end."""
    store = opened(folder, *map(MemoryDisk.of, images))
    found = store.chain.next_number
    assert run.acknowledged <= found <= run.offered, where
    check(store, found, where)
    for one in BLOCKS[found:]:
        grow(store, one)
    check(store, len(BLOCKS), where)
    store.close()


# --- cutting the last blocks off ----------------------------------------------------------------------------


def marked(folder: Path) -> bool:
    snapshot = read_snapshot(folder)
    assert snapshot is not None
    return snapshot.cut is not None


def full(folder: Path) -> tuple[BlockStore, MemoryDisk, MemoryDisk]:
    """Open a store of all blocks, with no step counted."""
    blocks, network = disks()
    store = opened(folder, blocks, network)
    for start in range(0, len(BLOCKS), 3):
        grow(store, *BLOCKS[start : start + 3])
    store.write_snapshot()
    blocks.steps.clear()
    return store, blocks, network


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        3,
        pytest.param(5, marks=pytest.mark.slow),
        6,
    ],
)
@pytest.mark.parametrize(
    "how",
    [pytest.param("none", marks=pytest.mark.slow), pytest.param("all", marks=pytest.mark.slow), "sectors"],
)
def test_every_boundary_of_a_cut(tmp_path: Path, last: int, how: str) -> None:
    """The chain is as before or cut; the next opening makes it whole; the same again cuts it."""
    rng, folder = random.Random(f"cut {how}"), tmp_path / "node"
    seen, is_done = set(), False
    for crash_at in count():
        store, blocks, network = full(folder)
        blocks.crash_at = network.crash_at = crash_at
        with contextlib.suppress(PowerLost):
            store.truncate(last)
            assert (store.last_number, marked(folder)) == (last, False)
            is_done = True
        release(store)
        was_marked = marked(folder)
        where = f"crash before step {crash_at} ({how})"
        images = [disk.image_after_crash(how, rng) for disk in (blocks, network)]
        store = opened(folder, *map(MemoryDisk.of, images))
        found = store.chain.next_number
        seen.add((was_marked, found))
        assert not marked(folder), where
        check(store, found, where)
        store.truncate(last)
        check(store, last + 1, where)
        for one in BLOCKS[last + 1 :]:
            grow(store, one)
        check(store, len(BLOCKS), where)
        store.close()
        shutil.rmtree(folder)
        if is_done:
            break
    assert seen == {(True, len(BLOCKS)), (True, last + 1), (False, last + 1)}


def test_blocks_without_entries_of_the_network_are_cut(tmp_path: Path) -> None:
    """Only the block stream gets shorter, so the mark alone says that they go."""
    made = [batch(0, 5), block(1), block(2)]
    for crash_at in count():
        folder = tmp_path / str(crash_at)
        blocks, network = disks()
        store = opened(folder, blocks, network)
        grow(store, *made)
        store.write_snapshot()
        blocks.steps.clear()
        blocks.crash_at = network.crash_at = crash_at
        with contextlib.suppress(PowerLost):
            store.truncate(0)
            assert crash_at > 2
            return
        release(store)
        images = [disk.image_after_crash("none", random.Random(1)) for disk in (blocks, network)]
        with contextlib.closing(opened(folder, *map(MemoryDisk.of, images))) as store:
            assert (store.last_number, marked(folder)) == (0, False)
            grow(store, *made[1:])
        assert not marked(folder)


def test_a_cut_of_many_blocks_that_ended_in_between_is_finished(tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path)) as store:
        for number in range(300):
            grow(store, batch(number, 1))
    disk = FailingDisk(RealDisk(tmp_path / "blocks.bin"))
    store = BlockStore.open(tmp_path, disk=disk)
    disk.plan = {"fdatasync": [errno.EIO]}
    with pytest.raises(CommitFailed):
        store.truncate(20)
    store.close()
    assert marked(tmp_path)
    with DataStreamer.open(tmp_path / "datastream.bin", read_only=True) as network:
        assert network.committed.total_entries == 42
    with contextlib.closing(opened(tmp_path)) as store:
        assert (store.last_number, marked(tmp_path)) == (20, False)
        grow(store, batch(21, 1))
    with contextlib.closing(opened(tmp_path)) as store:
        assert store.last_number == 21


def test_a_mark_that_cannot_be_removed_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    grow(store, *BLOCKS)
    replace, calls = BlockStore._replace_snapshot, []

    def fail_second(self: BlockStore, **options: object) -> None:
        calls.append(options)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(self, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockStore, "_replace_snapshot", fail_second)
    with pytest.raises(OSError, match="No space left"):
        store.truncate(2)
    store.close()
    assert marked(tmp_path)
    calls[:] = [{}]
    with pytest.raises(Fatal, match=r"chain.json: got No space left on device, expected a file that can be"):
        opened(tmp_path)
    calls[:] = [{}, {}]
    with contextlib.closing(opened(tmp_path)) as store:
        check(store, 3)
    assert not marked(tmp_path)


# --- a disk that refuses ------------------------------------------------------------------------------------


def commit_as_a_node_does(store: BlockStore, group: list[VerifiedBlock], begun: list[VerifiedBlock]) -> int:
    """Begin a group as `GroupCommit` does; return how many blocks are stored when the disk refuses."""
    try:
        store.begin(group)
    except CommitFailed:
        stored = 0
        if begun and store.has_begun:
            with contextlib.suppress(CommitFailed):
                store.finish()
                stored = len(begun)
        if store.has_begun:
            with contextlib.suppress(CommitFailed):
                store.give_up()
        return stored
    return -1


@pytest.mark.parametrize(
    "count", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_what_a_disk_refuses_can_be_sent_again(memory_path: Path, count: int) -> None:
    folder = memory_path / "node"
    steps = steps_of(folder, in_halves)
    for refused_at in range(steps):
        blocks, network = disks()
        store = opened(folder, blocks, network)
        blocks.steps.clear()
        refused = range(refused_at, refused_at + count)

        def fail(step: str, refused: range = refused, blocks: MemoryDisk = blocks) -> OSError | None:
            is_refused = len(blocks.steps) - 1 in refused
            return OSError(errno.EIO, os.strerror(errno.EIO)) if is_refused else None

        blocks.fail = network.fail = fail
        where = f"steps {refused} refused"
        begun: list[VerifiedBlock] = []
        while (at := store.chain.next_number + len(begun)) < len(BLOCKS):
            group = BLOCKS[at : at + 2]
            stored = commit_as_a_node_does(store, group, begun)
            for one in begun[: stored if stored >= 0 else None]:
                store.advance(one)
            begun = group if stored < 0 else []
        while store.has_begun:
            try:
                store.finish()
            except CommitFailed:
                grow_again(store, begun)
                break
            for one in begun:
                store.advance(one)
        check(store, len(BLOCKS), where)
        release(store)
        store = opened(folder, MemoryDisk.of(bytes(blocks.cache)), MemoryDisk.of(bytes(network.cache)))
        check(store, len(BLOCKS), where)
        store.close()
        shutil.rmtree(folder)


def grow_again(store: BlockStore, blocks: list[VerifiedBlock]) -> None:
    for _ in range(8):
        with contextlib.suppress(CommitFailed):
            grow(store, *blocks)
            return
    raise AssertionError("the disk takes no block")


# --- files that do not belong together ----------------------------------------------------------------------


def test_a_networks_stream_that_lacks_more_than_a_crash_leaves_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path)) as store:
        for number in range(200):
            grow(store, batch(number, 1))
    with DataStreamer.open(tmp_path / "datastream.bin") as streamer:
        streamer.truncate_file(20)
    before = (tmp_path / "blocks.bin").read_bytes()
    with pytest.raises(Fatal, match=r"datastream.bin: got 20 entries, expected .* as blocks.bin beside it"):
        opened(tmp_path)
    assert (tmp_path / "blocks.bin").read_bytes() == before


def test_a_networks_stream_with_entries_of_no_block_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path)) as store:
        grow(store, *BLOCKS[:2])
    with DataStreamer.open(tmp_path / "datastream.bin") as streamer:
        streamer.start_atomic_op()
        streamer.add_stream_entry(5, b"of nobody")
        streamer.commit_atomic_op()
    with pytest.raises(
        Fatal, match=r"datastream.bin: got 6 entries, expected 5, as blocks.bin beside it says"
    ):
        opened(tmp_path)


def test_a_networks_stream_that_is_gone_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(opened(tmp_path)) as store:
        grow(store, *BLOCKS[:2])
    (tmp_path / "datastream.bin").unlink()
    shutil.rmtree(tmp_path / "datastream.db")
    with pytest.raises(Fatal, match=r"datastream.bin: got no such file"):
        opened(tmp_path)
