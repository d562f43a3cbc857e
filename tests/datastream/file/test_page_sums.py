"""The sums of full pages: made from the written bytes, checked once; and pages that do not fit."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.errors import (
    CommitFailed,
    EntriesDisagree,
    PageDamaged,
    PageUnchecked,
    StreamFileUnavailable,
)
from sluice.datastream.file import disk as disks
from sluice.datastream.file import page_sums
from sluice.datastream.file.bookmarks import STREAM_KEY, SUM_KEY, SUMS_OF_KEY, bookmarks_folder
from sluice.datastream.file.concurrent_changes import Changes, Patch
from sluice.datastream.file.disk import RealDisk
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.file.page_sums import PageState, RunningSum, ScrubResult, sum_of, this_thread
from sluice.datastream.file.pages import PageFault
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.file.updating import Changer
from sluice.datastream.layout import ENTRY_HEAD_SIZE, HEADER_PAGE_SIZE, PAGE_SIZE, page_start
from tests.datastream.fake_disk import FailingDisk
from tests.datastream.streams import commit, u64

PAGES = 10


def fill(path: Path, pages: int = PAGES, *, flush: bool = True, seed: int = 1) -> None:
    """Add operations with entries of any length until so many pages are full."""
    rng = random.Random(seed)
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < page_start(pages) + 5000:
            commit(streamer, *[(1, rng.randbytes(rng.randrange(60_000))) for _ in range(9)], flush=flush)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "s.bin")
    return tmp_path / "s.bin"


def page_of(path: Path, page_number: int) -> bytes:
    with path.open("rb") as file:
        file.seek(page_start(page_number))
        return file.read(PAGE_SIZE)


def stored(path: Path) -> dict[int, int]:
    with contextlib.closing(plyvel.DB(str(own_folder(bookmarks_folder(path))))) as database:
        return {
            int.from_bytes(key[-8:], "big"): int.from_bytes(value, "big")
            for key, value in database.iterator(prefix=SUM_KEY)
        }


def sums_of(path: Path, count: int = PAGES) -> dict[int, int]:
    return {page: sum_of(page_of(path, page)) for page in range(count)}


def flip(path: Path, offset: int, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes((byte ^ bit,)))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[DataStreamer, page_sums.PageSums]]:
    with DataStreamer.open(path) as streamer:
        yield streamer, streamer.sums


def first_entry(streamer: DataStreamer, page_number: int) -> int:
    return streamer._file.index.first_numbers[page_number]


# --- made from what was written -----------------------------------------------------------------------------


def test_it_is_the_crc32c_that_others_know() -> None:
    assert sum_of(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert sum_of(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("flush", [True, False])
def test_each_full_page_has_a_sum_with_its_padding(tmp_path: Path, flush: bool) -> None:
    path = tmp_path / "s.bin"
    fill(path, flush=flush)
    assert stored(path) == sums_of(path)
    assert any(page_of(path, page).endswith(bytes(100)) for page in range(PAGES))  # there is padding


def test_commits_in_halves_failed_ones_and_openings_between_them_make_the_same_sums(tmp_path: Path) -> None:
    path, rng = tmp_path / "s.bin", random.Random(5)
    for _ in range(5):
        path.touch()
        disk = FailingDisk(RealDisk(path))
        with DataStreamer.open(path, disk=disk) as streamer:
            for _ in range(30):
                streamer.start_atomic_op()
                for _ in range(rng.randrange(1, 9)):
                    streamer.add_stream_entry(1, rng.randbytes(rng.randrange(60_000)))
                what = rng.randrange(6)
                if what < 4 and what != 1:
                    streamer.begin_commit()
                    streamer.finish_commit()
                    streamer.start_atomic_op()
                    streamer.add_stream_entry(1, b"more")
                if what == 0:
                    disk.plan["fdatasync"] = [errno.EIO]
                    with pytest.raises(CommitFailed):
                        streamer.commit_atomic_op()
                elif what == 1:
                    streamer.begin_commit()
                    streamer.rollback_commit()
                elif what == 2:
                    streamer.commit_atomic_op(flush=False)
                elif what == 3:
                    streamer.commit_atomic_op()
                else:
                    streamer.begin_commit()
            streamer.finish_commit()
    count = (len(path.read_bytes().rstrip(b"\0")) - HEADER_PAGE_SIZE) // PAGE_SIZE
    assert count > 5
    assert stored(path) == sums_of(path, count)


def test_the_sum_is_of_the_bytes_as_written_not_of_what_became_of_them(tmp_path: Path) -> None:
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        commit(streamer, (1, b"a" * 1000), flush=True)
        flip(path, HEADER_PAGE_SIZE + 500)  # before the page is full
        while streamer.sums.full_count == 0:
            commit(streamer, (1, b"b" * 100_000), flush=True)
        assert streamer.sums.scrub(0) is ScrubResult.BAD


def test_a_running_sum_that_was_not_told_all_gives_none() -> None:
    page, start = bytes(range(256)) * 4096, HEADER_PAGE_SIZE
    running = RunningSum()
    running.extend(bytearray(page[:100]), start)
    running.extend(bytearray(page[100:] + b"xy"), start + 100)
    assert (running.take(0), running.take(0)) == (sum_of(page), None)
    running.extend(bytearray(page[3:]), start + PAGE_SIZE + 3)  # a gap of a byte
    assert running.take(1) is None
    running.extend(bytearray(page * 2), start + 2 * PAGE_SIZE)
    running.stop()
    assert running.take(2) is None
    running.begin(page[:7], start + 7)
    running.extend(bytearray(page[7:]), start + 7)
    assert running.take(0) == sum_of(page)


# --- checked at the first touch -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["data", "padding"])
def test_a_page_with_a_flipped_bit_is_not_read_and_the_others_are(
    path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    flip(path, page_start(3) + (500 if place == "data" else PAGE_SIZE - 1))
    with opened(path) as (streamer, sums):
        first, end = first_entry(streamer, 3), first_entry(streamer, 4)
        for _ in range(2):
            with pytest.raises(PageDamaged) as caught:
                streamer.get_entry(first)
        error = caught.value
        assert (error.page_number, error.number, error.entries_end) == (3, first, end)
        assert f"data page 3, entries {first} to {end - 1}: found CRC32C" in str(error)
        assert "s.bin" in str(error)
        with pytest.raises(PageDamaged):
            list(streamer.read_entries(first - 1))
        with pytest.raises(PageDamaged):
            streamer.read_columns(end - 1, 1)
        with pytest.raises(PageDamaged):
            streamer.data_end(3, streamer.committed.total_length)
        assert streamer.get_entry(first - 1).number == first - 1
        assert streamer.get_entry(end).number == end
        assert sums.state(3) is PageState.BAD
        assert list(sums.bad) == [3]
        # It still takes new entries.
        commit(streamer, (1, b"more"), flush=True)
    lines = [record for record in caplog.records if "it is not served" in record.message]
    assert len(lines) == 1
    assert lines[0].levelno == logging.ERROR


def test_a_page_is_checked_once_and_not_where_it_was_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[int] = []
    true_sum = page_sums.sum_of

    def counted(data: bytes) -> int:
        summed.append(len(data))
        return true_sum(data)

    with opened(path) as (streamer, sums):
        monkeypatch.setattr(page_sums, "sum_of", counted)
        for _ in range(3):
            list(streamer.read_entries(0))
        assert summed == [PAGE_SIZE] * PAGES
        while sums.full_count == PAGES:
            commit(streamer, (1, bytes(100_000)), flush=True)
        list(streamer.read_entries(first_entry(streamer, PAGES)))
        assert summed == [PAGE_SIZE] * PAGES
        assert sums.state(PAGES) is PageState.GOOD


def test_a_thread_that_does_not_wait_is_told_so(path: Path) -> None:
    with opened(path) as (streamer, sums):
        this_thread.waits = False
        try:
            with pytest.raises(PageUnchecked) as caught:
                streamer.get_entry(first_entry(streamer, 2))
            assert caught.value.page_number == 2
            streamer.get_entry(streamer.committed.total_entries - 1)  # on the last page, which has no sum
        finally:
            this_thread.waits = True
        sums.check(2)
        this_thread.waits = False
        try:
            streamer.get_entry(first_entry(streamer, 2))
        finally:
            this_thread.waits = True


def test_a_page_without_a_sum_is_read_as_before_and_gets_one(path: Path) -> None:
    with contextlib.closing(plyvel.DB(str(own_folder(bookmarks_folder(path))))) as database:
        for page in range(PAGES):
            database.delete(SUM_KEY + u64(page))
    with opened(path) as (streamer, sums):
        sums.adopts = False
        list(streamer.read_entries(0))
        assert {sums.state(page) for page in range(PAGES)} == {PageState.UNSUMMED}
        sums.adopt(2, page_of(path, 2))
        assert sums.state(2) is PageState.GOOD
    assert stored(path) == {2: sums_of(path)[2]}
    with opened(path) as (streamer, sums):
        list(streamer.read_entries(0))
        assert {sums.state(page) for page in range(PAGES)} == {PageState.GOOD}
    assert stored(path) == sums_of(path)


def test_a_page_without_a_sum_whose_entries_are_broken_is_bad(path: Path) -> None:
    with opened(path) as (streamer, sums):
        second = streamer.offset_of(first_entry(streamer, 4) + 1)
    with contextlib.closing(plyvel.DB(str(own_folder(bookmarks_folder(path))))) as database:
        database.delete(SUM_KEY + u64(4))
    flip(path, second + 16)  # the number of an entry
    for adopts in (True, False):
        with opened(path) as (streamer, sums):
            sums.adopts = adopts
            with pytest.raises(EntriesDisagree):
                list(streamer.read_entries(first_entry(streamer, 4)))
            assert list(sums.bad) == [4]
    assert 4 not in stored(path)


def test_a_sector_that_cannot_be_read_makes_the_page_bad_until_it_can(path: Path) -> None:
    disk = FailingDisk(RealDisk(path))
    with DataStreamer.open(path, disk=disk) as streamer:
        pread = disk.pread

        def broken(size: int, offset: int) -> bytes:
            if offset <= page_start(5) + 4096 < offset + size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(size, offset)

        disk.pread = broken  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(PageDamaged, match="Input/output error"):
                streamer.get_entry(first_entry(streamer, 5))
        assert not streamer.sums.recheck(5)
        disk.pread = pread  # type: ignore[method-assign]
        assert streamer.sums.recheck(5)
        assert streamer.get_entry(first_entry(streamer, 5)).number == first_entry(streamer, 5)


def test_read_only_streams_are_checked_too_and_not_written(path: Path) -> None:
    flip(path, page_start(3) + 77)
    before = stored(path)
    with DataStreamer.open(path, read_only=True) as streamer:
        with pytest.raises(PageDamaged):
            list(streamer.read_entries(0))
        page = bytearray(page_of(path, 3))
        page[77] ^= 1
        with pytest.raises(OSError):
            streamer.sums.heal(3, bytes(page))
        assert list(streamer.sums.bad) == [3]
    assert stored(path) == before


# --- changed with the page ----------------------------------------------------------------------------------


def test_an_update_changes_the_sum_and_takes_over_no_rot_beside_it(path: Path) -> None:
    with opened(path) as (streamer, sums):
        number = first_entry(streamer, 3) + 2
        size = len(streamer.get_entry(number).data)
        streamer.update_entry_data(number, 1, b"u" * size)
        assert sums.scrub(3) is ScrubResult.GOOD
        flip(path, page_start(3) + PAGE_SIZE - 1)
        streamer.update_entry_data(number, 1, b"v" * size)
        assert sums.scrub(3) is ScrubResult.BAD
    flip(path, page_start(3) + PAGE_SIZE - 1)
    assert stored(path) == sums_of(path)


def test_an_update_of_a_bad_page_is_refused(path: Path) -> None:
    flip(path, page_start(3) + 77)
    with opened(path) as (streamer, _):
        with pytest.raises(PageDamaged):
            streamer.update_entry_data(first_entry(streamer, 3) + 2, 1, b"")
        commit(streamer, (1, b"more"), flush=True)


def test_a_truncation_forgets_the_sums_behind_it(path: Path) -> None:
    flip(path, page_start(7) + 77)
    with opened(path) as (streamer, sums):
        with pytest.raises(PageDamaged):
            streamer.get_entry(first_entry(streamer, 7))
        streamer.truncate_file(first_entry(streamer, 4) + 3)
        assert (sums.full_count, sums.bad) == (4, {})
    assert stored(path) == sums_of(path, 4)
    fill(path, 6, seed=2)
    assert stored(path) == sums_of(path, 6)


def test_an_index_that_is_made_anew_has_no_sums_of_other_entries(path: Path) -> None:
    other = path.with_name("other.bin")
    fill(other, 4, seed=9)
    path.write_bytes(other.read_bytes())  # beside the folder of the first
    with opened(path) as (streamer, sums):
        list(streamer.read_entries(0))
        assert not sums.bad
    assert stored(path) == sums_of(path, 4)


# --- scrubbed and healed ------------------------------------------------------------------------------------


def test_a_disk_that_is_wrong_is_written_again_from_memory_that_is_right(path: Path) -> None:
    good = page_of(path, 3)
    with opened(path) as (streamer, sums):
        streamer.get_entry(first_entry(streamer, 3))
        disk = streamer._file.disk
        pread, streamer._file.disk = disk.pread, _Remembering(disk, good)  # type: ignore[assignment]
        flip(path, page_start(3) + 77)
        assert sums.scrub(3) is ScrubResult.HEALED
        assert page_of(path, 3) == good
        assert not sums.bad
        streamer._file.disk = disk
        assert pread(1, page_start(3)) == good[:1]


class _Remembering:
    """A disk whose page 3 is cached unchanged, whatever the file holds."""

    def __init__(self, below: object, page: bytes) -> None:
        self._below = below
        self._page = page

    def pread(self, size: int, offset: int) -> bytes:
        position = offset - page_start(3)
        return self._page[position : position + size]

    def __getattr__(self, name: str) -> object:
        return getattr(self._below, name)


def test_memory_that_is_wrong_is_read_anew_from_a_disk_that_is_right(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = page_of(path, 3)
    with opened(path) as (streamer, sums):
        disk = streamer._file.disk
        wrong = _Remembering(disk, good[:-1] + b"x")
        streamer._file.disk = wrong  # type: ignore[assignment]
        sums._read_disk = lambda page_number: good  # type: ignore[method-assign]
        wrong_reads = iter([wrong.pread(PAGE_SIZE, page_start(3))] * 2 + [good] * 9)
        wrong.pread = lambda size, offset: next(wrong_reads)  # type: ignore[method-assign]
        sums.check(3)
        assert sums.state(3) is PageState.GOOD
        streamer._file.disk = disk
    assert "wrong in memory and right on the disk" in caplog.text


def test_scrubbing_finds_what_no_reader_has_touched(path: Path) -> None:
    flip(path, page_start(8) + 77)
    told = []
    with opened(path) as (streamer, sums):
        sums.on_change = lambda: told.append(list(sums.bad))
        results = [sums.scrub(page) for page in range(PAGES)]
        assert results == [ScrubResult.GOOD] * 8 + [ScrubResult.BAD, ScrubResult.GOOD]
        assert told == [[8]]
        with pytest.raises(PageDamaged):
            streamer.get_entry(first_entry(streamer, 8))


def test_a_bad_page_is_healed_by_the_bytes_that_it_had_and_by_no_others(path: Path) -> None:
    good = page_of(path, 3)
    flip(path, page_start(3) + 77)
    with opened(path) as (streamer, sums):
        number = first_entry(streamer, 3)
        with pytest.raises(PageDamaged):
            streamer.get_entry(number)
        damaged = page_of(path, 3)
        lie = bytearray(good)
        lie[500] ^= 1
        for wrong in (damaged, bytes(lie), good[:-1], good + b"\0", b"", bytes(PAGE_SIZE), page_of(path, 4)):
            with pytest.raises(PageDamaged):
                sums.heal(3, wrong)
            assert page_of(path, 3) == damaged
            assert list(sums.bad) == [3]
        sums.heal(3, good)
        assert page_of(path, 3) == good
        assert not sums.bad
        assert streamer.get_entry(number).number == number
        sums.heal(3, b"")  # nothing to heal
    assert stored(path) == sums_of(path)


def test_a_disk_that_does_not_keep_the_healed_page_leaves_it_bad(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = page_of(path, 3)
    flip(path, page_start(3) + 77)
    with opened(path) as (_, sums):
        with pytest.raises(PageDamaged):
            sums.check(3)
        monkeypatch.setattr(page_sums, "write_past_cache", lambda fd, data, offset: None)
        with pytest.raises(OSError, match="reads back otherwise"):
            sums.heal(3, good)
        assert list(sums.bad) == [3]


# --- beside writers -----------------------------------------------------------------------------------------


def test_a_reader_that_meets_a_fault_and_an_update_do_not_wait_for_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = threading.Event(), Changes.begin_update

    def slowly(changes: Changes, patch: Patch, start: int, end: int) -> None:
        begun.set()
        time.sleep(0.2)
        begin(changes, patch, start, end)

    monkeypatch.setattr(Changes, "begin_update", slowly)
    with opened(path) as (streamer, sums):
        number = streamer.committed.total_entries - 1
        data = bytes(len(streamer.get_entry(number).data))
        file = streamer._file
        fault = PageFault(first_entry(streamer, 3), 0, "nothing", "something")

        def read() -> None:
            begun.wait(10)
            file._note_fault(3, file.index, fault)

        works = (read, lambda: streamer.update_entry_data(number, 1, data))
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert 3 in sums.bad
        assert streamer.get_entry(number).data == data


def test_a_page_that_is_healed_beside_a_commit_that_is_written_again_stays_healed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write past the page cache restores what the cache held around it."""
    last = PAGES - 1
    good = page_of(path, last)
    flip(path, page_start(PAGES) - 2000)
    healers: list[threading.Thread] = []
    with opened(path) as (streamer, sums):
        with pytest.raises(PageDamaged):
            sums.check(last)
        write = RealDisk._write_directly

        def and_heal(disk: RealDisk, data: bytes, offset: int) -> bool:
            if offset >= page_start(PAGES) and not healers:
                healers.append(threading.Thread(target=sums.heal, args=(last, good), daemon=True))
                healers[0].start()
                healers[0].join(0.5)
            return write(disk, data, offset)

        monkeypatch.setattr(RealDisk, "_write_directly", and_heal)
        disk = streamer._file.disk
        results: list[OSError | None] = [OSError(errno.EIO, "injected")]
        flush = disk.fdatasync

        def fail_once() -> None:
            if results and (error := results.pop()):
                raise error
            flush()

        monkeypatch.setattr(disk, "fdatasync", fail_once)
        with pytest.raises(CommitFailed):
            commit(streamer, (1, b"lost"), flush=True)
        commit(streamer, (1, b"kept"), flush=True)
        healers[0].join(10)
        assert not sums.bad
        assert page_of(path, last) == good
    with opened(path) as (_, sums):
        sums.check(last)


