"""The sums of full pages: made from what was written, checked once; and pages that do not fit theirs."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from datastream import page_sums
from datastream.bookmarks import SUM_KEY, bookmarks_folder
from datastream.disk import RealDisk
from datastream.errors import CommitFailed, EntriesDisagree, PageDamaged, PageUnchecked
from datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, page_start
from datastream.page_sums import PageState, RunningSum, ScrubResult, sum_of, this_thread
from datastream.streamer import DataStreamer
from tests.datastream.fake_disk import FailingDisk
from tests.datastream.streams import commit, u64

PAGES = 10


def fill(path: Path, pages: int = PAGES, *, flush: bool = True, seed: int = 1) -> None:
    """Add operations of some entries of any length until so many pages are full."""
    rng = random.Random(seed)
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < page_start(pages) + 5000:
            commit(streamer, *[(1, rng.randbytes(rng.randrange(60_000))) for _ in range(9)], flush=flush)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stream of ten full pages and a bit."""
    fill(tmp_path / "s.bin")
    return tmp_path / "s.bin"


def page_of(path: Path, page_number: int) -> bytes:
    """What the file holds of a page."""
    with path.open("rb") as file:
        file.seek(page_start(page_number))
        return file.read(PAGE_SIZE)


def stored(path: Path) -> dict[int, int]:
    """The sums in the folder."""
    with contextlib.closing(plyvel.DB(str(bookmarks_folder(path)))) as database:
        return {
            int.from_bytes(key[-8:], "big"): int.from_bytes(value, "big")
            for key, value in database.iterator(prefix=SUM_KEY)
        }


def sums_of(path: Path, count: int = PAGES) -> dict[int, int]:
    """The sums of the pages that the file holds."""
    return {page: sum_of(page_of(path, page)) for page in range(count)}


def flip(path: Path, offset: int, bit: int = 1) -> None:
    """Flip a bit of the file."""
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
        # New entries are taken all the same.
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
    with contextlib.closing(plyvel.DB(str(bookmarks_folder(path)))) as database:
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
    with contextlib.closing(plyvel.DB(str(bookmarks_folder(path)))) as database:
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
    """A disk whose page 3 is in memory as it was, whatever the file holds."""

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
