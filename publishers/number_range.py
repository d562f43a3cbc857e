"""Block or entry numbers as text, and ranges of them: what a filter leaves, and how they are cut into parts.

Pure. Every range is half open: its first number is in it, its end is not.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NUMBER_MAX", "NumberRange", "cut_by_weight", "cut_evenly", "number_of"]

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


def cut_by_weight(weights: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Cut a sequence into parts of about the same weight, none of them empty.

    Args:
        weights: of each, at least 1.
        parts: at least 1; fewer come back when there are fewer weights.

    Returns:
        (first, end) of each part, by place in the sequence, in order; nothing for an empty one.
    """
    if not weights:
        return []
    parts = min(parts, len(weights))
    sums = list(itertools.accumulate(weights))
    cuts = [0]
    for cut in range(1, parts):
        # As near to its share as leaves something for each part.
        share = sums[-1] * cut / parts
        nearest = bisect_left(sums, share)
        before = sums[nearest - 1] if nearest else 0
        end = nearest if share - before < sums[nearest] - share else nearest + 1
        cuts.append(min(max(end, cuts[-1] + 1), len(weights) - parts + cut))
    return list(itertools.pairwise([*cuts, len(weights)]))
