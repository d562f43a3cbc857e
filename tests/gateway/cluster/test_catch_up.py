"""Tests of `cluster.catch_up`: which peer is tried when, and the problem if none helps."""

from __future__ import annotations

import itertools

import pytest

from sluice.gateway.cluster.catch_up import (
    DONE,
    FOLLOWED,
    OUTCOMES,
    TOLD_AHEAD_BLOCKS_MAX,
    AttemptOutcome,
    CatchUp,
    CatchUpRules,
    Pause,
    PeerBackoff,
    Range,
    Told,
    Try,
)

RULES = CatchUpRules(stalled_attempts_max=3, backoff_ns=100, backoff_max_ns=1_000)
A, B, C = "a:1", "b:1", "c:1"


def behind(*addresses: str, target: int = 20) -> CatchUp:
    """A node that is behind by the blocks up to `target`."""
    machine = CatchUp(addresses or (A, B), RULES)
    machine.aim(target)
    return machine


def test_every_outcome_has_a_rest() -> None:
    assert set(OUTCOMES) == set(AttemptOutcome)


def test_without_a_target_there_is_nothing_to_do() -> None:
    machine = CatchUp((A,), RULES)
    assert machine.step(5, 0) is DONE
    machine.aim(4)
    assert machine.step(5, 0) is DONE
    assert machine.distance(5) == 0
    machine.aim(5)
    assert machine.step(5, 0) == Try(A)
    assert machine.distance(5) == 1
    assert machine.step(6, 0) is DONE


def test_a_target_only_rises() -> None:
    machine = behind(target=20)
    machine.aim(10)
    assert machine.target == 20


def test_what_is_implausibly_far_ahead_is_not_believed_of_a_publisher() -> None:
    most = TOLD_AHEAD_BLOCKS_MAX
    machine = CatchUp((A, B), RULES)
    assert machine.is_plausible(29 + most, 29)
    assert not machine.is_plausible(30 + most, 29)
    machine.told(A, 0, 2 * most, 29)
    assert machine.is_plausible(3 * most, 29)
    assert not machine.is_plausible(3 * most + 1, 29)


def test_without_peers_it_waits() -> None:
    machine = CatchUp((), RULES)
    machine.aim(20)
    assert machine.step(5, 0) == Pause(None)


@pytest.mark.parametrize(
    ("first", "last", "next_number", "expected"),
    [
        (0, 30, 5, Range(5, 20)),
        (0, 12, 5, Range(5, 12)),
        (5, 5, 5, Range(5, 5)),
        (0, 30, None, Range(0, 20)),
        (6, 30, 5, "it begins with block 6, after block 5"),
        (0, 4, 5, "it ends with block 4, before block 5"),
        (None, None, 5, "it is empty"),
        (None, None, None, "it is empty"),
    ],
)
def test_what_is_asked_of_a_peer(
    first: int | None, last: int | None, next_number: int | None, expected: Range | str
) -> None:
    machine = behind(A)
    assert machine.told(A, first, last, next_number) == expected
    assert machine._peer(A).last_number == last


@pytest.mark.parametrize(
    ("first", "last", "next_number", "expected"),
    [
        (0, 30, 5, Range(5, None)),
        (0, 4, 5, Range(5, None)),
        (0, 2, 5, Range(5, None)),
        (None, None, 5, Range(5, None)),
        (7, 9, None, Range(7, None)),
        (6, 30, 5, "it begins with block 6, after block 5"),
        (None, None, None, "it is empty"),
    ],
)
def test_what_a_follower_asks_of_a_peer(
    first: int | None, last: int | None, next_number: int | None, expected: Range | str
) -> None:
    assert CatchUp((A,), RULES, live=True).told(A, first, last, next_number) == expected


