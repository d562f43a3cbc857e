"""Updates in place and truncations: readers, disk and index; failing disks and databases."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream import errors
from sluice.datastream.errors import BookmarkNotFound, CommitFailed, EntryNotFound
from sluice.datastream.file.appending import Appender
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.updating import TRUNCATE_STEPS, UPDATE_STEPS, UpdateStep
from sluice.datastream.layout import (
    BOOKMARK_TYPE,
    DATA_SIZE_MAX,
    Committed,
    Entry,
    page_end,
)
from tests.datastream.fake_disk import FailingDisk, MemoryDisk
from tests.datastream.file.test_bookmarks import FailingDatabase, WatchedDatabase
from tests.datastream.streams import Item, bookmark, commit, entries, operation

ITEMS: tuple[Item, ...] = (
    (BOOKMARK_TYPE, b"a"),
    (1, b"one"),
    (BOOKMARK_TYPE, b"b"),
    (2, b"x" * 900_000),
    (BOOKMARK_TYPE, b"a"),
    (3, b"y" * 900_000),  # on the second page
    (BOOKMARK_TYPE, b"c"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bin"


@pytest.fixture
def streamer(path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(path, initial_pages=3) as streamer:
        commit(streamer, *ITEMS)
        yield streamer


def bookmarks_of(streamer: DataStreamer, *names: bytes) -> list[int | None]:
    found: list[int | None] = []
    for name in names:
        try:
            found.append(streamer.get_bookmark(name))
        except BookmarkNotFound:
            found.append(None)
    return found


# --- updating --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "data"),
    [(1, b"two"), (3, b"z" * 900_000), (5, b"w" * 900_000), (1, b"one")],
)
def test_an_update_in_place(path: Path, streamer: DataStreamer, number: int, data: bytes) -> None:
    before = streamer.committed
    content = bytearray(path.read_bytes())
    streamer.update_entry_data(number, ITEMS[number][0], data)
    items = [*ITEMS]
    items[number] = (ITEMS[number][0], data)
    assert list(streamer.read_entries(0)) == entries(*items)
    assert streamer.committed == before
    offset = streamer.offset_of(number) + 17
    content[offset : offset + len(data)] = data
    assert path.read_bytes() == bytes(content)
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*items)


def test_an_updated_bookmark(path: Path, streamer: DataStreamer) -> None:
    streamer.update_entry_data(4, BOOKMARK_TYPE, b"d")
    assert bookmarks_of(streamer, b"a", b"b", b"c", b"d") == [0, 2, 6, 4]
    streamer.update_entry_data(2, BOOKMARK_TYPE, b"c")  # a newer one is there already
    assert bookmarks_of(streamer, b"a", b"b", b"c", b"d") == [0, None, 6, 4]
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert bookmarks_of(streamer, b"a", b"b", b"c", b"d") == [0, None, 6, 4]


@pytest.mark.parametrize(
    ("number", "entry_type", "data", "error", "message"),
    [
        (1, 2, b"two", errors.UpdateTypeDiffers, "entry 1: got type 0x2, expected 0x1, as it is committed"),
        (1, 1, b"four", errors.UpdateSizeDiffers, "entry 1: got 4 bytes of data, expected 3, as it is"),
        (7, 1, b"one", errors.EntryNotFound, "entry 7: not found; the stream has 7 entries"),
        (-1, 1, b"one", errors.EntryNotFound, "entry -1: not found; the stream has 7 entries"),
    ],
)
def test_refused_updates(
    streamer: DataStreamer, number: int, entry_type: int, data: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        streamer.update_entry_data(number, entry_type, data)
    assert str(caught.value).startswith(message)
    assert list(streamer.read_entries(0)) == entries(*ITEMS)
    assert commit(streamer, (1, b"next")) == [7]


def test_wrong_states(streamer: DataStreamer) -> None:
    streamer.start_atomic_op()
    with pytest.raises(
        errors.OperationAlreadyOpen, match="update_entry_data of a committed entry: an atomic"
    ):
        streamer.update_entry_data(1, 1, b"two")
    with pytest.raises(errors.OperationAlreadyOpen, match="truncate_file: an atomic operation is open"):
        streamer.truncate_file(0)
    streamer.add_stream_entry(1, b"open")
    streamer.update_entry_data(7, 9, b"replaced freely")
    streamer.seal_atomic_op()
    with pytest.raises(errors.OperationsNotCommitted, match="truncate_file: sealed operations wait"):
        streamer.truncate_file(0)
    with pytest.raises(errors.OperationsNotCommitted, match="update_entry_data of a committed entry: sealed"):
        streamer.update_entry_data(7, 9, b"too late")
    streamer.commit_atomic_op()
    assert streamer.get_entry(7) == Entry(9, 7, b"replaced freely")
    streamer.close()
    with pytest.raises(errors.StreamClosed):
        streamer.update_entry_data(1, 1, b"two")
    with pytest.raises(errors.StreamClosed):
        streamer.truncate_file(0)


def test_no_reader_sees_half_of_an_update(path: Path) -> None:
    """Readers in other threads while one entry is updated again and again."""
    streamer = DataStreamer.open(path, initial_pages=2)
    commit(streamer, (1, b"before"), (2, bytes(400_000)), (3, b"after"))
    ended = threading.Event()
    seen: list[set[int]] = [set(), set()]

    def read(mine: set[int]) -> None:
        while not ended.is_set():
            for entry in (streamer.get_entry(1), list(streamer.read_entries(0))[1]):
                if entry.data.count(entry.data[0]) != len(entry.data):  # quick: the writer waits for it
                    mine.add(-1)
                mine.add(entry.data[0])

    threads = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + 30
    number = 0
    while number < 60 or (min(map(len, seen)) < 2 and time.monotonic() < give_up_at):
        number += 1  # until each reader has read while there were updates
        streamer.update_entry_data(1, 2, bytes([number % 256]) * 400_000)
    ended.set()
    for thread in threads:
        thread.join(30)
    assert all(-1 not in numbers and len(numbers) > 1 for numbers in seen)
    streamer.close()


def test_a_disk_that_fails_in_the_middle_of_an_update(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its record keeps the update: readers see it, and the next commit or opening writes it."""
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    streamer = DataStreamer.open(path, disk=disk, initial_pages=2)
    commit(streamer, *ITEMS[:3], flush=True)
    disk.plan["pwrite"] = [errno.ENOSPC, errno.EIO]
    streamer.update_entry_data(1, 1, b"two")
    assert "entry 1 is updated, but not in the file yet" in caplog.text
    items = (ITEMS[0], (1, b"two"), ITEMS[2])
    assert list(streamer.read_entries(0)) == entries(*items)
    with pytest.raises(CommitFailed, match="commit failed at step 0a repair: Input/output error"):
        commit(streamer, (1, b"no"))
    assert list(streamer.read_entries(0)) == entries(*items)
    streamer._bookmarks.close()  # as if the process ended here
    on_disk = MemoryDisk.of(memory.image_after_crash("prefix", random.Random(3)))
    with pytest.raises(errors.UpdateUnfinished, match="expected none, as this opening may not write"):
        DataStreamer.open(path, disk=on_disk, read_only=True)
    assert on_disk.steps == []
    with DataStreamer.open(path, disk=on_disk) as streamer:
        assert list(streamer.read_entries(0)) == entries(*items)
        assert bookmarks_of(streamer, b"a", b"b") == [0, 2]
        assert commit(streamer, (1, b"next")) == [3]