@pytest.mark.parametrize("when", ["before the sum is looked for", "behind it"])
def test_a_page_that_is_updated_while_it_gets_its_first_sum_keeps_no_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with opened(path) as (streamer, sums):
        number = first_entry(streamer, 1) + 2
        data = b"U" * len(streamer.get_entry(number).data)
        sums._put(1, None)
        if when == "behind it":
            record = Changer._record

            def check_then_record(changer: Changer, patch: Patch, before: bytes) -> None:
                sums.check(1)
                record(changer, patch, before)

            monkeypatch.setattr(Changer, "_record", check_then_record)
            streamer.update_entry_data(number, 1, data)
        else:
            read = sums._read_or_note

            def read_then_update(page_number: int) -> bytes | None:
                monkeypatch.undo()
                page = read(page_number)
                streamer.update_entry_data(number, 1, data)
                return page

            monkeypatch.setattr(sums, "_read_or_note", read_then_update)
            sums.check(1)
        assert sums.scrub(1) in (ScrubResult.UNSUMMED, ScrubResult.GOOD)
    with opened(path) as (streamer, _):
        assert streamer.get_entry(number).data == data


# --- beside programs that know no sums ----------------------------------------------------------------------


def test_what_a_go_program_has_updated_is_not_taken_for_damage(path: Path) -> None:
    with opened(path) as (streamer, _):
        number = first_entry(streamer, 1) + 3
        offset = streamer.offset_of(number)
    flip(path, offset + ENTRY_HEAD_SIZE)
    with (bookmarks_folder(path) / "LOG").open("ab") as log:
        log.write(b"16:28:32.123456 db@open opening\n")
    with opened(path) as (streamer, sums):
        streamer.get_entry(number)
        assert sums.has_sum(1)
    assert stored(path)[1] == sum_of(page_of(path, 1))