def test_peers_take_turns_when_they_fail_and_stay_while_they_do_not() -> None:
    machine = behind(A, B, C)
    tried = []
    now_ns = 0
    outcomes = iter(
        [AttemptOutcome.UNREACHABLE, AttemptOutcome.COMPLETE, AttemptOutcome.COMPLETE, AttemptOutcome.STALLED]
    )
    for next_number, outcome in zip((5, 6, 7, 7), outcomes, strict=True):
        step = machine.step(next_number - (outcome is AttemptOutcome.COMPLETE), now_ns)
        assert isinstance(step, Try)
        tried.append(step.address)
        machine.ended(step.address, outcome, "", next_number, now_ns)
    assert tried == [A, B, B, B]
    assert machine.step(7, now_ns) == Try(C)


def test_a_follower_goes_back_to_the_peer_that_it_prefers() -> None:
    machine = CatchUp((A, B), RULES, live=True)
    assert machine.step(5, 0) == Try(A)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "", 5, 0)
    assert machine.step(5, 0) == Try(B)
    machine.ended(B, AttemptOutcome.BROKE_OFF, "", 9, 50)
    assert machine.step(9, 50) == Pause(100)
    assert machine.step(9, 100) == Try(A)


@pytest.mark.parametrize(
    ("outcome", "backoffs"),
    [
        (AttemptOutcome.UNREACHABLE, [100, 200, 400, 800, 1_000, 1_000]),
        (AttemptOutcome.BROKE_OFF, [100, 200, 400, 800, 1_000, 1_000]),
        (AttemptOutcome.STALLED, [100, 200, 400, 800, 1_000, 1_000]),
        (AttemptOutcome.LIED, [1_000] * 3),
        (AttemptOutcome.ITSELF, [1_000] * 3),
        (AttemptOutcome.NOTHING, [100] * 3),
        (AttemptOutcome.NODE, [100, 200, 400, 800, 800, 800]),
        (AttemptOutcome.OUTRUN, [100] * 3),
        (AttemptOutcome.CLOSED, [100] * 3),
        (AttemptOutcome.RACED, [12] * 3),
        (AttemptOutcome.COMPLETE, [12] * 3),
        (AttemptOutcome.STANDBY, [12] * 3),
    ],
)
def test_how_long_a_peer_rests(outcome: AttemptOutcome, backoffs: list[int]) -> None:
    machine = behind(A)
    now_ns = 0
    for backoff_ns in backoffs:
        assert machine.step(5, now_ns) == Try(A)
        machine.ended(A, outcome, "", 5, now_ns)
        assert machine.step(5, now_ns + backoff_ns - 1) == Pause(now_ns + backoff_ns)
        now_ns += backoff_ns


def test_blocks_make_good_what_a_peer_failed_before() -> None:
    machine = behind(A)
    for now_ns in (0, 1_000, 2_000):
        machine.step(5, now_ns)
        machine.ended(A, AttemptOutcome.STALLED, "", 5, now_ns)
    machine.step(5, 3_000)
    machine.ended(A, AttemptOutcome.STALLED, "", 6, 3_000)
    assert machine.step(6, 3_000) == Pause(3_100)


def test_blocks_that_were_noted_while_they_came_make_it_good_too() -> None:
    machine = CatchUp((A,), RULES, live=True)
    assert machine.step(5, 0) == Try(A)
    for number in (5, 7, 9):
        assert machine.told(A, 0, 30, number) == Range(number, None)
        machine.came_to(number + 2)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "broken", number + 2, 0)
        assert machine.step(number + 2, 0) == Pause(RULES.backoff_ns)
    machine.told(A, 0, 30, 11)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "broken", 11, 0)
    assert machine.step(11, 0) == Pause(2 * RULES.backoff_ns)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "it does not answer", 12, 0)  # a publisher brought the block
    assert machine.step(12, 0) == Pause(RULES.backoff_ns)


def test_many_failures_do_not_make_the_rest_overflow() -> None:
    machine = behind(A)
    for count in range(200):
        machine.step(5, count * 1_000)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "", 5, count * 1_000)
    assert machine.step(5, 199_000) == Pause(200_000)


