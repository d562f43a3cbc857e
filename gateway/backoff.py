"""How long to wait after failures in a row: a first backoff, doubled with each further one. Pure."""

from __future__ import annotations

from typing import Final, TypeVar

__all__ = ["ENOUGH_FAILURES", "backoff"]

ENOUGH_FAILURES: Final = 30
"""So many failures in a row reach every longest backoff."""

_Time = TypeVar("_Time", int, float)


def backoff(first: _Time, longest: _Time, failures_before_count: int) -> _Time:
    """Return the backoff after a failure that follows so many others, in the unit of its arguments."""
    doublings: int = 2 ** min(failures_before_count, ENOUGH_FAILURES)
    return min(longest, first * doublings)
