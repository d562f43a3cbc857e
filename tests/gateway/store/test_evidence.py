"""The evidence before a start: when a start refuses, what it says, and what a crash leaves."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from sluice.datastream.layout import ENTRY_HEAD_SIZE, HEADER_OFFSET, HEADER_SIZE
from sluice.gateway.errors import Fatal
from sluice.gateway.limits import COMMIT_GROUP_BYTES_MAX
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.store.evidence import GROUP_BLOCKS_DEFAULT, STREAM_FILE_NAME, judge_for
from tests.datastream.file.test_opening import held_in
from tests.gateway.conducting import logged
from tests.gateway.store.test_block_store import BLOCKS, commit, entries_of, filled, verified
from tests.nodes import make_blocks, stream_bytes
from tests.rotten import flip, large_blocks, store


@cache
def many_blocks() -> list[VerifiedBlock]:
    return [verified(block) for block in make_blocks(2 * GROUP_BLOCKS_DEFAULT + 10)]


def header_of(data_dir: Path) -> bytes:
    return stream_bytes(data_dir)[HEADER_OFFSET : HEADER_OFFSET + HEADER_SIZE]


def put_header(data_dir: Path, header: bytes) -> None:
    with (data_dir / "datastream.bin").open("r+b") as file:
        file.seek(HEADER_OFFSET)
        file.write(header)


def filled_in_groups(data_dir: Path, *groups: Sequence[VerifiedBlock]) -> list[bytes]:
    """Make a block store of groups of blocks; return the header after each."""
    store, headers = BlockStore.open(data_dir), []
    for group in groups:
        commit(store, group)
        headers.append(header_of(data_dir))
    store.close()
    return headers


def held(data_dir: Path) -> tuple[bytes, dict[bytes, bytes] | None, bytes]:
    """Return all that a start could change."""
    chain = data_dir / "chain.json"
    return (
        stream_bytes(data_dir),
        held_in(data_dir / "datastream.db"),
        (chain.exists() and chain.read_bytes()) or b"",
    )


def refused(data_dir: Path, *, group_blocks_max: int = GROUP_BLOCKS_DEFAULT) -> str:
    """Fail to open a block store, which stays as it is; return what was found."""
    before = held(data_dir)
    for _ in range(2):
        with pytest.raises(Fatal) as caught:
            BlockStore.open(data_dir, group_blocks_max=group_blocks_max)
    assert held(data_dir) == before
    assert caught.value.what == f"stream file {data_dir}/datastream.bin"
    assert caught.value.expected.endswith(f"sluice repair {data_dir} says what can be done")
    return caught.value.got


def test_a_header_that_went_back_is_refused_and_each_is_told(tmp_path: Path) -> None:
    headers = filled_in_groups(tmp_path, BLOCKS[:5], BLOCKS[5:])
    length = int.from_bytes(headers[0][22:30], "big")
    end = int.from_bytes(headers[1][22:30], "big")
    put_header(tmp_path, headers[0])
    assert refused(tmp_path) == (
        f"a header that counts 91 entries in {length} bytes and ends with block 4, an index of bookmarks "
        "that covers 145 entries, chain.json that knows of block 7, and 54 whole entries, to offset "
        f"{end}, with blocks 5 to 7 behind the header"
    )
    put_header(tmp_path, headers[1])
    store = BlockStore.open(tmp_path)
    assert store.last_number == 7
    store.close()


@pytest.mark.parametrize("witness", ["chain.json", "datastream.db"])
def test_one_witness_is_enough(tmp_path: Path, witness: str) -> None:
    headers = filled_in_groups(tmp_path, BLOCKS[:5], BLOCKS[5:])
    put_header(tmp_path, headers[0])
    if witness == "chain.json":
        shutil.rmtree(tmp_path / "datastream.db")
    else:
        (tmp_path / "chain.json").unlink()
    says = (
        "says nothing, chain.json that knows of block 7"
        if witness == "chain.json"
        else "chain.json that says"
    )
    assert says in refused(tmp_path)
    assert (tmp_path / "datastream.db").exists() == (witness != "chain.json")


@pytest.mark.parametrize("gone", [(), ("chain.json",), ("datastream.db",)])
def test_a_file_that_is_older_than_its_folder_is_refused(tmp_path: Path, gone: tuple[str, ...]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old, BLOCKS[:3])
    filled(new)
    shutil.copy(old / "datastream.bin", new / "datastream.bin")
    for name in gone:
        shutil.rmtree(new / name) if name.endswith(".db") else (new / name).unlink()
    assert "ends with block 2" in (found := refused(new))
    assert found.endswith("and no whole entry behind the header")


def test_a_file_that_is_gone_is_missed_by_the_index_too(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("datastream.bin", "chain.json"):
        (tmp_path / name).unlink()
    for _ in range(2):
        with pytest.raises(Fatal, match="got no such file, expected 145 entries, as the index of bookmarks"):
            BlockStore.open(tmp_path)
    assert not (tmp_path / "datastream.bin").exists()


def test_a_folder_that_is_older_than_its_file_is_opened(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    filled(old, BLOCKS[:3])
    filled(new)
    for name in ("chain.json", "datastream.db"):
        target = new / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (shutil.copytree if (old / name).is_dir() else shutil.copy)(old / name, target)
    store = BlockStore.open(new)
    assert store.last_number == 7
    assert [store.read_block(number) is not None for number in range(8)] == [True] * 8
    store.close()


def test_a_chain_that_cannot_be_read_is_no_witness(tmp_path: Path) -> None:
    filled(tmp_path, BLOCKS[:3])
    (tmp_path / "chain.json").write_bytes(b"\xff")
    store = BlockStore.open(tmp_path)
    assert store.last_number == 2
    store.close()


# --- what a crash leaves, and what not ----------------------------------------------------------------------


def without_witness(data_dir: Path, first_count: int, blocks: Sequence[VerifiedBlock]) -> None:
    """Make a folder whose file has all blocks, but index, snapshot and header only the first."""
    first = data_dir.with_name("first")
    filled(first, blocks[:first_count])
    filled(data_dir, blocks)
    put_header(data_dir, header_of(first))
    for name in ("chain.json", "datastream.db"):
        target = data_dir / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (shutil.copytree if (first / name).is_dir() else shutil.copy)(first / name, target)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("group_blocks_max", [1, GROUP_BLOCKS_DEFAULT, GROUP_BLOCKS_DEFAULT + 20])
def test_a_crash_leaves_a_group_and_a_block_that_was_begun(
    tmp_path: Path, more: int, group_blocks_max: int
) -> None:
    """One more block was counted once, by a header that went back; the setting may have been lowered."""
    count = max(group_blocks_max, GROUP_BLOCKS_DEFAULT) + 1 + more
    data_dir = tmp_path / "node"
    without_witness(data_dir, 3, many_blocks()[: 3 + count])
    if more:
        found = refused(data_dir, group_blocks_max=group_blocks_max)
        assert f"with blocks 3 to {3 + count - 1} behind the header" in found
        return
    store = BlockStore.open(data_dir, group_blocks_max=group_blocks_max)
    assert store.last_number == 2
    assert not any(stream_bytes(data_dir)[store.streamer.committed.total_length :])
    store.close()


@pytest.mark.parametrize("is_more", [False, True])
def test_a_group_has_so_many_bytes(tmp_path: Path, is_more: bool) -> None:
    """Those between the first and the last block behind the header."""
    data_dir = tmp_path / "node"
    without_witness(data_dir, 1, BLOCKS)
    size = sum(ENTRY_HEAD_SIZE + len(data) for block in BLOCKS[2:7] for _, data in entries_of(block))
    assert size < COMMIT_GROUP_BYTES_MAX
    judge = judge_for(data_dir, GROUP_BLOCKS_DEFAULT, size - is_more)
    if is_more:
        with pytest.raises(Fatal, match="with blocks 1 to 7"):
            BlockStore.open(data_dir, judge=judge)
    else:
        BlockStore.open(data_dir, judge=judge).close()


def test_a_copy_of_a_stream_that_was_being_written_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its header was copied first, and later commits are behind it: the original has them."""
    copy = tmp_path / "copy"
    headers = filled_in_groups(tmp_path / "node", many_blocks()[:3], many_blocks()[3:])
    copy.mkdir()
    shutil.copy(tmp_path / "node" / "datastream.bin", copy)
    put_header(copy, headers[0])
    store = BlockStore.open(copy)
    assert store.last_number == 2
    store.close()
    text = "blocks behind the header are cut off, as of a copy of a stream that was being written"
    assert {"first_block": 3, "last_block": len(many_blocks()) - 1} in logged(caplog, text)