def test_standing_still_is_said_after_so_many_attempts_and_a_block_ends_it() -> None:
    machine = behind(A, target=20)
    for count in range(3):
        assert machine.problem is None
        machine.step(5, count * 1_000)
        machine.ended(A, AttemptOutcome.NOTHING, "it is empty", 5, count * 1_000)
    assert machine.problem == (
        "the node does not come closer to block 20: 3 attempts without a further block, the last one with "
        "a:1: it is empty"
    )
    machine.step(6, 9_000)
    assert machine.problem is None


def test_a_race_that_a_publisher_wins_is_not_standing_still() -> None:
    machine = behind(A)
    for count in range(10):
        machine.step(5, count * 1_000)
        machine.ended(A, AttemptOutcome.RACED, "", 5, count * 1_000)
    assert machine.stalled_count == 0


def test_a_target_that_is_reached_otherwise_is_no_problem_any_more() -> None:
    machine = behind(A)
    for count in range(3):
        machine.step(5, count * 1_000)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "", 5, count * 1_000)
    assert machine.problem is not None
    assert machine.step(21, 9_000) is DONE
    assert machine.problem is None


def test_a_curious_node_asks_every_peer_once_and_aims_at_what_they_have() -> None:
    machine = CatchUp((A, B, C), RULES, curious=True)
    assert machine.step(0, 0) == Try(A)
    assert machine.told(A, None, None, 0) == "it is empty"
    machine.ended(A, AttemptOutcome.NOTHING, "", 0, 0)
    assert machine.step(0, 0) == Try(B)
    machine.ended(B, AttemptOutcome.UNREACHABLE, "", 0, 0)
    assert machine.step(0, 0) == Try(C)
    assert machine.told(C, 0, 7, 0) == Range(0, 7)
    machine.ended(C, AttemptOutcome.COMPLETE, "", 8, 0)
    assert machine.step(8, 0) == Pause(100), "B may have more"
    assert machine.step(8, 100) == Try(B)
    assert machine.told(B, 0, 9, 8) == Range(8, 9)
    machine.ended(B, AttemptOutcome.COMPLETE, "", 10, 100)
    assert machine.step(10, 100) is DONE


def test_a_curious_node_is_content_with_empty_peers_and_with_its_first_publisher() -> None:
    machine = CatchUp((A,), RULES, curious=True)
    machine.step(0, 0)
    assert machine.told(A, None, None, 0) == "it is empty"
    machine.ended(A, AttemptOutcome.NOTHING, "", 0, 0)
    assert machine.step(0, 0) is DONE
    machine = CatchUp((A,), RULES, curious=True)
    machine.step(0, 0)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "", 0, 0)
    assert machine.step(1, 0) is DONE


def test_a_curious_node_gives_up_without_a_problem() -> None:
    machine = CatchUp((A,), RULES, curious=True)
    for count in range(3):
        assert machine.step(0, count * 1_000) == Try(A)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "", 0, count * 1_000)
    assert machine.problem is None
    assert machine.step(0, 9_000) is DONE


def test_a_follower_that_is_level_has_no_problem_however_long_nothing_comes() -> None:
    machine = CatchUp((A,), RULES, live=True)
    for count in range(5):
        machine.step(5, count * 1_000)
        machine.told(A, 0, 4, 5)
        machine.ended(A, AttemptOutcome.BROKE_OFF, "", 5, count * 1_000)
    assert machine.problem is None


def test_an_empty_follower_whose_peer_comes_later_and_is_empty_has_none() -> None:
    """As when a cluster begins: no block would tell that it is well."""
    machine = CatchUp((A,), RULES, live=True)
    for count in range(3):
        machine.step(0, count * 1_000)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "gone", 0, count * 1_000)
    assert machine.problem is not None
    machine.step(0, 60_000)
    assert machine.told(A, None, None, 0) == Range(0, None)
    assert machine.problem is None


def test_a_follower_whose_peers_are_away_has_one() -> None:
    machine = CatchUp((A,), RULES, live=True)
    for count in range(3):
        machine.step(5, count * 1_000)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "gone", 5, count * 1_000)
    assert machine.problem == (
        "the node does not come closer to its peers: 3 attempts without a further block, the last one with "
        "a:1: gone"
    )


