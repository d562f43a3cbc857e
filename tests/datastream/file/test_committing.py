"""Commits in two halves: what is visible and what is on disk, whatever fails or interrupts."""

from __future__ import annotations

import errno
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.datastream.errors import (
    BookmarkNotFound,
    CommitBegun,
    CommitFailed,
    NoOperationOpen,
    StreamClosed,
    StreamReadOnly,
)
from sluice.datastream.file.appending import Appender
from sluice.datastream.file.bookmarks import BookmarkIndex, open_leveldb
from sluice.datastream.file.operation import OperationGroup
from sluice.datastream.file.page_index import PageIndex
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import DATA_SIZE_MAX
from tests.datastream.fake_disk import FailingDisk, MemoryDisk
from tests.datastream.file.test_appending import BIG, FIRST, open_on, zero_past_the_end
from tests.datastream.file.test_bookmarks import FailingDatabase
from tests.datastream.streams import Item, add, bookmark, commit, entries

SECOND = (bookmark(2), (1, b"second" * 20))
THIRD = (bookmark(3), *BIG)


def begin(streamer: DataStreamer, *items: Item) -> list[int]:
    streamer.start_atomic_op()
    numbers = add(streamer, items)
    streamer.begin_commit()
    return numbers


def on_disk(memory: MemoryDisk, folder: Path) -> list[object]:
    """Return the entries that an opening would find after a power failure now."""
    folder.mkdir()
    with open_on(folder, MemoryDisk.of(memory.image_after_crash("none", random.Random(1)))) as streamer:
        return list(streamer.read_entries(0))


def test_a_begun_commit_is_seen_when_the_next_one_has_begun(tmp_path: Path) -> None:
    """Listeners hear of it, its bookmark finds it, and it is on disk."""
    memory = MemoryDisk()
    with open_on(tmp_path, memory) as streamer:
        told: list[int] = []
        streamer.on_commit(lambda committed: told.append(committed.total_entries))
        assert begin(streamer, *FIRST) == [0, 1, 2]
        assert (streamer.has_begun, told, list(streamer.read_entries(0))) == (True, [], [])
        with pytest.raises(BookmarkNotFound):
            streamer.get_bookmark(bookmark(1)[1])
        assert begin(streamer, *SECOND) == [3, 4]
        assert (streamer.has_begun, told, list(streamer.read_entries(0))) == (True, [3], entries(*FIRST))
        assert streamer.get_bookmark(bookmark(1)[1]) == 0
        assert on_disk(memory, tmp_path / "one") == entries(*FIRST)
        streamer.finish_commit()
        assert (streamer.has_begun, told) == (False, [3, 5])
        assert list(streamer.read_entries(0)) == entries(*FIRST, *SECOND)
        assert on_disk(memory, tmp_path / "both") == entries(*FIRST, *SECOND)
        streamer.finish_commit()  # which was done
        assert told == [3, 5]


def test_each_commit_costs_one_flush_while_they_follow_one_another(tmp_path: Path) -> None:
    disk = FailingDisk(MemoryDisk())
    with open_on(tmp_path, disk) as streamer:
        disk.calls.clear()
        begin(streamer, *FIRST)
        assert disk.calls == ["pwrite", "fdatasync"]
        for number in range(2, 5):
            disk.calls.clear()
            begin(streamer, bookmark(number))
            assert disk.calls == ["pwrite", "pwrite", "fdatasync"]
            disk.calls.clear()
            streamer.recover()
            assert disk.calls == []  # visible entries are surely on disk
        streamer.finish_commit()
        assert disk.calls == ["pwrite", "fdatasync"]
        disk.calls.clear()
        streamer.recover()
        assert disk.calls == []


def test_a_failing_bookmark_db_stops_the_next_commit(tmp_path: Path) -> None:
    """The commit begun before stands, with its bookmarks in memory."""
    state = {"open_fails": False, "write_fails": False}
    path = tmp_path / "s.bin"
    with DataStreamer.open(path, open_database=lambda folder: FailingDatabase(folder, state)) as streamer:
        begin(streamer, *FIRST)
        state.update(write_fails=True, open_fails=True)
        begin(streamer, *SECOND)
        with pytest.raises(CommitFailed, match=r"step 0a repair: .* bookmark DB: no room"):
            begin(streamer, *THIRD)
        assert streamer.has_begun
        streamer.finish_commit()
        assert list(streamer.read_entries(0)) == entries(*FIRST, *SECOND)
        assert streamer.get_bookmark(bookmark(2)[1]) == 3
        state.update(write_fails=False, open_fails=False)
        begin(streamer, *THIRD)
        streamer.finish_commit()
    with DataStreamer.open(path) as streamer:
        assert [streamer.get_bookmark(bookmark(number)[1]) for number in (1, 2, 3)] == [0, 3, 5]


