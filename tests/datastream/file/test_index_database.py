"""The two DBs of a bookmark folder: killed between writes, short of batches, of earlier versions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.bookmarks import COVERED_KEY, SUM_KEY, TABLE_KEY, UPDATE_KEY
from sluice.datastream.file.index_database import open_leveldb, own_folder, plyvel
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import Entry
from tests.datastream.streams import Item, bookmark, commit, make_old, pairs_in, stored_in, u64

TWICE: Item = (0xB0, b"twice")


class Watched:
    """A LevelDB that calls a function before each write."""

    def __init__(self, below: Any, before: Callable[[], None]) -> None:
        self._below = below
        self._before = before

    def write_batch(self, **options: bool) -> Any:
        return Watched(self._below.write_batch(**options), self._before)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._below, name)
        is_batch = hasattr(self._below, "write")
        if name in (("write",) if is_batch else ("put", "delete")):
            self._before()
        return found


class Killed:
    """Copies of a stream's folder, one before each write of its index: what a kill leaves there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.copies: list[Path] = []

    def open(self, folder: str) -> Any:
        return Watched(open_leveldb(folder), self._copy)

    def _copy(self) -> None:
        copy = self._folder.with_name(f"killed-{len(self.copies)}")
        shutil.copytree(self._folder, copy)
        self.copies.append(copy)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder / "s.bin"


def check(path: Path, where: object) -> list[Entry]:
    """Check that a stream answers every bookmark, and its folder holds no key that Go's dump would show."""
    with DataStreamer.open(path) as streamer:
        found = list(streamer.read_entries(0))
        newest = {entry.data: entry.number for entry in found if entry.is_bookmark}
        for data, number in newest.items():
            assert streamer.get_bookmark(data) == number, (where, data)
        assert dict(streamer._bookmarks.items()) == newest, where
    folder = path.with_name("s.db")
    assert pairs_in(folder) == {data: u64(number) for data, number in newest.items()}, where
    assert pairs_in(own_folder(folder))[COVERED_KEY] == u64(len(found)), where
    return found


def work(streamer: DataStreamer) -> None:
    """Commit, update and truncate."""
    for number in range(3):
        commit(streamer, bookmark(number), TWICE, (1, b"x" * 400_000), flush=True)
    commit(streamer, (1, b"no bookmark"), flush=True)
    streamer.update_entry_data(1, 0xB0, b"Twice")
    streamer.truncate_file(7)  # the newest TWICE goes
    streamer.truncate_file(6)
    commit(streamer, bookmark(9), flush=True)
    streamer.truncate_file(0)
    commit(streamer, bookmark(10), (1, b"y"), flush=True)


def test_killed_before_any_write_of_the_index(path: Path) -> None:
    killed = Killed(path.parent)
    with DataStreamer.open(path, open_database=killed.open, initial_pages=2) as streamer:
        work(streamer)
    assert len(killed.copies) > 25
    for copy in killed.copies:
        check(copy / path.name, copy.name)


@pytest.mark.parametrize("keeps", ["count", "fewer"])
def test_either_db_has_lost_its_newest_batches(path: Path, keeps: str) -> None:
    """A power failure takes the newest unflushed writes, more of one log than of the other."""
    folder = path.with_name("s.db")
    states: list[Path] = []
    with DataStreamer.open(path, initial_pages=4) as streamer:
        for number in range(5):
            commit(streamer, (1, b"x" * 700_000), TWICE, bookmark(number), (1, b"y"), flush=True)
            if number % 2:
                commit(streamer, (1, b"no bookmark"), flush=True)
            states.append(path.parent.with_name(f"state-{number}"))
            shutil.copytree(folder, states[-1])
    newest, older = states[-1], states[:-1]
    for state in older:
        shutil.rmtree(folder)
        shutil.copytree(state if keeps == "count" else newest, folder)
        shutil.rmtree(own_folder(folder))
        shutil.copytree(own_folder(newest if keeps == "count" else state), own_folder(folder))
        check(path, state.name)


def test_a_full_disk_that_takes_our_keys_and_no_bookmarks(path: Path) -> None:
    """A count above its bookmarks would refuse every commit before the stream is reopened."""
    is_full = False

    def refuse() -> None:
        if is_full:
            raise plyvel.IOError("no room")

    def open_database(folder: str) -> Any:
        return open_leveldb(folder) if folder.endswith("sluice") else Watched(open_leveldb(folder), refuse)

    with DataStreamer.open(path, open_database=open_database, initial_pages=1) as streamer:
        commit(streamer, bookmark(1), (1, b"x"), flush=True)
        is_full = True
        commit(streamer, bookmark(2), (1, b"y"), flush=True)
        for _ in range(2):
            with pytest.raises(CommitFailed, match="no room"):
                commit(streamer, bookmark(3), flush=True)
        is_full = False
        commit(streamer, bookmark(3), flush=True)
    assert len(check(path, "with room")) == 5