def test_bookmarks_are_those_of_an_update_that_is_not_in_the_file_yet(path: Path) -> None:
    """The old bookmark no longer leads to the entry."""
    disk = FailingDisk(MemoryDisk())
    with DataStreamer.open(path, disk=disk, initial_pages=2) as streamer:
        commit(streamer, (BOOKMARK_TYPE, b"a"), (1, b"x"), (BOOKMARK_TYPE, b"b"), (1, b"y"), flush=True)
        disk.plan["pwrite"] = [errno.EIO]
        streamer.update_entry_data(2, BOOKMARK_TYPE, b"a")
        for _ in range(2):
            assert streamer.get_entry(2) == Entry(BOOKMARK_TYPE, 2, b"a")
            assert bookmarks_of(streamer, b"a", b"b") == [2, None]
            assert streamer.get_first_event_after_bookmark(b"a").number == 3
            streamer.recover()


def test_what_a_failed_commit_left_does_not_come_back_with_an_update(path: Path) -> None:
    """The repair zeroes the last block before the blocks around the entry are read."""
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    with DataStreamer.open(path, disk=disk, initial_pages=2) as streamer:
        commit(streamer, *ITEMS[:3], flush=True)
        disk.plan = {"fdatasync": [errno.EIO, errno.EIO]}
        with pytest.raises(CommitFailed):
            commit(streamer, (1, b"garbage"), flush=True)
        end = streamer.committed.total_length
        assert memory.cache.count(0, end) < len(memory.cache) - end  # its repair failed, too
        streamer.update_entry_data(1, 1, b"two")
        assert memory.cache.count(0, end) == len(memory.cache) - end
        assert list(streamer.read_entries(0)) == entries(ITEMS[0], (1, b"two"), ITEMS[2])


