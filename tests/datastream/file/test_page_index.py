"""The page index: finding pages and checkpoints, and forgetting."""

from __future__ import annotations

from array import array

from datastream.file.page_index import OFFSET_TABLES_MAX, PageIndex
from datastream.layout import page_start


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


def test_so_many_tables_are_kept_and_the_oldest_goes_for_one_more() -> None:
    index = PageIndex()
    for page_number in range(OFFSET_TABLES_MAX + 2):
        index.add_page(page_number, page_number)
    for page_number in range(OFFSET_TABLES_MAX):
        index.set_table(page_number, array("I", [0]))
    assert index.table(0) is not None
    index.set_table(OFFSET_TABLES_MAX, array("I", [0]))
    assert index.table(1) is None  # the first one was just used
    assert index.table(0) is not None
