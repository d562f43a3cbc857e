"""The block numbers of a DataFrame as runs: their gaps and repetitions, and the plan of a chain.

Pure. A run is (partition, first, last): consecutive ascending numbers in row order. A sorted DataFrame
without gaps has one run a partition; a shuffled one about as many as rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.publishers.errors import FrameError

__all__ = ["ChainPlan", "ChainRun", "named_numbers", "plan_chain", "runs_of"]

_NAMED_MAX: Final = 10
"""Ranges of blocks in an error; it counts the others."""


@dataclass(frozen=True, slots=True)
class ChainRun:
    """Consecutive numbers in consecutive rows."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A chain that can be published."""

    first_block: int
    last_block: int
    partition_count: int
    """Those that have blocks."""
    is_ordered: bool
    """True if the partitions are consecutive ranges, in order like their rows."""

    @property
    def block_count(self) -> int:
        """The count of blocks."""
        return self.last_block - self.first_block + 1


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of numbers in their order, as (first, last)."""
    runs: list[tuple[int, int]] = []
    first = last = -1
    for number in numbers:
        if runs and number == last + 1:
            runs[-1] = (first, number)
        else:
            first = number
            runs.append((first, number))
        last = number
    return runs


def plan_chain(runs: Sequence[ChainRun]) -> ChainPlan | None:
    """Return the chain of runs in order of partitions and rows; None: there are no blocks.

    Raises FrameError.
    """
    if not runs:
        return None
    ordered = sorted(runs, key=lambda run: (run.first, run.last))
    missing: list[tuple[int, int]] = []
    repeated: list[tuple[int, int]] = []
    end = ordered[0].first
    for run in ordered:
        if run.first > end:
            missing.append((end, run.first - 1))
        elif run.first < end:
            repeated.append((run.first, min(run.last, end - 1)))
        end = max(end, run.last + 1)
    reasons = []
    if missing:
        reasons.append(f"{named_numbers(missing)} missing")
    if repeated:
        reasons.append(f"{named_numbers(_joined(repeated))} there more than once")
    if reasons:
        remedy = "nothing was published: a chain has every number once"
        raise FrameError(" and ".join(reasons), remedy)
    partitions = [run.partition for run in runs]
    is_ordered = list(runs) == ordered and len(set(partitions)) == len(runs)
    return ChainPlan(ordered[0].first, end - 1, len(set(partitions)), is_ordered)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def named_numbers(ranges: list[tuple[int, int]]) -> str:
    """Return ranges in words: `block 3 is`, `blocks 3, 5 to 9 are`."""
    words = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:_NAMED_MAX]]
    text = ", ".join(words)
    if len(ranges) > _NAMED_MAX:
        text += f" and more, {sum(last - first + 1 for first, last in ranges)} in all,"
    is_one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"block {text} is" if is_one else f"blocks {text} are"