def test_a_database_that_refuses_the_record(path: Path) -> None:
    state = {"open_fails": False, "write_fails": False}

    def open_database(folder: str) -> Any:
        return FailingDatabase(folder, state)

    streamer = DataStreamer.open(path, open_database=open_database, initial_pages=1)
    commit(streamer, *ITEMS[:3], flush=True)
    state["write_fails"] = True
    with pytest.raises(CommitFailed, match=r"commit failed at step 2 record: .*no room"):
        streamer.update_entry_data(1, 1, b"two")
    assert list(streamer.read_entries(0)) == entries(*ITEMS[:3])
    state["write_fails"] = False
    streamer.update_entry_data(1, 1, b"six")
    assert streamer.get_entry(1).data == b"six"
    assert streamer._bookmarks.update_record is None
    streamer.close()


# --- truncating ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(ITEMS) + 1))
def test_truncation(path: Path, streamer: DataStreamer, number: int) -> None:
    """As if the dropped entries had never been: same bytes, same bookmarks."""
    streamer.truncate_file(number)
    kept = ITEMS[:number]
    newest = {data: at for at, (kind, data) in enumerate(kept) if kind == BOOKMARK_TYPE}
    for _ in range(2):
        assert list(streamer.read_entries(0)) == entries(*kept)
        assert bookmarks_of(streamer, b"a", b"b", b"c") == [newest.get(name) for name in (b"a", b"b", b"c")]
        for dropped in range(number, len(ITEMS)):
            with pytest.raises(EntryNotFound):
                streamer.get_entry(dropped)
        streamer.close()
        streamer = DataStreamer.open(path)
    with DataStreamer.open(path.with_name("other.bin"), initial_pages=3) as other:
        commit(other, *kept)
        assert streamer.committed == other.committed
        for stream in (streamer, other):
            commit(stream, *operation(5), (1, b"z" * DATA_SIZE_MAX), bookmark(6))
            assert stream.get_bookmark(bookmark(6)[1]) == number + 6
            assert stream.get_entry(number + 5).data == b"z" * DATA_SIZE_MAX
    streamer.close()
    end = page_end(2)
    assert path.read_bytes()[:end] == path.with_name("other.bin").read_bytes()[:end]


def test_truncations_that_cannot_be(streamer: DataStreamer) -> None:
    for number in (-1, 8):
        with pytest.raises(EntryNotFound, match=f"entry {number}: not found; the stream has 7 entries"):
            streamer.truncate_file(number)
    assert list(streamer.read_entries(0)) == entries(*ITEMS)
    assert commit(streamer, (1, b"next")) == [7]


def test_listeners_hear_of_a_truncation(streamer: DataStreamer) -> None:
    heard: list[Committed] = []
    streamer.on_commit(heard.append)
    streamer.truncate_file(7)
    assert heard == []
    streamer.truncate_file(2)
    assert heard == [Committed(4096 + 18 + 20, 2)]


@pytest.mark.parametrize("how", ["listens", "commits", "is interrupted"])
def test_listeners_hear_of_a_truncation_before_the_zeros_are_written(
    path: Path, streamer: DataStreamer, how: str
) -> None:
    """The server resets clients soon; a failing listener leaves only zeros past the end."""
    dropped: list[bytes] = []

    def listen(committed: Committed) -> None:
        unsubscribe()
        dropped.append(path.read_bytes()[committed.total_length :].rstrip(b"\0"))
        if how == "commits":
            commit(streamer, (1, b"instead"))
        elif how == "is interrupted":
            raise KeyboardInterrupt

    unsubscribe = streamer.on_commit(listen)
    with pytest.raises(KeyboardInterrupt) if how == "is interrupted" else contextlib.nullcontext():
        streamer.truncate_file(2)
    assert len(dropped[0]) > 0
    streamer.recover()
    kept = (*ITEMS[:2], (1, b"instead")) if how == "commits" else ITEMS[:2]
    assert list(streamer.read_entries(0)) == entries(*kept)
    assert not any(path.read_bytes()[streamer.committed.total_length :])


