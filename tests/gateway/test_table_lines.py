"""Tests of `gateway.table_lines`."""

from __future__ import annotations

from sluice.gateway.table_lines import table_lines

ROWS = [("node", "last", "note"), ("127.0.0.1:1", "", "none"), ("b", "1234567", "")]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table_lines(ROWS) == [
        "node         last     note",
        "127.0.0.1:1           none",
        "b            1234567",
    ]


def test_long_cells_are_not_cut() -> None:
    assert table_lines([("x" * 500, "y")]) == ["x" * 500 + "  y"]


def test_a_table_that_fits_stands() -> None:
    assert table_lines(ROWS, 26) == table_lines(ROWS)


def test_a_table_that_is_too_wide_lies_on_its_side() -> None:
    assert table_lines(ROWS, 25) == [
        "node  127.0.0.1:1  b",
        "last               1234567",
        "note  none",
    ]
