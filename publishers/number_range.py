"""Ranges of block or entry numbers: what a filter leaves of them, and how they are cut into parts.

Pure. Every range is half open: its first number is in it, its end is not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

__all__ = ["NUMBER_MAX", "NumberRange", "cut_evenly"]

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