def test_a_reader_under_way(streamer: DataStreamer) -> None:
    """Its entries stay unchanged; then it hears that the rest is gone."""
    reader = streamer.read_entries(0)
    assert [next(reader).number for _ in range(3)] == [0, 1, 2]
    streamer.truncate_file(2)
    with pytest.raises(EntryNotFound, match="entry 3: not found; the stream has 2 entries"):
        list(reader)


@pytest.mark.parametrize(
    ("name", "method", "plan", "made"),
    [
        ("header", "pwrite", [errno.EIO], False),
        ("flush", "fdatasync", [errno.EIO], False),
        ("zeroing", "pwrite", [None, errno.EIO], True),
        ("zeroing the pages", "truncate", [errno.EIO], True),
    ],
)
def test_a_disk_that_fails_while_truncating(
    path: Path, name: str, method: str, plan: list[int | None], made: bool
) -> None:
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    streamer = DataStreamer.open(path, disk=disk, initial_pages=3)
    commit(streamer, *ITEMS, flush=True)
    disk.plan[method] = list(plan)
    if made:
        streamer.truncate_file(2)
    else:
        with pytest.raises(CommitFailed, match="Input/output error"):
            streamer.truncate_file(2)
    kept = ITEMS[:2] if made else ITEMS
    assert list(streamer.read_entries(0)) == entries(*kept)
    disk.plan.clear()
    commit(streamer, (1, b"after"), flush=True)
    expected = entries(*kept, (1, b"after"))
    assert list(streamer.read_entries(0)) == expected
    end = streamer.committed.total_length
    assert memory.cache.count(0, end) == len(memory.cache) - end
    streamer.close()
    with DataStreamer.open(path, disk=MemoryDisk.of(bytes(memory.cache))) as streamer:
        assert list(streamer.read_entries(0)) == expected


def test_a_database_that_fails_while_truncating(path: Path) -> None:
    state = {"open_fails": False, "write_fails": False}

    def open_database(folder: str) -> Any:
        return FailingDatabase(folder, state)

    streamer = DataStreamer.open(path, open_database=open_database, initial_pages=3)
    commit(streamer, *ITEMS, flush=True)
    numbers = {data: number for number, (kind, data) in enumerate(ITEMS) if kind == BOOKMARK_TYPE}
    state["write_fails"] = True
    with pytest.raises(CommitFailed, match=r"commit failed at step 1 index: .*no room"):
        streamer.truncate_file(4)
    assert list(streamer.read_entries(0)) == entries(*ITEMS)
    found = [numbers[name] for name in (b"a", b"b", b"c")]
    assert bookmarks_of(streamer, b"a", b"b", b"c") == found
    with pytest.raises(CommitFailed):
        commit(streamer, (1, b"no"))
    state["write_fails"] = False
    streamer.truncate_file(4)
    commit(streamer, (BOOKMARK_TYPE, b"c"))
    assert bookmarks_of(streamer, b"a", b"b", b"c") == [0, 2, 4]
    streamer.close()
    index = BookmarkIndex(path)
    assert [index.get(name) for name in (b"a", b"b", b"c")] == [0, 2, 4]
    assert index.covered == 5
    index.close()


def test_the_steps_are_all_described() -> None:
    assert list(UPDATE_STEPS) == list(UpdateStep)
    assert [name.split()[0] for name in TRUNCATE_STEPS] == [str(number) for number in range(1, 7)]


# --- Ctrl-C at each step ---------------------------------------------------------------------------------


class InterruptedDisk(RealDisk):
    """A file where Ctrl-C comes between the hole and the write of a replacement."""

    interrupted = False

    def replace(self, data: bytes, offset: int) -> None:
        if self.interrupted:
            self.interrupted = False
            self.pwrite(bytes(len(data)), offset)
            raise KeyboardInterrupt
        super().replace(data, offset)