def test_a_follower_that_has_all_that_it_was_told_of_does_not_come_closer_to_its_peers() -> None:
    """Not to a block that it has."""
    machine = CatchUp((A,), RULES, live=True)
    machine.step(0, 0)
    machine.told(A, 0, 4, 0)
    for count in range(4):  # the first one brought the blocks
        machine.step(7, count * 1_000)
        machine.ended(A, AttemptOutcome.UNREACHABLE, "gone", 7, count * 1_000)
    assert (machine.target, machine.distance(7)) == (4, 0)
    assert machine.problem is not None
    assert machine.problem.startswith("the node does not come closer to its peers: ")


def test_what_a_followed_peer_says_later_is_a_distance() -> None:
    machine = CatchUp((A,), RULES, live=True)
    machine.told(A, 0, 4, 5)
    machine.heard(A, 9, 5)
    assert machine.distance(5) == 5
    assert machine._peer(A).last_number == 9
    catching_up = behind(A)
    catching_up.heard(A, 90, 5)
    assert catching_up.target == 20


def test_the_same_peer_twice_is_one_peer() -> None:
    machine = behind(A, A)
    machine.step(5, 0)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "", 5, 0)
    assert machine.step(5, 0) == Pause(100)


def test_after_any_outcomes_somebody_is_tried_again_in_time() -> None:
    for outcomes in itertools.product(AttemptOutcome, repeat=3):
        machine = behind(A, B)
        now_ns = 0
        for outcome in outcomes:
            step = machine.step(5, now_ns)
            if isinstance(step, Pause):
                assert step.until_ns is not None
                assert now_ns < step.until_ns <= now_ns + RULES.backoff_max_ns
                now_ns = step.until_ns
                step = machine.step(5, now_ns)
            assert isinstance(step, Try)
            machine.ended(step.address, outcome, "", 5, now_ns)
    assert PeerBackoff.NONE.value == "none"


def test_a_block_that_a_long_stream_brought_ends_standing_still() -> None:
    machine = CatchUp([A], CatchUpRules(stalled_attempts_max=1), live=True)
    machine.step(5, 0)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "", 5, 0)
    machine.came_to(5)
    assert machine.problem is not None
    machine.came_to(6)
    assert machine.problem is None


def test_who_else_may_be_asked_how_far_it_is() -> None:
    machine = CatchUp([A, B, A], RULES, live=True)
    assert (machine.others(A, 0), machine.others(B, 0)) == ([B], [A])
    machine.step(0, 0)
    machine.ended(A, AttemptOutcome.LIED, "", 0, 0)
    assert machine.others(B, RULES.backoff_max_ns - 1) == []
    assert machine.others(B, RULES.backoff_max_ns) == [A]


def test_a_follower_all_of_whose_peers_lie_says_so_at_once_until_a_block_comes() -> None:
    machine = CatchUp((A, B, C), RULES, live=True)
    for address in (A, B):
        assert machine.problem is None, "there is another one to try"
        assert machine.step(5, 0) == Try(address)
        machine.told(address, 0, 9, 5)
        machine.ended(address, AttemptOutcome.LIED, f"block 5 of {address}", 5, 0)
    assert machine.step(5, 0) == Try(C)
    machine.ended(C, AttemptOutcome.ITSELF, "", 5, 0)
    lies = (
        "the node cannot follow: a:1 sent what cannot be: block 5 of a:1; "
        "b:1 sent what cannot be: block 5 of b:1"
    )
    assert machine.problem == lies
    machine.step(5, 2_000)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "gone", 5, 2_000)
    assert machine.problem == lies, "it is no other chain for that"
    machine.came_to(6)
    assert machine.problem is None


def test_a_follower_that_is_level_with_a_peer_that_lied_has_no_problem() -> None:
    machine = CatchUp((A,), RULES, live=True)
    machine.step(5, 0)
    machine.ended(A, AttemptOutcome.LIED, "block 5", 5, 0)
    assert machine.problem is not None
    machine.told(A, 0, 4, 5)
    assert machine.problem is None


