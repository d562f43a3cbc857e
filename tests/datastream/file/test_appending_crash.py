"""Power failures: a small workload stops before every write and flush, and unflushed bytes are torn.

After reopening, every operation whose commit returned is there, the one under way whole or not at all, and
nothing else; the bookmarks agree, and the next append works. `SLUICE_LONG=1` tears more bytes of commits in
two halves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from sluice.datastream.errors import CommitFailed, HeaderBehind
from sluice.datastream.file.bookmarks import (
    COVERED_KEY,
    LAST_KEY,
    STREAM_KEY,
    SUM_KEY,
    SUMS_OF_KEY,
    TABLE_KEY,
)
from sluice.datastream.file.page_sums import sum_of
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import DATA_SIZE_MAX, HEADER_PAGE_SIZE, PAGE_SIZE, Entry, page_start
from sluice.datastream.limits import STREAM_LIMITS, StreamLimits
from tests.datastream.fake_disk import MemoryDisk, PowerLost
from tests.datastream.streams import Item, add, bookmark, commit, contents, entries, operation, stored_in

LONG = os.environ.get("SLUICE_LONG") == "1"

WORKLOAD: tuple[tuple[tuple[Item, ...], str], ...] = (
    (operation(1), "commit"),
    ((bookmark(2), (1, b"a" * 600_000)), "commit"),
    ((bookmark(3), (1, b"b" * 600_000), (2, b"")), "seal"),  # turns the page, and the file grows
    (operation(4), "commit"),  # a group of two
    (((1, b"c" * 300_000),), "rollback"),
    (
        (bookmark(5), (1, b"d" * DATA_SIZE_MAX), (1, b"e" * 900_000), bookmark(1)),
        "commit",
    ),  # two pages at once
    (operation(6), "commit"),
    (((1, b"A" * 600_000),), "update 6"),  # many blocks, in place
    ((bookmark(7),), "update 0"),  # a bookmark, in place
    ((), "truncate 8"),  # drops two pages, which then get bookmark 1 again
    ((), "truncate 7"),  # the last entry of a page
    (operation(8), "commit"),
    (((2, b"e" * 900_000), bookmark(4)), "commit"),
)
"""(items, end of the operation); `update N` replaces entry N, `truncate N` drops the entries from N on."""

IN_HALVES: tuple[tuple[tuple[Item, ...], str], ...] = (
    (operation(1), "begin"),
    ((bookmark(2), (1, b"a" * 600_000)), "begin"),
    ((bookmark(3), (1, b"b" * 600_000), (2, b"")), "seal"),  # turns the page, and the file grows
    (operation(4), "begin"),  # a group of two
    ((), "finish"),
    (operation(5), "begin"),
    (((1, b"c" * 300_000),), "rollback"),
    ((bookmark(6), (1, b"d" * DATA_SIZE_MAX), (1, b"e" * 900_000), bookmark(1)), "begin"),
    (operation(7), "begin"),
    ((), "finish"),
    (operation(8), "commit"),
    ((), "truncate 20"),
    (operation(9), "begin"),
    (((2, b"e" * 900_000), bookmark(4)), "begin"),
)
"""The same with commits in two halves; the last one is never finished."""


class AlwaysChosen(random.Random):
    """A random source that always returns the same side."""

    def random(self) -> float:
        return 0.0


@dataclass
class Run:
    """The state of the workload when the power failed."""

    acknowledged: list[Item] = field(default_factory=list)
    """Items of commits that returned."""
    offered: list[Item] = field(default_factory=list)
    """These and the items of the commit under way."""
    updating: bool = False
    """An update in place was under way, with its record in the bookmark folder."""


Work = Callable[[DataStreamer, Run], None]
"""Runs a workload and records its progress."""


@contextmanager
def opened(path: Path, disk: MemoryDisk, limits: StreamLimits = STREAM_LIMITS) -> Iterator[DataStreamer]:
    """Open a stream; always release its locks, without the writes of an orderly close."""
    streamer = DataStreamer.open(path, disk=disk, initial_pages=1, growth_pages=1, limits=limits)
    try:
        yield streamer
    finally:
        streamer._bookmarks.close()


def work(streamer: DataStreamer, run: Run, *, flush: bool = True) -> None:
    """Run the workload from its beginning."""
    for items, end in WORKLOAD:
        verb, _, number = end.partition(" ")
        if number:
            run.offered = list(run.acknowledged)
            run.offered[int(number) :] = (
                [] if verb == "truncate" else [*items, *run.offered[int(number) + 1 :]]
            )
            run.updating = verb == "update"
            if verb == "update":
                streamer.update_entry_data(int(number), *items[0])
            else:
                streamer.truncate_file(int(number))
            run.updating = False
            run.acknowledged = list(run.offered)
            continue
        streamer.start_atomic_op()
        add(streamer, items)
        if end == "rollback":
            streamer.rollback_atomic_op()
            continue
        run.offered.extend(items)
        if end == "seal":
            streamer.seal_atomic_op()
            continue
        streamer.commit_atomic_op(flush=flush)
        run.acknowledged = list(run.offered)


def work_in_halves(streamer: DataStreamer, run: Run) -> None:
    """Run the workload in halves; a begun commit counts as offered once it is being finished."""
    group: list[Item] = []
    begun: list[Item] = []
    for items, end in IN_HALVES:
        verb, _, number = end.partition(" ")
        if verb in ("finish", "truncate"):
            run.offered = [*run.acknowledged, *begun]
            if verb == "finish":
                streamer.finish_commit()
            else:
                del run.offered[int(number) :]
                streamer.truncate_file(int(number))
            run.acknowledged, begun = list(run.offered), []
            continue
        streamer.start_atomic_op()
        add(streamer, items)
        if end == "rollback":
            streamer.rollback_atomic_op()
            continue
        group += items
        if end == "seal":
            streamer.seal_atomic_op()
        elif end == "commit":
            run.offered = [*run.acknowledged, *group]
            streamer.commit_atomic_op()
            run.acknowledged, group = list(run.offered), []
        else:
            run.offered = [*run.acknowledged, *begun]
            streamer.begin_commit()
            run.acknowledged, begun, group = list(run.offered), group, []


def step_count(path: Path, work: Work, limits: StreamLimits = STREAM_LIMITS) -> int:
    """Return how many writes and flushes a workload makes after the stream was created."""
    disk = MemoryDisk()
    with opened(path, disk, limits) as streamer:
        disk.steps.clear()
        work(streamer, Run())
    shutil.rmtree(path.with_name("s.db"))
    return len(disk.steps)


def check_after_crash(path: Path, disk: MemoryDisk, run: Run, where: str) -> None:
    """Reopen after a crash and check the properties."""
    with opened(path, disk) as streamer:
        found = list(streamer.read_entries(0))
        assert found in (entries(*run.acknowledged), entries(*run.offered)), where
        newest = {entry.data: entry.number for entry in found if entry.is_bookmark}
        for data, number in newest.items():
            assert streamer.get_bookmark(data) == number, where
        end = streamer.committed.total_length
        assert disk.cache.count(0, end) == len(disk.cache) - end, where
        assert len(disk.cache) % PAGE_SIZE == HEADER_PAGE_SIZE, where
        number = commit(streamer, bookmark(99), (1, b"after"), flush=True)[0]
        assert streamer.get_bookmark(bookmark(99)[1]) == number == len(found), where
        assert list(streamer.read_entries(number)) == [
            Entry(0xB0, number, bookmark(99)[1]),
            Entry(1, number + 1, b"after"),
        ]
    stored = {key: int.from_bytes(value, "big") for key, value in stored_in(path.with_name("s.db")).items()}
    sums = {key for key in stored if key.startswith(SUM_KEY)}
    for key in sums:
        start = page_start(int.from_bytes(key[-8:], "big"))
        assert stored[key] == sum_of(bytes(disk.cache[start : start + PAGE_SIZE])), where
    tables = {key for key in stored if key.startswith(TABLE_KEY)}
    assert all(int.from_bytes(key[-8:], "big") < end // PAGE_SIZE for key in tables), where
    expected = {**newest, bookmark(99)[1]: number, COVERED_KEY: number + 2}
    assert {
        key: stored[key] for key in stored.keys() - tables - sums - {LAST_KEY, STREAM_KEY, SUMS_OF_KEY}
    } == expected, where


@pytest.mark.parametrize("work", [work, work_in_halves])
def test_every_boundary(memory_path: Path, work: Work) -> None:
    ways = ("none", "all", "prefix", "sectors") if work is not work_in_halves or LONG else ("sectors",)
    check_every_crash(memory_path / "s.bin", ways, work)


@pytest.mark.parametrize("bookmarks_max", [2, 1000])
def test_every_boundary_of_commits_without_a_flush(memory_path: Path, bookmarks_max: int) -> None:
    """The process is killed, also in mid-copy: its writes are there, the index may lag."""
    limits = StreamLimits(pending_bookmarks_max=bookmarks_max)
    check_every_crash(memory_path / "s.bin", ("all",), partial(work, flush=False), limits)


def check_every_crash(
    path: Path, ways: Sequence[str], work: Work, limits: StreamLimits = STREAM_LIMITS
) -> None:
    """Run a workload, and before each of its steps reopen what a crash may leave then.

    What was checked already, with the same progress, is not checked again.
    """
    chance = {how: random.Random(f"crash {how}") for how in ways}
    run, disk, left = Run(), MemoryDisk(), path.parent / "left" / path.name
    left.parent.mkdir()
    checked: set[int] = set()

    def crash() -> None:
        progress = (tuple(run.acknowledged), tuple(run.offered))
        for how, rng in chance.items():
            image = disk.image_after_crash(how, rng)
            for index in ("as it was",) if run.updating else ("as it was", "lost"):
                if index == "as it was":
                    shutil.copytree(path.with_name("s.db"), left.with_name("s.db"))
                state = hash((image, contents(left.with_name("s.db")), *progress))
                if state not in checked:
                    checked.add(state)
                    where = f"crash before step {len(disk.steps) - 1} ({how}), index {index}"
                    check_after_crash(left, MemoryDisk.of(image), run, where)
                shutil.rmtree(left.with_name("s.db"), ignore_errors=True)

    with opened(path, disk, limits) as streamer:
        disk.steps.clear()
        disk.fail = lambda step: crash()
        work(streamer, run)
        crash()
    assert len(disk.steps) > 20
    assert len(checked) > 20


@pytest.mark.parametrize("work", [work, work_in_halves])
def test_a_process_is_killed_and_then_the_power_fails(memory_path: Path, work: Work) -> None:
    """The next process finds unflushed writes and must not lose them: a block node reports them to publishers
    at once.
    """
    path = memory_path / "s.bin"
    steps, unflushed_count = step_count(path, work), 0
    for killed_at in range(steps + 1):
        run, disk = Run(), MemoryDisk()
        with opened(path, disk) as streamer:
            disk.steps.clear()
            disk.crash_at = killed_at
            try:
                work(streamer, run)
            except PowerLost:
                unflushed_count += bool(disk._unflushed)
        disk.crash_at = None
        with opened(path, disk) as streamer:
            found = list(streamer.read_entries(0))
        after = MemoryDisk.of(disk.image_after_crash("none", random.Random(killed_at)))
        with opened(path, after) as streamer:
            assert list(streamer.read_entries(0)) == found, killed_at
        shutil.rmtree(path.with_name("s.db"))
    assert unflushed_count > 20


@pytest.mark.parametrize("index", ["as it was", "lost"])
def test_the_power_fails_while_opening_after_a_kill(memory_path: Path, index: str) -> None:
    """The index must not be on disk ahead of the header: that would count as a loss."""
    path = memory_path / "s.bin"
    disk = MemoryDisk()
    with opened(path, disk) as streamer:
        commit(streamer, bookmark(1), (1, b"a"), flush=True)
        disk.steps.clear()
        disk.crash_at = 3  # killed before the header's flush: it is in the page cache
        with pytest.raises(PowerLost):
            commit(streamer, bookmark(2), (1, b"b"), flush=True)
    assert disk.steps == ["pwrite", "fdatasync", "pwrite"]
    if index == "lost":
        shutil.rmtree(path.with_name("s.db"))
    for crash_at in range(2):
        killed = MemoryDisk.of(bytes(disk._durable))
        for offset, data in disk._unflushed:
            assert data is not None
            killed._write(data, offset)
        killed.crash_at = crash_at
        with pytest.raises(PowerLost), opened(path, killed):
            pass
        after = MemoryDisk.of(killed.image_after_crash("none", random.Random(1)))
        first, second = (bookmark(1), (1, b"a")), (bookmark(2), (1, b"b"))
        with opened(path, after) as streamer:
            assert list(streamer.read_entries(0)) in (entries(*first), entries(*first, *second))
            assert streamer.get_bookmark(bookmark(1)[1]) == 0


@pytest.mark.parametrize("is_evicted", [False, True])
def test_a_header_whose_flush_failed_is_not_believed_by_the_next_process(
    memory_path: Path, is_evicted: bool
) -> None:
    """The kernel takes the cached header for written; the disk lacks it, and nobody was told of the commit.

    The kernel may have dropped some of its entries meanwhile, which are then zeros.
    """
    path, disk = memory_path / "s.bin", MemoryDisk()
    with opened(path, disk) as streamer:
        commit(streamer, bookmark(1), (1, b"a"), flush=True)
        disk.steps.clear()

        def fail(step: str) -> OSError | None:
            """Be ill from the commit on, so that nothing can be put right either."""
            return OSError(errno.EIO, "ill") if step == "fdatasync" else None

        commit(streamer, bookmark(2), (1, b"b" * 9_000))
        disk.fail = fail
        with pytest.raises(CommitFailed):
            streamer.recover()
    disk.fail = lambda step: None
    if is_evicted:
        disk.lost.discard(0)  # but for the header
        disk.evict(AlwaysChosen())
        disk.lost.add(0)
    with opened(path, disk) as streamer:
        found = list(streamer.read_entries(0))
    after = MemoryDisk.of(disk.image_after_crash("none", random.Random(1)))
    with opened(path, after) as streamer:
        assert list(streamer.read_entries(0)) == found
    assert found == entries(bookmark(1), (1, b"a"))


def insist(streamer: DataStreamer, run: Run, offered: list[Item], step: Callable[[], object]) -> None:
    """Repeat a step until the disk takes it."""
    run.offered = offered
    while True:
        try:
            step()
            break
        except CommitFailed:
            assert list(streamer.read_entries(0)) == entries(*run.acknowledged)
    run.acknowledged = list(offered)


def insist_on_commit(streamer: DataStreamer, run: Run, *items: Item) -> None:
    insist(streamer, run, [*run.acknowledged, *items], partial(commit, streamer, *items, flush=True))


def work_insistently(streamer: DataStreamer, run: Run) -> None:
    for number, size in enumerate((10, 600_000, 20, 4_000, 500_000, 30, 1_000_000, 40)):
        insist_on_commit(streamer, run, bookmark(number), (1, bytes([number + 1]) * size))
    for number, data in ((5, b"U" * 20), (9, b"V" * 500_000)):
        offered = [*run.acknowledged[:number], (1, data), *run.acknowledged[number + 1 :]]
        run.updating = True
        insist(streamer, run, offered, partial(streamer.update_entry_data, number, 1, data))
        run.updating = False
    insist_on_commit(streamer, run, bookmark(8), (1, b"after updates"))
    insist(streamer, run, run.acknowledged[:12], partial(streamer.truncate_file, 12))
    for number, size in ((9, 50), (10, 700_000), (11, 60)):
        insist_on_commit(streamer, run, bookmark(number), (1, bytes([number]) * size))


@pytest.mark.parametrize(
    "failures", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("end", ["power fails", "process is killed"])
def test_a_flush_fails_and_then_a_crash_comes(memory_path: Path, failures: int, end: str) -> None:
    """Each flush fails in turn, so many in a row; then everything that is only in the cache is lost.

    The disk lies from then on: writes through the cache to the blocks of that flush are lost. A killed
    process leaves such blocks in the cache to the next one, which continues before the power fails.
    """
    path = memory_path / "s.bin"
    counted = MemoryDisk()
    with opened(path, counted) as streamer:
        counted.steps.clear()
        work_insistently(streamer, Run())
    shutil.rmtree(path.with_name("s.db"))
    flush_count, later = counted.steps.count("fdatasync"), random.Random(f"{failures} {end}")
    assert flush_count > 20
    for failing in range(flush_count):
        run, disk = Run(), MemoryDisk()
        with opened(path, disk) as streamer:
            disk.steps.clear()

            def fail(step: str, disk: MemoryDisk = disk, failing: int = failing) -> OSError | None:
                is_ill = failing < disk.steps.count("fdatasync") <= failing + failures
                return OSError(errno.EIO, "ill") if is_ill and step == "fdatasync" else None

            disk.fail = fail
            disk.crash_at = later.choice([None, later.randrange(len(counted.steps) + 10)])
            if end == "process is killed":
                flushes = [at for at, step in enumerate(counted.steps) if step == "fdatasync"]
                disk.crash_at = flushes[failing] + later.randrange(1, 8)
            with contextlib.suppress(PowerLost):
                work_insistently(streamer, run)
        disk.fail, disk.crash_at = lambda step: None, None
        where = f"flush {failing} of {flush_count}"
        if end == "process is killed":
            disk.evict(later)
            with opened(path, disk) as streamer:
                found = list(streamer.read_entries(0))
                assert found in (entries(*run.acknowledged), entries(*run.offered)), where
                kept = run.acknowledged if found == entries(*run.acknowledged) else run.offered
                run.acknowledged, run.offered = list(kept), list(kept)
                insist_on_commit(streamer, run, bookmark(50), (1, b"next " * 3_000))
        image = disk.image_after_crash(later.choice(["none", "all", "sectors"]), later)
        check_after_crash(path, MemoryDisk.of(image), run, where)
        shutil.rmtree(path.with_name("s.db"))


def test_a_crash_while_putting_right(memory_path: Path) -> None:
    """The opening after a crash is stopped at each of its writes, too; the next one finds the same stream."""
    path = memory_path / "s.bin"
    run, disk = Run(), MemoryDisk()
    with opened(path, disk) as streamer:
        disk.steps.clear()
        disk.crash_at = step_count_until_last_header(path.with_name("other.bin"))
        with pytest.raises(PowerLost):
            work(streamer, run)
    image = disk.image_after_crash("all", random.Random(1))
    crash_at = 0
    while True:
        repaired = MemoryDisk.of(image)
        repaired.crash_at = crash_at
        try:
            with opened(path, repaired):
                break
        except PowerLost:
            check_after_crash(
                path,
                MemoryDisk.of(repaired.image_after_crash("prefix", random.Random(2))),
                run,
                f"{crash_at}",
            )
            shutil.rmtree(path.with_name("s.db"))
        crash_at += 1
    assert crash_at > 2  # the tail was trimmed in several steps


def big_commit_end(disk: MemoryDisk) -> int:
    """Return the number of steps up to the end of the biggest commit, the only one that grows twice."""
    growths = [step for step, name in enumerate(disk.steps) if name == "truncate"]
    return growths[1] + 5  # the growth itself, then the four steps of a commit


def step_count_until_last_header(path: Path) -> int:
    """Return the step before the big commit's header is written."""
    disk = MemoryDisk()
    with opened(path, disk) as streamer:
        disk.steps.clear()
        work(streamer, Run())
    return big_commit_end(disk) - 2


def test_unflushed_commits_that_a_power_failure_lost(memory_path: Path) -> None:
    """Their bookmarks may be in the index, and readers may have seen them: the opening must say so."""
    path = memory_path / "s.bin"
    disk = MemoryDisk()
    with opened(path, disk) as streamer:
        commit(streamer, bookmark(1), (1, b"flushed"), flush=True)
        commit(streamer, bookmark(2), (1, b"lost"), flush=False)
        streamer._bookmarks.write_pending()
    disk = MemoryDisk.of(disk.image_after_crash("none", random.Random(1)))
    with pytest.raises(HeaderBehind, match=r"counts 2 entries .* covers 4 entries"), opened(path, disk):
        pass
    with DataStreamer.open(path, disk=disk, judge=lambda evidence: evidence.file.committed) as streamer:
        assert list(streamer.read_entries(0)) == entries(bookmark(1), (1, b"flushed"))
    run = Run([bookmark(1), (1, b"flushed")], [bookmark(1), (1, b"flushed")])
    check_after_crash(path, disk, run, "unflushed")
