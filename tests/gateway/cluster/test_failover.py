"""Tests of `cluster.failover`: each lost answer and refused step, and which node is active afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sluice.gateway.cluster.failover import (
    FAILOVER_LEASE_SECONDS,
    FAILOVER_READY_POLL_SECONDS,
    FAILOVER_READY_SECONDS,
    Failover,
    FailoverStep,
    NodeStatus,
)
from sluice.gateway.cluster.roles import Phase, RoleEvent, RoleRecord, RoleState
from sluice.gateway.errors import FailoverFailed, FailoverInterrupted
from sluice.gateway.limits import CONTROL_CALL_SECONDS
from tests.gateway.failing_over import DEAD, LOST, Pair


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_as_planned_each_step_is_reported(pair: Pair) -> None:
    pair.run()
    assert pair.active == ["B"]
    assert pair.a.role.record() == RoleRecord("standby", "subscribers-of-B")
    assert [(step.name, step.detail) for step in pair.steps] == [
        ("read both nodes", "active at block 41, standby at block 41"),
        ("drain A", "block 41, publishers sent elsewhere"),
        ("level B", "block 41, same root hash"),
        ("activate B", "block 41"),
        ("A stands by", "follows subscribers-of-B"),
    ]


def test_once_done_it_is_done(pair: Pair) -> None:
    pair.run()
    pair.run()
    assert pair.b.calls.count("activate") == 1


def test_empty_nodes_have_nothing_to_be_level_with(pair: Pair) -> None:
    pair.a.last_number = pair.b.last_number = None
    pair.run()
    assert pair.active == ["B"]
    assert "await_block" not in pair.b.calls


FORCE_ONE = (
    ": where no other node is active, see which is ahead with sluice status grpc-of-A "
    "grpc-of-B, and fail over to that one with --force"
)
FORCE = "is A dead? then: --force; if it is alive it is active again after 30 s"
AND_B = (
    ", and B may be, too, when it comes back: see with sluice status grpc-of-A grpc-of-B, and run a failover "
    "to the one that is ahead"
)
HOLD = ", and after 30 s its standby, or active: run the failover again"
FAULTS: list[tuple[str, str, str | None, list[str]]] = [
    # step, its fate, error, nodes that are active afterwards (dead ones: if they come back)
    ("drain", "refused", "A: INTERNAL: drain refused; A is active again", ["A"]),
    ("drain", "answer lost", f"A: {LOST}; A is active again", ["A"]),
    ("drain", "node dies", f"A: {LOST}; A: {DEAD}; {FORCE}", []),
    ("await_block", "refused", "B: INTERNAL: await_block refused; A is active again", ["A"]),
    ("await_block", "answer lost", f"B: {LOST}; A is active again", ["A"]),
    ("await_block", "node dies", f"B: {LOST}; A is active again", ["A"]),
    ("activate", "refused", "B: INTERNAL: activate refused; A is active again", ["A"]),
    ("activate", "answer lost", None, ["B"]),
    ("activate", "answer late", None, ["B"]),
    ("activate", "node dies", f"B: {LOST}; A is active again{AND_B}", ["A", "B"]),
    ("stand_by", "refused", f"A: INTERNAL: stand_by refused; B is active, but A is drained{HOLD}", ["B"]),
    ("stand_by", "answer lost", None, ["B"]),
    ("stand_by", "node dies", None, ["B"]),
]


@pytest.mark.parametrize(("step", "fault", "words", "active"), FAULTS)
def test_a_step_that_fails_is_undone_or_has_moved_the_load(
    pair: Pair, step: str, fault: str, words: str | None, active: list[str]
) -> None:
    failing = pair.a if step in ("drain", "stand_by") else pair.b
    {"refused": failing.refuse, "answer late": failing.late}.get(fault, failing.lose).add(step)
    failing.dies_after = step if fault == "node dies" else ""
    if words is None:
        pair.run()
    else:
        assert pair.failure() == f"failover: {words}"
    failing.finish()
    assert pair.active == active


NOW = "(A is active, B is standby)"
RESUMED = f"A is active again {NOW}"
INTERRUPTIONS: list[tuple[str, str, str, list[str]]] = [
    # call, its fate, error, nodes that are active afterwards
    ("A drain", "", f"interrupted; {RESUMED}", ["A"]),
    (
        "A drain",
        "node dies",
        f"interrupted; A: {LOST}; A: {DEAD}; {FORCE} (A does not answer, B is standby)",
        [],
    ),
    ("B await_block", "", f"interrupted; {RESUMED}", ["A"]),
    ("B await_block", "refused", f"interrupted; B: INTERNAL: await_block refused; {RESUMED}", ["A"]),
    ("B activate", "", "interrupted; the failover is done (A is standby, B is active)", ["B"]),
    ("B activate", "refused", f"interrupted; B: INTERNAL: activate refused; {RESUMED}", ["A"]),
    ("B activate", "answer late", "interrupted; the failover is done (A is standby, B is active)", ["B"]),
    ("A stand_by", "", "interrupted; the failover is done (A is standby, B is active)", ["B"]),
    ("A stand_by", "node dies", "interrupted; the failover is done (A does not answer, B is active)", ["B"]),
]


@pytest.mark.parametrize(("call", "fault", "words", "active"), INTERRUPTIONS)
def test_an_interruption_is_undone_before_the_standby_is_active_and_too_late_then(
    pair: Pair, call: str, fault: str, words: str, active: list[str]
) -> None:
    node, step = pair.a if call.startswith("A") else pair.b, call[2:]
    node.interrupted_at = step
    node.dies_after = step if fault == "node dies" else ""
    {"refused": node.refuse, "answer late": node.late, "node dies": node.lose}.get(fault, set()).add(step)
    assert pair.failure() == f"failover: {words}"
    assert pair.active == active


def test_an_interruption_that_the_drained_node_does_not_undo_says_what_it_is(pair: Pair) -> None:
    pair.b.interrupted_at = "await_block"
    pair.a.refuse.add("resume")
    assert pair.failure() == (
        "failover: interrupted; A: INTERNAL: resume refused; A is drained (A is drained, B is standby)"
    )


def test_an_interruption_while_a_failed_step_is_undone_does_not_stop_that(pair: Pair) -> None:
    pair.b.last_number = 40
    pair.a.interrupted_at = "resume"
    with pytest.raises(FailoverInterrupted) as caught:
        pair.run()
    assert str(caught.value) == f"failover: interrupted; B: FAILED_PRECONDITION: another chain; {RESUMED}"
    assert (caught.value.exit_status, caught.value.is_done, pair.active) == (130, False, ["A"])


@pytest.mark.parametrize("both", ["both are standbys", "B does not answer"])
@pytest.mark.parametrize("is_late", [False, True])
def test_after_a_restart_of_the_drained_node_both_are_said_to_be_standbys_and_what_ends_that(
    pair: Pair, is_late: bool, both: str
) -> None:
    if is_late:
        pair.b.takes["await_block"] = FAILOVER_LEASE_SECONDS

    def report(step: FailoverStep) -> None:
        if step.name == "drain A":
            pair.a.role = RoleState(pair.a.role.record())

    if both == "B does not answer":
        pair.b.lose.add("await_block")
        pair.b.dies_after = "await_block"
    else:
        pair.b.refuse.add("await_block")
    with pytest.raises(FailoverFailed) as caught:
        asyncio.run(Failover(pair.a, pair.b, report, lambda: pair.a.seconds + pair.b.seconds).run())
    why = (
        "the drain is 30 s ago, expected less than 30 s"
        if is_late
        else "A: FAILED_PRECONDITION: resume: got a node that is standby, expected one that is active or "
        "draining or drained"
    )
    step = LOST if pair.b.is_dead else "INTERNAL: await_block refused"
    assert str(caught.value) == (f"failover: B: {step}; {why}; A is standby; {both}{FORCE_ONE}")
    pair.b.is_dead = False
    pair.run(force=True)
    assert pair.active == ["B"]


def test_when_the_active_node_died_while_it_drained_force_finishes_it(pair: Pair) -> None:
    pair.a.lose.add("drain")
    pair.a.dies_after = "drain"
    pair.failure()
    pair.run(force=True)
    assert pair.active == ["B"]


def test_two_active_nodes_become_one_again(pair: Pair) -> None:
    pair.b.role = RoleState(RoleRecord("active"))
    pair.run()
    assert pair.active == ["B"]
    assert [step.name for step in pair.steps[-2:]] == ["activate B", "A stands by"]


def test_of_two_active_nodes_one_that_dies_meanwhile_is_not_handed_over_to(pair: Pair) -> None:
    pair.b.role = RoleState(RoleRecord("active"))
    pair.b.dies_after = "await_block"
    assert pair.failure() == f"failover: B: {DEAD}; A is active again{AND_B}"
    assert pair.a.role.phase is Phase.ACTIVE


def test_of_two_active_nodes_one_that_another_failover_drains_is_not_handed_over_to(pair: Pair) -> None:
    """Two commands at once, from A to B and from B to A."""
    pair.b.role = RoleState(RoleRecord("active"))

    def report(step: FailoverStep) -> None:
        if step.name == "level B":
            pair.b.role.take(RoleEvent.DRAIN, "subscribers-of-A")
            pair.b.role.take(RoleEvent.IDLE)

    with pytest.raises(FailoverFailed) as caught:
        asyncio.run(Failover(pair.a, pair.b, report, clock=lambda: 0.0).run())
    assert str(caught.value) == (
        "failover: B: FAILED_PRECONDITION: activate: got a node that is drained, expected one that is active "
        "or standby; A is active again"
    )
    assert "resume" not in pair.b.calls
    assert (pair.active, pair.b.role.phase) == (["A"], Phase.DRAINED)


@pytest.mark.parametrize("ready_after", [3, None])
def test_a_second_active_node_that_waits_for_the_first_is_given_time(
    pair: Pair, ready_after: int | None
) -> None:
    """With `commit.min_standbys` it is ready only now and then, while the other node takes its blocks."""
    pair.b.role = RoleState(RoleRecord("active"))
    pair.b.problems = ("block 42 is not acknowledged before 1 other node has it on disk",)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == ready_after:
            pair.b.problems = ()

    failover = Failover(pair.a, pair.b, pair.steps.append, clock=lambda: sum(slept), sleep=sleep)
    if ready_after is None:
        with pytest.raises(FailoverFailed, match=r"B is not ready: block 42 is .*; nothing has changed"):
            asyncio.run(failover.run())
        assert (pair.active, sum(slept)) == (["A", "B"], FAILOVER_READY_SECONDS)
    else:
        asyncio.run(failover.run())
        assert (pair.active, slept) == (["B"], [FAILOVER_READY_POLL_SECONDS] * ready_after)
    assert pair.steps[1].name == "wait for B"


def test_the_old_node_may_be_lost_at_the_end(pair: Pair) -> None:
    pair.a.dies_after = "drain"
    pair.run()
    assert pair.active == ["B"]
    assert pair.steps[-1].detail == (
        "no answer (UNAVAILABLE: no answer); if it died it comes back as a standby of subscribers-of-B, "
        "if it lives it becomes one after 30 s; if both are active then, run the failover again"
    )


def test_an_old_node_that_is_active_again_meanwhile_is_said_to_be(pair: Pair) -> None:
    """Its lease has expired: the earlier steps took too long."""

    def report(step: FailoverStep) -> None:
        if step.name == "activate B":
            pair.a.role.take(RoleEvent.LEASE_ENDED)

    with pytest.raises(FailoverFailed) as caught:
        asyncio.run(Failover(pair.a, pair.b, report, clock=lambda: 0.0).run())
    assert str(caught.value) == (
        "failover: A: FAILED_PRECONDITION: stand by: got a node that is active, expected one that is drained "
        "or standby; B is active, but A is active: run the failover again"
    )
    pair.run()
    assert pair.active == ["B"]


def test_an_old_node_whose_answer_is_lost_at_the_end_is_asked_what_it_is(pair: Pair) -> None:
    pair.a.lose.add("stand_by")
    pair.run()
    assert (pair.steps[-1].name, pair.steps[-1].detail) == ("A stands by", "follows subscribers-of-B")


def test_a_standby_that_is_not_level_does_not_take_over(pair: Pair) -> None:
    pair.b.last_number = 40
    assert pair.failure() == "failover: B: FAILED_PRECONDITION: another chain; A is active again"
    assert pair.active == ["A"]
    pair.b.last_number, pair.b.root_hash = 41, b"\x22" * 48
    assert pair.failure() == "failover: B: FAILED_PRECONDITION: another chain; A is active again"
    assert "activate" not in pair.b.calls


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            "standby",
            "standby",
            f"failover: A is standby, expected active; nothing has changed; both are standbys{FORCE_ONE}",
        ),
        ("active", "drained", "failover: B is drained, expected standby; nothing has changed"),
    ],
)
def test_nodes_in_other_roles_are_left_alone(pair: Pair, a: str, b: str, words: str) -> None:
    pair.a.role = RoleState(RoleRecord("active" if a == "active" else "standby"))
    if b == "drained":
        pair.b.role = RoleState(RoleRecord("active"))
        asyncio.run(pair.b.drain(1, "grpc-of-A", "1"))
    before = len(pair.b.calls)
    assert pair.failure() == words
    assert pair.a.calls == pair.b.calls[before:] == ["state"]


def test_a_standby_with_problems_does_not_take_over(pair: Pair) -> None:
    pair.b = replace(pair.b, problems=("blocks cannot be written: no space",))
    assert pair.failure() == (
        "failover: B is not ready: blocks cannot be written: no space; nothing has changed"
    )


def test_a_dead_node_is_said_to_need_force(pair: Pair) -> None:
    pair.a.is_dead = True
    assert pair.failure() == (
        "failover: A: UNAVAILABLE: no answer; nothing has changed; if that node is dead: --force"
    )
    pair.run(force=True)
    assert pair.active == ["A", "B"]  # A would come back unchanged: it never heard of the failover


def test_by_force_a_node_that_waits_for_a_standby_is_said_to_be_active_and_not_ready(pair: Pair) -> None:
    pair.a.is_dead = True
    pair.b = replace(pair.b, problems=("publishers are refused until block 41 is elsewhere", "and this"))
    pair.run(force=True)
    assert [(step.name, step.detail) for step in pair.steps] == [
        ("activate B", "block 41"),
        ("B is active and NOT READY", "publishers are refused until block 41 is elsewhere; and this"),
    ]


@pytest.mark.parametrize("phase", ["active", "drained"])
def test_force_is_refused_while_the_other_node_answers(pair: Pair, phase: str) -> None:
    if phase == "drained":
        asyncio.run(pair.a.drain(1, "grpc-of-B", "1"))
    assert pair.failure(force=True) == (
        f"failover: A answers and is {phase}; leave --force out, or stop that node first"
    )
    assert "activate" not in pair.b.calls


def test_what_answers_in_the_place_of_the_node_does_not_show_that_it_is_dead(pair: Pair) -> None:
    """Another port of a live node must not look like a dead node."""
    pair.a.refuse.add("state")
    assert pair.failure() == "failover: A: INTERNAL: state refused; nothing has changed"
    assert pair.failure(force=True) == (
        "failover: A: INTERNAL: state refused; nothing has changed: --force is for a node that does not "
        "answer at all"
    )
    assert pair.active == ["A"]


def test_one_that_answers_while_it_cannot_be_resumed_is_not_said_to_be_dead(pair: Pair) -> None:
    pair.b.refuse.add("activate")
    pair.a.refuse.add("resume")
    assert pair.failure() == (
        "failover: B: INTERNAL: activate refused; A: INTERNAL: resume refused; A is drained"
    )


def test_force_needs_a_standby_that_answers(pair: Pair) -> None:
    pair.a.is_dead = pair.b.is_dead = True
    assert pair.failure(force=True) == "failover: B cannot be activated: UNAVAILABLE: no answer"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("role", ["active", "standby"])
def test_a_node_does_not_hand_over_to_itself_under_another_name(pair: Pair, role: str, force: bool) -> None:
    pair.a.role, pair.a.instance, pair.b.instance = RoleState(pair.b.role.record()), "feed", "feed"
    if role == "active":
        pair.a.role, pair.b.role = (RoleState(RoleRecord("active")) for _ in range(2))
    expected = "A and B are the same node; nothing has changed"
    if force and role == "active":
        expected = "A answers and is active; leave --force out, or stop that node first"
    assert pair.failure(force=force) == f"failover: {expected}"
    assert set(pair.a.calls + pair.b.calls) == {"state"}


def test_by_force_after_a_node_that_answers_as_a_standby_the_other_one_must_answer(pair: Pair) -> None:
    pair.a.role = RoleState(RoleRecord("standby", "subscribers-of-B"))
    pair.b.is_dead = True
    assert pair.failure(force=True) == "failover: B: UNAVAILABLE: no answer; nothing has changed"


def test_a_node_that_another_failover_has_drained_is_left_to_that(pair: Pair) -> None:
    """Two commands at once, from A to B and from A to C."""
    pair.a.drained_first = "subscribers-of-C"
    assert pair.failure() == (
        "failover: A: FAILED_PRECONDITION: drain: got a node that is drained, expected one that is active; "
        "A is drained"
    )
    assert "resume" not in pair.a.calls
    assert pair.a.role.record() == RoleRecord("standby", "subscribers-of-C")
    assert pair.b.role.phase is Phase.STANDBY


# --- later than the lease, or almost ---------------------------------------------------------------------


@pytest.mark.parametrize("is_level", [True, False])
def test_one_that_was_stopped_for_longer_than_the_drained_node_waits_does_no_more(
    pair: Pair, is_level: bool
) -> None:
    """After Ctrl-Z, for example: the drained node is active again, or drained for another failover."""
    pair.b.takes["await_block"] = FAILOVER_LEASE_SECONDS
    pair.b.last_number = 41 if is_level else 40
    late = "the drain is 30 s ago, expected less than 30 s; A is drained"
    why = "" if is_level else "B: FAILED_PRECONDITION: another chain; "
    assert pair.failure() == f"failover: {why}{late}"
    assert "activate" not in pair.b.calls
    assert "resume" not in pair.a.calls


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_time_before_the_answer_to_the_drain_counts_as_well(pair: Pair, is_answered: bool) -> None:
    """If the command is stopped while it waits, the node is active again before the answer is read."""
    pair.a.takes["drain"] = FAILOVER_LEASE_SECONDS + 3
    if not is_answered:
        pair.a.lose.add("drain")
    why = "" if is_answered else f"A: {LOST}; "
    assert pair.failure() == (f"failover: {why}the drain is 33 s ago, expected less than 30 s; A is drained")
    assert "activate" not in pair.b.calls
    assert "resume" not in pair.a.calls


@pytest.mark.parametrize("became", [RoleEvent.STAND_BY, RoleEvent.LEASE_ENDED, None])
def test_one_that_is_stopped_while_the_standby_becomes_active_looks_at_what_became_of_the_old_node(
    pair: Pair, became: RoleEvent | None
) -> None:
    pair.b.takes["activate"] = FAILOVER_LEASE_SECONDS
    state = pair.a.state

    async def state_then() -> NodeStatus:
        if became is not None and "activate" in pair.b.calls:
            pair.a.role.take(became)
        return await state()

    pair.a.state = state_then  # type: ignore[method-assign]
    pair.a.refuse.add("stand_by")
    if became is RoleEvent.STAND_BY:
        pair.run()
        assert (pair.steps[-1].name, pair.steps[-1].detail) == ("A stands by", "follows subscribers-of-B")
    else:
        is_what = "active" if became else "drained, and after 30 s its standby, or active"
        assert pair.failure() == (
            "failover: the drain is 30 s ago, expected less than 30 s; "
            f"B is active, but A is {is_what}: run the failover again"
        )
    assert "stand_by" not in pair.a.calls


def test_one_that_took_almost_as_long_as_the_drained_node_waits_goes_on(pair: Pair) -> None:
    pair.b.takes["await_block"] = FAILOVER_LEASE_SECONDS - 0.1
    pair.run()
    assert pair.active == ["B"]


@pytest.mark.parametrize(
    ("level_seconds", "seconds"),
    [(0.0, CONTROL_CALL_SECONDS), (FAILOVER_LEASE_SECONDS - 2, 2.0)],
)
def test_the_standby_becomes_active_while_the_drained_node_waits_or_not_at_all(
    pair: Pair, level_seconds: float, seconds: float
) -> None:
    pair.b.takes["await_block"] = level_seconds
    pair.run()
    assert pair.b.activate_seconds == seconds