def test_one_that_catches_up_has_publishers_beside_a_peer_that_lies() -> None:
    machine = behind(A)
    machine.step(5, 0)
    machine.ended(A, AttemptOutcome.LIED, "block 5", 5, 0)
    assert machine.problem is None


# --- a target that no peer confirms -------------------------------------------------------------------------

DOUBTING = CatchUpRules(stalled_attempts_max=3, backoff_ns=100, backoff_max_ns=1_000, unconfirmed_ns=5_000)
FAR = 2**64 - 1


def stand_still(machine: CatchUp, now_ns: int, last: int | None = 4) -> int:
    """Make three attempts with a peer that has nothing more; return the time of the last one."""
    for count in range(3):
        step = machine.step(5, now_ns + count * 100)
        assert isinstance(step, Try)
        machine.told(step.address, 0, last, 5)
        machine.ended(step.address, AttemptOutcome.NOTHING, "it ends with block 4", 5, now_ns + count * 100)
    return now_ns + 200


def test_a_target_that_no_peer_confirms_is_given_up_after_its_time() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    stalled_ns = stand_still(machine, 0)
    assert machine.problem is not None
    assert machine.step(5, stalled_ns) == Pause(stalled_ns + 100)
    assert machine.take_given_up() is None
    assert machine.step(5, stalled_ns + 5_000) is DONE
    assert machine.take_given_up() == FAR
    assert machine.take_given_up() is None
    assert machine.problem is None
    assert machine.distance(5) == 0


def test_it_is_given_up_in_time_though_every_peer_rests() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    for now_ns in (0, 100, 4_000):
        machine.step(5, now_ns)
        machine.ended(A, AttemptOutcome.LIED, "it lies", 5, now_ns)
    machine.rules = CatchUpRules(stalled_attempts_max=3, backoff_max_ns=1_000, unconfirmed_ns=500)
    assert machine.step(5, 4_100) == Pause(4_500)
    assert machine.step(5, 4_500) is DONE


def goes_on(machine: CatchUp, next_number: int, now_ns: int, last: int) -> object:
    """A publisher brings a block: take the next step, and let an attempt end with `last`."""
    step = machine.step(next_number, now_ns)
    if isinstance(step, Try):
        machine.told(A, 0, last, next_number)
        machine.ended(A, AttemptOutcome.NOTHING, "it ends before", next_number, now_ns)
    return step


def test_it_is_given_up_in_time_though_publishers_bring_blocks() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    steps = [goes_on(machine, 5 + count, count * 1_000, 4 + count) for count in range(7)]
    assert steps == [Try(A)] * 6 + [DONE], "5,000 ns behind the first block that came"
    assert machine.take_given_up() == FAR
    machine.aim(FAR)
    assert goes_on(machine, 12, 20_000, 11) == Try(A), "whoever is told anew looks anew"


def test_it_is_not_given_up_when_a_peer_confirms_it_between() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    for count in range(20):
        last = 100 if count % 4 == 2 else 4 + count
        assert goes_on(machine, 5 + count, count * 1_000, last) == Try(A)
    assert machine.take_given_up() is None


def test_the_time_of_a_target_begins_where_the_one_before_was_reached() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(6)
    assert goes_on(machine, 5, 0, 4) == Try(A)
    assert goes_on(machine, 6, 1_000, 5) == Try(A)
    machine.came_to(7)
    machine.aim(FAR)
    assert goes_on(machine, 7, 6_500, 6) == Try(A)
    assert machine.take_given_up() is None
    assert goes_on(machine, 8, 8_000, 7) == Try(A)
    assert goes_on(machine, 9, 13_000, 8) is DONE


def test_given_up_once_it_is_no_problem_again_before_a_block_has_come() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    machine.step(5, stand_still(machine, 0) + 5_000)
    machine.aim(FAR - 1)
    stand_still(machine, 10_000)
    assert machine.problem is None, "though somebody told of it again"
    assert machine.step(5, 20_000) is DONE
    machine.aim(FAR)
    assert machine.step(6, 30_000) == Try(A)
    for count in range(3):
        machine.ended(A, AttemptOutcome.NOTHING, "it ends with block 5", 6, 30_000 + count * 100)
    assert machine.problem is not None, "a block has come: this is something new"