def test_a_begun_commit_takes_sealed_operations_and_pages_with_it(tmp_path: Path) -> None:
    memory = MemoryDisk()
    with open_on(tmp_path, memory) as streamer:
        streamer.start_atomic_op()
        add(streamer, FIRST)
        streamer.seal_atomic_op()
        begin(streamer, *THIRD)
        begin(streamer, *SECOND)
        assert list(streamer.read_entries(0)) == entries(*FIRST, *THIRD)
        begin(streamer)  # an operation without entries
        streamer.finish_commit()
        assert list(streamer.read_entries(0)) == entries(*FIRST, *THIRD, *SECOND)
        assert [streamer.get_bookmark(bookmark(number)[1]) for number in (1, 3, 2)] == [0, 3, 7]
    with open_on(tmp_path, memory) as streamer:
        assert list(streamer.read_entries(0)) == entries(*FIRST, *THIRD, *SECOND)


def test_what_changes_the_committed_stream_has_to_wait(tmp_path: Path) -> None:
    with open_on(tmp_path, MemoryDisk()) as streamer:
        with pytest.raises(NoOperationOpen):
            streamer.begin_commit()
        commit(streamer, *FIRST, flush=True)
        begin(streamer, *SECOND)
        with pytest.raises(CommitBegun, match="truncate_file: a commit was begun; finish it first"):
            streamer.truncate_file(1)
        with pytest.raises(CommitBegun, match="update_entry_data of a committed entry: "):
            streamer.update_entry_data(2, 2, b"")
        streamer.start_atomic_op()
        with pytest.raises(CommitBegun, match="commit_atomic_op: "):
            streamer.commit_atomic_op()
        streamer.rollback_atomic_op()
        with pytest.raises(NoOperationOpen):
            streamer.begin_commit()
        streamer.finish_commit()
        streamer.truncate_file(1)
        assert list(streamer.read_entries(0)) == entries(FIRST[0])
    with pytest.raises(StreamClosed):
        streamer.begin_commit()


def test_what_is_rolled_back_or_open_leaves_a_begun_commit_alone(tmp_path: Path) -> None:
    with open_on(tmp_path, MemoryDisk()) as streamer:
        begin(streamer, *FIRST)
        streamer.start_atomic_op()
        add(streamer, THIRD)
        streamer.rollback_group()
        streamer.start_atomic_op()
        assert add(streamer, SECOND) == [3, 4]
        streamer.finish_commit()
        assert list(streamer.read_entries(0)) == entries(*FIRST)
        streamer.commit_atomic_op()
        assert list(streamer.read_entries(0)) == entries(*FIRST, *SECOND)


def test_a_begun_commit_that_is_rolled_back_leaves_nothing(tmp_path: Path) -> None:
    memory = MemoryDisk()
    with open_on(tmp_path, memory) as streamer:
        commit(streamer, *FIRST, flush=True)
        streamer.rollback_commit()
        begin(streamer, *THIRD)
        streamer.start_atomic_op()
        add(streamer, SECOND)
        streamer.rollback_commit()
        assert not streamer.has_begun
        assert zero_past_the_end(memory, streamer)
        with pytest.raises(NoOperationOpen):
            streamer.commit_atomic_op()
        streamer.finish_commit()
        commit(streamer, *SECOND, flush=True)
        assert list(streamer.read_entries(0)) == entries(*FIRST, *SECOND)
    with pytest.raises(StreamClosed):
        streamer.rollback_commit()


def test_closing_drops_what_was_begun(tmp_path: Path) -> None:
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)
    begin(streamer, *THIRD)
    streamer.close()
    streamer.finish_commit()
    assert not streamer.has_begun
    assert zero_past_the_end(memory, streamer)
    with open_on(tmp_path, memory) as streamer:
        assert list(streamer.read_entries(0)) == entries(*FIRST)


FAULTS = [
    ("growth", "truncate", [errno.ENOSPC], "0b grow", True),
    ("entries", "pwrite", [errno.ENOSPC], "1 entries", True),
    ("entries, and what is to put them right", "pwrite", [errno.ENOSPC] * 2, "1 entries", True),
    ("header of the one before", "pwrite", [None, errno.EIO], "3 header", False),
    ("the flush of both", "fdatasync", [errno.EIO], "4 flush", False),
    ("the flush of both, and what is to put it right", "fdatasync", [errno.EIO] * 2, "4 flush", False),
]


