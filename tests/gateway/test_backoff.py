"""Tests of `gateway.backoff`: it doubles, and ends at the longest."""

from __future__ import annotations

from sluice.gateway.backoff import ENOUGH_FAILURES, backoff


def test_a_backoff_doubles_up_to_the_longest() -> None:
    assert [backoff(0.5, 3.0, count) for count in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff(1, 60_000_000_000, 10**9) == 2**ENOUGH_FAILURES