def test_what_a_peer_confirms_is_not_given_up() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    for count in range(3):
        machine.step(5, count * 1_000)
        machine.told(A, 0, 9, 5)
        machine.ended(A, AttemptOutcome.BROKE_OFF, "it broke off", 5, count * 1_000)
    assert machine.step(5, 100_000) == Try(A)
    assert machine.take_given_up() is None
    assert machine.problem is not None


def test_what_a_peer_shows_after_a_target_was_given_up_is_a_problem_if_it_does_not_come() -> None:
    machine = CatchUp((A,), DOUBTING)
    machine.aim(FAR)
    machine.step(5, stand_still(machine, 0) + 5_000)
    machine.aim(9)
    for count in range(3):
        machine.step(5, 10_000 + count * 1_000)
        machine.told(A, 0, 9, 5)
        machine.ended(A, AttemptOutcome.BROKE_OFF, "it broke off", 5, 10_000 + count * 1_000)
    assert machine.problem is not None


def test_without_a_time_limit_it_is_never_given_up() -> None:
    machine = CatchUp((A,), CatchUpRules(stalled_attempts_max=3, backoff_ns=100, unconfirmed_ns=0))
    machine.aim(FAR)
    stand_still(machine, 0)
    assert machine.step(5, 10**15) == Try(A)


def test_a_peer_that_is_followed_may_correct_what_it_said() -> None:
    machine = CatchUp((A,), RULES, live=True)
    machine.told(A, 0, FAR, 5)
    machine.heard(A, 9, 5)
    assert machine.distance(5) == 5


# --- a peer that is the node itself -------------------------------------------------------------------------


def test_a_standby_whose_only_peer_is_itself_says_so_at_once() -> None:
    machine = CatchUp((A,), RULES, live=True)
    assert machine.step(5, 0) == Try(A)
    machine.ended(A, AttemptOutcome.ITSELF, "its address leads to this node itself", 5, 0)
    assert machine.problem == "the node has nobody to follow: a:1 leads to the node itself"
    assert machine.step(5, 999) == Pause(1_000)
    machine.ended(A, AttemptOutcome.COMPLETE, "", 5, 1_000)
    assert machine.problem is None, "the address leads elsewhere by now"


def test_a_peer_that_is_the_node_itself_is_passed_over() -> None:
    machine = CatchUp((A, B), RULES, live=True)
    machine.ended(A, AttemptOutcome.ITSELF, "", 5, 0)
    assert machine.problem is None
    assert machine.step(5, 0) == Try(B)
    assert machine.stalled_count == 0


# --- standbys and active nodes ------------------------------------------------------------------------------


def follower_of(address: str, *, last: int = 9, role: str = "standby") -> CatchUp:
    """A node that needs block 10 and follows this peer."""
    machine = CatchUp((A, B, C), RULES, live=True)
    machine.step(10, 0)
    machine.told(address, 0, last, 10, role)
    return machine


@pytest.mark.parametrize(
    ("first", "last", "role", "expected"),
    [
        (0, 9, "active", B),
        (10, 30, "active", B),
        (11, 30, "active", None),
        (0, 8, "active", None),
        (None, None, "active", None),
        (0, 30, "standby", None),
        (0, 30, "draining", None),
        (0, 30, "", None),
    ],
)
def test_for_whom_a_peer_is_left(
    first: int | None, last: int | None, role: str, expected: str | None
) -> None:
    machine = follower_of(A)
    machine.noted(B, first, last, role)
    assert machine.is_standby(A)
    assert machine.active_beside(A, 10, 0) == expected


