"""A stream file that has given up pages: reads, the cache, and what is refused."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from sluice.datastream import DataStreamer, iter_entries
from sluice.datastream.errors import (
    BookmarksUnavailable,
    EntriesArchived,
    EntriesDisagree,
    PageNotLocal,
)
from sluice.datastream.file.page_sums import PageState, sum_of
from sluice.datastream.file.remote_pages import (
    FOLIO_BYTES,
    SEGMENT_PAGES,
    ArchivedPage,
    SegmentRecord,
    digest_of,
)
from sluice.datastream.layout import PAGE_SIZE, Entry, page_start
from tests.datastream.serving import ServerThread

PAGES = 2 * SEGMENT_PAGES + 3
ENTRY_BYTES = 250_000
GIVEN_UP = SEGMENT_PAGES + 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stream of PAGES pages: four entries on each, and a bookmark."""
    folder = tmp_path_factory.mktemp("made")
    with DataStreamer.open(folder / "s.bin") as streamer:
        for number in range(PAGES):
            streamer.start_atomic_op()
            streamer.add_stream_bookmark(b"b%d" % number)
            for part in range(4):
                streamer.add_stream_entry(7, bytes([number, part]) * (ENTRY_BYTES // 2))
            streamer.commit_atomic_op(flush=number == PAGES - 1)
    return folder


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of that stream."""
    shutil.copytree(made, tmp_path / "stream")
    return tmp_path / "stream" / "s.bin"


def page_of(streamer: DataStreamer, page_number: int) -> bytes:
    return streamer.read_bytes(PAGE_SIZE, page_start(page_number))


def record(streamer: DataStreamer, first_page: int) -> SegmentRecord:
    pages = range(first_page, first_page + SEGMENT_PAGES)
    digest = hashlib.sha256(b"".join(page_of(streamer, page) for page in pages)).digest()
    return SegmentRecord(
        first_page,
        digest,
        tuple(
            ArchivedPage(
                streamer.sums.first_number(page),
                streamer.data_end(page, streamer.committed.total_length) - page_start(page),
                0,
                sum_of(page_of(streamer, page)),
                digest_of(page_of(streamer, page)),
            )
            for page in pages
        ),
    )


def give_up(streamer: DataStreamer, cache_pages: int = 3) -> list[bytes]:
    """Give up GIVEN_UP pages; return all pages, and take `source` from them."""
    kept = [page_of(streamer, page) for page in range(2 * SEGMENT_PAGES)]
    for first_page in (0, SEGMENT_PAGES):
        streamer.note_archived(record(streamer, first_page))
    assert streamer.release_pages(GIVEN_UP) == GIVEN_UP
    take_from(streamer, kept, cache_pages)
    return kept


def take_from(streamer: DataStreamer, kept: list[bytes], cache_pages: int = 3) -> None:
    remote = streamer.remote
    remote.cache_pages_max = cache_pages

    def source(page_number: int) -> None:
        if not remote.is_cached(page_number):
            remote.put(page_number, kept[page_number])

    remote.source = source


def everything(streamer: DataStreamer) -> Iterator[Entry]:
    return streamer.read_entries(0)


def test_given_up_pages_are_holes_and_are_read_through_the_cache(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        expected, before = list(everything(streamer)), streamer.allocated_bytes
        kept = give_up(streamer)
        freed = before - streamer.allocated_bytes
        assert GIVEN_UP * PAGE_SIZE - 2 * FOLIO_BYTES - PAGE_SIZE <= freed <= GIVEN_UP * PAGE_SIZE
        assert list(everything(streamer)) == expected
        assert streamer.remote.cached_count <= 3
        assert streamer.get_bookmark(b"b20") == 100
        assert streamer.offset_of(101) > 0
    with DataStreamer.open(path) as streamer:
        assert (streamer.remote.archived_pages, streamer.remote.end) == (2 * SEGMENT_PAGES, GIVEN_UP)
        assert streamer.get_entry(0) == expected[0]
        assert streamer.get_entry(len(expected) - 1) == expected[-1]
        with pytest.raises(PageNotLocal, match=r"data page 20.*which this program was not given"):
            streamer.get_entry(103)
        take_from(streamer, kept)
        assert list(everything(streamer)) == expected
        streamer.start_atomic_op()
        number = streamer.add_stream_entry(7, b"next")
        streamer.commit_atomic_op()
        assert streamer.get_entry(number).data == b"next"


def test_clients_get_every_byte_while_pages_leave_the_cache(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        expected = list(everything(streamer))
        give_up(streamer, cache_pages=8)
        with ServerThread(streamer) as server:
            results: list[list[Entry]] = []

            def read(first: int) -> None:
                entries = iter_entries(server.host, server.port, from_entry=first)
                results.append(list(islice(entries, len(expected) - first)))

            firsts = (0, 0, 50, 333)
            threads = [threading.Thread(target=read, args=(first,)) for first in firsts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(results) == len(firsts)
        assert all(result == expected[result[0].number :] for result in results)


def same_sum(page: bytes) -> bytes:
    """Return other bytes with the same CRC32C."""
    position, zeros = 5_000, sum_of(bytes(PAGE_SIZE))

    def effect(bit: int) -> int:
        change = bytearray(PAGE_SIZE)
        change[position + bit // 8] = 1 << bit % 8
        return sum_of(bytes(change)) ^ zeros

    basis: dict[int, tuple[int, int]] = {}
    for bit in range(33):  # 33 vectors of 32 bits: some of them cancel each other
        value, bits = effect(bit), 1 << bit
        while value and value.bit_length() in basis:
            other, other_bits = basis[value.bit_length()]
            value, bits = value ^ other, bits ^ other_bits
        if not value:
            forged = bytearray(page)
            for one in range(33):
                forged[position + one // 8] ^= (bits >> one & 1) << one % 8
            return bytes(forged)
        basis[value.bit_length()] = value, bits
    raise AssertionError("33 vectors of 32 bits are dependent")


@pytest.mark.parametrize("forge", [same_sum, lambda page: page[:-9] + b"\1" + page[-8:]])
def test_other_bytes_than_were_archived_are_not_served(path: Path, forge: Callable[[bytes], bytes]) -> None:
    with DataStreamer.open(path) as streamer:
        kept = give_up(streamer)
        kept[20] = forge(kept[20])
        assert kept[20] != page_of(streamer, 21)
        with pytest.raises(PageNotLocal, match="data page 20"):
            streamer.get_entry(103)
        assert streamer.get_entry(110).number == 110
        assert streamer.sums.state(20) is PageState.REMOTE


def test_what_is_archived_never_changes(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        give_up(streamer)
        end = streamer.sums.first_number(2 * SEGMENT_PAGES)
        with pytest.raises(EntriesArchived, match=f"expected {end} or later"):
            streamer.truncate_file(end - 1)
        with pytest.raises(EntriesArchived):
            streamer.update_entry_data(end - 1, 7, bytes(ENTRY_BYTES))
        streamer.truncate_file(end)
        assert streamer.committed.total_entries == end
    with DataStreamer.open(path) as streamer:
        assert streamer.committed.total_entries == end


def test_pages_are_given_up_only_when_they_are_archived(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        with pytest.raises(ValueError, match="expected at most 0"):
            streamer.release_pages(2)
        with pytest.raises(ValueError, match="expected 0 to less than"):
            streamer.note_archived(record(streamer, SEGMENT_PAGES))
        streamer.note_archived(record(streamer, 0))
        with pytest.raises(ValueError, match=f"expected at most {SEGMENT_PAGES}"):
            streamer.release_pages(SEGMENT_PAGES + 1)


def test_an_index_that_is_lost_is_not_made_from_holes(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        give_up(streamer)
    shutil.rmtree(path.with_name("s.db"))
    with pytest.raises(EntriesDisagree):
        DataStreamer.open(path)


def test_bookmarks_that_are_lost_are_not_made_from_holes(path: Path) -> None:
    with DataStreamer.open(path) as streamer:
        give_up(streamer)
    for file in path.with_name("s.db").iterdir():
        if file.is_file():
            file.unlink()
    with pytest.raises(BookmarksUnavailable, match=r"given up pages 1 to .* begin with an empty folder"):
        DataStreamer.open(path)


def test_a_full_disk_empties_the_cache_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataStreamer.open(path) as streamer:
        expected = list(everything(streamer))
        give_up(streamer, cache_pages=50)
        real, room = os.pwrite, [4]

        def full(fd: int, data: bytes, offset: int) -> int:
            if len(data) == PAGE_SIZE and offset % FOLIO_BYTES == 0:
                if room[0] <= 0:
                    room[0] = 4
                    return 5
                room[0] -= 1
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", full)
        numbers = random.Random(3).sample(range(len(expected)), 60)
        assert [streamer.get_entry(number) for number in numbers] == [expected[one] for one in numbers]
