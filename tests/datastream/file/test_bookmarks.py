"""The bookmark index: locks, overlay, batches, failing databases, and the folder's name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.errors import BookmarksUnavailable, CommitFailed, StreamInUse
from sluice.datastream.file.bookmarks import (
    COVERED_KEY,
    LAST_KEY,
    STREAM_KEY,
    BookmarkIndex,
    Notes,
    bookmarks_folder,
    has_hole,
    open_leveldb,
)
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.file.page_index import PageTable
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.limits import REBUILD_BATCH_BOOKMARKS
from tests.datastream.streams import bookmark, commit, pairs_in, u64
from tests.disks import small_file_system

OPEN_WITH_LEVELDB = """
import sys
from sluice.datastream.file.index_database import plyvel
try:
    plyvel.DB(sys.argv[1], create_if_missing=True)
except plyvel.IOError as error:
    sys.exit(7)
"""
OPEN_WITH_US = """
import sys
from pathlib import Path
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.errors import StreamInUse
try:
    BookmarkIndex(Path(sys.argv[1]))
except StreamInUse as error:
    sys.stdout.write(str(error))
    sys.exit(7)
"""


def run(program: str, argument: Path) -> tuple[int, str]:
    """Run a program in its own process; return its status and output."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(argument)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("datastream.bin", "datastream.db"),
        ("a.b.c", "a.db"),
        ("plain", "plain.db"),
        ("dotted.folder/s.x.bin", "dotted.folder/s.db"),
        (".hidden.bin", ".db"),
    ],
)
def test_folder_name(tmp_path: Path, name: str, folder: str) -> None:
    assert bookmarks_folder(tmp_path / name) == tmp_path / folder


def test_values_are_found_before_and_after_they_are_written(tmp_path: Path) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    assert index.covered is None
    assert index.get(b"a") is None
    index.record({b"a": 1, b"b": 2}, 3)
    index.record({b"a": 3}, 4)
    assert (index.get(b"a"), index.get(b"b"), index.pending_count) == (3, 2, 2)
    index.write_pending()
    assert (index.get(b"a"), index.get(b"b"), index.pending_count) == (3, 2, 0)
    assert [index.covered] == [4]
    assert index.highest_number(10) == 3
    index.close()
    assert pairs_in(tmp_path / "s.db") == {b"a": u64(3), b"b": u64(2)}  # and nothing that Go's dump shows
    assert pairs_in(own_folder(tmp_path / "s.db")) == {COVERED_KEY: u64(4), LAST_KEY: u64(2) + b"b"}


def test_a_batch_says_whose_it_is(tmp_path: Path) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    index.fingerprint_at = lambda count: b"first %d" % count
    index.record({b"a": 1}, 2)
    index.record({b"b": 2}, 3)
    index.write_pending()
    assert (index.fingerprint, index.covered) == (b"first 3", 3)
    index.correct({b"b": None}, 2, 0)
    index.write_pending()
    assert (index.fingerprint, index.covered) == (b"first 2", 2)
    assert index.get(STREAM_KEY[:16]) is None

    def fail(count: int) -> bytes:
        raise OSError("the disk is ill")

    index.fingerprint_at = fail
    index.record({b"c": 4}, 5)
    index.write_pending()
    assert (index.get(b"c"), index.fingerprint, index.covered) == (4, b"first 2", 5)
    index.close()


def test_a_second_opener_in_this_process_is_refused_and_unlocks_nothing(tmp_path: Path) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    for _ in range(2):
        with pytest.raises(StreamInUse) as caught:
            BookmarkIndex(tmp_path / "s.bin")
        lock = tmp_path / "s.db" / "LOCK"
        assert str(caught.value) == (
            f"{tmp_path}/s.bin: the stream is in use by another program or opener (lock {lock}, this process)"
        )
    # The refused opener closed no descriptor of LOCK, which would have dropped the first one's fcntl lock.
    assert run(OPEN_WITH_LEVELDB, tmp_path / "s.db")[0] == 7
    index.close()
    assert run(OPEN_WITH_LEVELDB, tmp_path / "s.db")[0] == 0


def test_a_second_opener_in_another_process_is_refused(tmp_path: Path) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    status, output = run(OPEN_WITH_US, tmp_path / "s.bin")
    assert status == 7
    assert (
        f"in use by another program or opener (lock {tmp_path}/s.db/LOCK, process {os.getpid()} (" in output
    )
    index.close()
    assert run(OPEN_WITH_US, tmp_path / "s.bin")[0] == 0


