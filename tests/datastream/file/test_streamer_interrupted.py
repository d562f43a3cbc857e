"""Commits ended by Ctrl-C or lack of memory: all of one or nothing, with its bookmarks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.errors import BookmarkNotFound, CommitInProgress
from sluice.datastream.file.appending import Appender
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.operation import OperationGroup
from tests.datastream.fake_disk import MemoryDisk
from tests.datastream.file.test_appending import BIG, FIRST, open_on
from tests.datastream.streams import bookmark, commit, entries

AGAIN = FIRST[0]
"""The bookmark of the first operation."""


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_bookmarks_of_a_commit_that_is_interrupted_while_they_are_recorded_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise earlier entries with the same bookmark would never be found again."""
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)
    commit(streamer, AGAIN, flush=False)  # still pending
    record = BookmarkIndex.record

    def record_and_end(index: BookmarkIndex, bookmarks: dict[bytes, int], covered: int) -> int:
        record(index, bookmarks, covered)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BookmarkIndex, "record", record_and_end)
        streamer.start_atomic_op()
        streamer.add_stream_bookmark(AGAIN[1])
        streamer.seal_atomic_op()
        with pytest.raises(KeyboardInterrupt):
            commit(streamer, bookmark(2), flush=True)
    for _ in range(2):
        assert streamer.get_bookmark(AGAIN[1]) == len(FIRST)
        with pytest.raises(BookmarkNotFound):
            streamer.get_bookmark(bookmark(2)[1])
        streamer.close()
        streamer = open_on(tmp_path, memory)
    streamer.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_commit_that_is_interrupted_while_the_db_is_written_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Its bookmarks may be in the DB, and an error would say that it is not committed."""
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(BookmarkIndex, "_take_pending", fail)
        with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
            commit(streamer, bookmark(2), *BIG, flush=True)
    items = (*FIRST, bookmark(2), *BIG)
    assert list(streamer.read_entries(0)) == entries(*items)
    assert streamer.get_bookmark(bookmark(2)[1]) == len(FIRST)
    commit(streamer, bookmark(2), flush=True)
    for _ in range(2):
        assert list(streamer.read_entries(0)) == entries(*items, bookmark(2))
        assert streamer.get_bookmark(bookmark(2)[1]) == len(items)
        streamer.close()
        streamer = open_on(tmp_path, memory)
    streamer.close()


@pytest.mark.parametrize(("where", "stands"), [("begin_commit", ()), ("end_commit", FIRST)])
def test_a_commit_that_is_interrupted_as_it_begins_or_ends_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, stands: tuple[tuple[int, bytes], ...]
) -> None:
    """The stream takes the next one."""
    streamer = open_on(tmp_path, MemoryDisk())
    begin = OperationGroup.begin_commit

    def begin_and_end(group: OperationGroup) -> None:
        begin(group)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OperationGroup, where, begin_and_end if where == "begin_commit" else interrupt)
        with pytest.raises(KeyboardInterrupt):
            commit(streamer, *FIRST, flush=True)
    assert list(streamer.read_entries(0)) == entries(*stands)
    commit(streamer, bookmark(2), flush=True)
    assert list(streamer.read_entries(0)) == entries(*stands, bookmark(2))
    streamer.close()


def test_who_commits_while_another_thread_does_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamer = open_on(tmp_path, MemoryDisk())
    write_pending, refused = BookmarkIndex.write_pending, []

    def commit_meanwhile(index: BookmarkIndex) -> None:
        with pytest.raises(CommitInProgress) as caught:
            streamer.commit_atomic_op()
        refused.append(caught.value)
        write_pending(index)

    with monkeypatch.context() as patch:
        patch.setattr(BookmarkIndex, "write_pending", commit_meanwhile)
        commit(streamer, *FIRST, flush=True)
    assert len(refused) == 1
    assert list(streamer.read_entries(0)) == entries(*FIRST)
    streamer.close()


@pytest.mark.parametrize("method", ["begin", "finish", "adopt"])
def test_a_bookmark_that_is_added_again_is_found_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Also between the record of its new place and its visibility."""
    streamer = open_on(tmp_path, MemoryDisk())
    commit(streamer, *FIRST, flush=True)
    found = []

    def looked_around(inner: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            found.append(streamer.get_bookmark(AGAIN[1]))
            result = inner(*arguments, **more)
            found.append(streamer.get_bookmark(AGAIN[1]))
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Appender, method, looked_around(getattr(Appender, method)))
        patch.setattr(BookmarkIndex, "write_pending", looked_around(BookmarkIndex.write_pending))
        commit(streamer, AGAIN, *BIG, flush=True)
    assert found == [0, 0, len(FIRST), len(FIRST)]
    streamer.close()
