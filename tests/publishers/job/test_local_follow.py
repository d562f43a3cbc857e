"""Chains that grow: what a follower reads, what it waits for, and how often it looks."""

from __future__ import annotations

import os
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.addresses import Address
from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_layouts import member_name, path_in
from sluice.publishers.blocks.block_places import FILE_WRITE_SECONDS_MAX, BlockPlace
from sluice.publishers.errors import BlockFileError, BlockListError
from sluice.publishers.job import local_follow
from sluice.publishers.job.local_follow import (
    PLACES_MAX,
    ChainFollower,
    GrowingChain,
    GrowingFiles,
    GrowingNode,
    GrowingStream,
)
from sluice.publishers.number_range import NumberRange
from sluice.publishers.sources.block_gateways import BlockGateways
from sluice.publishers.sources.entry_server import EntryServers
from sluice.publishers.spark.folders import BlockFolders
from tests.nodes import make_blocks

BLOCKS = make_blocks(12)


class Looks:
    """The files of some folders, looked at under a clock of our own; it counts the listings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *paths: object, places_max: int = PLACES_MAX) -> None:
        self.now = 0.0
        self.listings = 0
        self.following: int | None = None
        folders = BlockFolders([str(path) for path in paths])
        blocks = BlockFolders.blocks

        def listed(folders: BlockFolders, *values: NumberRange, **named: object) -> list[BlockPlace]:
            self.listings += 1
            return blocks(folders, *values, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockFolders, "blocks", listed)
        self.files = GrowingFiles(folders, lambda: self.now, places_max)

    def look(self, end: int | None = None) -> list[int]:
        """Return the numbers of the blocks that a look finds."""
        self.now += self.files.pause_seconds
        found = [block.number for block in self.files.read(self.following, end)]
        if found:
            self.following = found[-1] + 1
        return found


def put(folder: Path, *numbers: int, age_seconds: float = 60) -> None:
    """Put block files into a folder, which was last changed some time ago."""
    for number in numbers:
        write_block_file(folder / f"{number}.blk", BLOCKS[number])
        age(folder / f"{number}.blk", age_seconds)
    age(folder, age_seconds)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_blocks_come_in_order_and_a_gap_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch, tmp_path)
    assert (looks.look(), looks.files.why) == ([], None)
    put(tmp_path, 3, 4, 7, age_seconds=0)
    assert looks.look() == [3, 4]
    assert looks.files.why == f"blocks 5 to 6 are missing (before {tmp_path}/7.blk)"
    put(tmp_path, 6, age_seconds=0)
    assert looks.look() == []
    assert looks.files.why == f"block 5 is missing (before {tmp_path}/6.blk)"
    put(tmp_path, 5, 8, age_seconds=0)
    assert looks.look(end=8) == [5, 6, 7]
    assert looks.look(end=8) == []
    assert looks.look() == [8]
    assert looks.files.where == f"{tmp_path}/8.blk"


def test_a_quiet_folder_is_listed_once_and_the_next_file_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0, 1)
    looks = Looks(monkeypatch, tmp_path)
    assert looks.look() == [0, 1]
    for number in range(2, 10):
        assert looks.look() == []
        put(tmp_path, number)
        assert looks.look() == [number]
    assert looks.listings == 1
    put(tmp_path, 11)  # no look for block 10 finds that
    looks.now += local_follow.GUESS_SECONDS
    assert looks.look() == []
    assert looks.listings == 2
    for _ in range(20):
        looks.look()
    assert looks.listings == 2


def test_a_change_that_the_times_do_not_show_is_seen_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0)
    looks = Looks(monkeypatch, tmp_path)
    assert looks.look() == [0]
    write_block_file(tmp_path / "0001.blk", BLOCKS[1])  # not the name that follows from 0.blk
    age(tmp_path, 60)
    looks = Looks(monkeypatch, tmp_path)
    looks.following = 2
    assert looks.look() == []
    before = (tmp_path.stat().st_atime_ns, tmp_path.stat().st_mtime_ns)
    write_block_file(tmp_path / "0002.blk", BLOCKS[2])
    os.utime(tmp_path, ns=before)
    assert looks.look() == []
    looks.now += local_follow.LIST_SECONDS_MAX
    assert looks.look() == [2]


def test_a_folder_that_takes_long_to_list_is_listed_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a million files, which change all the time behind a gap."""
    put(tmp_path, 0)
    looks = Looks(monkeypatch, tmp_path)
    listed = BlockFolders.blocks

    def slow(folders: BlockFolders, *values: NumberRange, **named: object) -> list[BlockPlace]:
        looks.now += 2.0
        return listed(folders, *values, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockFolders, "blocks", slow)
    assert looks.look() == [0]
    for _ in range(1000):
        put(tmp_path, 5, age_seconds=0)
        assert looks.look() == []
    share = 2.0 * looks.listings / looks.now
    assert share <= 1.5 / local_follow.LIST_SHARE
    assert looks.listings > 1


def test_what_is_known_of_later_blocks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "0.zip", "w") as archive:  # no name follows from another
        for block in BLOCKS[:11]:
            archive.writestr(member_name(block.number, ".blk"), block.to_bytes())
    age(tmp_path / "0.zip", 60)
    age(tmp_path, 60)
    looks = Looks(monkeypatch, tmp_path, places_max=3)
    assert looks.look() == list(range(11))
    assert looks.listings == 4