@pytest.mark.parametrize("begun", [1, 2])
def test_what_was_begun_is_dropped_by_the_next_start(tmp_path: Path, begun: int) -> None:
    """A kill between the halves of a commit leaves one group of whole blocks, or two."""
    store = BlockStore.open(tmp_path)
    commit(store, BLOCKS[:3])
    for number in range(3, 3 + begun):
        store.begin(BLOCKS[number : number + 1])
    store.streamer._bookmarks.close()  # as in a kill
    store.streamer._file.disk.close()
    header = header_of(tmp_path)
    again = BlockStore.open(tmp_path)
    last = 2 + begun - 1
    assert again.last_number == last
    assert again.streamer.committed.total_entries == int.from_bytes(header[30:38], "big")
    commit(again, BLOCKS[last + 1 :])
    again.close()
    assert stream_bytes(tmp_path) == filled(tmp_path / "good")


def test_a_damaged_page_does_not_hide_that_blocks_are_missing(tmp_path: Path) -> None:
    data_dir, blocks = tmp_path / "d", large_blocks(40, 200_000)
    path, folder = data_dir / STREAM_FILE_NAME, data_dir / "datastream.db"
    store(data_dir, blocks[:30])
    header, index = path.read_bytes()[:4096], shutil.copytree(folder, tmp_path / "index")
    store(data_dir, blocks[30:])
    shutil.rmtree(folder)
    index.rename(folder)
    with path.open("r+b") as file:
        file.write(header)
    flip(data_dir, 1, 0)
    content = path.read_bytes()
    with pytest.raises(Fatal, match=r"chain\.json that knows of block 39"):
        BlockStore.open(data_dir)
    assert path.read_bytes() == content