def test_what_a_version_without_sums_has_cut_and_filled_again_is_not_taken_for_damage(path: Path) -> None:
    with opened(path) as (streamer, _):
        streamer.truncate_file(first_entry(streamer, 4))
    fill(path, seed=2)
    with contextlib.closing(plyvel.DB(str(own_folder(bookmarks_folder(path))))) as database:
        assert database.get(SUMS_OF_KEY) == database.get(STREAM_KEY)
        # It leaves the sums of cut pages, and names the stream in its own way.
        database.put(SUM_KEY + u64(6), bytes(4))
        database.put(SUMS_OF_KEY, b"as it was before")
    with opened(path) as (streamer, sums):
        for page in range(PAGES):
            sums.check(page)
    assert stored(path) == sums_of(path)


# --- what memory and the disk hold when a stream is opened --------------------------------------------------


@pytest.mark.parametrize("has_sum", [True, False])
def test_a_full_page_that_rotted_on_the_disk_and_not_in_memory_refuses_no_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_sum: bool
) -> None:
    if not has_sum:
        with contextlib.closing(plyvel.DB(str(own_folder(bookmarks_folder(path))))) as database:
            database.delete(SUM_KEY + u64(4))
    written: list[int] = []
    read, write = RealDisk.read_past_cache, disks.write_past_cache

    def rotten(disk: RealDisk, size: int, offset: int) -> bytes | None:
        found = read(disk, size, offset)
        if found is None or offset != page_start(4) or written:
            return found
        return bytes([found[0] ^ 1]) + found[1:]

    def from_disk(fd: int, size: int, offset: int) -> bytes:
        with contextlib.closing(RealDisk(path, writable=False)) as disk:
            return rotten(disk, size, offset) or disk.pread(size, offset)

    def and_note(fd: int, data: bytes, offset: int) -> None:
        written.append(offset)
        write(fd, data, offset)

    monkeypatch.setattr(RealDisk, "read_past_cache", rotten)
    monkeypatch.setattr(page_sums, "read_past_cache", from_disk)
    monkeypatch.setattr(page_sums, "write_past_cache", and_note)
    if not has_sum:
        with pytest.raises(StreamFileUnavailable, match="different bytes"):
            DataStreamer.open(path)
        return
    with opened(path) as (_, sums):
        assert written == [page_start(4)]
        sums.check(4)
