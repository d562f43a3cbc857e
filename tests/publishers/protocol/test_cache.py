"""The cache of unacknowledged blocks."""

from __future__ import annotations

import pytest

from sluice.publishers.errors import BlockOrderError
from sluice.publishers.protocol.send_window import BlockCache, HeldBlock, HeldState


def held(number: int, size_bytes: int = 10) -> HeldBlock:
    return HeldBlock(number, ((b"x" * size_bytes,),), size_bytes)


def cache_of(*numbers: int) -> BlockCache:
    cache = BlockCache(size_bytes_max=25)
    for number in numbers:
        cache.add(held(number))
    return cache


def test_blocks_are_dropped_from_the_oldest_on() -> None:
    cache = cache_of(5, 6, 7)
    assert [block.number for block in cache.drop_through(6)] == [5, 6]
    assert (cache.first, cache.next_number, len(cache), cache.size_bytes) == (7, 8, 1, 10)
    assert cache.drop_through(6) == []


def test_standing_of_numbers_around_what_is_held() -> None:
    cache = cache_of(5, 6, 7)
    cache.drop_through(5)
    assert [cache.standing_of(number) for number in (4, 5, 6, 7, 8)] == [
        HeldState.GONE,
        HeldState.GONE,
        HeldState.HELD,
        HeldState.HELD,
        HeldState.COMING,
    ]


def test_standing_before_the_first_and_after_the_last_block() -> None:
    assert cache_of().standing_of(0) is HeldState.COMING
    cache = cache_of(5)
    cache.drop_through(5)
    assert [cache.standing_of(number) for number in (5, 6)] == [HeldState.GONE, HeldState.COMING]


def test_a_block_may_be_passed_over() -> None:
    cache = cache_of()
    cache.pass_over(5)
    cache.pass_over(6)
    with pytest.raises(BlockOrderError):
        cache.pass_over(8)
    assert (cache.first, cache.next_number) == (None, 7)


def test_marks_are_cleared_from_a_number_on() -> None:
    cache = cache_of(5, 6)
    for block in cache.blocks_from(5):
        block.skipped, block.whole_at_ns, block.offered_ever = True, 1, True
    for block in cache.blocks_from(6):
        block.clear_marks()
    first, second = cache.get(5), cache.get(6)
    assert first is not None
    assert second is not None
    assert (first.skipped, first.whole_at_ns) == (True, 1)
    assert (second.skipped, second.whole_at_ns, second.offered_ever) == (False, None, True)
