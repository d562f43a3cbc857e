"""The block store: what is on disk after commits, failures and restarts, and what it refuses to open."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sluice.datastream import DataStreamer
from sluice.datastream.errors import CommitFailed, StreamFileRefused, StreamInUse
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.layout import BOOKMARK_TYPE
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import ItemError, LayoutError
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import BLOCK_END_TYPE, bookmark_of, encode
from sluice.gateway.errors import Fatal, StartAbandoned
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from tests.datastream.fake_disk import FailingDisk
from tests.datastream.file.test_bookmarks import FailingDatabase
from tests.nodes import make_blocks, stream_bytes
from tests.reference_data import STREAM, needs_stream


def verified(block: Block) -> VerifiedBlock:
    hasher = BlockHasher()
    hasher.add(block.items)
    return VerifiedBlock(block.number, block.items, hasher.finish().root_hash)


BLOCKS = [verified(block) for block in make_blocks(8)]


def commit(store: BlockStore, blocks: Sequence[VerifiedBlock]) -> None:
    store.append(blocks)
    for block in blocks:
        store.advance(block)
    if store.snapshot_due:
        store.write_snapshot()


def filled(data_dir: Path, blocks: Sequence[VerifiedBlock] = BLOCKS) -> bytes:
    """Make a block store of these blocks; return its stream file."""
    store = BlockStore.open(data_dir)
    commit(store, blocks)
    store.close()
    return stream_bytes(data_dir)


def disk_at(data_dir: Path) -> FailingDisk:
    data_dir.mkdir(exist_ok=True)
    path = data_dir / "datastream.bin"
    path.touch()
    return FailingDisk(RealDisk(path))


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [record.sluice_fields for record in caplog.records if record.message == message]  # type: ignore[attr-defined]


# --- committing ---------------------------------------------------------------------------------------------


def test_an_empty_ledger(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path / "new" / "folder")
    assert (store.first_number, store.last_number) == (None, None)
    assert store.read_block(0) is None
    store.close()
    store.close()
    assert sorted(path.name for path in store.data_dir.iterdir()) == ["datastream.bin", "datastream.db"]


def test_settings_of_a_new_stream_that_the_file_does_not_have_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = "setting is for a new stream file; this one keeps its own"
    BlockStore.open(tmp_path, system_id=1, version=3).close()
    assert logged(caplog, told) == []
    store = BlockStore.open(tmp_path, system_id=2, version=3)
    assert store.streamer.header.system_id == 1
    store.close()
    assert logged(caplog, told) == [{"name": "stream.system_id", "value": 2, "kept": 1}]


def test_a_block_becomes_the_entries_of_the_layout(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[:2])
    entries = [(entry.type, entry.data) for entry in store.streamer.read_entries(0)]
    first, second = BLOCKS[:2]
    assert entries == encode(0, first.items, first.root_hash) + encode(1, second.items, second.root_hash)
    assert store.streamer.get_bookmark(bookmark_of(1)) == len(first.items) + 2
    assert (store.first_number, store.last_number) == (0, 1)
    assert store.chain.last_root_hash == second.root_hash
    store.close()


def test_blocks_are_read_back(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[3:6])
    for block in BLOCKS[3:6]:
        stored = store.read_block(block.number)
        assert stored is not None
        assert (stored.number, stored.items, stored.root_hash) == (
            block.number,
            tuple(block.items),
            block.root_hash,
        )
    assert [store.read_block(number) for number in (0, 2, 6, 1 << 64)] == [None] * 4
    store.close()


def test_a_group_shares_one_pair_of_flushes_and_leaves_the_same_bytes(tmp_path: Path) -> None:
    disk = disk_at(tmp_path / "group")
    store = BlockStore.open(tmp_path / "group", disk=disk)
    disk.calls.clear()
    commit(store, BLOCKS)
    assert disk.calls == ["pwrite", "fdatasync", "pwrite", "fdatasync"]
    store.close()
    single = BlockStore.open(tmp_path / "single")
    for block in BLOCKS:
        commit(single, [block])
    single.close()
    assert stream_bytes(tmp_path / "group") == stream_bytes(tmp_path / "single")


FAILURES: list[tuple[str, dict[str, list[int | None]], str]] = [
    ("entries", {"pwrite": [errno.ENOSPC]}, "1 entries: No space left on device"),
    ("first flush", {"fdatasync": [errno.EIO]}, "2 flush: Input/output error"),
    ("header", {"pwrite": [None, errno.ENOSPC]}, "3 header: No space left on device"),
    ("second flush", {"fdatasync": [None, errno.EIO]}, "4 flush: Input/output error"),
    (
        "all and the repair",
        {"pwrite": [errno.ENOSPC] * 3, "fdatasync": [errno.EIO] * 3},
        "1 entries: No space",
    ),
]


@pytest.mark.parametrize(
    ("plan", "reason"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES]
)
def test_a_commit_that_fails_leaves_the_ledger_as_it_was(
    tmp_path: Path, plan: dict[str, list[int | None]], reason: str
) -> None:
    disk = disk_at(tmp_path / "failing")
    store = BlockStore.open(tmp_path / "failing", disk=disk)
    commit(store, BLOCKS[:2])
    before = store.streamer.committed
    disk.plan = {name: list(outcomes) for name, outcomes in plan.items()}
    with pytest.raises(CommitFailed) as caught:
        store.append(BLOCKS[2:4])
    assert f"commit failed at step {reason}" in str(caught.value)
    assert (store.first_number, store.last_number, store.streamer.committed) == (0, 1, before)
    assert store.read_block(2) is None
    disk.plan.clear()
    commit(store, BLOCKS[2:])
    store.close()
    assert stream_bytes(tmp_path / "failing") == filled(tmp_path / "good")


def test_a_first_commit_that_fails_leaves_the_ledger_empty(tmp_path: Path) -> None:
    disk = disk_at(tmp_path)
    store = BlockStore.open(tmp_path, disk=disk)
    disk.plan = {"pwrite": [errno.ENOSPC]}
    with pytest.raises(CommitFailed):
        store.append(BLOCKS[3:4])
    assert (store.first_number, store.last_number) == (None, None)
    commit(store, BLOCKS[:1])
    assert (store.first_number, store.last_number) == (0, 0)
    store.close()


def test_a_block_that_cannot_be_serialized_drops_its_group(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path / "tried")
    with pytest.raises(ItemError):
        store.append([BLOCKS[0], VerifiedBlock(1, [b"\xff"], bytes(48))])
    assert store.streamer.committed.total_entries == 0
    commit(store, BLOCKS)
    store.close()
    assert stream_bytes(tmp_path / "tried") == filled(tmp_path / "good")


def test_bookmarks_that_cannot_be_written_do_not_undo_a_commit(tmp_path: Path) -> None:
    state = {"open_fails": False, "write_fails": False}
    store = BlockStore.open(tmp_path, open_database=lambda folder: FailingDatabase(folder, state))
    state.update(write_fails=True, open_fails=True)
    commit(store, BLOCKS[:1])
    stored = store.read_block(0)
    assert stored is not None
    assert stored.root_hash == BLOCKS[0].root_hash
    with pytest.raises(CommitFailed, match=r"at step 0a repair: .*: bookmark DB: no room"):
        store.append(BLOCKS[1:2])
    with pytest.raises(CommitFailed, match=r"at step 0a repair: .*: bookmark DB: no room"):
        store.probe()  # else readiness would come and go
    state.update(write_fails=False, open_fails=False)
    store.probe()
    commit(store, BLOCKS[1:])
    store.close()
    again = BlockStore.open(tmp_path)
    assert [again.read_block(number) is not None for number in range(9)] == [True] * 8 + [False]
    again.close()


def test_probe_leaves_nothing_and_tells_a_disk_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore.open(tmp_path)
    before = sorted(tmp_path.iterdir())
    store.probe()
    assert sorted(tmp_path.iterdir()) == before

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        store.probe()
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.undo()
    store.close()


# --- restarts -----------------------------------------------------------------------------------------------


def reopened(data_dir: Path) -> tuple[int | None, int | None, dict[str, object]]:
    """Reopen a block store; return its first block, last block and chain."""
    store = BlockStore.open(data_dir)
    found = (store.first_number, store.last_number, store.chain.state())
    store.close()
    return found


@pytest.mark.parametrize("first", [0, 3])
def test_a_restart_goes_on_where_it_was(tmp_path: Path, first: int) -> None:
    """Also for a chain that begins later, whose tree over all roots is unknown."""
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[first:6])
    state = store.chain.state()
    store.close()
    assert reopened(tmp_path) == (first, 5, state)
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[6:])
    store.close()
    assert stream_bytes(tmp_path) == filled(tmp_path / "good", BLOCKS[first:])


def without(path: Path) -> None:
    """As after a crash before the first snapshot."""
    path.unlink()


def empty(path: Path) -> None:
    """A power failure may leave this of an unflushed file."""
    path.write_text("")


def zeros(path: Path) -> None:
    """So may it on another file system."""
    path.write_bytes(bytes(path.stat().st_size))


def not_utf8(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def a_number(path: Path) -> None:
    path.write_text("5")


def a_list(path: Path) -> None:
    path.write_text("[{}]")


def a_digit_changed(path: Path) -> None:
    """With a wrong tree every further block would be refused."""
    text = path.read_text()
    at = text.index('"tree_stack": ["') + len('"tree_stack": ["')
    path.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def snapshot_of(path: Path, blocks: Sequence[VerifiedBlock]) -> None:
    filled(path.parent / "other", blocks)
    path.write_bytes((path.parent / "other" / "chain.json").read_bytes())


def of_another_chain(path: Path) -> None:
    """The same numbers with other hashes."""
    snapshot_of(path, [verified(block) for block in make_blocks(6, seed=8)])


def behind(path: Path) -> None:
    """An older snapshot, as after a crash."""
    snapshot_of(path, BLOCKS[:3])


def of_a_later_beginning(path: Path) -> None:
    snapshot_of(path, BLOCKS[1:6])


NOT_USED = "chain snapshot cannot be used"
NOT_FITTING = "chain snapshot does not fit the stream"
SNAPSHOTS: list[tuple[Callable[[Path], None], str | None]] = [
    (without, None),
    (behind, None),
    (of_a_later_beginning, None),
    (empty, NOT_USED),
    (zeros, NOT_USED),
    (not_utf8, NOT_USED),
    (a_number, NOT_USED),
    (a_list, NOT_USED),
    (a_digit_changed, NOT_USED),
    (a_folder, NOT_USED),
    (of_another_chain, NOT_FITTING),
]


@pytest.mark.parametrize(("spoil", "warning"), SNAPSHOTS, ids=[case[0].__name__ for case in SNAPSHOTS])
def test_a_snapshot_is_a_shortcut_and_nothing_hangs_on_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], warning: str | None
) -> None:
    filled(tmp_path, BLOCKS[:6])
    good = reopened(tmp_path)
    assert good[:2] == (0, 5)
    spoil(tmp_path / "chain.json")
    caplog.clear()
    assert reopened(tmp_path) == good
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    # The folder also fails the closing of the store.
    assert warnings[:1] == ([] if warning is None else [warning])


def test_a_start_reads_only_what_came_after_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore.open(tmp_path, snapshot_blocks=3)
    numbers = []
    for block in BLOCKS:
        commit(store, [block])
        state = (
            json.loads((tmp_path / "chain.json").read_text()) if (tmp_path / "chain.json").exists() else {}
        )
        numbers.append(state["chain"]["last_number"] if state else None)
    assert numbers == [None, None, 2, 2, 2, 5, 5, 5]
    store.streamer.close()  # as in a crash: the snapshot stays old

    rolled: list[int] = []
    roll_forward = BlockStore._roll_forward

    def spy(self: BlockStore, start_number: int, last_number: int, go_on: Callable[[], None]) -> None:
        rolled.append(start_number)
        roll_forward(self, start_number, last_number, go_on)

    monkeypatch.setattr(BlockStore, "_roll_forward", spy)
    assert reopened(tmp_path)[1] == 7
    assert reopened(tmp_path)[1] == 7
    assert rolled == [6]


@pytest.mark.parametrize("has_index", [True, False])
def test_an_opening_that_is_ended_leaves_all_as_it_was(tmp_path: Path, has_index: bool) -> None:
    written = filled(tmp_path)
    (tmp_path / "chain.json").unlink()
    if not has_index:
        shutil.rmtree(tmp_path / "datastream.db")
    for calls_count in range(len(BLOCKS)):
        with pytest.raises(StartAbandoned):
            BlockStore.open(tmp_path, go_on=Mock(side_effect=[*[None] * calls_count, StartAbandoned]))
        assert not (tmp_path / "chain.json").exists()
    store = BlockStore.open(tmp_path)
    assert (store.first_number, store.chain.last_root_hash) == (0, BLOCKS[-1].root_hash)
    store.close()
    assert stream_bytes(tmp_path) == written


def test_a_snapshot_that_cannot_be_written_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "chain.new").mkdir()
    filled(tmp_path)
    assert [line["got"] for line in logged(caplog, "chain snapshot cannot be written")]
    assert not (tmp_path / "chain.json").exists()
    assert reopened(tmp_path)[:2] == (0, 7)


# --- what is refused ----------------------------------------------------------------------------------------


def stream_of(data_dir: Path, *entries: tuple[int, bytes]) -> None:
    data_dir.mkdir(exist_ok=True)
    streamer = DataStreamer.open(data_dir / "datastream.bin")
    streamer.start_atomic_op()
    for entry_type, data in entries:
        if entry_type == BOOKMARK_TYPE:
            streamer.add_stream_bookmark(data)
        else:
            streamer.add_stream_entry(entry_type, data)
    streamer.commit_atomic_op()
    streamer.close()


def entries_of(block: VerifiedBlock) -> list[tuple[int, bytes]]:
    return encode(block.number, block.items, block.root_hash)


END = (BLOCK_END_TYPE, bytes(56))
FOREIGN: list[tuple[str, list[tuple[int, bytes]], str]] = [
    (
        "other things",
        [(1, b"x")],
        (
            ", entry 0: got an entry of type 0x1 with 1 bytes, "
            "expected a block's end (type 0xb1, 56 bytes): does the stream hold blocks?"
        ),
    ),
    (
        "an end that is too short",
        [(BLOCK_END_TYPE, bytes(55))],
        (
            ", entry 0: got an entry of type 0xb1 with 55 bytes, "
            "expected a block's end (type 0xb1, 56 bytes): does the stream hold blocks?"
        ),
    ),
    (
        "no bookmarks",
        [(1, b"x"), (2, b"y"), END],
        (
            ", entry 0: got an entry of type 0x1 with 1 bytes, "
            "expected the bookmark of a block: does the stream hold blocks?"
        ),
    ),
    (
        "a gap",
        [*entries_of(BLOCKS[0]), *entries_of(BLOCKS[2])],
        (
            f", entry {len(entries_of(BLOCKS[0]) + entries_of(BLOCKS[2])) - 1}: "
            "got the end of block 2, expected the end of block 1"
        ),
    ),
    (
        "numbers that go back",
        [*entries_of(BLOCKS[1]), *entries_of(BLOCKS[0])],
        ": got a chain that ends at block None, expected block 0, as in its last entry",
    ),
]


@pytest.mark.parametrize(
    ("entries", "reason"), [case[1:] for case in FOREIGN], ids=[case[0] for case in FOREIGN]
)
def test_a_stream_that_does_not_hold_a_chain_is_refused(
    tmp_path: Path, entries: list[tuple[int, bytes]], reason: str
) -> None:
    stream_of(tmp_path, *entries)
    before = stream_bytes(tmp_path)
    for _ in range(2):  # a refusal releases the locks
        with pytest.raises(Fatal) as caught:
            BlockStore.open(tmp_path)
        assert str(caught.value) == f"stream file {tmp_path}/datastream.bin{reason}"
    assert stream_bytes(tmp_path) == before
    assert not (tmp_path / "chain.json").exists()


@needs_stream
def test_a_stream_of_another_use_is_refused(tmp_path: Path) -> None:
    content = gzip.decompress(STREAM.read_bytes())
    (tmp_path / "datastream.bin").write_bytes(content)
    with pytest.raises(Fatal) as caught:
        BlockStore.open(tmp_path)
    assert str(caught.value) == (
        f"stream file {tmp_path}/datastream.bin, entry 13951: got an entry of type 0x6 with 3 bytes, "
        "expected a block's end (type 0xb1, 56 bytes): does the stream hold blocks?"
    )
    assert (tmp_path / "datastream.bin").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["datastream.bin"]


def test_blocks_that_were_here_are_missed(tmp_path: Path) -> None:
    """The stream file was moved or replaced; the snapshot is still there."""
    filled(tmp_path)
    path, index = tmp_path / "datastream.bin", tmp_path / "datastream.db"
    expected = "expected blocks up to 7, as chain.json beside it says; to begin anew, take an empty folder"
    path.unlink()
    for _ in range(2):
        with pytest.raises(Fatal) as caught:
            BlockStore.open(tmp_path)
        assert str(caught.value) == f"stream file {path}: got no such file, {expected}"
    assert not path.exists()
    assert not path.exists()
    BlockStore.open(tmp_path / "other").close()
    shutil.copy(tmp_path / "other" / "datastream.bin", path)
    shutil.rmtree(index)
    with pytest.raises(
        Fatal, match=r"counts 0 entries in 4096 bytes and ends with no block, .* of block 7, and"
    ):
        BlockStore.open(tmp_path)
    assert not index.exists()
    (tmp_path / "chain.json").unlink()
    assert reopened(tmp_path)[:2] == (None, None)


def test_a_file_that_is_no_stream_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "datastream.bin").write_bytes(b"hello")
    with pytest.raises(StreamFileRefused, match=r"found 5 bytes, expected at least 4096, the header page$"):
        BlockStore.open(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data_dir, got in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "sub", "Not a directory")):
        with pytest.raises(Fatal) as caught:
            BlockStore.open(data_dir)
        assert str(caught.value) == f"data_dir {data_dir}: got {got}, expected a folder that can be written"


def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    store = BlockStore.open(tmp_path)
    with pytest.raises(StreamInUse, match="the stream is in use by another program or opener"):
        BlockStore.open(tmp_path)
    commit(store, BLOCKS[:1])
    store.close()
    assert reopened(tmp_path)[:2] == (0, 0)


def test_a_block_that_is_not_where_its_bookmark_says_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[:2])
    monkeypatch.setattr(store.streamer, "get_bookmark", lambda bookmark: 0)
    with pytest.raises(LayoutError, match=r"block at entry 0: got 0, expected 1$"):
        store.read_block(1)
    last_entry = store.streamer.committed.total_entries
    monkeypatch.setattr(store.streamer, "get_bookmark", lambda bookmark: last_entry)
    with pytest.raises(LayoutError) as caught:
        store.read_block(1)
    assert str(caught.value) == (
        f"block 1 at entry {last_entry}: got the end of the stream, expected the end of the block"
    )
    monkeypatch.undo()
    assert store.streamer.get_bookmark(bookmark_of(1)) == len(entries_of(BLOCKS[0]))
    store.close()


def test_the_root_hash_of_the_last_block_while_the_next_ones_are_committed(tmp_path: Path) -> None:
    """They are in the stream before the chain knows them."""
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[:2])
    store.append(BLOCKS[2:4])
    assert store.last_number == 1
    assert store.root_hash_at(1) == BLOCKS[1].root_hash
    assert store.root_hash_at(0) == BLOCKS[0].root_hash
    assert store.root_hash_at(2) is None
    store.advance(BLOCKS[2])
    assert store.root_hash_at(2) == BLOCKS[2].root_hash
    store.advance(BLOCKS[3])
    assert store.root_hash_at(3) == BLOCKS[3].root_hash
    store.close()
