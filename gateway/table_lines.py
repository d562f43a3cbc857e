"""Tables as plain lines, for output that is no terminal.

Pure. Columns are as wide as their widest cell, with two blanks between; nothing is cut or wrapped, and no
line ends in blanks. The first row is the head. A table that is too wide is transposed, with the heads at the
left, and divided into as many as it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["lines_on_their_side", "table_lines"]


def table_lines(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return a line for each row; all rows have the same number of cells.

    Args:
        width: the longest line before the table is transposed. None: no limit.
    """
    lines = _lines(rows)
    if width is None or max(map(len, lines)) <= width:
        return lines
    return lines_on_their_side(rows, width)


def lines_on_their_side(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return tables with the head down the left, and as many rows beside each other as fit."""
    head, left = rows[0], list(rows[1:])
    lines: list[str] = []
    while left:
        count = len(left)
        table = _lines(list(zip(head, *left, strict=True)))
        while count > 1 and max(map(len, table)) > width:
            count -= 1
            table = _lines(list(zip(head, *left[:count], strict=True)))
        lines += ["", *table] if lines else table
        left = left[count:]
    return lines


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
