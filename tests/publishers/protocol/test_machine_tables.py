"""The tables of the publish machine are complete and say what the wire says."""

from __future__ import annotations

from pathlib import Path

from sluice.gateway.api import publish_pb2
from sluice.publishers.protocol import machine_tables
from sluice.publishers.protocol.machine_tables import (
    ADVICE,
    ENDINGS,
    FINAL_STATES,
    TABLE,
    Gateway,
    MachineState,
    MachineStep,
    Pace,
    advice_table,
    endings_table,
)
from sluice.publishers.protocol.messages import EndCode, EventKind

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_every_state_answers_every_event() -> None:
    assert set(TABLE) == set(MachineState)
    for state, row in TABLE.items():
        assert set(row) == set(EventKind), state


def test_every_step_is_used() -> None:
    assert {step for row in TABLE.values() for step in row.values()} == set(MachineStep)


def test_nothing_happens_in_a_final_state() -> None:
    for state in FINAL_STATES:
        assert set(TABLE[state].values()) == {MachineStep.NOTHING}


def test_answers_are_refused_without_a_stream() -> None:
    answers = (EventKind.ACKNOWLEDGED, EventKind.SKIPPED, EventKind.RESEND_ASKED, EventKind.NODE_BEHIND)
    for state in (MachineState.IDLE, MachineState.CONNECTING):
        assert {TABLE[state][kind] for kind in answers} == {MachineStep.REFUSE}


def test_every_code_of_the_wire_has_an_ending() -> None:
    codes = publish_pb2.PublishStreamResponse.EndOfStream.Code
    assert {code.name: int(code) for code in ENDINGS} == dict(codes.items())
    assert set(ENDINGS) == set(EndCode)


def test_the_protocols_page_shows_what_to_do_on_every_answer() -> None:
    page = PROTOCOL.read_text("utf-8")
    for text in (advice_table(), endings_table()):
        assert text in page, (
            "docs/protocol.md is stale: python -m sluice.publishers.protocol.machine_tables prints its tables"
        )
    diagram = [line for line in (machine_tables.__doc__ or "").splitlines() if line.startswith("    ")]
    assert len(diagram) > 3
    assert "\n".join(diagram) in page
    answers = [EventKind.ACKNOWLEDGED, EventKind.SKIPPED, EventKind.RESEND_ASKED, EventKind.NODE_BEHIND]
    streaming = TABLE[MachineState.STREAMING]
    assert list(ADVICE) == [streaming[kind] for kind in (*answers, EventKind.STREAM_ENDED)]


def test_only_a_duplicate_goes_on_at_once_at_the_same_gateway() -> None:
    at_once = [code for code, ending in ENDINGS.items() if ending.pace is Pace.AT_ONCE]
    assert at_once == [EndCode.DUPLICATE_BLOCK]
    assert ENDINGS[EndCode.DUPLICATE_BLOCK].gateway is Gateway.SAME