def test_an_interrupted_update_is_finished_before_the_next_commit(path: Path) -> None:
    """Otherwise its record would be void, and a hole stay in committed entries."""
    DataStreamer.open(path, initial_pages=1).close()
    disk = InterruptedDisk(path)
    streamer = DataStreamer.open(path, disk=disk)
    commit(streamer, *ITEMS[:3])
    disk.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        streamer.update_entry_data(1, 1, b"two")
    expected = entries(ITEMS[0], (1, b"two"), ITEMS[2], (1, b"next"))
    assert list(streamer.read_entries(0)) == expected[:3]
    assert commit(streamer, (1, b"next")) == [3]
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == expected


class InterruptedRecord(FailingDatabase):
    """A LevelDB where Ctrl-C comes just after a write."""

    def put(self, key: bytes, value: bytes, **options: bool) -> None:
        super().put(key, value, **options)
        raise KeyboardInterrupt


def test_a_record_that_was_interrupted_is_deleted_before_the_next_commit(path: Path) -> None:
    """After a truncation, it must not meet the same totals with other entries."""
    state = {"open_fails": False, "write_fails": False}
    streamer = DataStreamer.open(
        path, open_database=lambda folder: InterruptedRecord(folder, state), initial_pages=1
    )
    commit(streamer, *ITEMS[:3], flush=True)
    with pytest.raises(KeyboardInterrupt):
        streamer.update_entry_data(1, 1, b"two")
    assert streamer.get_entry(1).data == b"one"
    streamer.truncate_file(1)
    commit(streamer, (1, b"new"), ITEMS[2])
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(ITEMS[0], (1, b"new"), ITEMS[2])


@pytest.mark.parametrize("is_made", [False, True], ids=["in its index", "behind its header"])
def test_a_truncation_that_is_interrupted_is_made_or_not(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """Readers, listeners and the index agree, and so does a later opening."""
    interrupted: list[bool] = []
    streamer = DataStreamer.open(
        path, open_database=lambda folder: WatchedDatabase(folder, [], interrupted), initial_pages=3
    )
    commit(streamer, *ITEMS, flush=True)
    before = bookmarks_of(streamer, b"a", b"b", b"c")
    heard: list[Committed] = []
    streamer.on_commit(heard.append)
    shorten = Appender.shorten

    def interrupted_behind(appender: Appender, new: Committed) -> None:
        shorten(appender, new)
        raise KeyboardInterrupt

    if is_made:
        monkeypatch.setattr(Appender, "shorten", interrupted_behind)
    else:
        interrupted.append(True)
    with pytest.raises(KeyboardInterrupt):
        streamer.truncate_file(4)
    kept = ITEMS[:4] if is_made else ITEMS
    assert list(streamer.read_entries(0)) == entries(*kept)
    assert heard == ([streamer.committed] if is_made else [])
    found = [0, 2, None] if is_made else before
    assert bookmarks_of(streamer, b"a", b"b", b"c") == found
    commit(streamer, (1, b"next"))
    assert list(streamer.read_entries(0)) == entries(*kept, (1, b"next"))
    assert bookmarks_of(streamer, b"a", b"b", b"c") == found
    streamer.close()
    index = BookmarkIndex(path)
    assert [index.get(name) for name in (b"a", b"b", b"c")] == found
    assert index.covered == len(kept) + 1
    index.close()


class InterruptedHeader(RealDisk):
    """A file where Ctrl-C comes after a flush."""

    interrupted = False

    def fdatasync(self) -> None:
        super().fdatasync()
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt


def test_a_truncation_that_is_interrupted_in_its_header_is_taken_back(path: Path) -> None:
    DataStreamer.open(path, initial_pages=3).close()
    disk = InterruptedHeader(path)
    streamer = DataStreamer.open(path, disk=disk)
    commit(streamer, *ITEMS, flush=True)
    disk.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        streamer.truncate_file(4)
    assert list(streamer.read_entries(0)) == entries(*ITEMS)
    streamer.close()
    with DataStreamer.open(path) as streamer:
        assert list(streamer.read_entries(0)) == entries(*ITEMS)
        assert bookmarks_of(streamer, b"a", b"b", b"c") == [4, 2, 6]