@pytest.mark.parametrize(
    ("method", "plan", "step", "stays"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_disk_that_refuses_the_second_of_two(
    tmp_path: Path, method: str, plan: list[int | None], step: str, stays: bool
) -> None:
    """The first can still be finished, unless the shared flush failed."""
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    with open_on(tmp_path, disk) as streamer:
        commit(streamer, *FIRST, flush=True)
        begin(streamer, *SECOND)
        disk.plan[method] = list(plan)
        with pytest.raises(CommitFailed) as caught:
            begin(streamer, *THIRD)
        assert caught.value.step == step
        assert streamer.has_begun is stays
        assert list(streamer.read_entries(0)) == entries(*FIRST)
        disk.plan.clear()
        streamer.finish_commit()
        expected = (*FIRST, *SECOND) if stays else FIRST
        assert list(streamer.read_entries(0)) == entries(*expected)
        assert on_disk(memory, tmp_path / "crashed") == entries(*expected)
        begin(streamer, *THIRD)
        streamer.finish_commit()
        assert list(streamer.read_entries(0)) == entries(*expected, *THIRD)
        assert zero_past_the_end(memory, streamer)
        assert memory.image_after_crash("none", random.Random(1)) == bytes(memory.cache)


@pytest.mark.parametrize(
    ("plan", "step"), [({"pwrite": [errno.EIO]}, "3 header"), ({"fdatasync": [errno.EIO]}, "4 flush")]
)
def test_a_disk_that_refuses_the_second_half(
    tmp_path: Path, plan: dict[str, list[int | None]], step: str
) -> None:
    """Operations started since are dropped, too: their entry numbers follow the dropped ones."""
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    with open_on(tmp_path, disk) as streamer:
        commit(streamer, *FIRST, flush=True)
        begin(streamer, *THIRD)
        streamer.start_atomic_op()
        add(streamer, SECOND)
        disk.plan = plan
        with pytest.raises(CommitFailed) as caught:
            streamer.finish_commit()
        assert caught.value.step == step
        assert not streamer.has_begun
        with pytest.raises(NoOperationOpen):
            add(streamer, SECOND)
        assert list(streamer.read_entries(0)) == entries(*FIRST)
        assert zero_past_the_end(memory, streamer)
        assert on_disk(memory, tmp_path / "crashed") == entries(*FIRST)
        commit(streamer, *SECOND, flush=True)
        assert list(streamer.read_entries(0)) == entries(*FIRST, *SECOND)


@pytest.mark.parametrize("items", [THIRD, (bookmark(3), (1, b"small"))], ids=["large", "small"])
@pytest.mark.parametrize("half", ["begin", "finish"])
@pytest.mark.parametrize(
    "where",
    ["OperationGroup.hand_over", "OperationGroup.end_commit", "Appender.adopt", "BookmarkIndex.before",
     "BookmarkIndex.record", "BookmarkIndex.write_pending"],
)  # fmt: skip
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_whoever_interrupts_finds_all_of_a_commit_or_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    half: str,
    where: str,
    error: type[BaseException],
    items: tuple[Item, ...],
) -> None:
    """Of two that share a flush the second is dropped; the first too, unless it was visible."""
    memory = MemoryDisk()
    owner = {"OperationGroup": OperationGroup, "Appender": Appender, "BookmarkIndex": BookmarkIndex}
    class_name, _, method = where.partition(".")

    def interrupt(*_: object) -> None:
        raise error

    with open_on(tmp_path, memory) as streamer:
        commit(streamer, *FIRST, flush=True)
        begin(streamer, *items)
        with monkeypatch.context() as patch:
            patch.setattr(owner[class_name], method, interrupt)
            raised = False
            try:
                if half == "begin":
                    begin(streamer, *SECOND)
                else:
                    streamer.finish_commit()
            except error:
                raised = True
        is_written = method == "write_pending"
        # Nothing to adopt without pages or checkpoints.
        never_reached = class_name == "OperationGroup" or (method == "adopt" and items is not THIRD)
        assert raised or never_reached or (is_written and error is MemoryError)
        expected = entries(*FIRST, *items) if is_written or not raised else entries(*FIRST)
        if raised:
            assert not streamer.has_begun
        elif half == "begin":
            streamer.finish_commit()
            expected = entries(*FIRST, *items, *SECOND)
        assert list(streamer.read_entries(0)) == expected
        assert zero_past_the_end(memory, streamer)
        assert on_disk(memory, tmp_path / "crashed") == expected
        begin(streamer, bookmark(9), (1, b"z" * DATA_SIZE_MAX))
        begin(streamer, bookmark(10))
        streamer.finish_commit()
        assert next(streamer.read_entries(len(expected))).data == bookmark(9)[1]
        assert streamer.get_bookmark(bookmark(10)[1]) == len(expected) + 2
        assert memory.image_after_crash("none", random.Random(1)) == bytes(memory.cache)


def test_a_begun_commit_that_cannot_be_taken_back_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryDisk()

    def run_out(*_: object) -> None:
        raise MemoryError

    with open_on(tmp_path, memory) as streamer:
        commit(streamer, *FIRST, flush=True)
        begin(streamer, *THIRD)
        with monkeypatch.context() as patch:
            patch.setattr(Appender, "adopt", run_out)
            patch.setattr(PageIndex, "add_page", run_out)
            with pytest.raises(MemoryError):
                begin(streamer, *SECOND)
        with pytest.raises(StreamReadOnly):
            begin(streamer, *SECOND)
        assert list(streamer.read_entries(0)) == entries(*FIRST)
    with open_on(tmp_path, memory) as streamer:
        assert list(streamer.read_entries(0)) == entries(*FIRST)


SIZES = st.lists(st.integers(0, 90) | st.just(400_000) | st.just(DATA_SIZE_MAX), max_size=3)
FAULT = st.tuples(st.sampled_from(["pwrite", "fdatasync", "truncate"]), st.integers(0, 2))
CALL = st.tuples(st.sampled_from(["begin", "begin", "commit", "finish", "recover"]), SIZES, FAULT | st.none())


@settings(max_examples=150, deadline=None)
@given(st.lists(CALL, max_size=14))
def test_whatever_the_disk_refuses(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[tuple[str, list[int], tuple[str, int] | None]],
) -> None:
    """After each call: visible entries were reported and are on disk, and their bookmarks lead to them."""
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    seen: list[Item] = []
    begun: list[Item] | None = None
    streamer = DataStreamer.open(
        tmp_path_factory.mktemp("any") / "s.bin", disk=disk, initial_pages=1, growth_pages=1
    )
    with streamer:
        for index, (call, sizes, fault) in enumerate(calls):
            items = [bookmark(index), *((1, bytes([index + 1]) * size) for size in sizes)]
            disk.plan.clear()
            if fault is not None:
                disk.plan[fault[0]] = [*[None] * fault[1], errno.EIO]
            try:
                if call == "begin":
                    begin(streamer, *items)
                    seen, begun = seen + (begun or []), items
                elif call == "recover":
                    streamer.recover()
                elif call == "finish" or begun is not None:
                    streamer.finish_commit()
                    seen, begun = seen + (begun or []), None
                else:
                    commit(streamer, *items, flush=True)
                    seen = seen + items
            except CommitFailed:
                assert fault is not None
                if not streamer.has_begun:
                    begun = None
            assert streamer.has_begun is (begun is not None)
            assert list(streamer.read_entries(0)) == entries(*seen)
            for number, (kind, data) in enumerate(seen):
                if kind == bookmark(0)[0]:
                    assert streamer.get_bookmark(data) == number
        disk.plan.clear()
        if begun is not None:
            streamer.finish_commit()
            seen = seen + begun
        last = (bookmark(99), (1, b"last"))
        commit(streamer, *last, flush=True)
        assert list(streamer.read_entries(0)) == entries(*seen, *last)
        assert zero_past_the_end(memory, streamer)
        assert memory.image_after_crash("none", random.Random(1)) == bytes(memory.cache)


@pytest.mark.parametrize("how", ["commit", "begin", "recover"])
def test_after_a_failed_flush_the_index_is_opened_again(tmp_path: Path, how: str) -> None:
    """LevelDB does not notice that its log was lost; reopened, it writes the log anew.

    The file is repaired first: a DB that is closed on a failing disk cannot be read.
    """
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    opened: list[int] = []

    def open_database(folder: str) -> object:
        opened.append(len(disk.plan.get("fdatasync", [])))
        return open_leveldb(folder)

    streamer = DataStreamer.open(tmp_path / "s.bin", disk=disk, initial_pages=1, open_database=open_database)
    with streamer:
        commit(streamer, *FIRST, flush=True)
        opened.clear()
        disk.plan["fdatasync"] = [errno.EIO] * 3
        with pytest.raises(CommitFailed, match="flush"):
            (begin if how == "begin" else partial(commit, flush=True))(streamer, *SECOND)
        with pytest.raises(CommitFailed, match="step 0a repair"):
            streamer.recover()
        assert streamer.get_bookmark(bookmark(1)[1]) == 0
        assert opened == []
        if how == "recover":
            streamer.recover()
        commit(streamer, *SECOND, flush=True)
        commit(streamer, bookmark(4), flush=True)
        assert opened == [0, 0]  # bookmarks, our keys
        assert [streamer.get_bookmark(bookmark(number)[1]) for number in (1, 2, 4)] == [0, 3, 5]
