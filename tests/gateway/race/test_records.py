"""Tests of what the arbiter remembers of a block, and of its settings."""

from __future__ import annotations

from gateway.limits import ITEM_OVERHEAD_BYTES
from gateway.race.records import BlockFacts, RaceRules


def test_items_cost_more_than_their_bytes() -> None:
    assert BlockFacts(9, size_bytes=1000, item_count=10).held_bytes == 1000 + 10 * ITEM_OVERHEAD_BYTES


def test_it_is_full_for_nobody_below_the_least_of_the_limits() -> None:
    rules = RaceRules(inflight_bytes_max=300, publisher_bytes_max=100, address_bytes_max=200)
    assert rules.full_bytes_min == 100
