"""What single cells of the publish machine's table are for: each test fails when its cell is another.

`python -m tests.mutation` found these cells: the state after the event is the same, what comes of it is not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.publishers import limits
from sluice.publishers.protocol.machine_tables import MachineState
from sluice.publishers.protocol.messages import (
    Acknowledged,
    CloseStream,
    ConnectGateway,
    EndCode,
    Event,
    Finish,
    HalfClose,
    NodeBehind,
    ResendAsked,
    Skipped,
    SourceFailed,
    StreamOutcome,
)
from tests.publishers.protocol.test_machine import (
    BUILDERS,
    EVENTS,
    connecting,
    finishing,
    leaving,
    stopping,
    streaming,
)
from tests.publishers.scenario import Publisher, block_ready


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", [MachineState.DONE, MachineState.FAILED, MachineState.STOPPED])
def test_after_the_end_nothing_counts_any_more(state: MachineState, name: str) -> None:
    publisher = BUILDERS[state]()
    before = publisher.report
    assert publisher.hear(EVENTS[name]) == []
    assert (publisher.machine.state, publisher.report) == (state, before)


def failed_in_mid_block() -> Publisher:
    """5 was sent whole, one of two sets of 6 is sent."""
    publisher = streaming()
    publisher.hear(SourceFailed("disk on fire"))
    publisher.lose()
    return publisher


def stopped_in_mid_block() -> Publisher:
    """As `failed_in_mid_block`."""
    publisher = stopping()
    publisher.lose()
    return publisher


@pytest.mark.parametrize("event", [Acknowledged(9), Skipped(6), ResendAsked(5), NodeBehind(9)])
@pytest.mark.parametrize("build", [BUILDERS[MachineState.DONE], failed_in_mid_block, stopped_in_mid_block])
def test_after_the_end_answers_count_no_more(build: Callable[[], Publisher], event: Event) -> None:
    publisher = build()
    before = publisher.report
    assert publisher.hear(event) == []
    assert publisher.report == before


def test_a_source_that_ends_while_connecting_is_finished_on_the_stream() -> None:
    publisher = connecting()
    publisher.source_ends()
    publisher.connect().write_all()
    publisher.ack(7)
    assert publisher.write() == HalfClose()


def test_a_stream_that_breaks_is_replaced_at_the_next_gateway() -> None:
    publisher = Publisher(gateway_count=2).streaming([5])
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


# --- stopping -----------------------------------------------------------------------------------------------


def test_while_stopping_no_block_is_taken() -> None:
    publisher = stopping()
    publisher.hear(block_ready(8))
    assert publisher.report.blocks == 3


def test_stopping_twice_gives_no_more_time() -> None:
    publisher = stopping()
    publisher.wait(limits.STOP_TIMEOUT_SECONDS - 1)
    publisher.stop()
    assert publisher.wait(1) == [CloseStream("the gateway did not end the stream", force=True)]


def test_while_stopping_acknowledgements_count() -> None:
    publisher = stopping()
    publisher.ack(6)
    assert publisher.report.acknowledged == 2
    assert publisher.write_all() == ["RESET(7, 7)", "HalfClose"]


@pytest.mark.parametrize("answer", [ResendAsked(5), NodeBehind(4)])
def test_while_stopping_a_block_that_is_to_be_left_anyway_is_not_finished(
    answer: ResendAsked | NodeBehind,
) -> None:
    publisher = stopping()
    publisher.hear(answer)
    assert publisher.write_all() == ["RESET(5, 7)", "HalfClose"]


def test_while_stopping_the_gateways_end_is_the_end() -> None:
    publisher = stopping()
    publisher.end(EndCode.SUCCESS, last=4)
    assert publisher.lose() == [Finish(StreamOutcome.STOPPED)]


# --- leaving ------------------------------------------------------------------------------------------------


def test_a_block_that_comes_while_leaving_goes_out_on_the_next_stream() -> None:
    publisher = leaving()
    publisher.hear(block_ready(8))
    publisher.lose()
    assert publisher.connect().write_all()[-2:] == ["8", "8."]


def test_a_source_that_breaks_while_leaving_fails_the_publisher() -> None:
    publisher = leaving()
    publisher.hear(SourceFailed("disk on fire"))
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, "disk on fire")]


def test_leaving_does_not_wait_for_ever() -> None:
    publisher = leaving()
    assert publisher.wait(limits.CLOSE_TIMEOUT_SECONDS) == [
        CloseStream("the gateway did not end the stream", force=True)
    ]


def test_stopping_while_leaving_ends_with_the_stream() -> None:
    publisher = leaving()
    publisher.stop()
    assert publisher.lose() == [Finish(StreamOutcome.STOPPED)]


@pytest.mark.parametrize("answer", [Skipped(6), ResendAsked(5), NodeBehind(4)])
def test_answers_on_a_stream_that_is_left_mean_nothing(answer: Skipped | ResendAsked | NodeBehind) -> None:
    publisher = leaving()
    before = publisher.report
    publisher.hear(answer)
    assert publisher.report == before


@pytest.mark.parametrize("code", [EndCode.INVALID_REQUEST, EndCode.DUPLICATE_BLOCK])
def test_why_a_stream_is_left_is_not_changed_by_the_gateways_last_word(code: EndCode) -> None:
    """After DUPLICATE_BLOCK it would go to the same gateway again."""
    publisher = Publisher(gateway_count=2).streaming([5, 6])
    publisher.write_all()
    publisher.resend(4)
    publisher.end(code, last=5)
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


# --- finishing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hear", [lambda publisher: publisher.ack(9), lambda publisher: publisher.behind(9)])
def test_when_all_is_safe_what_others_bring_is_of_no_interest(hear: Callable[[Publisher], object]) -> None:
    publisher = finishing()
    hear(publisher)
    assert publisher.machine.safe_through == 7


def test_an_invalid_request_is_tried_again_at_the_only_gateway_after_a_wait() -> None:
    publisher = Publisher(gateway_count=1).streaming([5, 6])
    publisher.write()
    publisher.end(EndCode.INVALID_REQUEST, last=4)
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]


def test_what_is_sent_whole_is_not_lost_by_an_end_of_the_source() -> None:
    publisher = streaming()
    publisher.source_ends()
    assert publisher.write_all() == ["6", "6.", "7", "7", "7."]