def test_who_is_left_for_an_active_peer_is_not_tried_before_it() -> None:
    machine = follower_of(A)
    machine.noted(B, 0, 9, "active")
    machine.noted(C, 0, 11, "active")
    machine.ended(A, AttemptOutcome.STANDBY, "", 10, 0)
    assert machine.stalled_count == 0
    assert machine.step(10, 0) == Try(C), "it has more than the other one"
    machine.ended(C, AttemptOutcome.UNREACHABLE, "", 10, 0)
    assert machine.step(10, 0) == Try(B)
    machine.ended(B, AttemptOutcome.UNREACHABLE, "", 10, 0)
    assert machine.step(10, 12) == Try(A)


@pytest.mark.parametrize(
    ("outcome", "backoff_ns"),
    [(AttemptOutcome.UNREACHABLE, 100), (AttemptOutcome.BROKE_OFF, 100), (AttemptOutcome.STALLED, 1_000)],
)
def test_an_active_peer_that_failed_is_not_preferred_at_once(
    outcome: AttemptOutcome, backoff_ns: int
) -> None:
    machine = follower_of(B, role="active")
    machine.ended(B, outcome, "", 10, 0)
    machine.told(A, 0, 9, 10, "standby")
    machine.noted(B, 0, 30, "active")
    assert machine.active_beside(A, 10, backoff_ns - 1) is None
    assert machine.active_beside(A, 10, backoff_ns) == B


def test_an_active_peer_of_another_chain_is_never_preferred_before_it_brings_a_block() -> None:
    machine = follower_of(B, role="active")
    machine.ended(B, AttemptOutcome.LIED, "block 10", 10, 0)
    machine.told(A, 0, 9, 10, "standby")
    machine.noted(B, 0, 30, "active")
    assert machine.active_beside(A, 10, 10_000) is None
    assert machine.step(10, 10_000) == Try(A)
    machine.ended(A, AttemptOutcome.UNREACHABLE, "", 10, 10_000)
    assert machine.step(10, 10_000) == Try(B), "there is nobody else"
    machine.ended(B, AttemptOutcome.BROKE_OFF, "", 12, 10_000)
    machine.noted(B, 0, 30, "active")
    assert machine.active_beside(A, 12, 20_000) == B


# --- the backoff from a peer that is followed live: its failures are soon forgotten, its faults are not ----

LONG_RULES = CatchUpRules(backoff_ns=100, backoff_max_ns=60_000)
LASTS = {Told.LEVEL: 4, Told.MORE: 30}
"""The last block reported to a node that needs block 5."""


def backoffs_of(
    machine: CatchUp, outcome: AttemptOutcome, told: Told, count: int, now_ns: int = 0
) -> list[int]:
    """End as many attempts with this outcome, each as soon as it may begin; return the backoffs."""
    backoffs = []
    for _ in range(count):
        assert machine.step(5, now_ns) == Try(A)
        if told is not Told.NOTHING:
            assert machine.told(A, 0, LASTS[told], 5) == Range(5, None)
        machine.ended(A, outcome, "", 5, now_ns)
        pause = machine.step(5, now_ns)
        assert isinstance(pause, Pause)
        assert pause.until_ns is not None
        backoffs.append(pause.until_ns - now_ns)
        now_ns = pause.until_ns
    return backoffs


RISING = [100, 200, 400, 800, 1_600, 3_200, 6_400]
A_LITTLE = [100, 200, 400, 800, 800, 800, 800]


@pytest.mark.parametrize("told", Told)
@pytest.mark.parametrize(
    "outcome", [AttemptOutcome.UNREACHABLE, AttemptOutcome.BROKE_OFF, AttemptOutcome.STALLED]
)
def test_a_followed_peer_that_owes_nothing_is_not_left_alone_for_long(
    outcome: AttemptOutcome, told: Told
) -> None:
    """An active node that restarts after a while must find its standby soon."""
    backoffs = backoffs_of(CatchUp((A,), LONG_RULES, live=True), outcome, told, 7)
    assert backoffs == (A_LITTLE if (outcome, told) in FOLLOWED else RISING)