@pytest.mark.parametrize("after", ["open", "recover", "wipe"])
def test_both_locks_are_held(tmp_path: Path, after: str) -> None:
    """The Go server takes `flock`, LevelDB's library `fcntl`."""
    index = BookmarkIndex(tmp_path / "s.bin")
    if after == "recover":
        index.recover()
    elif after == "wipe":
        index.wipe()
    assert run(OPEN_WITH_LEVELDB, tmp_path / "s.db")[0] == 7
    go = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert run(go, tmp_path / "s.db" / "LOCK")[0] == 1
    index.close()


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf])
def test_what_another_program_locked_is_not_opened(tmp_path: Path, lock: Callable[..., None]) -> None:
    (tmp_path / "s.db").mkdir()
    program = (
        "import fcntl, sys; held = open(sys.argv[1], 'w');"
        f"fcntl.{lock.__name__}(held, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "s.db" / "LOCK")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StreamInUse):
        BookmarkIndex(tmp_path / "s.bin")
    holder.communicate(timeout=60)
    BookmarkIndex(tmp_path / "s.bin").close()


def test_a_damaged_database_is_made_anew(tmp_path: Path) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    index.record({b"a": 1}, 2)
    index.write_pending()
    index.close()
    current = tmp_path / "s.db" / "CURRENT"
    current.write_bytes(b"nonsense")
    index = BookmarkIndex(tmp_path / "s.bin")
    assert index.covered is None
    assert index.get(b"a") is None
    index.record({b"a": 1}, 2)
    index.write_pending()
    index.close()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("a file")
    with pytest.raises(BookmarksUnavailable, match=r"s\.db: bookmark DB: "):
        BookmarkIndex(tmp_path / "s.bin")


def test_wipe(tmp_path: Path) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    table = PageTable(0, 1, 20, array("I", [0]))
    index.record({b"a": 1}, 2)
    index.write_pending()
    index.put_table(0, table)
    index.wipe()
    assert (index.get(b"a"), index.covered, index.highest_number(9)) == (None, None, None)
    assert index.get_table(0) == table
    index.close()
    with pytest.raises(BookmarksUnavailable, match="the bookmark DB is closed"):
        index.get(b"a")
    index.close()


def _refuse_if(fails: bool) -> None:
    if fails:
        raise plyvel.IOError("no room")


class FailingBatch:
    def __init__(self, below: Any, state: dict[str, bool]) -> None:
        self._below = below
        self._state = state

    def write(self) -> None:
        _refuse_if(self._state["write_fails"])
        self._below.write()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class FailingDatabase:
    """A LevelDB whose batches fail on demand."""

    def __init__(self, folder: str, state: dict[str, bool]) -> None:
        if state["open_fails"]:
            raise plyvel.IOError("no room")
        self._below = plyvel.DB(folder, create_if_missing=True)
        self._state = state

    def write_batch(self, **options: bool) -> Any:
        return FailingBatch(self._below.write_batch(**options), self._state)

    def put(self, key: bytes, value: bytes, **options: bool) -> None:
        _refuse_if(self._state["write_fails"])
        self._below.put(key, value, **options)

    def delete(self, key: bytes, **options: bool) -> None:
        _refuse_if(self._state["write_fails"])
        self._below.delete(key, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def test_a_failing_database(tmp_path: Path) -> None:
    state = {"open_fails": False, "write_fails": True}
    index = BookmarkIndex(tmp_path / "s.bin", lambda folder: FailingDatabase(folder, state))
    index.record({b"a": 1}, 2)
    with pytest.raises(BookmarksUnavailable) as caught:
        index.write_pending()
    assert str(caught.value) == f"{tmp_path}/s.db: bookmark DB: no room"
    assert index.failed
    assert index.get(b"a") == 1
    state["open_fails"] = True
    with pytest.raises(BookmarksUnavailable):
        index.recover()
    assert index.failed
    assert index.get(b"a") == 1
    state.update(open_fails=False, write_fails=False)
    index.recover()
    assert not index.failed
    assert (index.get(b"a"), index.covered, index.pending_count) == (1, 2, 0)
    index.close()


def lose_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def lose_database(folder: Path) -> None:
    """Delete all files but LOCK."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "LOCK":
            path.unlink()


@pytest.mark.parametrize("lose", [lose_folder, lose_database])
def test_a_folder_that_is_lost_under_a_server_is_made_anew_by_the_next_opening(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """An empty index that claimed to cover everything would lose older bookmarks for good."""
    path, folder = tmp_path / "s.bin", tmp_path / "s.db"
    state = {"open_fails": False, "write_fails": False}
    streamer = DataStreamer.open(
        path, open_database=lambda folder: FailingDatabase(folder, state), initial_pages=1
    )
    commit(streamer, (0xB0, b"a"), (1, b"x"), flush=True)
    lose(folder)
    state["write_fails"] = True
    commit(streamer, (0xB0, b"b"), (1, b"y"), flush=True)
    state["write_fails"] = False
    for _ in range(2):
        with pytest.raises(CommitFailed, match=r"LOCK is gone|it covers 0 entries, expected at least 2"):
            commit(streamer, (0xB0, b"c"), (1, b"z"), flush=True)
    assert streamer.get_bookmark(b"b") == 2  # no pending one is lost
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert [streamer.get_bookmark(name) for name in (b"a", b"b")] == [0, 2]
        assert commit(streamer, (0xB0, b"c")) == [4]


def test_a_folder_that_is_lost_is_noticed_with_the_next_batch(tmp_path: Path) -> None:
    """LevelDB writes to deleted files without an error, and another opener may have the stream."""
    with DataStreamer.open(tmp_path / "s.bin", initial_pages=1) as streamer:
        commit(streamer, (0xB0, b"a"), (1, b"x"), flush=True)
        (tmp_path / "s.db").rename(tmp_path / "away")
        commit(streamer, (0xB0, b"b"), (1, b"y"), flush=True)
        with pytest.raises(CommitFailed, match=r"commit failed at step 0a repair: .*LOCK is gone"):
            commit(streamer, (0xB0, b"c"), (1, b"z"), flush=True)
        with pytest.raises(CommitFailed, match="LOCK is gone"):
            streamer.update_entry_data(1, 1, b"y")
        assert [streamer.get_bookmark(name) for name in (b"a", b"b")] == [0, 2]
        assert not (tmp_path / "s.db").exists()
        (tmp_path / "away").rename(tmp_path / "s.db")
        commit(streamer, (0xB0, b"c"), (1, b"z"), flush=True)
        assert [streamer.get_bookmark(name) for name in (b"a", b"b", b"c")] == [0, 2, 4]


def test_the_lock_file_of_a_failed_opening_is_free(tmp_path: Path) -> None:
    state = {"open_fails": True, "write_fails": False}
    with pytest.raises(BookmarksUnavailable):
        BookmarkIndex(tmp_path / "s.bin", lambda folder: FailingDatabase(folder, state))
    BookmarkIndex(tmp_path / "s.bin").close()
    assert list(tmp_path.iterdir()) == [tmp_path / "s.db"]


def test_a_database_that_cannot_be_opened_again_refuses_a_batch(tmp_path: Path) -> None:
    """With an error that callers expect, no TypeError."""
    state = {"open_fails": False, "write_fails": True}
    index = BookmarkIndex(tmp_path / "s.bin", lambda folder: FailingDatabase(folder, state))
    index.record({b"a": 1}, 2)
    with pytest.raises(BookmarksUnavailable):
        index.write_pending()
    state["open_fails"] = True
    with pytest.raises(BookmarksUnavailable):
        index.recover()
    with pytest.raises(BookmarksUnavailable) as caught:
        index.write_pending()
    assert str(caught.value) == f"{tmp_path}/s.db: bookmark DB: the bookmark DB is closed"
    assert index.get(b"a") == 1
    index.close()


def test_a_rebuilt_index_is_written_in_batches(tmp_path: Path) -> None:
    """Two pages fill a batch; then one bookmark is missing."""
    index = BookmarkIndex(tmp_path / "s.bin")
    waiting: list[int] = []

    def pages() -> Iterator[tuple[list[tuple[bytes, int]], int]]:
        first = 0
        for count in (REBUILD_BATCH_BOOKMARKS - 1, 1, REBUILD_BATCH_BOOKMARKS - 1, 0):
            waiting.append(index.pending_count)
            yield (
                [(number.to_bytes(4, "big"), number) for number in range(first, first + count)],
                first + count,
            )
            first += count

    index.rebuild(pages())
    assert waiting == [0, REBUILD_BATCH_BOOKMARKS - 1, 0, REBUILD_BATCH_BOOKMARKS - 1]
    assert (index.pending_count, index.covered) == (0, 2 * REBUILD_BATCH_BOOKMARKS - 1)
    index.close()


class WatchedDatabase:
    """A LevelDB that records which batches are flushed; Ctrl-C may prevent its next write."""

    def __init__(self, folder: str, sync: list[bool], interrupted: list[bool]) -> None:
        self._below = plyvel.DB(folder, create_if_missing=True)
        self._sync = sync
        self._interrupted = interrupted

    def write_batch(self, *, sync: bool) -> Any:
        self._sync.append(sync)
        if self._interrupted:
            self._interrupted.clear()
            return InterruptedBatch(self._below.write_batch(sync=sync))
        return self._below.write_batch(sync=sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class InterruptedBatch:
    def __init__(self, below: Any) -> None:
        self._below = below

    def write(self) -> None:
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def test_a_correction_is_flushed_behind_a_batch_that_was_not(tmp_path: Path) -> None:
    """A truncation while the other thread writes a batch of unflushed commits."""
    sync: list[bool] = []
    index = BookmarkIndex(tmp_path / "s.bin", lambda folder: WatchedDatabase(folder, sync, []))
    index.record({b"a": 1, b"b": 7}, 8)
    index.write_pending_behind()
    index.correct({b"b": None}, 2, 0)
    index.write_pending()
    index.record({b"c": 3}, 4)
    index.write_pending()
    # Bookmarks and our keys each time; the correction first flushes what the first left.
    assert sync == [False, False, True, True, True, False, False]
    index.close()


def test_an_interrupted_batch_is_written_with_the_next(tmp_path: Path) -> None:
    interrupted: list[bool] = []
    index = BookmarkIndex(tmp_path / "s.bin", lambda folder: WatchedDatabase(folder, [], interrupted))
    index.record({b"a": 1}, 2)
    interrupted.append(True)
    with pytest.raises(KeyboardInterrupt):
        index.write_pending()
    assert index.get(b"a") == 1
    index.record({b"b": 2}, 3)
    index.write_pending()
    index.close()
    index = BookmarkIndex(tmp_path / "s.bin")
    assert (index.get(b"a"), index.get(b"b"), index.covered) == (1, 2, 3)
    index.close()


def test_a_copy_that_cannot_be_made_keeps_no_writer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.bin"
    BookmarkIndex(path).close()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
        with pytest.raises(BookmarksUnavailable, match=r"s\.db: bookmark DB: No such file or directory$"):
            BookmarkIndex(path, read_only=True)
    BookmarkIndex(path).close()


def refuse_threads(error: BaseException) -> Callable[[object], None]:
    def start(_: object) -> None:
        raise error

    return start


@pytest.mark.parametrize("write_fails", [False, True])
def test_where_no_thread_is_to_be_had_a_batch_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_fails: bool
) -> None:
    """Waiting for a thread that never started would fail every commit, and closing."""
    state = {"open_fails": False, "write_fails": write_fails}
    index = BookmarkIndex(tmp_path / "s.bin", lambda folder: FailingDatabase(folder, state))
    index.record({b"a": 1}, 2)
    monkeypatch.setattr("threading.Thread.start", refuse_threads(RuntimeError("can't start new thread")))
    if write_fails:
        with pytest.raises(BookmarksUnavailable, match="no room"):
            index.write_pending_behind()
    else:
        index.write_pending_behind()
    assert (index.get(b"a"), index.failed, index.covered) == (1, write_fails, None if write_fails else 2)
    assert index.pending_count == write_fails
    state["write_fails"] = False
    index.record({b"b": 2}, 3)
    index.write_pending()
    index.close()
    index = BookmarkIndex(tmp_path / "s.bin")
    assert (index.get(b"a"), index.get(b"b"), index.covered) == (1, 2, 3)
    index.close()


@pytest.mark.parametrize("then", ["write", "close"])
def test_a_thread_that_was_interrupted_before_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    index = BookmarkIndex(tmp_path / "s.bin")
    index.record({b"a": 1}, 2)
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse_threads(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            index.write_pending_behind()
    assert index.get(b"a") == 1
    if then == "write":
        index.record({b"b": 2}, 3)
        index.write_pending_behind()
    index.close()
    index = BookmarkIndex(tmp_path / "s.bin")
    assert (index.get(b"a"), index.covered) == ((1, 3) if then == "write" else (None, None))
    index.close()


def test_a_database_that_cannot_be_closed_lets_go_of_the_folder(tmp_path: Path) -> None:
    """The locks are free, and closing raises the error."""
    index = BookmarkIndex(tmp_path / "s.bin")
    database = index._database

    class Stuck:
        def close(self) -> None:
            database.close()
            raise RuntimeError("stuck")

    index._database = Stuck()
    with pytest.raises(RuntimeError, match="stuck"):
        index.close()
    BookmarkIndex(tmp_path / "s.bin").close()


# --- notes beside bookmarks -----------------------------------------------------------------------------


class Database:
    """A DB that takes batches, and refuses reads on demand."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {b"old": b"1"}
        self.refuses = False

    def read(self, key: bytes) -> bytes | None:
        if self.refuses:
            raise BookmarksUnavailable("db", "refused")
        return self.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        self.values.pop(key, None)


def test_a_note_is_found_before_during_and_after_its_batch() -> None:
    database = Database()
    notes, batch = Notes(database.read), Database()
    assert notes.get(b"a") is None
    notes.put(b"a", b"2")
    notes.put(b"old", None)
    assert (notes.get(b"a"), notes.get(b"old"), notes.has_pending) == (b"2", None, True)
    notes.add_to(batch)
    assert (notes.get(b"a"), notes.get(b"old"), notes.has_pending, notes.is_writing) == (
        b"2",
        None,
        False,
        True,
    )
    assert batch.values == {b"a": b"2"}
    notes.written()
    assert (notes.get(b"a"), notes.get(b"old"), notes.is_writing) == (None, b"1", False)  # as the DB has it


def test_a_batch_that_was_refused_waits_again_behind_what_came_since() -> None:
    notes = Notes(Database().read)
    notes.put_all({b"a": b"1", b"b": b"1"})
    notes.add_to(Database())
    notes.put(b"b", b"2")
    notes.roll_back()
    batch = Database()
    notes.add_to(batch)
    assert batch.values == {b"old": b"1", b"a": b"1", b"b": b"2"}


def test_dropped_are_those_behind_a_key_wherever_they_are() -> None:
    notes, batch = Notes(Database().read), Database()
    notes.put_all({b"p1": b"1", b"p2": b"1", b"q9": b"1"})
    notes.add_to(Database())
    notes.put(b"p3", b"1")
    notes.drop(b"p", b"p2", [b"p4"])
    notes.written()
    batch.values = {b"p2": b"1", b"p4": b"1"}
    notes.add_to(batch)
    assert batch.values == {}


def test_a_db_that_cannot_be_read_has_no_notes() -> None:
    database = Database()
    database.refuses = True
    assert Notes(database.read).get(b"old") is None


# --- holes in LevelDB's log -----------------------------------------------------------------------------


LOG_BLOCK = 32_768
LOG_HEAD = 7
BATCH_HEAD = 12


def batch_of(size: int, key: bytes) -> dict[bytes, bytes]:
    """A pair whose batch takes so many bytes of a log, head included."""
    # tag, key length, value length of three bytes
    value_size = size - LOG_HEAD - BATCH_HEAD - 1 - 1 - len(key) - 3
    return {key: b"v" * value_size}


def log_of(folder: Path, *sizes: int) -> Path:
    """Make a DB whose log has records of these sizes; return the log."""
    database = plyvel.DB(str(folder), create_if_missing=True)
    for number, size in enumerate(sizes):
        with database.write_batch() as batch:
            for key, value in batch_of(size, b"key %d" % number).items():
                batch.put(key, value)
    database.close()
    (log,) = folder.glob("*.log")
    return log


def punch(log: Path, start: int, end: int) -> None:
    with log.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def keys_of(folder: Path, *, paranoid: bool = True) -> list[bytes]:
    database = plyvel.DB(str(folder), paranoid_checks=paranoid)
    with database.iterator(include_value=False) as keys:
        found = list(keys)
    database.close()
    return found


def test_leveldb_passes_over_a_hole_that_cuts_no_record(tmp_path: Path) -> None:
    """The reason for `has_hole`."""
    folder = tmp_path / "s.db"
    log = log_of(folder, LOG_BLOCK, 20_000, LOG_BLOCK - 20_000, 20_000)
    punch(log, LOG_BLOCK, LOG_BLOCK + 4_096)
    assert has_hole(log.read_bytes())
    with pytest.raises(plyvel.CorruptionError, match=r"\.log has a hole"):
        open_leveldb(str(folder))
    assert keys_of(folder) == [b"key 0", b"key 3"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 0, False),
        (0, 4_096, True),
        (LOG_BLOCK, LOG_BLOCK + 7, True),
        (LOG_BLOCK + 20_000, LOG_BLOCK + 20_007, True),
        (12_288, 16_384, False),  # cuts a record: LevelDB notices
        (
            2 * LOG_BLOCK,
            3 * LOG_BLOCK,
            False,
        ),  # up to the end: the last batches are missing
        (LOG_BLOCK, 3 * LOG_BLOCK, False),
    ],
)
def test_holes(tmp_path: Path, start: int, end: int, expected: bool) -> None:
    log = log_of(tmp_path / "s.db", LOG_BLOCK, 20_000, LOG_BLOCK - 20_000, 20_000)
    size = log.stat().st_size
    punch(log, start, min(end, size))
    assert has_hole(log.read_bytes()) is expected


