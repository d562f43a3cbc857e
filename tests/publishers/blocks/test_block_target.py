"""Many tasks write blocks side by side, whole and once, whatever comes between."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_layouts import BlockLayout, default_format, zip_of
from sluice.publishers.blocks.block_places import LocalStore, read_chain
from sluice.publishers.blocks.block_target import BlockTarget, TargetWriter, make_zips
from sluice.publishers.blocks.block_writer import BlockWriter
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import BlockFileError, OptionError

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(7, key_of_seed(7), SMALL).blocks(25))
OTHER = list(BlockMaker(8, key_of_seed(8), SMALL).blocks(25))
ZIP_0 = zip_of(0, 1)[0]


def target_of(folder: Path, layout: BlockLayout = "historic", *, is_overwrite: bool = False) -> BlockTarget:
    """A target with zips of 10 blocks."""
    return BlockTarget(LocalStore(), str(folder), layout, default_format(layout), 1, is_overwrite)


def write(target: BlockTarget, *tasks: Iterable[Block]) -> dict[str, list[int]]:
    """Write a job with some tasks, and return the numbers that wait."""
    zips: set[str] = set()
    staged: set[str] = set()
    for blocks in tasks:
        with TargetWriter(target) as writer:
            for block in blocks:
                writer.write(block)
        zips |= writer.zips
        staged |= writer.staged
    waiting = make_zips(target, zips, staged)
    target.clear()
    return waiting


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def times_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", get_args(BlockLayout))
@pytest.mark.parametrize("seed", [1, 2])
def test_tasks_side_by_side_write_what_one_writer_does(
    tmp_path: Path, layout: BlockLayout, seed: int
) -> None:
    """Blocks come in any order to any task, and a task may run twice."""
    with BlockWriter(tmp_path / "one", layout, is_flushed=False, zip_digits=1) as writer:
        for block in BLOCKS:
            writer.write(block)
    shuffled = random.Random(seed).sample(BLOCKS, len(BLOCKS))
    tasks = [shuffled[:8], shuffled[8:], shuffled[:8]]
    waiting = write(target_of(tmp_path / "many", layout), *tasks)
    assert files_in(tmp_path / "many") == files_in(tmp_path / "one")
    assert list(read_chain(tmp_path / "many")) == BLOCKS
    assert waiting == ({zip_of(20, 1)[0]: [20, 21, 22, 23, 24]} if layout == "historic" else {})
    before = times_in(tmp_path / "many")
    write(target_of(tmp_path / "many", layout), BLOCKS)
    assert times_in(tmp_path / "many") == before


def test_a_task_with_all_blocks_of_a_zip_stages_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    whole = BlockTarget.put

    def put(self: BlockTarget, name: str, data: bytes) -> None:
        names.append(name)
        whole(self, name, data)

    monkeypatch.setattr(BlockTarget, "put", put)
    write(target_of(tmp_path), reversed(BLOCKS[:20]))
    assert names == [zip_of(10, 1)[0], ZIP_0]


@pytest.mark.parametrize("layout", get_args(BlockLayout))
@pytest.mark.parametrize("count", [7, 10])
def test_another_block_is_refused_by_name_and_replaced_if_told_so(
    tmp_path: Path, layout: BlockLayout, count: int
) -> None:
    write(target_of(tmp_path, layout), BLOCKS[:count])
    before = files_in(tmp_path)
    with pytest.raises(BlockFileError) as caught:
        write(target_of(tmp_path, layout), OTHER[:count])
    assert caught.value.path.removeprefix(f"{tmp_path}/") in before
    assert caught.value.reason.startswith("another block 0 is ")
    assert "mode overwrite replaces it" in caught.value.reason
    assert files_in(tmp_path) == before
    write(target_of(tmp_path, layout, is_overwrite=True), OTHER[:3], OTHER[3:count])
    assert list(read_chain(tmp_path)) == OTHER[:count]


def test_a_part_of_a_zip_is_not_replaced(tmp_path: Path) -> None:
    write(target_of(tmp_path), BLOCKS[:10])
    with pytest.raises(BlockFileError) as caught:
        write(target_of(tmp_path, is_overwrite=True), OTHER[:4])
    assert str(caught.value) == (
        f"{tmp_path}/{ZIP_0}: another block 0 is in this zip, and a zip is not changed; "
        "mode overwrite replaces it, with all its blocks"
    )


def test_a_zip_without_a_block_is_refused(tmp_path: Path) -> None:
    write(target_of(tmp_path), BLOCKS[:10])
    (tmp_path / ZIP_0).rename(tmp_path / zip_of(10, 1)[0])
    with pytest.raises(BlockFileError, match="no block 10 is in this zip"):
        write(target_of(tmp_path), BLOCKS[10:20])


def test_a_zip_replaces_older_staged_blocks(tmp_path: Path) -> None:
    write(target_of(tmp_path), OTHER[:4])
    with pytest.raises(BlockFileError, match=f"{ZIP_0}: another block 0 is in this zip"):
        write(target_of(tmp_path), BLOCKS[:10])
    write(target_of(tmp_path, is_overwrite=True), BLOCKS[:10])
    assert list(files_in(tmp_path)) == [ZIP_0]
    assert list(read_chain(tmp_path)) == BLOCKS[:10]


@pytest.mark.parametrize("layout", ["plain", "recent", "bucket"])
def test_a_damaged_file_is_named(tmp_path: Path, layout: BlockLayout) -> None:
    write(target_of(tmp_path, layout), BLOCKS[:1])
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BlockFileError) as caught:
        write(target_of(tmp_path, layout), BLOCKS[:1])
    assert caught.value.path == str(path)
    assert caught.value.reason.startswith("truncated")
    write(target_of(tmp_path, layout, is_overwrite=True), BLOCKS[:1])
    assert list(read_chain(tmp_path)) == BLOCKS[:1]


def test_the_same_block_compressed_otherwise_is_kept(tmp_path: Path) -> None:
    (tmp_path / "0.blk.gz").write_bytes(BLOCKS[0].to_bytes())
    write(target_of(tmp_path, "plain"), BLOCKS[:2])
    assert (tmp_path / "0.blk.gz").read_bytes() == BLOCKS[0].to_bytes()
    assert list(read_chain(tmp_path)) == BLOCKS[:2]


def test_a_block_that_comes_twice_is_one(tmp_path: Path) -> None:
    write(target_of(tmp_path), [BLOCKS[0], *BLOCKS[:10], BLOCKS[3]], BLOCKS[3:5])
    assert list(files_in(tmp_path)) == [ZIP_0]
    with pytest.raises(BlockFileError, match="block 10: comes twice, and not the same"):
        write(target_of(tmp_path), [BLOCKS[10], OTHER[10]])


def test_a_block_that_is_too_long_is_refused(tmp_path: Path) -> None:
    size_bytes = BLOCKS[1].size_bytes
    target = target_of(tmp_path, "plain")
    with TargetWriter(target, size_bytes_max=size_bytes) as writer:
        writer.write(BLOCKS[1])
    with (
        pytest.raises(BlockFileError) as caught,
        TargetWriter(target, size_bytes_max=size_bytes - 1) as writer,
    ):
        writer.write(BLOCKS[1])
    assert str(caught.value) == (
        f"{tmp_path}: block 1 has {size_bytes} bytes, at most {size_bytes - 1} can be read back"
    )
    with pytest.raises(OptionError, match="got bucket for block 9223372036854775808"):
        write(target_of(tmp_path, "bucket"), [replace(BLOCKS[1], number=1 << 63)])


@pytest.mark.parametrize("point", ["replace", "unlink"])
def test_a_job_that_ended_while_it_made_a_zip_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The job ends before the zip has its name, or later, with staged blocks left."""
    whole: Callable[..., object] = getattr(Path, point)

    def ends(self: Path, *arguments: object, **options: object) -> object:
        name = str(arguments[0]) if point == "replace" else str(self)
        if name.endswith(".zip") if point == "replace" else name.endswith("5.blk.zstd"):
            raise OSError(28, os.strerror(28))
        return whole(self, *arguments, **options)

    monkeypatch.setattr(Path, point, ends)
    with pytest.raises(BlockFileError, match="No space left on device") as caught:
        write(target_of(tmp_path), BLOCKS[:4], BLOCKS[4:12])
    assert caught.value.path in (f"{tmp_path}/{ZIP_0}", f"{tmp_path}/staging")
    monkeypatch.setattr(Path, point, whole)
    assert list(read_chain(tmp_path)) == BLOCKS[:12]
    assert not any(name.startswith(".parts") for name in files_in(tmp_path))
    write(target_of(tmp_path), BLOCKS[:4], BLOCKS[4:12])
    assert len(files_in(tmp_path)) == 3
    assert list(read_chain(tmp_path)) == BLOCKS[:12]


