"""A table as plain lines: what commands print where the output is not a terminal, or all of it is wanted.

Pure. Columns are as wide as their widest cell, two blanks apart; nothing is cut or wrapped, and no line ends
in blanks. The first row is the head. A table that is too wide is laid on its side, the heads down the left.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table_lines"]


def table_lines(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Lay rows of the same number of cells out, one line each.

    Args:
        rows: at least one row.
        width: characters of a line; a table with longer ones has a line for each column. None: any number.
    """
    lines = _lines(rows)
    if width is None or max(map(len, lines)) <= width:
        return lines
    return _lines(list(zip(*rows, strict=True)))


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
