"""Commits on a failing disk: at every step, what is visible, what is on disk, and that the next commit
works."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.datastream.errors import CommitFailed, StreamReadOnly
from sluice.datastream.file.appending import COMMIT_STEPS, Appender, CommitStep
from sluice.datastream.file.bookmarks import BookmarkIndex
from sluice.datastream.file.page_index import PageIndex
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import (
    DATA_SIZE_MAX,
    HEADER_PAGE_SIZE,
    PAGE_SIZE,
    Entry,
    file_size_of,
    page_end,
    page_number_of,
)
from sluice.datastream.limits import ROOM_BYTES, ROOM_OPERATION_BYTES_MAX
from tests.datastream.fake_disk import FailingDisk, MemoryDisk
from tests.datastream.streams import add, bookmark, commit, entries

FIRST = (bookmark(1), (1, b"first" * 10), (2, b""))
BIG = ((1, b"a" * DATA_SIZE_MAX), (1, b"b" * 500_000), (1, b"c" * 900_000))


def open_on(tmp_path: Path, disk: MemoryDisk | FailingDisk, pages: int = 2) -> DataStreamer:
    return DataStreamer.open(tmp_path / "s.bin", disk=disk, initial_pages=pages, growth_pages=1)


def zero_past_the_end(disk: MemoryDisk, streamer: DataStreamer) -> bool:
    end = streamer.committed.total_length
    return disk.cache.count(0, end) == len(disk.cache) - end


FAULTS = [
    ("growth", "truncate", [errno.ENOSPC], BIG, CommitStep.GROW),
    ("entries, full disk", "pwrite", [errno.ENOSPC], BIG[:1], CommitStep.ENTRIES),
    ("entries, full disk, without a flush", "append", [errno.ENOSPC], ((1, b"x" * 90),), CommitStep.ENTRIES),
    ("header, without a flush", "pwrite", [errno.EIO], ((1, b"x" * 90),), CommitStep.HEADER),
    ("entries, broken disk", "pwrite", [errno.EIO], ((1, b"x"),), CommitStep.ENTRIES),
    ("first flush", "fdatasync", [errno.EIO], BIG, CommitStep.FLUSH_ENTRIES),
    ("header", "pwrite", [None, errno.EIO], BIG, CommitStep.HEADER),
    ("second flush", "fdatasync", [None, errno.EIO], BIG, CommitStep.FLUSH_HEADER),
    (
        "second flush and the repair's",
        "fdatasync",
        [None, errno.EIO, errno.EIO],
        BIG,
        CommitStep.FLUSH_HEADER,
    ),
    ("full disk for long", "pwrite", [errno.ENOSPC] * 3, ((1, b"y" * 9000),), CommitStep.ENTRIES),
]


@pytest.mark.parametrize(
    ("name", "method", "plan", "items", "step"), FAULTS, ids=[fault[0] for fault in FAULTS]
)
def test_a_failed_commit(
    tmp_path: Path,
    name: str,
    method: str,
    plan: list[int | None],
    items: tuple[tuple[int, bytes], ...],
    step: CommitStep,
) -> None:
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    streamer = open_on(tmp_path, disk)
    commit(streamer, *FIRST, flush=True)
    before = streamer.committed
    number = next(number for number in plan if number is not None)
    disk.plan[method] = list(plan)
    with pytest.raises(CommitFailed) as caught:
        commit(streamer, bookmark(2), *items, flush="without a flush" not in name)
    assert caught.value.step == step.value
    assert caught.value.os_error.errno == number
    assert str(caught.value).startswith(f"{tmp_path}/s.bin: commit failed at step {step.value}: ")
    assert streamer.committed == before
    assert list(streamer.read_entries(0)) == entries(*FIRST)

    disk.plan.clear()
    commit(streamer, bookmark(3), (5, b"after"), flush=True)
    expected = entries(*FIRST, bookmark(3), (5, b"after"))
    assert list(streamer.read_entries(0)) == expected
    assert zero_past_the_end(memory, streamer)
    assert memory.size() % PAGE_SIZE == 4096
    assert memory.image_after_crash("none", random.Random(1)) == bytes(memory.cache)
    streamer.close()
    streamer = open_on(tmp_path, memory)
    assert list(streamer.read_entries(0)) == expected
    streamer.close()


def test_after_a_failed_flush_unflushed_commits_are_written_again(tmp_path: Path) -> None:
    """Linux marks pages clean whose flush failed: a second flush succeeds and writes nothing."""
    memory = MemoryDisk()
    failures = iter([OSError(errno.EIO, "Input/output error")])
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST)
    memory.fail = lambda step: next(failures, None) if step == "fdatasync" else None
    with pytest.raises(CommitFailed):
        commit(streamer, (1, b"lost"), flush=True)
    commit(streamer, (1, b"after"), flush=True)
    streamer.close()
    on_disk = MemoryDisk.of(memory.image_after_crash("none", random.Random(1)))
    streamer = open_on(tmp_path, on_disk)
    assert list(streamer.read_entries(0)) == entries(*FIRST, (1, b"after"))
    streamer.close()


def what_a_power_failure_leaves(memory: MemoryDisk, folder: Path) -> list[Entry]:
    """Return the entries of a stream opened from the bytes that reached the disk, in a new `folder`."""
    folder.mkdir()
    image = memory.image_after_crash("none", random.Random(1))
    with open_on(folder, MemoryDisk.of(image)) as streamer:
        return list(streamer.read_entries(0))


@pytest.mark.parametrize("how", ["recover", "update", "empty commit"])
@pytest.mark.parametrize("failure_count", [1, 2])
def test_after_a_failed_flush_the_header_is_written_again_too(
    tmp_path: Path, how: str, failure_count: int
) -> None:
    """The header was dirty like the entries; a power failure would lose it."""
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)
    commit(streamer, (1, b"second"))
    failures = [OSError(errno.EIO, "Input/output error")] * failure_count
    memory.fail = lambda step: failures.pop() if step == "fdatasync" and failures else None

    def make_durable() -> None:
        if how == "recover":
            streamer.recover()
        elif how == "update":
            streamer.update_entry_data(3, 1, b"SECOND")
        else:
            commit(streamer, flush=True)

    while failures:  # an empty commit repairs at once, and meets two of them
        with pytest.raises(CommitFailed):
            make_durable()
    make_durable()
    expected = entries(*FIRST, (1, b"SECOND" if how == "update" else b"second"))
    assert what_a_power_failure_leaves(memory, tmp_path / "crashed") == expected
    streamer.close()


def test_a_failed_flush_of_a_repair_is_remembered(tmp_path: Path) -> None:
    memory = MemoryDisk()
    failures = {"pwrite": [OSError(errno.EIO, "a header")], "fdatasync": [OSError(errno.EIO, "a repair")]}
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)
    commit(streamer, (1, b"second"))
    memory.fail = lambda step: failures[step].pop() if failures.get(step) else None
    with pytest.raises(CommitFailed, match="step 3 header: a header"):
        commit(streamer, (1, b"refused"))
    commit(streamer, (1, b"third"), flush=True)
    expected = entries(*FIRST, (1, b"second"), (1, b"third"))
    assert what_a_power_failure_leaves(memory, tmp_path / "crashed") == expected
    streamer.close()


def test_a_failed_commit_drops_sealed_operations_too(tmp_path: Path) -> None:
    disk = FailingDisk(MemoryDisk())
    streamer = open_on(tmp_path, disk)
    streamer.start_atomic_op()
    streamer.add_stream_entry(1, b"sealed")
    streamer.seal_atomic_op()
    disk.plan["fdatasync"] = [errno.EIO]
    with pytest.raises(CommitFailed):
        streamer.commit_atomic_op()
    streamer.start_atomic_op()
    assert streamer.add_stream_entry(1, b"next") == 0
    streamer.commit_atomic_op()
    assert list(streamer.read_entries(0)) == [Entry(1, 0, b"next")]
    streamer.close()


INTERRUPTED = [
    "BookmarkIndex.before",
    "BookmarkIndex.record",
    "Appender.adopt",
    "Appender._store_table",
]


@pytest.mark.parametrize("where", INTERRUPTED)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_commit_that_is_interrupted_behind_its_header_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: type[BaseException]
) -> None:
    """Left in the file, the header would count a commit that the next one overwrites, perhaps torn and, if of
    the same length, unflushed.
    """
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)
    before = streamer.committed
    owner, _, method = where.partition(".")

    def interrupt(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr({"BookmarkIndex": BookmarkIndex, "Appender": Appender}[owner], method, interrupt)
        with pytest.raises(error):
            commit(streamer, bookmark(2), *BIG, flush=True)
    assert streamer.committed == before
    assert list(streamer.read_entries(0)) == entries(*FIRST)
    assert zero_past_the_end(memory, streamer)
    opened = MemoryDisk.of(memory.image_after_crash("none", random.Random(1)))
    (tmp_path / "crashed").mkdir()
    with open_on(tmp_path / "crashed", opened) as crashed:
        assert list(crashed.read_entries(0)) == entries(*FIRST)

    other = tuple((kind, b"z" * len(data)) for kind, data in BIG)
    commit(streamer, bookmark(2), *other, flush=True)
    expected = entries(*FIRST, bookmark(2), *other)
    assert list(streamer.read_entries(0)) == expected
    assert streamer.get_bookmark(bookmark(2)[1]) == 3
    assert memory.image_after_crash("none", random.Random(1)) == bytes(memory.cache)
    streamer.close()
    with open_on(tmp_path, memory) as streamer:
        assert list(streamer.read_entries(0)) == expected


def test_a_commit_that_cannot_be_taken_back_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, *FIRST, flush=True)

    def run_out(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "adopt", run_out)
        patch.setattr(PageIndex, "add_page", run_out)
        with pytest.raises(MemoryError):
            commit(streamer, bookmark(2), *BIG, flush=True)
    with pytest.raises(StreamReadOnly):
        commit(streamer, bookmark(2), flush=True)
    with pytest.raises(StreamReadOnly):
        streamer.recover()
    assert list(streamer.read_entries(0)) == entries(*FIRST)
    streamer.close()
    with open_on(tmp_path, memory) as streamer:
        commit(streamer, bookmark(2), flush=True)
        assert list(streamer.read_entries(0)) == entries(*FIRST, bookmark(2))


def test_an_interruption_right_behind_a_commit_leaves_it(tmp_path: Path) -> None:
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    unsubscribe = streamer.on_commit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        commit(streamer, *FIRST, flush=True)
    unsubscribe()
    commit(streamer, bookmark(2), flush=True)
    assert list(streamer.read_entries(0)) == entries(*FIRST, bookmark(2))
    streamer.close()


def test_calls_of_one_commit(tmp_path: Path) -> None:
    """One write of the entries, a flush, one write of the header, a flush; a group shares them."""
    disk = FailingDisk(MemoryDisk())
    streamer = open_on(tmp_path, disk)
    disk.calls.clear()
    for number in range(5):
        streamer.start_atomic_op()
        streamer.add_stream_entry(1, bytes([number]))
        streamer.seal_atomic_op()
    streamer.commit_atomic_op()
    assert disk.calls == ["pwrite", "fdatasync", "pwrite", "fdatasync"]
    disk.calls.clear()
    commit(streamer, (1, b"quick"), flush=False)
    assert disk.calls == ["append", "pwrite"]
    disk.calls.clear()
    commit(streamer, flush=False)  # nothing to write
    assert disk.calls == []
    commit(streamer, flush=True)  # makes the one before durable
    assert disk.calls == ["fdatasync", "fdatasync"]
    disk.calls.clear()
    commit(streamer, flush=True)
    assert disk.calls == []
    streamer.close()


@pytest.mark.parametrize(("growth_pages", "pages"), [(1, 4), (10, 11)])
def test_growth(tmp_path: Path, growth_pages: int, pages: int) -> None:
    memory = MemoryDisk()
    path = tmp_path / "s.bin"
    streamer = DataStreamer.open(path, disk=memory, initial_pages=1, growth_pages=growth_pages)
    assert memory.size() == file_size_of(1)
    commit(streamer, *[(1, bytes([65 + number]) * DATA_SIZE_MAX) for number in range(4)])
    assert memory.size() == file_size_of(pages)
    assert [entry.data[:1] for entry in streamer.read_entries(0)] == [b"A", b"B", b"C", b"D"]
    streamer.close()


def test_a_file_without_pages_grows_at_once(tmp_path: Path) -> None:
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory, pages=0)
    assert memory.size() == 4096
    commit(streamer, (1, b"x"))
    assert memory.size() == file_size_of(1)
    streamer.close()


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 90) | st.just(400_000), max_size=4), st.sampled_from("cfs")),
        max_size=20,
    )
)
def test_the_same_bytes_however_it_was_committed(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[list[int], str]]
) -> None:
    """Unflushed, flushed, in a group; on a real file, and without a window."""
    folder, memory = tmp_path_factory.mktemp("same"), MemoryDisk()
    real = DataStreamer.open(folder / "real.bin", initial_pages=1, growth_pages=1)
    plain = DataStreamer.open(folder / "plain.bin", initial_pages=1, growth_pages=1, disk=memory)
    with real, plain:
        for number, (sizes, how) in enumerate(operations):
            items = [bookmark(number), *((1, bytes([number + 1]) * size) for size in sizes)]
            commit(plain, *items, flush=True)
            real.start_atomic_op()
            add(real, items)
            if how == "s":
                real.seal_atomic_op()
            else:
                real.commit_atomic_op(flush=how == "f")
        if operations and operations[-1][1] == "s":
            real.commit_atomic_op()
        assert real.committed == plain.committed
        assert (folder / "real.bin").read_bytes() == memory.cache
        assert zero_past_the_end(memory, plain)
        for number in range(len(operations)):
            assert real.get_bookmark(bookmark(number)[1]) == plain.get_bookmark(bookmark(number)[1])


# --- room for small commits ---------------------------------------------------------------------------------

SMALL = (1, b"s" * 5_000)


def rooms_made(memory: MemoryDisk) -> list[tuple[int, int]]:
    """Record the ranges for which a disk makes room in the returned list."""
    made: list[tuple[int, int]] = []
    make_room = memory.make_room

    def watched(size: int, offset: int) -> None:
        assert memory.cache.count(0, offset, offset + size) == size  # otherwise something would be lost
        made.append((offset, offset + size))
        make_room(size, offset)

    memory.make_room = watched  # type: ignore[method-assign]
    return made


def test_a_small_commit_that_needs_places_makes_room_for_the_next_ones(tmp_path: Path) -> None:
    """Between its entries and their flush, up to the end of the page in use."""
    memory = MemoryDisk()
    made, room_end = rooms_made(memory), 0
    streamer = open_on(tmp_path, memory)
    while streamer.committed.total_length < HEADER_PAGE_SIZE + PAGE_SIZE + PAGE_SIZE // 2:
        memory.steps.clear()
        commit(streamer, SMALL, flush=True)
        end = streamer.committed.total_length
        if end <= room_end:
            assert memory.steps == ["pwrite", "fdatasync", "pwrite", "fdatasync"]
            continue
        assert memory.steps == ["pwrite", "make_room", "fdatasync", "pwrite", "fdatasync"]
        room_start, room_end = made[-1]
        assert room_start == end
        assert room_end % 4096 == 0
        assert ROOM_BYTES - 4096 < room_end - end <= ROOM_BYTES or room_end == page_end(page_number_of(end))
    assert max(end for start, end in made if start < HEADER_PAGE_SIZE + PAGE_SIZE) == file_size_of(1)
    assert len(made) < 60
    assert zero_past_the_end(memory, streamer)
    streamer.close()


def test_room_is_made_for_nothing_else(tmp_path: Path) -> None:
    """Neither for larger commits nor for unflushed ones."""
    memory = MemoryDisk()
    made = rooms_made(memory)
    streamer = open_on(tmp_path, memory)
    head_size, sizes = 17, (ROOM_OPERATION_BYTES_MAX, ROOM_OPERATION_BYTES_MAX + 1)
    for size, flush, makes_room in (
        (sizes[0], False, False),
        (sizes[1], True, False),
        (sizes[0], True, True),
        (sizes[1], True, False),
        (sizes[0], True, True),
    ):
        made.clear()
        commit(streamer, (1, b"s" * (size - head_size)), flush=flush)
        assert bool(made) is makes_room
    streamer.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_has_no_room_is_asked_once_a_page(tmp_path: Path, number: int) -> None:
    memory = MemoryDisk()
    disk = FailingDisk(memory)
    disk.plan["make_room"] = [number] * 3
    streamer = open_on(tmp_path, disk)
    for _ in range(9):
        commit(streamer, SMALL, flush=True)
    assert disk.plan["make_room"] == [number] * 2
    assert zero_past_the_end(memory, streamer)
    commit(streamer, (1, b"l" * DATA_SIZE_MAX))
    for _ in range(9):
        commit(streamer, SMALL, flush=True)
    assert disk.plan["make_room"] == [number]
    assert [len(entry.data) for entry in streamer.read_entries(0)] == [
        *[5_000] * 9,
        DATA_SIZE_MAX,
        *[5_000] * 9,
    ]
    assert zero_past_the_end(memory, streamer)
    streamer.close()


def test_no_room_is_made_beyond_a_file_that_is_full(tmp_path: Path) -> None:
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory, pages=1)
    commit(streamer, (1, b"l" * (DATA_SIZE_MAX - 5_017)))
    made = rooms_made(memory)
    commit(streamer, SMALL, flush=True)
    assert streamer.committed.total_length == file_size_of(1) == memory.size()
    assert made == []
    streamer.close()


def test_room_that_a_truncation_gave_back_is_made_again(tmp_path: Path) -> None:
    """The truncation cuts off pages and adds them again as a hole."""
    memory = MemoryDisk()
    streamer = open_on(tmp_path, memory)
    commit(streamer, (1, b"l" * DATA_SIZE_MAX), flush=True)
    commit(streamer, SMALL, flush=True)
    made = rooms_made(memory)
    commit(streamer, SMALL, flush=True)
    assert made == []
    streamer.truncate_file(0)
    commit(streamer, (1, b"l" * DATA_SIZE_MAX), flush=True)
    commit(streamer, SMALL, flush=True)
    assert len(made) == 1
    streamer.close()


def test_the_steps_are_all_described() -> None:
    assert list(COMMIT_STEPS) == list(CommitStep)