def test_records_of_all_sizes_have_no_hole(tmp_path: Path) -> None:
    """Also blocks that end with no room for a head, and records across blocks."""
    sizes = [LOG_BLOCK - 6, 300, LOG_BLOCK - 307, 1, *range(200, 400, 7), 3 * LOG_BLOCK, 500, LOG_BLOCK - 7]
    log = log_of(tmp_path / "s.db", *(max(size, 300) for size in sizes))
    assert not has_hole(log.read_bytes())
    assert not has_hole(b"")
    assert not has_hole(bytes(100_000))


def test_an_index_with_a_hole_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, initial_pages=1) as streamer:
        for number in range(3_000):
            commit(streamer, bookmark(number), (1, b"x"))
        streamer._bookmarks.write_pending()
        commit(streamer, bookmark(3_000), flush=True)
        end = streamer.committed.total_entries
    (log,) = path.with_name("s.db").glob("*.log")
    content = log.read_bytes()
    first_size = LOG_HEAD + int.from_bytes(content[4:6], "little")
    punch(log, 0, min(first_size, LOG_BLOCK))
    assert has_hole(log.read_bytes())
    with DataStreamer.open(path) as streamer:
        found = [streamer.get_bookmark(bookmark(number)[1]) for number in range(3_001)]
        assert found == list(range(0, end, 2))


