"""Tests of `gateway.cluster.roles`: the table, cell by cell, and the record in each phase."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from sluice.gateway.cluster.roles import ROLE_TABLE, Phase, RoleEvent, RoleRecord, RoleState, role_rules
from sluice.gateway.errors import RoleRefused

README = Path(__file__).resolve().parents[3] / "gateway" / "README.md"
PEER = "192.0.2.7:40840"


def state_in(phase: Phase) -> RoleState:
    """Return a role that reached the phase in the normal way."""
    state = RoleState(RoleRecord("standby", PEER) if phase is Phase.STANDBY else RoleRecord("active"))
    if phase in (Phase.DRAINING, Phase.DRAINED):
        state.take(RoleEvent.DRAIN, PEER)
    if phase is Phase.DRAINED:
        state.take(RoleEvent.IDLE)
    assert state.phase is phase
    return state


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, RoleEvent)))
def test_each_event_in_each_phase_leads_on_or_is_refused_without_effect(
    phase: Phase, event: RoleEvent
) -> None:
    state = state_in(phase)
    before = state.record()
    if event in ROLE_TABLE[phase]:
        assert state.take(event) is state.phase is ROLE_TABLE[phase][event]
        return
    with pytest.raises(RoleRefused) as caught:
        state.take(event)
    assert caught.value.got == phase.value
    assert (state.phase, state.record()) == (phase, before)


def test_a_refusal_says_what_would_be_possible() -> None:
    with pytest.raises(RoleRefused) as caught:
        state_in(Phase.ACTIVE).take(RoleEvent.STAND_BY, PEER)
    assert str(caught.value) == (
        "stand by: got a node that is active, expected one that is drained or standby"
    )


def test_a_planned_failover_from_both_sides() -> None:
    leaving, coming = state_in(Phase.ACTIVE), state_in(Phase.STANDBY)
    assert leaving.take(RoleEvent.DRAIN, PEER) is Phase.DRAINING
    assert leaving.take(RoleEvent.IDLE) is Phase.DRAINED
    assert coming.take(RoleEvent.ACTIVATE) is Phase.ACTIVE
    assert leaving.take(RoleEvent.STAND_BY, PEER) is Phase.STANDBY
    assert (leaving.record(), coming.record()) == (RoleRecord("standby", PEER), RoleRecord("active"))


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.DRAINED])
def test_a_node_lost_in_the_middle_comes_back_as_the_standby_of_its_successor(phase: Phase) -> None:
    record = state_in(phase).record()
    assert record == RoleRecord("standby", PEER)
    assert RoleState(record).phase is Phase.STANDBY
    assert RoleState(record).followed == PEER


@pytest.mark.parametrize("event", [RoleEvent.RESUME, RoleEvent.LEASE_ENDED])
@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.DRAINED])
def test_a_node_that_is_resumed_is_remembered_as_active(phase: Phase, event: RoleEvent) -> None:
    state = state_in(phase)
    state.take(event)
    assert state.record() == RoleRecord("active")


def test_a_standby_can_be_told_to_follow_another() -> None:
    state = state_in(Phase.STANDBY)
    state.take(RoleEvent.STAND_BY, "192.0.2.8:40840")
    assert state.record() == RoleRecord("standby", "192.0.2.8:40840")
    state.take(RoleEvent.STAND_BY)
    assert state.followed == "192.0.2.8:40840"


def test_the_table_in_the_readme_is_the_table() -> None:
    assert role_rules() in README.read_text("utf-8")
