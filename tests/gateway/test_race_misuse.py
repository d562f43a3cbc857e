"""The publish race: what it lets a shell read, and what it refuses from one."""

from __future__ import annotations

import pytest

from gateway.race_actions import AttemptId, PublisherId
from gateway.race_facts import RaceError
from gateway.race_tables import BlockState
from tests.gateway.test_race import race_of_three

# --- memory -------------------------------------------------------------------------------------------------


def test_over_the_limit_only_the_next_block_goes_on() -> None:
    race = race_of_three()
    race.header("Alice", 9)
    race.header("Bob", 10)
    may_read = race.arbiter.may_read
    assert may_read(race.ids["Alice"], 1)
    assert not may_read(race.ids["Bob"], 1)
    assert not may_read(race.ids["Carol"], 1)
    assert may_read(race.ids["Carol"], 1000)
    race.leave("Alice")
    assert may_read(race.ids["Bob"], 1)
    assert may_read(race.ids["Carol"], 1)


# --- misuse -------------------------------------------------------------------------------------------------


def test_misuse_is_refused_and_changes_nothing() -> None:
    race = race_of_three()
    arbiter = race.arbiter
    with pytest.raises(RaceError, match=r"^publisher 1 \(Alice\): connected twice$"):
        arbiter.connected(race.ids["Alice"], "Alice", 0)
    with pytest.raises(RaceError, match=r"^publisher 77: not connected$"):
        arbiter.left(PublisherId(77), 0)
    race.header("Alice", 9)
    with pytest.raises(RaceError, match=r"^block 9: cannot take COMMITTED in state STREAMING$"):
        arbiter.committed(race.attempt_of[9], 0)
    with pytest.raises(RaceError, match=r"^attempt 99: committed, but it is not in flight$"):
        arbiter.committed(AttemptId(99), 0)
    assert arbiter.blocks[9].state is BlockState.STREAMING
    arbiter.check()


def test_late_verdicts_of_dropped_attempts_are_ignored() -> None:
    race = race_of_three(hold="verified")
    race.block("Alice", 9)
    race.refused(9)
    race.verified(9)
    race.refused(9)
    assert race.arbiter.blocks[9].state is BlockState.OPEN
