"""The page index: finding pages and checkpoints, and forgetting."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path

import pytest

from sluice.datastream.file.bookmarks import TABLE_KEY
from sluice.datastream.file.index_database import own_folder, plyvel
from sluice.datastream.file.page_index import (
    NoPageTables,
    PageIndex,
    PageTable,
    decode_table,
    encode_table,
)
from sluice.datastream.file.pages import PageWalk
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import PAGE_SIZE, Committed, page_start
from tests.datastream.streams import commit, u64


def index_of(*first_numbers: int, tables_max: int = 10) -> PageIndex:
    index = PageIndex(tables_max)
    for page_number, first_number in enumerate(first_numbers):
        index.add_page(page_number, first_number)
    return index


def test_page_of_entry() -> None:
    index = index_of(0, 10, 11)
    assert [index.page_of_entry(number) for number in (0, 9, 10, 11, 500)] == [0, 0, 1, 2, 2]


def test_nearest() -> None:
    index = index_of(0, 100)
    table = array("I", [500, 1000, 1500])  # entries 128, 192, 256
    assert index.nearest(1, table, 100) == (100, 0, 500)
    assert index.nearest(1, table, 127) == (100, 0, 500)
    assert index.nearest(1, table, 128) == (128, 500, 1000)
    assert index.nearest(1, table, 255) == (192, 1000, 1500)
    assert index.nearest(1, table, 999) == (256, 1500, None)
    assert index.nearest(1, array("I"), 110) == (100, 0, None)
    assert index.nearest_position(1, table, 499) == (100, 0)
    assert index.nearest_position(1, table, 500) == (128, 500)
    assert index.nearest_position(1, table, 9999) == (256, 1500)


def test_a_full_page_keeps_its_table() -> None:
    index = index_of(0)
    index.fill_page(0)
    index.add_checkpoint(page_start(0))
    index.add_page(1, 64)
    index.fill_page(1)
    index.add_checkpoint(page_start(1) + 40)
    assert list(index.table(0) or ()) == [0]
    assert list(index.table(1) or ()) == [40]


def test_one_table_too_many_forgets_the_one_not_used_for_longest() -> None:
    index = index_of(*range(0, 50, 10), tables_max=2)
    index.set_table(0, array("I", [0]))
    index.set_table(1, array("I", [1]))
    assert index.table(0) is not None
    index.set_table(2, array("I", [2]))
    assert index.table(1) is None
    assert index.table(0) is not None
    assert index.table(2) is not None


def test_data_ends() -> None:
    index = index_of(0, 5)
    assert index.data_end(0) == 0
    index.set_data_end(0, 12345)
    assert index.data_end(0) == 12345
    assert index.page_count == 2


# --- tables of pages, as they are stored ----------------------------------------------------------------


TABLE = PageTable(100, 300, 5000, array("I", [700, 1500, 4000]))  # entries 128, 192, 256
ENCODED = u64(100) + u64(300) + b"".join(number.to_bytes(4, "big") for number in (5000, 700, 1500, 4000))


def test_both_ways() -> None:
    assert encode_table(TABLE) == ENCODED
    assert decode_table(ENCODED) == TABLE
    for size in range(20):
        assert decode_table(ENCODED[:size]) is None
    assert decode_table(ENCODED + b"x") is None


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"first_number": 99}, False),
        ({"entries_end": 299}, False),
        ({"data_end": 0}, False),
        ({"data_end": PAGE_SIZE + 1}, False),
        ({"data_end": 4000}, False),
        ({"checkpoints": array("I", [700, 1500])}, False),
        ({"checkpoints": array("I", [700, 700, 4000])}, False),
    ],
)
def test_fits(change: dict[str, int], fits: bool) -> None:
    assert TABLE._replace(**change).fits(100, 300) is fits  # type: ignore[arg-type]


def test_nothing_is_kept_without_a_store() -> None:
    NoPageTables().put_table(1, TABLE)
    assert NoPageTables().get_table(1) is None


PAGES = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stream of ten pages and a bit; its data looks like entries of 68 bytes."""
    path = tmp_path / "s.bin"
    with DataStreamer.open(path) as streamer:
        while streamer.committed.total_length < PAGES * PAGE_SIZE + 50_000:
            commit(streamer, *[(1, b"\2\0\0\0\x11\0\0\0\1" + bytes(42))] * 1000)
    return path


def stored(path: Path) -> dict[int, PageTable]:
    database = plyvel.DB(str(own_folder(path.with_name("s.db"))))
    found = {
        int.from_bytes(key[-8:], "big"): decode_table(value)
        for key, value in database.iterator(prefix=TABLE_KEY)
    }
    database.close()
    return {page: table for page, table in found.items() if table is not None}


def walked_pages(streamer: DataStreamer) -> list[int]:
    """Read one entry in the middle of each page; return the pages that were walked."""
    walked: list[int] = []
    walk = streamer._file.walk

    def counted(page_number: int, *, is_checked: bool = True) -> PageWalk:
        walked.append(page_number)
        return walk(page_number, is_checked=is_checked)

    streamer._file.walk = counted  # type: ignore[method-assign]
    total_length = streamer.committed.total_length
    for page in range(PAGES):
        number = page * 15_420 + 7_777
        assert streamer.get_entry(number).number == number
        assert streamer.data_end(page, total_length) == page_start(page) + 15_420 * 68
    return walked


def test_full_pages_are_stored_and_not_walked_again(path: Path) -> None:
    assert sorted(stored(path)) == list(range(PAGES))
    with DataStreamer.open(path) as streamer:
        assert walked_pages(streamer) == []


def test_a_foreign_stream_is_learned_once(path: Path) -> None:
    shutil.rmtree(path.with_name("s.db"))
    with DataStreamer.open(path) as streamer:  # rebuilding the index walks it
        assert walked_pages(streamer) == []
    assert sorted(stored(path)) == list(range(PAGES))


def test_pages_without_a_table_are_walked_once_and_stored(path: Path) -> None:
    database = plyvel.DB(str(own_folder(path.with_name("s.db"))))
    for page in range(PAGES):
        database.delete(TABLE_KEY + u64(page))
    database.close()
    with DataStreamer.open(path) as streamer:
        assert walked_pages(streamer) == list(range(PAGES))
    assert sorted(stored(path)) == list(range(PAGES))


@pytest.mark.parametrize(
    ("name", "place", "by"), [("the middle", 120, 68), ("inside data", 120, 17), ("the last", -1, -68)]
)
def test_tables_that_do_not_agree_are_replaced(path: Path, name: str, place: int, by: int) -> None:
    table = stored(path)[3]
    wrong = PageTable(table.first_number, table.entries_end, table.data_end, table.checkpoints[:])
    wrong.checkpoints[place] += by
    database = plyvel.DB(str(own_folder(path.with_name("s.db"))))
    database.put(TABLE_KEY + u64(3), encode_table(wrong))
    database.close()
    with DataStreamer.open(path) as streamer:
        for number in range(3 * 15_420, 4 * 15_420, 33):
            assert streamer.get_entry(number).number == number
        assert isinstance(streamer.committed, Committed)
    assert stored(path)[3] == table
