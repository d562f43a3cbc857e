"""Blocks are found wherever the software of the field puts them, and read from there."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers import limits
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_places import (
    ArchiveLists,
    BlockFileReader,
    LocalStore,
    blocks_in,
    check_no_gaps,
    find_blocks,
    read_chain,
)
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions, key_of_seed
from sluice.publishers.errors import BlockFileError, BlockListError
from sluice.publishers.number_range import NumberRange
from tests.publishers import field_files
from tests.publishers.data import needs_real_blocks, real_chain

SMALL = MakerOptions(rounds_per_block=1, events_per_round=1, transactions_per_block=1, item_bytes=300)
BLOCKS = list(BlockMaker(7, key_of_seed(7), SMALL).blocks(10))
OTHER = next(iter(BlockMaker(8, key_of_seed(8), SMALL).blocks(1)))

LAYOUTS: dict[str, Callable[[Path, Sequence[Block]], None]] = {
    "consensus": lambda root, blocks: field_files.in_consensus_folder(root / "block-0.0.3", blocks),
    "recent": field_files.in_recent_folder,
    "historic": lambda root, blocks: field_files.in_zip(root / "000/000/000/000/00/00000.zip", blocks),
    "bucket": field_files.in_bucket,
    "tar": lambda root, blocks: field_files.in_tar(root / "0000/0000/0000/0.tar", blocks),
    "tar.gz": lambda root, blocks: field_files.in_tar(root / "0.tar.gz", blocks, "w:gz"),
}


def refusal(*sources: Path | str, is_growing: bool = False) -> BlockListError:
    with pytest.raises(BlockListError) as caught:
        find_blocks(LocalStore(), [str(source) for source in sources], is_growing=is_growing)
    return caught.value


def numbers(*sources: Path | str, is_growing: bool = False) -> list[int]:
    found = find_blocks(LocalStore(), [str(source) for source in sources], is_growing=is_growing)
    return [place.number for place in found]


def an_old(path: Path) -> None:
    """A file that nobody writes to."""
    os.utime(path, (1, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_one_chain(tmp_path: Path, layout: str) -> None:
    LAYOUTS[layout](tmp_path, BLOCKS)
    assert list(read_chain(tmp_path)) == BLOCKS


@needs_real_blocks
@pytest.mark.parametrize("layout", LAYOUTS)
def test_real_blocks_in_every_layout(tmp_path: Path, layout: str) -> None:
    chain = list(read_chain(real_chain("simulator-chain")))
    LAYOUTS[layout](tmp_path, chain)
    assert list(read_chain(tmp_path)) == chain
    assert len(chain) == 30


def test_layouts_together_are_one_chain(tmp_path: Path) -> None:
    """As in a block node: a zip, blocks staged for the next one, and recent blocks."""
    field_files.in_zip(tmp_path / "historic/000/0.zip", BLOCKS[:4])
    field_files.in_recent_folder(tmp_path / "historic/staging", BLOCKS[3:7])  # one is in the zip already
    field_files.in_recent_folder(tmp_path / "live", BLOCKS[5:])
    shutil.copytree(tmp_path / "historic/000", tmp_path / "historic/links")
    (tmp_path / "historic/corrupted").mkdir()
    (tmp_path / "historic/corrupted/1.zip").write_bytes(b"damaged")
    assert list(read_chain(tmp_path)) == BLOCKS
    assert numbers(tmp_path / "historic/links") == [0, 1, 2, 3]  # named by whoever means it


def test_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("10.blk", "9.blk.gz", "x.blk", "-1.blk", "5.blk.bz2", "notes.txt", ".7.blk.1.part", "8.mf"):
        (tmp_path / name).touch()
    (tmp_path / ".snapshot").mkdir()
    (tmp_path / ".snapshot" / "3.blk").touch()
    assert numbers(tmp_path) == [9, 10]


def test_a_place_says_where_a_block_lies(tmp_path: Path) -> None:
    field_files.in_zip(tmp_path / "0.zip", BLOCKS[:2])
    write_block_file(tmp_path / "2.blk", BLOCKS[2])
    places = blocks_in(tmp_path)
    member = "0000000000000000001.blk.zstd"
    assert [str(place) for place in places[1:]] == [f"{tmp_path}/0.zip!{member}", f"{tmp_path}/2.blk"]
    assert [place.name for place in places[1:]] == [member, "2.blk"]


def test_files_archives_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field_files.in_zip(tmp_path / "a/00/0.zip", BLOCKS[:3])
    field_files.in_tar(tmp_path / "a/01/x.tar", BLOCKS[3:5])
    write_block_file(tmp_path / "5.blk", BLOCKS[5])
    write_block_file(tmp_path / "6.blk", BLOCKS[6])
    assert numbers(tmp_path / "5.blk") == [5]
    assert numbers(tmp_path / "a/00/0.zip", tmp_path / "5.blk") == [0, 1, 2, 5]
    assert numbers(tmp_path / "**/*.zip") == [0, 1, 2]
    assert numbers(tmp_path / "a/*") == [0, 1, 2, 3, 4]
    assert numbers(tmp_path / "[5-9].blk", tmp_path / "a/0?") == [0, 1, 2, 3, 4, 5, 6]
    shutil.copy(tmp_path / "a/00/0.zip", tmp_path / "no-ending")
    assert numbers(tmp_path / "no-ending") == [0, 1, 2]  # by its first bytes
    monkeypatch.chdir(tmp_path)
    assert [place.path for place in find_blocks(LocalStore(), ["*.blk"])] == ["5.blk", "6.blk"]
    (tmp_path / "b[1]").mkdir()
    write_block_file(tmp_path / "b[1]" / "7.blk", BLOCKS[7])
    assert numbers("b[1]") == [7]  # what is there under the name itself


def test_what_is_not_there(tmp_path: Path) -> None:
    assert str(refusal(tmp_path / "none")) == f"{tmp_path}/none: No such file or directory"
    assert str(refusal(tmp_path / "*.zip")) == (
        f"{tmp_path}/*.zip: nothing of this name is there, and no file fits it as a glob"
    )
    assert numbers(tmp_path / "*.zip", is_growing=True) == []
    (tmp_path / "notes.txt").write_text("x")
    assert refusal(tmp_path / "notes.txt").reason.startswith("not an archive: it begins with 78")


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ([], "no block files (N.blk, N.blk.gz, N.blk.zst, alone or in a zip or a tar)"),
        ([3, 5], "block 4 is missing (before 5.blk)"),
        ([3, 4, 9], "blocks 5 to 8 are missing (before 9.blk)"),
    ],
)
def test_gaps_are_named(tmp_path: Path, there: list[int], reason: str) -> None:
    for number in there:
        (tmp_path / f"{number}.blk").touch()
    with pytest.raises(BlockListError) as caught:
        check_no_gaps("chain", blocks_in(tmp_path))
    assert caught.value.reason == reason


def test_only_wanted_numbers_are_looked_at(tmp_path: Path) -> None:
    field_files.in_zip(tmp_path / "0.zip", BLOCKS)
    write_block_file(tmp_path / "0.blk", OTHER)
    assert [place.number for place in blocks_in(tmp_path, NumberRange(2, 5))] == [2, 3, 4]


# --- the same number twice ----------------------------------------------------------------------------------


def test_the_same_block_twice_is_one(tmp_path: Path) -> None:
    write_block_file(tmp_path / "5.blk", BLOCKS[5])
    write_block_file(tmp_path / "005.blk.gz", BLOCKS[5])
    field_files.in_zip(tmp_path / "x.zip", BLOCKS[4:7])
    assert numbers(tmp_path) == [4, 5, 6]
    assert numbers(tmp_path, tmp_path / "5.blk") == [4, 5, 6]


def test_another_block_of_the_same_number_is_refused_naming_both(tmp_path: Path) -> None:
    field_files.in_zip(tmp_path / "x.zip", [OTHER])
    write_block_file(tmp_path / "0.blk", BLOCKS[0])
    member = f"{tmp_path}/x.zip!0000000000000000000.blk.zstd"
    error = refusal(tmp_path)
    assert error.reason == f"block 0 is there twice, and not the same: {tmp_path}/0.blk and {member}"


def test_a_second_place_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_block_file(tmp_path / "0.blk", BLOCKS[0])
    (tmp_path / "00.blk").write_bytes(b"\x0a")
    assert refusal(tmp_path).reason.startswith(
        f"block 0 is there twice: {tmp_path}/0.blk, and {tmp_path}/00.blk: not a block: "
    )
    # A stream takes it for unfinished.
    assert numbers(tmp_path, is_growing=True) == [0]
    an_old(tmp_path / "00.blk")
    assert "not a block" in refusal(tmp_path, is_growing=True).reason


def test_a_second_name_of_one_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "0.blk").write_bytes(b"never read")
    os.link(tmp_path / "0.blk", tmp_path / "00.blk")
    assert numbers(tmp_path) == [0]


def test_blocks_that_were_compared_are_not_compared_again(tmp_path: Path) -> None:
    write_block_file(tmp_path / "0.blk", BLOCKS[0])
    write_block_file(tmp_path / "00.blk", BLOCKS[0])
    for path in tmp_path.iterdir():
        an_old(path)
    assert numbers(tmp_path) == [0]
    (tmp_path / "00.blk").write_bytes(b"x" * (tmp_path / "00.blk").stat().st_size)
    an_old(tmp_path / "00.blk")  # as if it were the file that was compared
    assert numbers(tmp_path) == [0]
    (tmp_path / "00.blk").touch()
    assert "is there twice" in refusal(tmp_path).reason


# --- what is not as it should be ----------------------------------------------------------------------------


def test_a_block_that_a_consensus_node_is_writing_is_not_there_yet(tmp_path: Path) -> None:
    field_files.in_consensus_folder(tmp_path, BLOCKS[:3])
    (tmp_path / f"{2:036}.mf").unlink()
    assert numbers(tmp_path) == [0, 1]


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    (tmp_path / "disk2").mkdir()
    chain = tmp_path / "chain"
    chain.mkdir()
    write_block_file(tmp_path / "disk2/1.blk", BLOCKS[1])
    write_block_file(chain / "0.blk", BLOCKS[0])
    (chain / "more").symlink_to(tmp_path / "disk2")
    (chain / "again").symlink_to(chain)
    (chain / "more/back").symlink_to(chain)
    (chain / "2.blk").symlink_to(tmp_path / "gone")
    places = blocks_in(chain)
    assert [place.number for place in places] == [0, 1, 2]
    with pytest.raises(BlockFileError) as caught, BlockFileReader(LocalStore()) as reader:
        reader.read(places[2])
    assert str(caught.value) == f"{chain}/2.blk: No such file or directory"


def test_a_folder_in_a_block_file_s_place_is_said_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "0.blk").mkdir()
    os.mkfifo(tmp_path / "1.blk")
    reasons = []
    with BlockFileReader(LocalStore()) as reader:
        for place in blocks_in(tmp_path):
            with pytest.raises(BlockFileError) as caught:
                reader.read(place)
            reasons.append(caught.value.reason)
    assert reasons == ["Is a directory", "Not a regular file"]
    os.mkfifo(tmp_path / "x.zip")
    assert str(refusal(tmp_path)) == f"{tmp_path}/x.zip: Not a regular file"


def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    whole = os.scandir

    def denied(path: str) -> object:
        if path.endswith("inner"):
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert str(refusal(tmp_path)) == f"{tmp_path}/inner: Permission denied"


def test_a_folder_that_goes_while_it_is_read_has_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block node removes files that it has put into a zip, and then their folders."""
    field_files.in_recent_folder(tmp_path, BLOCKS[:2])
    whole = os.scandir

    def removing(path: str | int) -> object:
        if path == f"{tmp_path}/000/000":
            shutil.rmtree(tmp_path / "000/000")
        return whole(path)

    monkeypatch.setattr(os, "scandir", removing)
    assert numbers(tmp_path) == []


