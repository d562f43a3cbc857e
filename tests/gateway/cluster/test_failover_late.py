"""A failover that takes longer than the drained node waits, or almost: with times given by hand."""

from __future__ import annotations

import pytest

from gateway.cluster.failover import FAILOVER_HOLD_SECONDS, NodeStatus
from gateway.cluster.roles import RoleEvent
from gateway.limits import CONTROL_CALL_SECONDS
from tests.gateway.failing_over import LOST, Pair


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.mark.parametrize("is_level", [True, False])
def test_one_that_was_stopped_for_longer_than_the_drained_node_waits_does_no_more(
    pair: Pair, is_level: bool
) -> None:
    """Stopped by Ctrl-Z, say: the drained node is active again, or drained for another failover by then."""
    pair.b.takes["await_block"] = FAILOVER_HOLD_SECONDS
    pair.b.last_number = 41 if is_level else 40
    late = "the drain is 30 s ago, expected less than 30 s; A is drained"
    why = "" if is_level else "B: FAILED_PRECONDITION: another chain; "
    assert pair.failure() == f"failover: {why}{late}"
    assert "activate" not in pair.b.calls
    assert "resume" not in pair.a.calls


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_time_before_the_answer_to_the_drain_counts_as_well(pair: Pair, is_answered: bool) -> None:
    """Stopped while it waits for that: the node is drained, and active again, before the answer is read."""
    pair.a.takes["drain"] = FAILOVER_HOLD_SECONDS + 3
    if not is_answered:
        pair.a.lose.add("drain")
    why = "" if is_answered else f"A: {LOST}; "
    assert pair.failure() == (f"failover: {why}the drain is 33 s ago, expected less than 30 s; A is drained")
    assert "activate" not in pair.b.calls
    assert "resume" not in pair.a.calls


@pytest.mark.parametrize("became", [RoleEvent.STAND_BY, RoleEvent.HOLD_ENDED, None])
def test_one_that_is_stopped_while_the_standby_becomes_active_looks_at_what_became_of_the_old_node(
    pair: Pair, became: RoleEvent | None
) -> None:
    pair.b.takes["activate"] = FAILOVER_HOLD_SECONDS
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
    pair.b.takes["await_block"] = FAILOVER_HOLD_SECONDS - 0.1
    pair.run()
    assert pair.active == ["B"]


@pytest.mark.parametrize(
    ("level_seconds", "seconds"),
    [(0.0, CONTROL_CALL_SECONDS), (FAILOVER_HOLD_SECONDS - 2, 2.0)],
)
def test_the_standby_becomes_active_while_the_drained_node_waits_or_not_at_all(
    pair: Pair, level_seconds: float, seconds: float
) -> None:
    pair.b.takes["await_block"] = level_seconds
    pair.run()
    assert pair.b.activate_seconds == seconds