def test_a_later_job_completes_a_zip(tmp_path: Path) -> None:
    assert list(write(target_of(tmp_path), BLOCKS[:7])) == [ZIP_0]
    assert write(target_of(tmp_path), BLOCKS[7:10]) == {}
    assert list(files_in(tmp_path)) == [ZIP_0]
    assert not (tmp_path / "staging").exists()


def test_a_staged_block_that_is_damaged_is_not_put_into_a_zip(tmp_path: Path) -> None:
    write(target_of(tmp_path), BLOCKS[:7])
    path = next((tmp_path / "staging").rglob(f"{3:019}.*"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BlockFileError, match=f"{path}: truncated"):
        write(target_of(tmp_path), BLOCKS[7:10])
    assert not (tmp_path / ZIP_0).exists()
    write(target_of(tmp_path, is_overwrite=True), BLOCKS[:10])
    assert list(read_chain(tmp_path)) == BLOCKS[:10]


def test_what_a_killed_task_leaves_is_no_block_and_goes(tmp_path: Path) -> None:
    target = target_of(tmp_path, "plain")
    write(replace(target, parts=".others"), BLOCKS[:1])
    (tmp_path / ".parts").mkdir()
    (tmp_path / ".parts" / "1.blk").write_bytes(BLOCKS[1].to_bytes()[:99])
    assert list(read_chain(tmp_path)) == BLOCKS[:1]
    target.clear()
    assert list(files_in(tmp_path)) == ["0.blk.gz"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BlockFileError) as caught:
        write(target_of(tmp_path / "file", "plain"), BLOCKS[:1])
    assert str(caught.value) == f"{tmp_path}/file/0.blk.gz: Not a directory"
    (tmp_path / "0.blk.gz").mkdir()
    with pytest.raises(BlockFileError, match=r"0\.blk\.gz: "):
        write(target_of(tmp_path, "plain"), BLOCKS[:1])


def test_files_are_flushed_before_they_have_their_name_and_names_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    rename, fsync = Path.replace, os.fsync

    def renamed(self: Path, target: str) -> Path:
        done.append(f"name {Path(target).relative_to(tmp_path)}")
        return rename(self, target)

    def flushed(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)
        done.append(f"flush {path.parent if path.parts[:1] == ('.parts',) else path}")
        fsync(descriptor)

    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(os, "fsync", flushed)
    write(target_of(tmp_path, "bucket"), BLOCKS[:2])
    folders = ["flush .", "flush 0000", "flush 0000/0000", "flush 0000/0000/0000"]
    folders.append("flush 0000/0000/0000/0000")
    names = [f"name 0000/0000/0000/0000/00{number}.blk.zstd" for number in range(2)]
    assert done == ["flush .parts", names[0], "flush .parts", names[1], *folders]