def test_who_owes_blocks_or_sends_what_cannot_be_is_treated_as_ever() -> None:
    assert {told for _, told in FOLLOWED} == {Told.NOTHING, Told.LEVEL}
    assert {outcome for outcome, _ in FOLLOWED} == {AttemptOutcome.UNREACHABLE, AttemptOutcome.BROKE_OFF}
    assert set(FOLLOWED.values()) == {PeerBackoff.RISING_A_LITTLE}
    for told in Told:
        machine = CatchUp((A,), LONG_RULES, live=True)
        assert backoffs_of(machine, AttemptOutcome.LIED, told, 3) == [60_000] * 3


def test_one_that_catches_up_leaves_a_peer_that_is_away_alone_as_before() -> None:
    machine = CatchUp((A,), LONG_RULES)
    machine.aim(20)
    assert backoffs_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 7) == RISING
    assert OUTCOMES[AttemptOutcome.UNREACHABLE] is PeerBackoff.RISING


def test_a_peer_that_ends_streams_in_order_is_asked_again_soon_and_is_no_problem() -> None:
    """A publisher that breaks off again and again must not keep a standby waiting."""
    machine = CatchUp((A,), CatchUpRules(stalled_attempts_max=1, backoff_ns=100), live=True)
    assert backoffs_of(machine, AttemptOutcome.CLOSED, Told.LEVEL, 9) == [100] * 9
    assert machine.problem is None


def test_a_followed_peer_that_was_level_is_taken_for_well_again() -> None:
    machine = CatchUp((A,), LONG_RULES, live=True)
    assert backoffs_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 7) == A_LITTLE
    machine.told(A, 0, 4, 5)
    machine.heard(A, 5, 5)
    assert backoffs_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 1, 10_000) == [800], (
        "it has more than was sent"
    )
    machine.heard(A, 4, 5)
    assert backoffs_of(machine, AttemptOutcome.UNREACHABLE, Told.NOTHING, 2, 20_000) == [100, 200]


def test_a_peer_that_stalls_is_not_forgiven_for_saying_that_it_is_level() -> None:
    machine = CatchUp((A,), LONG_RULES, live=True)
    assert backoffs_of(machine, AttemptOutcome.STALLED, Told.MORE, 5) == RISING[:5]
    machine.told(A, 0, 4, 5)
    machine.heard(A, 4, 5)
    assert backoffs_of(machine, AttemptOutcome.STALLED, Told.MORE, 2, 10_000) == RISING[5:]


def test_other_peers_may_help_unless_they_have_failed_or_lack_the_blocks() -> None:
    machine = behind(A, B, C)
    machine.step(5, 0)
    machine.told(A, 0, 20, 5)
    assert machine.helpers(A, 5, 0) == [B, C], "nothing is known of them"
    machine.told(B, 8, 20, 5)
    machine.told(C, 0, 6, 5)
    assert machine.helpers(A, 5, 0) == [C], "the other one has lost block 5"
    assert machine.helpers(A, 8, 0) == [B], "the other one does not have block 8"


@pytest.mark.parametrize(
    "outcome",
    [AttemptOutcome.STALLED, AttemptOutcome.LIED, AttemptOutcome.UNREACHABLE, AttemptOutcome.ITSELF],
)
def test_a_peer_that_has_failed_helps_again_once_it_has_brought_blocks_alone(
    outcome: AttemptOutcome,
) -> None:
    machine = behind(A, B)
    machine.step(5, 0)
    machine.ended(B, outcome, "why", 5, 0)
    assert machine.helpers(A, 5, 10_000) == []
    machine.step(5, 10_000)
    machine.told(B, 0, 20, 5)
    machine.ended(B, AttemptOutcome.COMPLETE, "", 9, 10_000)
    assert machine.helpers(A, 9, 20_000) == [B]


def test_a_peer_that_is_to_share_its_blocks_is_not_left_alone_for_that() -> None:
    machine = behind(A, B)
    assert machine.step(5, 0) == Try(A)
    machine.told(A, 0, 20, 5)
    machine.ended(A, AttemptOutcome.SHARED, "", 7, 0)
    assert machine.step(7, 0) == Try(A)
    assert machine.stalled_count == 0