def test_bookmarks_that_were_deleted_alone_are_missed(path: Path) -> None:
    """`rm s.db/*` leaves the folder of our keys."""
    with DataStreamer.open(path, initial_pages=1) as streamer:
        work(streamer)
        for number in range(20, 23):
            commit(streamer, bookmark(number), (1, b"z"), flush=True)
        streamer.truncate_file(4)  # what the keys name is gone
    for file in path.with_name("s.db").iterdir():
        if file.is_file():
            file.unlink()
    assert len(check(path, "deleted")) == 4


# --- folders of earlier versions ------------------------------------------------------------------------


@pytest.fixture
def old(path: Path) -> dict[bytes, bytes]:
    """Make a folder of an earlier version; return its keys."""
    with DataStreamer.open(path, initial_pages=4) as streamer:
        for number in range(4):
            commit(streamer, bookmark(number), (1, b"x" * 700_000), flush=True)
    make_old(path.with_name("s.db"))
    return pairs_in(path.with_name("s.db"))


def test_a_folder_of_an_earlier_version_is_taken_over(path: Path, old: dict[bytes, bytes]) -> None:
    assert any(key.startswith(SUM_KEY) for key in old)
    check(path, "old")
    stored = stored_in(path.with_name("s.db"))
    assert {key: stored[key] for key in old} == old  # sums and tables too


def test_reading_only_leaves_a_folder_of_an_earlier_version(path: Path, old: dict[bytes, bytes]) -> None:
    with DataStreamer.open(path, read_only=True) as streamer:
        assert streamer.get_bookmark(bookmark(3)[1]) == 6
        assert streamer.sums.state(0).name != "UNSUMMED"
    assert not own_folder(path.with_name("s.db")).exists()
    assert pairs_in(path.with_name("s.db")) == old


def test_a_refused_opening_leaves_the_keys_of_an_earlier_version(path: Path, old: dict[bytes, bytes]) -> None:
    """Otherwise that version would not refuse it any more."""
    with path.open("r+b") as file:
        file.seek(16 + 22)
        file.write(u64(4096) + u64(0))  # the header went back
    with pytest.raises(Exception, match="an index of bookmarks that covers 8 entries"):
        DataStreamer.open(path)
    assert pairs_in(path.with_name("s.db")) == old


def test_killed_while_keys_are_moved(path: Path, old: dict[bytes, bytes]) -> None:
    killed = Killed(path.parent)
    with DataStreamer.open(path, open_database=killed.open):
        pass
    assert len(killed.copies) >= 2
    for copy in killed.copies:
        check(copy / path.name, copy.name)
        stored = stored_in(copy / "s.db")
        assert {key: stored[key] for key in old} == old, copy.name


def test_an_earlier_version_has_written_since(path: Path, old: dict[bytes, bytes]) -> None:
    """What it left in the shared DB counts, and not what it could not see."""
    folder, kept = path.with_name("s.db"), path.with_name("kept")
    check(path, "new")
    with DataStreamer.open(path) as streamer:
        streamer.notes.put(TABLE_KEY + u64(77), b"stale")
    shutil.copytree(own_folder(folder), kept)
    with DataStreamer.open(path) as streamer:
        streamer.truncate_file(4)
        commit(streamer, bookmark(5), (1, b"new"), flush=True)
        streamer.notes.put(TABLE_KEY + u64(77), None)
    make_old(folder)
    kept.rename(own_folder(folder))
    assert [entry.data for entry in check(path, "since") if entry.is_bookmark][-1] == bookmark(5)[1]
    assert TABLE_KEY + u64(77) not in stored_in(folder)


def test_a_disk_that_takes_no_keys_serves_an_earlier_version_s_folder(
    path: Path, old: dict[bytes, bytes]
) -> None:
    def refuse() -> None:
        raise plyvel.IOError("no room")

    def open_database(folder: str) -> Any:
        return Watched(open_leveldb(folder), refuse)

    with DataStreamer.open(path, open_database=open_database) as streamer:
        assert streamer.get_bookmark(bookmark(3)[1]) == 6
    assert pairs_in(path.with_name("s.db")) == old
    check(path, "with room")


def test_an_unfinished_update_stays_where_an_earlier_version_finds_it(path: Path) -> None:
    killed = Killed(path.parent)
    with DataStreamer.open(path, open_database=killed.open, initial_pages=1) as streamer:
        commit(streamer, bookmark(1), (1, b"before"), flush=True)
        streamer.update_entry_data(1, 1, b"behind")
    records = [copy for copy in killed.copies if UPDATE_KEY in pairs_in(copy / "s.db")]
    assert records
    for copy in records:
        with DataStreamer.open(copy / path.name) as streamer:
            assert streamer.get_entry(1).data == b"behind"
        assert UPDATE_KEY not in stored_in(copy / "s.db")
