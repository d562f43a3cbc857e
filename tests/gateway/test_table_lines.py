"""Tests of `gateway.table_lines`."""

from __future__ import annotations

from gateway.table_lines import table_lines


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("node", "last", "note"), ("127.0.0.1:1", "", "none"), ("b", "1234567", "")]
    assert table_lines(rows) == [
        "node         last     note",
        "127.0.0.1:1           none",
        "b            1234567",
    ]


def test_long_cells_are_not_cut() -> None:
    assert table_lines([("x" * 500, "y")]) == ["x" * 500 + "  y"]
