"""The backoff after failures in a row: a first one, doubled with each failure. Pure."""

from __future__ import annotations

from typing import Final, TypeVar

__all__ = ["ENOUGH_FAILURES", "backoff"]

ENOUGH_FAILURES: Final = 30
"""This many failures in a row reach every longest backoff."""

_Time = TypeVar("_Time", int, float)


def backoff(first: _Time, longest: _Time, failures_before_count: int) -> _Time:
    """Return the backoff after a failure that follows so many others, in the arguments' unit."""
    doublings: int = 2 ** min(failures_before_count, ENOUGH_FAILURES)
    return min(longest, first * doublings)