def test_a_note_behind_one_that_a_full_disk_cut_is_not_lost(tmp_path: Path) -> None:
    """LevelDB says that it is written, and does not find it in its log afterwards."""
    one, two = b"sluice/of-a-test/1", b"sluice/of-a-test/2"
    with small_file_system(tmp_path / "small", 4 << 20):
        index = BookmarkIndex(tmp_path / "small" / "s.bin")
        filler = tmp_path / "small" / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(BookmarksUnavailable, match="No space left on device"):
            index.put_flushed({one: bytes(9_000)})
        filler.unlink()
        with pytest.raises(BookmarksUnavailable, match="a write failed"):
            index.put_flushed({two: b"2"})
        index.recover()
        index.put_flushed({two: b"2"})
        shutil.copytree(index.folder, tmp_path / "s.db")  # as after a kill
        index.close()
    with contextlib.closing(BookmarkIndex(tmp_path / "s.bin")) as index:
        assert index.stored_notes(b"sluice/of-a-test/") == {two: b"2"}


def test_no_note_follows_a_batch_that_a_thread_could_not_write(tmp_path: Path) -> None:
    state = {"open_fails": False, "write_fails": True}
    index = BookmarkIndex(tmp_path / "s.bin", lambda folder: FailingDatabase(folder, state))
    index.record({b"a": 1}, 2)
    index.write_pending_behind()
    assert index._writer is not None
    index._writer.join()
    state["write_fails"] = False
    with pytest.raises(BookmarksUnavailable, match="a write failed"):
        index.put_flushed({b"sluice/of-a-test/1": b"1"})
    index.recover()
    index.put_flushed({b"sluice/of-a-test/1": b"1"})
    assert (index.covered, index.get(b"a")) == (2, 1)
    index.close()
