"""The plan of ranges: every block is asked for once, in order, within memory, and fast peers bring more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.cluster.catch_up import Range
from sluice.gateway.cluster.ranges import RangePlan, RangeRules, count_of

A, B, C = "a:1", "b:1", "c:1"
RULES = RangeRules(seconds=1.0, range_bytes_max=1_000, held_bytes_max=2_500)


def plan_of(
    *asked: str, start: int = 0, end: int = 99, pace: float = 10.0, block_bytes: float = 10.0
) -> RangePlan:
    """A plan whose peers have answered that they have all of its blocks."""
    plan = RangePlan(start, end, pace, block_bytes, [*asked], RULES)
    for address in asked:
        plan.joined(address, 0, end)
    return plan


def bring(plan: RangePlan, address: str, blocks: Range, seconds: float) -> None:
    """Have a range come and be taken."""
    size_bytes = int(plan.block_bytes * count_of(blocks))
    plan.came(blocks.start_number, size_bytes)
    plan.fetched(address, blocks, size_bytes, seconds)
    plan.taken(blocks.start_number, size_bytes)
    plan.passed(blocks.start_number)


def next_of(plan: RangePlan, address: str) -> Range:
    blocks = plan.next_for(address)
    assert blocks is not None
    return blocks


@pytest.mark.parametrize(
    ("missing_count", "pace", "block_bytes", "is_worth_while"),
    [
        (64, 1.0, 10.0, True),
        (63, 1.0, 10.0, False),
        (20, 1.0, 125.0, True),
        (64, 33.0, 10.0, False),
        (0, 0.0, 0.0, False),
    ],
    ids=["many blocks", "few small blocks", "few large blocks", "soon done anyway", "level"],
)
def test_several_peers_are_worth_while_for_a_node_that_is_far_behind(
    missing_count: int, pace: float, block_bytes: float, is_worth_while: bool
) -> None:
    assert RULES.is_worth_while(missing_count, pace, block_bytes) is is_worth_while


def test_a_range_is_what_a_peer_brings_in_a_while_and_each_begins_behind_the_one_before() -> None:
    plan = plan_of(A, B)
    assert plan.next_for(A) == Range(0, 9)
    assert plan.next_for(B) == Range(10, 11), "its pace is not known"
    assert plan.next_for(A) is None, "one range at a time"


def test_a_fast_peer_gets_long_ranges_and_a_slow_one_short_ones() -> None:
    plan = plan_of(A, B, end=999)
    first, second = next_of(plan, A), next_of(plan, B)
    bring(plan, A, first, 0.5)
    bring(plan, B, second, 0.5)
    assert plan.next_for(A) == Range(12, 31)
    assert plan.next_for(B) == Range(32, 35)


def test_the_pace_of_a_peer_is_not_believed_to_change_at_once() -> None:
    plan = plan_of(A, B, end=999)
    bring(plan, A, next_of(plan, A), 0.0)
    assert count_of(next_of(plan, A)) == 40
    bring(plan, A, Range(10, 49), 1e9)
    assert count_of(next_of(plan, A)) == 10


def test_the_last_range_ends_with_the_plan_and_with_what_its_peer_has() -> None:
    plan = RangePlan(90, 99, 6.0, 1.0, [A, B], RULES)
    plan.joined(A, 0, 99)
    plan.joined(B, 0, 97)
    assert plan.next_for(A) == Range(90, 95)
    assert plan.next_for(B) == Range(96, 96)
    plan.fetched(B, Range(96, 96), 1, 0.0)
    assert plan.next_for(B) == Range(97, 97)
    assert plan.is_over_for(B), "it has no more"
    assert plan.is_over_for(A), "nobody else has the rest, so one call brings it"


def test_a_peer_that_has_lost_the_oldest_blocks_waits_for_those_that_it_has() -> None:
    plan = RangePlan(0, 999, 10.0, 1.0, [A, B, C], RULES)
    plan.joined(A, 0, 999)
    plan.joined(B, 0, 999)
    plan.joined(C, 12, 999)
    assert plan.next_for(C) is None
    assert not plan.is_over_for(C)
    assert [plan.next_for(A), plan.next_for(B)] == [Range(0, 9), Range(10, 11)]
    assert plan.next_for(C) == Range(12, 13)


def test_a_peer_alone_gets_no_range_unless_another_may_still_answer() -> None:
    plan = RangePlan(0, 99, 10.0, 1.0, [A, B, C], RULES)
    plan.joined(A, 0, 99)
    assert plan.next_for(A) == Range(0, 9)
    plan.fetched(A, Range(0, 9), 10, 1.0)
    plan.left(B)
    assert not plan.is_over_for(A)
    plan.left(C)
    assert plan.is_over_for(A)
    assert plan.next_for(A) is None


def test_no_range_follows_one_that_fails() -> None:
    plan = plan_of(A, B)
    next_of(plan, A)
    plan.failed()
    assert plan.is_over_for(A)
    assert plan.is_over_for(B)


def test_ranges_stay_within_memory_by_what_earlier_blocks_tell() -> None:
    plan = plan_of(A, B, C, pace=1_000.0, block_bytes=50.0, end=999)
    assert [count_of(next_of(plan, address)) for address in (A, B, C)] == [20, 20, 10]
    assert plan_of(A, B, block_bytes=10_000.0).next_for(A) == Range(0, 0), "one block is always asked for"


def test_a_full_memory_stops_all_but_the_range_whose_turn_it_is() -> None:
    plan = plan_of(A, B)
    next_of(plan, A), next_of(plan, B)
    plan.came(10, 2_500)
    assert plan.may_hold(0)
    assert not plan.may_hold(10)
    plan.came(0, 1)
    assert not plan.may_hold(0), "its first message has not been taken"
    plan.taken(0, 1)
    assert plan.may_hold(0)
    plan.passed(0)
    plan.taken(10, 2_500)
    assert plan.may_hold(10)


def test_a_peer_is_late_after_some_times_the_time_of_its_range() -> None:
    plan = plan_of(A, B)
    assert plan.patience_seconds(A, next_of(plan, A)) == 3.0
    plan = plan_of(A, B, pace=0.1)
    assert plan.patience_seconds(A, next_of(plan, A)) == pytest.approx(30.0), "a block takes ten seconds"


def test_the_highest_block_of_the_others_is_known() -> None:
    plan = plan_of(A, end=50)
    assert plan.last_beside(A) is None
    plan.asked.append(B)
    plan.joined(B, 0, 70)
    assert plan.last_beside(A) == 70
    assert plan.addresses == [A, B]


PEERS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 120)), min_size=1, max_size=4)


@settings(deadline=None)
@given(PEERS, st.integers(0, 20), st.integers(0, 120), st.floats(0.1, 200.0), st.data())
def test_every_block_is_asked_for_once_in_order_and_memory_is_bounded(
    held: list[tuple[int, int]], start: int, end: int, pace: float, data: st.DataObject
) -> None:
    """Peers of any pace, blocks of any size, and messages that come in any order."""
    addresses = [f"{number}:1" for number in range(len(held))]
    rules = replace(RULES, peers_max=len(held))
    plan = RangePlan(start, end, pace, 40.0, [*addresses], rules)
    for address, (first, last) in zip(addresses, held, strict=True):
        if data.draw(st.booleans()):
            plan.joined(address, first, last)
        else:
            plan.left(address)
    asked: list[int] = []
    order: list[int] = []
    missing: dict[int, tuple[str, Range, int]] = {}  # messages that have not come
    waiting: dict[int, list[int]] = {}
    for _ in range(2_000):
        for address in plan.addresses:
            if (blocks := plan.next_for(address)) is not None:
                first, last = held[addresses.index(address)]
                assert blocks.end_number is not None
                assert first <= blocks.start_number <= blocks.end_number <= last
                asked += range(blocks.start_number, blocks.end_number + 1)
                order.append(blocks.start_number)
                missing[blocks.start_number] = address, blocks, data.draw(st.integers(1, 3))
                waiting[blocks.start_number] = []
        can_come = [number for number in missing if plan.may_hold(number)]
        can_be_taken = [number for number in order[:1] if waiting[number]]
        if not can_come and not can_be_taken:
            break
        number = data.draw(st.sampled_from([*can_come, *can_be_taken]))
        if number in can_be_taken and (number not in can_come or data.draw(st.booleans())):
            plan.taken(number, waiting[number].pop(0))
        else:
            address, blocks, count = missing[number]
            size_bytes = data.draw(st.integers(0, 1_500))
            waiting[number].append(size_bytes)
            plan.came(number, size_bytes)
            missing[number] = address, blocks, count - 1
            if count == 1:
                del missing[number]
                plan.fetched(address, blocks, size_bytes, data.draw(st.floats(0.0, 10.0)))
        while order and order[0] not in missing and not waiting[order[0]]:
            plan.passed(order.pop(0))
        assert 0 <= plan.held_bytes < RULES.held_bytes_max + 1_500 * len(held)
        assert plan.held_bytes == sum(map(sum, waiting.values()))
    assert not order, "memory stops no range for ever"
    assert asked == list(range(start, plan.next_number))
    assert all(map(plan.is_over_for, plan.addresses)), "nobody waits for what does not come"