@pytest.mark.parametrize("cut", [0, 40, -1], ids=["empty", "a part", "without its last byte"])
def test_a_file_that_is_being_written_is_waited_for_and_one_that_stays_so_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    put(tmp_path, 0, 1)
    whole = BLOCKS[2].to_bytes()
    path = tmp_path / "2.blk"
    path.write_bytes(whole[:cut])
    looks = Looks(monkeypatch, tmp_path)
    assert looks.look() == [0, 1]
    assert looks.files.why == f"{path} is still being written"
    path.write_bytes(whole)
    assert looks.look() == [2]
    path = tmp_path / "3.blk"
    path.write_bytes(BLOCKS[3].to_bytes()[:cut])
    assert looks.look() == []
    age(path, 60)
    with pytest.raises(BlockFileError) as caught:
        looks.look()
    assert caught.value.path == str(path)


def test_a_file_that_is_written_for_ever_is_named_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.blk"
    looks = Looks(monkeypatch, tmp_path)
    path.write_bytes(b"")
    assert looks.look() == []
    looks.now += FILE_WRITE_SECONDS_MAX
    path.write_bytes(b"")
    with pytest.raises(BlockFileError, match=r"0\.blk: empty"):
        looks.look()


def test_a_block_that_moves_into_an_archive_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0, 1, 2)
    looks = Looks(monkeypatch, tmp_path)
    blocks = looks.files.read(None, None)
    assert next(blocks) == BLOCKS[0]
    with zipfile.ZipFile(tmp_path / "0.zip", "w") as archive:
        for block in BLOCKS[:4]:
            archive.writestr(member_name(block.number, ".blk"), block.to_bytes())
    for number in range(3):
        (tmp_path / f"{number}.blk").unlink()
    assert [block.number for block in blocks] == [1, 2, 3]
    looks.following = 4
    (tmp_path / "4.blk").symlink_to(tmp_path / "nothing")
    with pytest.raises(BlockFileError, match=r"4\.blk: No such file or directory"):
        looks.look()


def test_blocks_in_folders_of_a_block_node_are_followed_from_one_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = {number: BLOCKS[number % 12] for number in range(12)}

    def write(number: int) -> None:
        path = tmp_path / path_in("recent", number, "blk.zstd")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_block_file(path, chain[number])

    looks = Looks(monkeypatch, tmp_path)
    for number in range(12):
        write(number)
        assert looks.look() == [number]
    assert looks.listings <= 2  # the folder has just been made


@pytest.mark.parametrize("is_below", [False, True])
def test_a_folder_that_vanishes_or_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_below: bool
) -> None:
    folder = tmp_path / "chain"
    folder.mkdir()
    put(folder, 0)
    looks = Looks(monkeypatch, folder)
    assert looks.look() == [0]
    if is_below:
        below = folder / "below"
        below.symlink_to(below)  # a folder for nobody
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "elsewhere")
    with pytest.raises(BlockListError) as caught:
        looks.look()
    assert str(caught.value) == f"{folder}: No such file or directory"


def test_only_what_the_sources_name_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, 1, 2)
    looks = Looks(monkeypatch, tmp_path / "0.blk")
    assert looks.look() == [0]
    assert looks.look() == []
    looks = Looks(monkeypatch, tmp_path / "[01].blk")
    assert looks.look() == [0, 1]
    assert looks.look() == []


@pytest.mark.parametrize("kind", ["node", "stream"])
def test_a_server_that_does_not_answer_is_waited_for_and_logged_once(
    caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Both of two, in looks that follow each other."""
    chain: GrowingChain = GrowingNode(BlockGateways(["127.0.0.1:1", "127.0.0.1:2"]))
    if kind == "stream":
        servers = EntryServers([Address("127.0.0.1", 1), Address("127.0.0.1", 2)])
        chain = GrowingStream(servers, lambda number: None)
    for _ in range(3):
        assert list(chain.read(None, None)) == []
        assert "did not come (127.0.0.1:2: " in (chain.why or "")
    assert [record.getMessage()[:12] for record in caplog.records] == ["127.0.0.1:1:", "127.0.0.1:2:"]


class Given:
    """A chain whose looks are given."""

    pause_seconds = 0.001
    where = None

    def __init__(self, looks: list[list[Block]]) -> None:
        self.why: str | None = None
        self.looks = looks
        self.asked: list[int | None] = []

    def read(self, number: int | None, end: int | None) -> Iterator[Block]:
        self.asked.append(number)
        yield from self.looks.pop(0) if self.looks else []


def test_a_follower_begins_once_goes_on_and_ends() -> None:
    begun: list[int] = []
    chain = Given([[], BLOCKS[3:5], [], BLOCKS[5:8]])
    follower = ChainFollower(chain, None, 8, begun.append)
    assert list(follower.blocks()) == BLOCKS[3:8]
    assert (chain.asked, begun) == ([None, None, 5, 5], [3])
    assert list(ChainFollower(Given([]), 8, 8).blocks()) == []


def test_it_says_what_it_waits_for_and_since_when() -> None:
    chain = Given([BLOCKS[:2]])
    follower = ChainFollower(chain, None, None)
    assert follower.awaited is None
    thread = threading.Thread(target=lambda: list(follower.blocks()))
    thread.start()
    while (awaited := follower.awaited) is None:
        time.sleep(0.001)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(awaited.since))
    assert str(awaited) == f"waiting for block 2 since {since}"
    chain.why = "block 2 is missing (before 3.blk)"
    while follower.awaited == awaited:
        time.sleep(0.001)
    assert str(follower.awaited) == f"waiting for block 2 since {since}: block 2 is missing (before 3.blk)"
    follower.stop()
    thread.join(10)
    assert not thread.is_alive()
