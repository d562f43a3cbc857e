"""Block or entry numbers: as text, as half-open ranges, and cut into parts. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["NUMBER_MAX", "NumberRange", "cut_by_weight", "cut_evenly", "first_at", "number_of"]

NUMBER_MAX = 2**63 - 1
"""The largest BIGINT of Spark."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Consecutive numbers from `first` to before `end`."""

    first: int = 0
    """At least 0."""
    end: int | None = None

    def __contains__(self, number: int) -> bool:
        return number >= self.first and (self.end is None or number < self.end)

    def narrowed(self, first: int | None = None, end: int | None = None) -> NumberRange:
        """Return the part of this range at or after `first` and before `end`."""
        new_first = self.first if first is None else max(self.first, first)
        if end is None:
            return NumberRange(new_first, self.end)
        new_end = max(0, end)
        return NumberRange(new_first, new_end if self.end is None else min(self.end, new_end))


def number_of(text: str, most: int) -> int | None:
    """Return the number that a text of any length is; None: it is none, or above `most`."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return int(text) if is_number and int(text) <= most else None


def first_at(first: int, end: int, value: int, value_of: Callable[[int], int]) -> int:
    """Return the first number from `first` on whose value, which never falls, is at least `value`; `end`:
    there is none before `end`.
    """
    return first + bisect_left(range(first, end), value, key=value_of)


def cut_evenly(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Cut a half-open range into at most `parts` parts of about the same size, none empty."""
    count = end - first
    if count <= 0:
        return []
    parts = min(parts, count)
    cuts = [first + count * cut // parts for cut in range(parts + 1)]
    return list(itertools.pairwise(cuts))


def cut_by_weight(weights: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Cut weights of at least 1 into at most `parts` parts of about the same weight, none empty.

    Returns:
        (first, end) of each part, by position.
    """
    if not weights:
        return []
    parts = min(parts, len(weights))
    sums = list(itertools.accumulate(weights))
    cuts = [0]
    for cut in range(1, parts):
        # As near to its share as the other parts allow.
        share = sums[-1] * cut / parts
        nearest = bisect_left(sums, share)
        before = sums[nearest - 1] if nearest else 0
        end = nearest if share - before < sums[nearest] - share else nearest + 1
        cuts.append(min(max(end, cuts[-1] + 1), len(weights) - parts + cut))
    return list(itertools.pairwise([*cuts, len(weights)]))
