"""How long a peer rests that is followed live: what happened to it is soon forgotten, what it did is not."""

from __future__ import annotations

import pytest

from gateway.cluster.catch_up import (
    FOLLOWED,
    OUTCOMES,
    AttemptOutcome,
    CatchUp,
    CatchUpRules,
    Pause,
    PeerBackoff,
    Range,
    Told,
    Try,
)

RULES = CatchUpRules(backoff_ns=100, backoff_max_ns=60_000)
A = "a:1"
LASTS = {Told.LEVEL: 4, Told.MORE: 30}
"""The last block of a peer that says this to a node that needs block 5."""


def rests_of(machine: CatchUp, outcome: AttemptOutcome, told: Told, count: int, now_ns: int = 0) -> list[int]:
    """Have as many attempts end so, each as soon as it may begin; give the rests."""
    rests = []
    for _ in range(count):
        assert machine.step(5, now_ns) == Try(A)
        if told is not Told.NOTHING:
            assert machine.told(A, 0, LASTS[told], 5) == Range(5, None)
        machine.ended(A, outcome, "", 5, now_ns)
        pause = machine.step(5, now_ns)
        assert isinstance(pause, Pause)
        assert pause.until_ns is not None
        rests.append(pause.until_ns - now_ns)
        now_ns = pause.until_ns
    return rests


RISING = [100, 200, 400, 800, 1_600, 3_200, 6_400]
A_LITTLE = [100, 200, 400, 800, 800, 800, 800]


@pytest.mark.parametrize("told", Told)
@pytest.mark.parametrize(
    "outcome", [AttemptOutcome.UNREACHABLE, AttemptOutcome.BROKE_OFF, AttemptOutcome.STALLED]
)
def test_a_followed_peer_that_owes_nothing_is_not_left_alone_for_long(
    outcome: AttemptOutcome, told: Told
) -> None:
    """The active node was started again after 37 s, and its standby found it after 24 s more."""
    rests = rests_of(CatchUp((A,), RULES, live=True), outcome, told, 7)
    assert rests == (A_LITTLE if (outcome, told) in FOLLOWED else RISING)


def test_who_owes_blocks_or_sends_what_cannot_be_is_treated_as_ever() -> None:
    assert {told for _, told in FOLLOWED} == {Told.NOTHING, Told.LEVEL}
    assert {outcome for outcome, _ in FOLLOWED} == {AttemptOutcome.UNREACHABLE, AttemptOutcome.BROKE_OFF}
    assert set(FOLLOWED.values()) == {PeerBackoff.RISING_A_LITTLE}
    for told in Told:
        machine = CatchUp((A,), RULES, live=True)
        assert rests_of(machine, AttemptOutcome.LIED, told, 3) == [60_000] * 3


def test_one_that_catches_up_leaves_a_peer_that_is_away_alone_as_before() -> None:
    machine = CatchUp((A,), RULES)
    machine.aim(20)
    assert rests_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 7) == RISING
    assert OUTCOMES[AttemptOutcome.UNREACHABLE] is PeerBackoff.RISING


def test_a_peer_that_ends_streams_in_order_is_asked_again_soon_and_is_no_problem() -> None:
    """A publisher that broke off again and again had the standby of its node wait for 30 s."""
    machine = CatchUp((A,), CatchUpRules(stalled_attempts_max=1, backoff_ns=100), live=True)
    assert rests_of(machine, AttemptOutcome.CLOSED, Told.LEVEL, 9) == [100] * 9
    assert machine.problem is None


def test_a_followed_peer_that_was_level_is_taken_for_well_again() -> None:
    machine = CatchUp((A,), RULES, live=True)
    assert rests_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 7) == A_LITTLE
    machine.told(A, 0, 4, 5)
    machine.heard(A, 5, 5)
    assert rests_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 1, 10_000) == [800], (
        "it has more than was sent"
    )
    machine.heard(A, 4, 5)
    assert rests_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 2, 20_000) == [100, 200]


def test_a_peer_that_stalls_is_not_forgiven_for_saying_that_it_is_level() -> None:
    machine = CatchUp((A,), RULES, live=True)
    assert rests_of(machine, AttemptOutcome.STALLED, Told.MORE, 5) == RISING[:5]
    machine.told(A, 0, 4, 5)
    machine.heard(A, 4, 5)
    assert rests_of(machine, AttemptOutcome.STALLED, Told.MORE, 2, 10_000) == RISING[5:]