def test_an_archive_that_is_being_written_has_no_blocks_yet(tmp_path: Path) -> None:
    path = tmp_path / "0.zip"
    field_files.in_zip(path, BLOCKS)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    assert refusal(tmp_path).folder == str(path)
    assert numbers(tmp_path, is_growing=True) == []
    an_old(path)
    assert "still being written" in refusal(tmp_path, is_growing=True).reason
    path.write_bytes(b"")
    assert "it is empty" in refusal(tmp_path).reason
    path.write_bytes(whole)
    assert numbers(tmp_path, is_growing=True) == list(range(10))


def test_names_that_are_no_text_can_be_said(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\xfe \xd0\xb1")
    folder.mkdir()
    (folder / "x.zip").write_bytes(b"none")
    error = refusal(tmp_path)
    assert "not an archive" in error.reason
    assert os.fsencode(error.folder) == os.fsencode(folder) + b"/x.zip"


def test_a_member_with_another_block_or_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("1.blk", BLOCKS[2].to_bytes())
        archive.writestr("3.blk", b"")
        archive.writestr("4.blk", field_files.java_zstd(BLOCKS[4])[:-4])
    reasons = []
    with BlockFileReader(LocalStore()) as reader:
        for place in blocks_in(path):
            with pytest.raises(BlockFileError) as caught:
                reader.read(place)
            reasons.append(str(caught.value))
    assert reasons[0] == f"{path}!1.blk: holds block 2, expected 1 by its name"
    assert reasons[1].startswith(f"{path}!3.blk: empty (0 bytes)")
    assert reasons[2] == f"{path}!4.blk: truncated: the compressed data ends too early"


def test_a_member_is_no_larger_than_a_block_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.blk", b"\x0a" + bytes(limits.BLOCK_FILE_BYTES_MAX + 4 * limits.MIB))
    assert path.stat().st_size < limits.MIB
    (place,) = blocks_in(path)
    with (
        pytest.raises(BlockFileError, match="more than 268435456 bytes"),
        BlockFileReader(LocalStore()) as reader,
    ):
        reader.read(place)


def test_an_archive_that_is_replaced_is_listed_and_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    field_files.in_tar(path, BLOCKS[:3])
    with BlockFileReader(LocalStore()) as reader:
        assert [reader.read(place) for place in blocks_in(path)] == BLOCKS[:3]
        field_files.in_tar(path, BLOCKS[5:])
        os.utime(path, (time.time() + 1,) * 2)
        assert [reader.read(place) for place in blocks_in(path)] == BLOCKS[5:]


def test_lists_are_kept_until_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    whole = LocalStore.open

    def counted(self: LocalStore, path: str) -> object:
        opened.append(Path(path).name)
        return whole(self, path)

    monkeypatch.setattr(LocalStore, "open", counted)
    for name in ("a.zip", "b.zip"):
        field_files.in_zip(tmp_path / name, BLOCKS[:5] if name == "a.zip" else BLOCKS[5:])
    for expected in (["a.zip", "b.zip"], []):
        opened.clear()
        assert numbers(tmp_path) == list(range(10))
        assert opened == expected
    lists, store = ArchiveLists(members_max=9), LocalStore()
    for expected in (["a.zip", "b.zip"], ["a.zip", "b.zip"]):
        opened.clear()
        for path in (tmp_path / "a.zip", tmp_path / "b.zip"):
            assert len(lists.members(store, str(path), store.state(str(path)))) == 5
        assert opened == expected
