"""A table as plain lines: what commands print where the output is not a terminal.

Pure. Columns are as wide as their widest cell, two blanks apart; nothing is cut or wrapped, and no line ends
in blanks. The first row is the head.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table_lines"]


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows of the same number of cells out, one line each.

    Args:
        rows: at least one row.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
