"""Tests of `gateway.table_lines`."""

from __future__ import annotations

from sluice.gateway.table_lines import lines_on_their_side, table_lines

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


def test_a_table_that_is_too_wide_on_its_side_is_divided() -> None:
    rows = [("node", "role"), ("alpha.example", "active"), ("b", "standby"), ("c", "standby")]
    b_and_c = ["node  b        c", "role  standby  standby"]
    a = ["node  alpha.example", "role  active"]
    assert table_lines(rows, 20) == [*a, "", "node  b", "role  standby", "", "node  c", "role  standby"]
    assert lines_on_their_side(rows, 27) == [*a, "", *b_and_c]


def test_a_table_that_is_too_wide_lies_on_its_side() -> None:
    rows = [("node", "role", "first", "last"), ("a", "active", "0", "9"), ("b", "", "7", "9")]
    assert table_lines(rows, 24) == [
        "node   a       b",
        "role   active",
        "first  0       7",
        "last   9       9",
    ]
