"""The winners of the last acknowledged blocks, for the status page. Pure."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

__all__ = ["RaceHistory", "Won"]

RACE_HISTORY_BLOCKS: Final = 100
"""Blocks on the status page."""


@dataclass(frozen=True, slots=True)
class Won:
    """One acknowledged block."""

    number: int
    publisher: str
    seconds: float  # from its header to its acknowledgement


class RaceHistory:
    """The last `RACE_HISTORY_BLOCKS` blocks, the newest last."""

    def __init__(self) -> None:
        self._blocks: deque[Won] = deque(maxlen=RACE_HISTORY_BLOCKS)

    def won(self, number: int, publisher: str, seconds: float) -> None:
        """Add an acknowledged block."""
        self._blocks.append(Won(number, publisher, seconds))

    @property
    def blocks(self) -> tuple[Won, ...]:
        """The blocks, the newest last."""
        return tuple(self._blocks)

    def counts(self) -> list[tuple[str, int]]:
        """Return the count of blocks by publisher, most first, then by name."""
        counted = Counter(block.publisher for block in self._blocks)
        return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))

    def median_seconds(self) -> float | None:
        """Return the median time to acknowledge; None while there is no block."""
        times = sorted(block.seconds for block in self._blocks)
        return times[len(times) // 2] if times else None
