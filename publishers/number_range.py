"""Block or entry numbers as text, and ranges of them: what a filter leaves, and how they are cut into parts.

Pure. Every range is half open: its first number is in it, its end is not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

__all__ = ["NUMBER_MAX", "NumberRange", "cut_evenly", "number_of"]

NUMBER_MAX = 2**63 - 1
"""The largest number that Spark's BIGINT holds."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Consecutive numbers."""

    first: int = 0
    """The first number that is in it; at least 0."""
    end: int | None = None
    """The number after the last that is in it; None: without end."""

    def __contains__(self, number: int) -> bool:
        """Whether a number is in it."""
        return number >= self.first and (self.end is None or number < self.end)

    def narrowed(self, first: int | None = None, end: int | None = None) -> NumberRange:
        """Give what is in this range and also at or after `first` and before `end`."""
        new_first = self.first if first is None else max(self.first, first)
        if end is None:
            return NumberRange(new_first, self.end)
        new_end = max(0, end)
        return NumberRange(new_first, new_end if self.end is None else min(self.end, new_end))


def number_of(text: str, most: int) -> int | None:
    """Read a number as somebody wrote it; None: it is none, or above `most`, whatever its length."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return int(text) if is_number and int(text) <= most else None


def cut_evenly(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Cut a range into parts of about the same size, none of them empty.

    Args:
        first: of the range.
        end: of the range, not in it.
        parts: at least 1; fewer come back when there are fewer numbers.

    Returns:
        (first, end) of each part, in order; nothing for an empty range.
    """
    count = end - first
    if count <= 0:
        return []
    parts = min(parts, count)
    cuts = [first + count * cut // parts for cut in range(parts + 1)]
    return list(itertools.pairwise(cuts))
