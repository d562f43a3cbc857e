"""Tables as plain lines, for commands whose output is not a terminal, or is wanted whole.

Pure. Columns are as wide as their widest cell, two blanks apart; nothing is cut or wrapped, and no line ends
in blanks. The first row is the head. A table that is too wide is transposed, with the heads down the left.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table_lines"]


def table_lines(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return a line for each row; all rows have the same number of cells.

    Args:
        rows: at least one row.
        width: characters of a line; a table with longer ones is transposed. None: any number.
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
