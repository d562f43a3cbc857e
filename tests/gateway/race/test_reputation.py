"""The records of publishers: who backs off, for how long, and what is forgotten."""

from __future__ import annotations

import pytest

from sluice.gateway.race.reputation import (
    BACKOFF_FAILURES_MAX,
    DELIVERED_MAX,
    FORGET_TIMES,
    FORGIVING_BLOCKS,
    BackedOff,
    Reputations,
)

TIME = 100


def records(reputations: Reputations | None = None, **delivered: int) -> Reputations:
    """Make records of publishers at one address with so many delivered blocks."""
    made = reputations or Reputations(TIME)
    for name, count in delivered.items():
        for _ in range(count):
            made.delivered(name, "home")
    return made


def times_of(made: Reputations, name: str, address: str, count: int) -> list[int]:
    """Return the backoffs after so many failures, each at the end of the backoff before."""
    now_ns, waits = 0, []
    for _ in range(count):
        told = made.failed(name, address, now_ns)
        waits.append(max((one.left_ns for one in told), default=0))
        now_ns += waits[-1]
    return waits


@pytest.mark.parametrize("delivered", [0, 1000])
def test_the_first_failure_is_free_and_each_further_one_costs_twice_as_much(delivered: int) -> None:
    made = records(alice=delivered)
    expected = [0, 2 * TIME, 4 * TIME, 8 * TIME, 16 * TIME, 32 * TIME, 64 * TIME, 64 * TIME]
    assert times_of(made, "alice", "home", 8) == expected
    assert BACKOFF_FAILURES_MAX == 7


def test_newcomers_pay_together_and_by_address_whatever_they_are_called() -> None:
    made = records()
    assert made.failed("a", "x", 0) == []
    assert made.failed("b", "x", 0) == [BackedOff("", "x", 2, 2 * TIME), BackedOff("", "", 2, 2 * TIME)]
    assert [made.backoff(name, address, 1) for name, address in (("c", "x"), ("c", "y"))] == [4, 2]
    assert made.failed("c", "y", 2 * TIME) == [BackedOff("", "", 3, 4 * TIME)]
    assert made.backoff("c", "x", 2 * TIME) == 3  # that of x is over


def test_who_has_delivered_blocks_pays_alone_and_stands_before_newcomers() -> None:
    made = records(alice=100)
    for name in ("mallory", "oscar"):
        made.failed(name, "home", 0)
    assert made.backoff("alice", "home", 1) == 0
    assert made.backoff("alice", "elsewhere", 1) == 2  # anybody may claim to be alice
    for _ in range(2):
        made.failed("alice", "home", 10)
    assert made.backoff("alice", "home", 11) == 2
    assert made.backoff("bob", "elsewhere", 11) == 2


def test_who_delivers_a_block_and_fails_one_is_a_newcomer_again() -> None:
    made = records(alice=1)
    assert not made.is_newcomer("alice", "home")
    assert made.is_newcomer("alice", "elsewhere")
    made.failed("alice", "home", 0)
    assert made.is_newcomer("alice", "home")
    made.failed("bob", "home", 0)
    assert made.backoff("alice", "home", 1) == 4


def test_few_delivered_blocks_outweigh_few_failures_of_newcomers() -> None:
    """So publishers with most delivered blocks carry the chain while names with one fail in turn."""
    made = records(alice=8, bob=1)
    for name in ("m", "n", "o"):
        made.failed(name, "x", made.newcomers.until_ns)
    now_ns = made.newcomers.until_ns - 1
    assert made.newcomers.failure_count == 3
    assert [made.backoff(name, "home", now_ns) for name in ("alice", "bob", "carol")] == [0, 2, 3]


def test_blocks_that_are_delivered_take_failures_away_one_by_one() -> None:
    made = records(alice=2 * FORGIVING_BLOCKS)
    assert times_of(made, "alice", "home", 3)[-1] == 4 * TIME
    for _ in range(2 * FORGIVING_BLOCKS):
        made.delivered("alice", "home")
    assert made.failed("alice", "home", 10**6) == [BackedOff("alice", "home", 2, 2 * TIME)]


def test_shared_records_are_forgotten_after_a_time_without_failures() -> None:
    made = records()
    assert times_of(made, "m", "x", 4)[-1] == 8 * TIME
    until_ns = made.newcomers.until_ns
    assert made.fears_newcomers(until_ns + FORGET_TIMES * TIME - 1)
    assert not made.fears_newcomers(until_ns + FORGET_TIMES * TIME)
    assert made.failed("m", "x", until_ns + FORGET_TIMES * TIME) == []  # the first one again


def test_a_single_failure_of_a_newcomer_frightens_nobody() -> None:
    made = records()
    made.failed("m", "x", 0)
    assert not made.fears_newcomers(1)
    made.failed("m", "x", 2)
    assert made.fears_newcomers(3)


def test_who_backs_off_pays_nothing_for_what_fails_meanwhile() -> None:
    made = records()
    for _ in range(64):
        made.failed("m", "x", 5)
    assert made.newcomers.failure_count == 2
    assert made.newcomers.until_ns == 5 + 2 * TIME


def test_who_backs_off_now_is_told_worst_first() -> None:
    made = records(alice=100)
    assert made.backing_off(0) == []
    times_of(made, "m", "x", 3)
    now_ns = made.newcomers.until_ns - 1
    for _ in range(2):
        made.failed("alice", "home", now_ns)
    assert made.backing_off(now_ns) == [
        BackedOff("", "x", 3, 1),
        BackedOff("", "", 3, 1),
        BackedOff("alice", "home", 2, 2 * TIME),
    ]
    assert [one.words() for one in made.backing_off(now_ns)] == [
        "publishers that have delivered no block, at x",
        "publishers that have delivered no block",
        "alice (home)",
    ]


def test_without_a_time_for_blocks_nobody_backs_off() -> None:
    made = Reputations(0)
    for now_ns in range(9):
        assert made.failed("m", "x", now_ns) == []
    assert made.backoff("m", "x", 9) == 0
    assert not made.fears_newcomers(9)


def test_records_are_bounded() -> None:
    made = records(Reputations(TIME, kept_max=3), alice=1, bob=1, carol=1, dave=1)
    assert made.is_newcomer("alice", "home")
    assert not made.is_newcomer("bob", "home")
    for address in "vwxyz":
        made.failed("m", address, 0)
    assert len(made._addresses) == 3
    assert len(made._names) == 3  # a failure makes no record of a name


def test_delivered_blocks_are_counted_up_to_a_limit() -> None:
    made = records(alice=DELIVERED_MAX + 5)
    times_of(made, "alice", "home", 10)
    assert not made.is_newcomer("alice", "home")
    times_of(made, "alice", "home", 1)
    assert made.is_newcomer("alice", "home")
