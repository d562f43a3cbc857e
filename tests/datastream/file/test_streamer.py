"""The API of the data streamer: operations, queries, reopening, misuse, and other programs' files."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream import errors
from sluice.datastream.errors import BookmarkNotFound, CommitFailed
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import (
    DATA_SIZE_MAX,
    PAGE_SIZE,
    Committed,
    Entry,
    StreamHeader,
    file_size_of,
    page_end,
)
from sluice.datastream.limits import StreamLimits
from tests.datastream.fake_disk import FailingDisk
from tests.datastream.file.test_bookmarks import FailingDatabase
from tests.datastream.streams import add, bookmark, change_database, commit, entries, names, operation, u64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bin"


def reopen(streamer: DataStreamer) -> DataStreamer:
    streamer.close()
    return DataStreamer.open(streamer.path)


def test_a_new_stream(path: Path) -> None:
    with DataStreamer.open(path, stream_type=3, system_id=5, version=2) as streamer:
        assert streamer.header == StreamHeader(2, 5, 3, 4096, 0)
        assert streamer.committed == Committed(4096, 0)
        assert list(streamer.read_entries(0)) == []
    assert path.stat().st_size == file_size_of(100)
    assert path.stat().st_blocks * 512 < PAGE_SIZE  # sparse
    assert names(path.parent) == ["s.bin", "s.db"]
    with DataStreamer.open(path, stream_type=3) as streamer:  # an existing file keeps its facts
        assert streamer.header == StreamHeader(2, 5, 3, 4096, 0)


def test_operations_queries_and_reopening(path: Path) -> None:
    items = [item for number in range(300) for item in operation(number)]
    streamer = DataStreamer.open(path)
    for number in range(300):
        assert commit(streamer, *operation(number)) == list(range(5 * number, 5 * number + 5))
    for _ in range(2):
        assert list(streamer.read_entries(0)) == entries(*items)
        assert list(streamer.read_entries(1490, 1493)) == entries(*items)[1490:1493]
        for number in (0, 1, 63, 64, 65, 700, 1499):
            assert streamer.get_entry(number) == entries(*items)[number]
        assert streamer.get_bookmark(bookmark(7)[1]) == 35
        assert streamer.get_first_event_after_bookmark(bookmark(7)[1]) == Entry(1, 37, b"start 7")
        streamer = reopen(streamer)
    commit(streamer, (9, b"more"))
    assert streamer.get_entry(1500) == Entry(9, 1500, b"more")
    streamer.close()


def test_same_blocks_same_bytes(tmp_path: Path) -> None:
    """Grouping, rollbacks, reopening and failed additions leave no trace in the data pages."""
    plain = DataStreamer.open(tmp_path / "plain.bin", initial_pages=1)
    for number in range(4000):
        commit(plain, *operation(number))
    odd = DataStreamer.open(tmp_path / "odd.bin", initial_pages=3, growth_pages=1)
    for number in range(4000):
        odd.start_atomic_op()
        if number % 7 == 0:
            odd.add_stream_entry(1, b"\xff" * 300_000)
            odd.rollback_atomic_op()
            odd.start_atomic_op()
        add(odd, operation(number))
        odd.seal_atomic_op()
        if number % 5 == 4:
            odd.commit_atomic_op(flush=False)
        if number % 1500 == 1499:
            odd = reopen(odd)
    assert plain.committed == odd.committed
    plain.close()
    odd.close()
    data_end = page_end(0) if plain.committed.total_length < page_end(0) else page_end(1)
    assert (tmp_path / "plain.bin").read_bytes()[4096:data_end] == (tmp_path / "odd.bin").read_bytes()[
        4096:data_end
    ]


def test_rollback(path: Path) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, bookmark(1), (1, b"one"))
    streamer.start_atomic_op()
    add(streamer, (bookmark(2), (1, b"x" * DATA_SIZE_MAX)))
    streamer.rollback_atomic_op()
    assert streamer.committed.total_entries == 2
    with pytest.raises(BookmarkNotFound):
        streamer.get_bookmark(bookmark(2)[1])
    streamer.start_atomic_op()
    add(streamer, (bookmark(3),))
    streamer.seal_atomic_op()
    streamer.start_atomic_op()
    add(streamer, (bookmark(4),))
    streamer.rollback_group()
    streamer.rollback_group()  # nothing there, nothing happens
    assert commit(streamer, bookmark(5), (1, b"two")) == [2, 3]
    streamer = reopen(streamer)
    assert list(streamer.read_entries(0)) == entries(bookmark(1), (1, b"one"), bookmark(5), (1, b"two"))
    streamer.close()


Calls = list[Callable[[DataStreamer], object]]
START: Callable[[DataStreamer], object] = lambda streamer: streamer.start_atomic_op()  # noqa: E731
ADD: Callable[[DataStreamer], object] = lambda streamer: streamer.add_stream_entry(1, b"")  # noqa: E731
MARK: Callable[[DataStreamer], object] = lambda streamer: streamer.add_stream_bookmark(b"b")  # noqa: E731
SEAL: Callable[[DataStreamer], object] = lambda streamer: streamer.seal_atomic_op()  # noqa: E731
COMMIT: Callable[[DataStreamer], object] = lambda streamer: streamer.commit_atomic_op()  # noqa: E731
ROLLBACK: Callable[[DataStreamer], object] = lambda streamer: streamer.rollback_atomic_op()  # noqa: E731
CLOSE: Callable[[DataStreamer], object] = lambda streamer: streamer.close()  # noqa: E731


@pytest.mark.parametrize(
    ("calls", "error", "message"),
    [
        ([START, START], errors.OperationAlreadyOpen, "start_atomic_op: an atomic operation is open already"),
        ([ADD], errors.NoOperationOpen, "add_stream_entry: no atomic operation is open; start one first"),
        ([MARK], errors.NoOperationOpen, "add_stream_bookmark: no atomic operation is open"),
        ([SEAL], errors.NoOperationOpen, "seal_atomic_op: no atomic operation is open"),
        ([COMMIT], errors.NoOperationOpen, "commit_atomic_op: no atomic operation is open"),
        ([ROLLBACK], errors.NoOperationOpen, "rollback_atomic_op: no atomic operation is open"),
        ([START, SEAL, ADD], errors.NoOperationOpen, "add_stream_entry: no atomic operation is open"),
        ([START, SEAL, ROLLBACK], errors.NoOperationOpen, "rollback_atomic_op: no atomic operation is open"),
        ([CLOSE, START], errors.StreamClosed, "start_atomic_op: the stream is closed"),
        ([CLOSE, lambda s: s.get_entry(0)], errors.StreamClosed, "get_entry: the stream is closed"),
        ([CLOSE, lambda s: s.get_bookmark(b"b")], errors.StreamClosed, "get_bookmark: the stream is closed"),
        (
            [lambda s: s.get_bookmark(b"")],
            errors.BookmarkSizeWrong,
            "bookmark: got 0 bytes, expected 1 to 16",
        ),
        ([lambda s: s.get_bookmark(bytes(17))], errors.BookmarkSizeWrong, "bookmark: got 17 bytes"),
        ([lambda s: s.get_entry(2)], errors.EntryNotFound, "entry 2: not found; the stream has 2 entries"),
        ([lambda s: s.get_bookmark(b"no")], errors.BookmarkNotFound, "bookmark 6e6f: not found"),
    ],
)
def test_misuse(path: Path, calls: Calls, error: type[Exception], message: str) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, (1, b"one"), (1, b"two"))
    before = streamer.committed
    for call in calls[:-1]:
        call(streamer)
    with pytest.raises(error) as caught:
        calls[-1](streamer)
    assert str(caught.value).startswith(message)
    assert streamer.committed == before
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries((1, b"one"), (1, b"two"))


def test_calls_during_a_commit_in_another_thread_are_refused(path: Path) -> None:
    streamer = DataStreamer.open(path)
    inside, go_on = threading.Event(), threading.Event()
    fdatasync = streamer._file.disk.fdatasync

    def slow() -> None:
        inside.set()
        assert go_on.wait(30)
        fdatasync()

    streamer._file.disk.fdatasync = slow  # type: ignore[method-assign]
    streamer.start_atomic_op()
    streamer.add_stream_entry(1, b"x")
    thread = threading.Thread(target=streamer.commit_atomic_op)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(errors.CommitInProgress, match="start_atomic_op: a commit is in progress"):
        streamer.start_atomic_op()
    assert streamer.committed.total_entries == 0  # not visible yet
    go_on.set()
    thread.join(30)
    assert streamer.committed.total_entries == 1
    streamer.close()


def test_listeners(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    streamer = DataStreamer.open(path)
    heard: list[tuple[Committed, Committed]] = []

    def broken(committed: Committed) -> None:
        raise ValueError("a listener's own fault")

    streamer.on_commit(broken)
    unsubscribe = streamer.on_commit(lambda committed: heard.append((committed, streamer.committed)))
    commit(streamer, (1, b"x"))
    unsubscribe()
    unsubscribe()
    commit(streamer, (1, b"y"))
    assert heard == [(Committed(4096 + 18, 1), Committed(4096 + 18, 1))]
    assert "a listener failed after a commit" in caplog.text
    streamer.close()


def test_first_event_after_a_bookmark(path: Path) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (0xB0, b"b"), (1, b"event"), (0xB0, b"a"), (0xB0, b"c"))
    assert streamer.get_bookmark(b"a") == 3  # the newest
    assert streamer.get_first_event_after_bookmark(b"b") == Entry(1, 2, b"event")
    assert streamer.get_first_event_after_bookmark(b"a") == Entry(0xB0, 4, b"c")  # only bookmarks follow
    streamer.close()


# --- the index -------------------------------------------------------------------------------------------


def test_entries_of_the_type_of_bookmarks(path: Path) -> None:
    """They are found only once the index is made anew: the file does not tell them from bookmarks."""
    with DataStreamer.open(path) as streamer:
        commit(streamer, (0xB0, b"a"), flush=True)
        streamer.start_atomic_op()
        for data in (b"plain", b"", bytes(17), b"a"):
            streamer.add_stream_entry(0xB0, data)
        streamer.add_stream_entries([0xB0, 1], [b"plain 2", b"event"])
        streamer.commit_atomic_op(flush=True)
        expected = [b"a", b"plain", b"", bytes(17), b"a", b"plain 2"]
        assert list(streamer.read_entries(0)) == entries(*((0xB0, one) for one in expected), (1, b"event"))
        assert streamer.get_bookmark(b"a") == 0
        assert streamer.get_first_event_after_bookmark(b"a") == Entry(1, 6, b"event")
        streamer.update_entry_data(1, 0xB0, b"later")
        streamer.update_entry_data(3, 0xB0, b"\1" * 17)
        for data in (b"plain", b"later", b"plain 2"):
            with pytest.raises(BookmarkNotFound):
                streamer.get_bookmark(data)
    with DataStreamer.open(path) as streamer:
        with pytest.raises(BookmarkNotFound):
            streamer.get_bookmark(b"later")
        with DataStreamer.open(path.with_name("copy.bin")) as copy:
            copy.start_atomic_op()
            for entry in streamer.read_entries(0):
                copy.add_copy(entry)
            copy.commit_atomic_op()
            assert list(copy.read_entries(0)) == list(streamer.read_entries(0))
    shutil.rmtree(path.with_suffix(".db"))
    with DataStreamer.open(path) as streamer:
        assert [streamer.get_bookmark(data) for data in (b"a", b"later", b"plain 2")] == [4, 1, 5]
        assert streamer.get_entry(3).data == b"\1" * 17


def test_a_bookmark_that_points_at_something_else_is_not_found(path: Path) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (1, b"x"))
    streamer.close()
    change_database(path.with_name("s.db"), z=u64(1), y=u64(0))
    streamer = DataStreamer.open(path)
    for key in (b"z", b"y"):
        with pytest.raises(BookmarkNotFound):
            streamer.get_bookmark(key)
    streamer.close()


def test_a_failing_bookmark_db_does_not_undo_a_commit(path: Path) -> None:
    state = {"open_fails": False, "write_fails": False}

    def open_database(folder: str) -> Any:
        return FailingDatabase(folder, state)

    streamer = DataStreamer.open(path, open_database=open_database)
    state.update(write_fails=True, open_fails=True)
    commit(streamer, (0xB0, b"a"), (1, b"x"), flush=True)
    assert streamer.committed.total_entries == 2
    assert streamer.get_bookmark(b"a") == 0
    with pytest.raises(CommitFailed) as caught:
        commit(streamer, (0xB0, b"b"), flush=True)
    assert str(caught.value) == (
        f"{path}: commit failed at step 0a repair: {path.with_name('s.db')}: bookmark DB: no room"
    )
    assert streamer.committed.total_entries == 2
    state.update(write_fails=False, open_fails=False)
    commit(streamer, (0xB0, b"c"), flush=True)
    assert (streamer.get_bookmark(b"a"), streamer.get_bookmark(b"c")) == (0, 2)
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert (streamer.get_bookmark(b"a"), streamer.get_bookmark(b"c")) == (0, 2)


def test_a_close_that_fails_closes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streamer = DataStreamer.open(path)
    close = BookmarkIndex.close

    def fail(index: BookmarkIndex) -> None:
        close(index)
        raise RuntimeError("stuck")

    with monkeypatch.context() as patch:
        patch.setattr(BookmarkIndex, "close", fail)
        with pytest.raises(RuntimeError, match="stuck"):
            streamer.close()
    assert streamer.fileno() < 0
    DataStreamer.open(path).close()


def test_an_interrupted_close_lets_go_of_the_stream(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    streamer = DataStreamer.open(path)
    commit(streamer, *operation(0))
    monkeypatch.setattr(streamer._bookmarks, "write_pending", interrupt)
    with pytest.raises(KeyboardInterrupt):
        streamer.close()
    with DataStreamer.open(path) as again:
        assert list(again.read_entries(0)) == entries(*operation(0))
        assert again.get_bookmark(bookmark(0)[1]) == 0


def test_recover_says_whether_the_next_commit_could_work(path: Path) -> None:
    state = {"open_fails": False, "write_fails": False}
    path.touch()
    disk = FailingDisk(RealDisk(path))
    streamer = DataStreamer.open(path, open_database=lambda folder: FailingDatabase(folder, state), disk=disk)
    disk.calls.clear()
    streamer.recover()
    assert disk.calls == []
    disk.plan = {"pwrite": [errno.ENOSPC, errno.EIO, errno.EIO]}
    with pytest.raises(CommitFailed):
        commit(streamer, (1, b"x"), flush=True)
    with pytest.raises(CommitFailed) as caught:
        streamer.recover()
    assert str(caught.value) == f"{path}: commit failed at step 0a repair: Input/output error"
    streamer.recover()
    state.update(write_fails=True, open_fails=True)
    commit(streamer, (0xB0, b"a"), flush=True)
    with pytest.raises(CommitFailed, match="bookmark DB: no room"):
        streamer.recover()
    state.update(write_fails=False, open_fails=False)
    streamer.recover()
    streamer.close()
    with pytest.raises(errors.StreamClosed):
        streamer.recover()


def test_data_between_bookmarks(path: Path) -> None:
    streamer = DataStreamer.open(path)
    commit(streamer, (0xB0, b"a"), (1, b"one "), (0xB0, b"b"), (2, b"two "), (3, b"three"), (0xB0, b"c"))
    assert streamer.get_data_between_bookmarks(b"a", b"c") == b"one two three"
    assert streamer.get_data_between_bookmarks(b"b", b"c") == b"two three"
    assert streamer.get_data_between_bookmarks(b"b", b"b") == b""
    with pytest.raises(errors.BookmarksReversed, match="bookmark 63 is entry 5, after bookmark 61, entry 0"):
        streamer.get_data_between_bookmarks(b"c", b"a")
    with pytest.raises(BookmarkNotFound):
        streamer.get_data_between_bookmarks(b"a", b"z")
    streamer.close()


def test_data_between_bookmarks_one_byte_too_many(path: Path) -> None:
    limits = StreamLimits(data_between_bookmarks_bytes_max=8)
    with DataStreamer.open(path, limits=limits) as streamer:
        commit(streamer, (0xB0, b"a"), (1, b"12345678"), (0xB0, b"b"), (1, b"9"), (0xB0, b"c"))
        assert streamer.get_data_between_bookmarks(b"a", b"b") == b"12345678"
        with pytest.raises(errors.RangeTooLarge, match="data of entries 0 to 4: more than 8 bytes"):
            streamer.get_data_between_bookmarks(b"a", b"c")
