"""The tables of the publish machine are complete and say what the wire says."""

from __future__ import annotations

from gateway.api import publish_pb2
from publishers.machine_tables import ENDINGS, FINAL_STATES, TABLE, Gateway, Pace, State, Step
from publishers.signals import EndCode, EventKind


def test_every_state_answers_every_event() -> None:
    assert set(TABLE) == set(State)
    for state, row in TABLE.items():
        assert set(row) == set(EventKind), state


def test_every_step_is_used() -> None:
    assert {step for row in TABLE.values() for step in row.values()} == set(Step)


def test_nothing_happens_in_a_final_state() -> None:
    for state in FINAL_STATES:
        assert set(TABLE[state].values()) == {Step.NOTHING}


def test_answers_are_refused_without_a_stream() -> None:
    answers = (EventKind.ACKNOWLEDGED, EventKind.SKIPPED, EventKind.RESEND_ASKED, EventKind.NODE_BEHIND)
    for state in (State.RESTING, State.CONNECTING):
        assert {TABLE[state][kind] for kind in answers} == {Step.REFUSE}


def test_every_code_of_the_wire_has_an_ending() -> None:
    codes = publish_pb2.PublishStreamResponse.EndOfStream.Code
    assert {code.name: int(code) for code in ENDINGS} == dict(codes.items())
    assert set(ENDINGS) == set(EndCode)


def test_only_a_duplicate_goes_on_at_once_at_the_same_gateway() -> None:
    at_once = [code for code, ending in ENDINGS.items() if ending.pace is Pace.AT_ONCE]
    assert at_once == [EndCode.DUPLICATE_BLOCK]
    assert ENDINGS[EndCode.DUPLICATE_BLOCK].gateway is Gateway.SAME
