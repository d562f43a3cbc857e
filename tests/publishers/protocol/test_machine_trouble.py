"""The publish machine's stories of trouble: streams that end, bounds that are reached, users who stop."""

from __future__ import annotations

import pytest

from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.publishers import limits
from sluice.publishers.number_range import NUMBER_MAX
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from sluice.publishers.protocol.messages import (
    Acknowledged,
    CloseStream,
    ConnectGateway,
    EndCode,
    EndStreamCode,
    Event,
    Finish,
    NodeBehind,
    ResendAsked,
    SendEndOfBlock,
    SendEndStream,
    Skipped,
    StreamOutcome,
)
from sluice.publishers.protocol.send_window import BEHIND_ANSWERS_MAX, RESEND_ANSWERS_MAX
from tests.publishers.scenario import Publisher

# --- the ends of a stream -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        EndCode.SUCCESS,
        EndCode.ERROR,
        EndCode.TIMEOUT,
        EndCode.PERSISTENCE_FAILED,
        EndCode.UNKNOWN,
        EndCode.BAD_BLOCK_PROOF,
        EndCode.INVALID_REQUEST,
    ],
)
def test_an_end_goes_to_the_next_gateway_and_waits_when_all_were_tried(code: EndCode) -> None:
    publisher = Publisher(gateway_count=2).streaming([5, 6])
    publisher.write_all()
    publisher.end(code, last=4, proximate=5)
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    assert publisher.lose("refused") == [ConnectGateway(0, attempt=1)]
    assert publisher.lose("refused") == [ConnectGateway(1, attempt=0)]
    assert publisher.lose("refused") == [ConnectGateway(0, attempt=2)]
    publisher.connect()
    assert publisher.write_all() == ["5", "5.", "6", "6."]
    publisher.ack(5)
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


def test_where_all_gateways_shut_down_or_stand_by_the_waits_are_short_at_first() -> None:
    """One of them is about to take over."""
    publisher = Publisher(gateway_count=2).streaming([5])
    publisher.end(EndCode.SUCCESS, last=4)
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    publisher.connect().end(EndCode.SUCCESS, last=4)
    assert publisher.lose() == [ConnectGateway(0, attempt=1, is_soon=True)]


def test_one_gateway_is_tried_with_growing_attempts_until_progress() -> None:
    publisher = Publisher().take([5])
    assert [publisher.lose() for _ in range(3)] == [[ConnectGateway(0, attempt=k)] for k in (1, 2, 3)]
    publisher.connect().write_all()
    publisher.take([6])
    publisher.ack(5)
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]


def test_the_last_block_of_other_ends_is_not_believed() -> None:
    publisher = Publisher().streaming([0, 1])
    publisher.write_all()
    publisher.end(EndCode.ERROR, last=0)  # 0 may also mean that the gateway does not say
    publisher.lose()
    publisher.connect()
    assert publisher.write_all() == ["0", "0.", "1", "1."]


@pytest.mark.parametrize(("last", "proximate"), [(4, 5), (4, 0), (None, 5), (None, 0)])
def test_a_bad_proof_is_offered_again_a_bounded_number_of_times(last: int | None, proximate: int) -> None:
    """An empty gateway that does not know the field was offered its first block for ever."""
    publisher = Publisher().streaming([5, 6])
    for _ in range(limits.BAD_PROOF_RETRIES_MAX):
        publisher.write_all()
        publisher.end(EndCode.BAD_BLOCK_PROOF, last, proximate)
        assert isinstance(publisher.lose()[0], ConnectGateway)
        publisher.connect()
    publisher.write_all()
    publisher.end(EndCode.BAD_BLOCK_PROOF, last, proximate)
    reason = (
        "block 5 was refused 3 times with BAD_BLOCK_PROOF: its proof is not of the gateway's ledger keys, "
        "or it does not continue the gateway's chain; the gateway's log says which"
    )
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, reason)]
    (refused,) = publisher.report.refused
    assert (refused.number, refused.code, refused.refused_count) == (5, "BAD_BLOCK_PROOF", 3)
    assert publisher.report.failure == reason


def test_a_bad_proof_of_a_block_that_another_publisher_brought_is_forgiven() -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.write_all()
    publisher.end(EndCode.BAD_BLOCK_PROOF, last=4, proximate=5)
    publisher.lose()
    publisher.connect()
    publisher.ack(5)
    publisher.end(EndCode.BAD_BLOCK_PROOF, last=5, proximate=5)
    assert isinstance(publisher.lose()[0], ConnectGateway)


def test_invalid_request_gives_up_after_a_streak() -> None:
    publisher = Publisher().streaming([5, 6])
    for _ in range(limits.INVALID_REQUEST_RETRIES_MAX):
        publisher.write()
        publisher.end(EndCode.INVALID_REQUEST, last=4)
        publisher.lose()
        publisher.connect()
    publisher.write()
    publisher.end(EndCode.INVALID_REQUEST, last=4)
    assert publisher.lose() == [
        Finish(
            StreamOutcome.FAILED,
            "the gateway answered INVALID_REQUEST 3 times in a row, last at block 5; see its log",
        )
    ]


def test_a_gateway_that_does_not_take_the_block_that_it_asks_for_is_left_for_a_while() -> None:
    publisher = Publisher(gateway_count=2).streaming([5, 6])
    for _ in range(BEHIND_ANSWERS_MAX):
        publisher.write()
        publisher.behind(4)
    publisher.write()
    publisher.behind(4)
    assert publisher.write_all() == ["TOO_FAR_BEHIND(5, 6)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    assert publisher.lose("refused") == [ConnectGateway(0, attempt=1)]
    publisher.connect()
    publisher.write()
    publisher.behind(4)
    assert publisher.write_all() == ["5", "5.", "6", "6."]


def test_a_gateway_that_asks_for_ever_for_what_it_is_sent_is_left_for_a_while() -> None:
    publisher = Publisher(options=MachineLimits(deadline_ns=60 * SECOND_NS)).streaming([5, 6])
    for _ in range(RESEND_ANSWERS_MAX):
        publisher.write()
        assert publisher.write() == SendEndOfBlock(5)
        publisher.resend(5)
    publisher.write()
    publisher.resend(5)
    assert publisher.write_all() == ["TOO_FAR_BEHIND(5, 6)", "HalfClose"]
    assert publisher.report.resent == RESEND_ANSWERS_MAX
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]
    publisher.wait(60)
    assert publisher.actions == [
        Finish(
            StreamOutcome.FAILED,
            "block 5 was not acknowledged within 60 s "
            "(the gateway wants block 5, again and again, and does not take it)",
        )
    ]


def test_a_block_that_becomes_safe_ends_the_count_of_resends() -> None:
    publisher = Publisher().streaming([5, 6])
    for number in (5, 6):
        for _ in range(RESEND_ANSWERS_MAX):
            publisher.write()
            publisher.resend(number)
        publisher.write()
        assert publisher.state == "streaming"
        publisher.ack(number)


def test_a_block_that_becomes_safe_ends_the_count_of_behind_answers() -> None:
    publisher = Publisher().streaming(range(5, 5 + BEHIND_ANSWERS_MAX + 2))
    for number in range(5, 5 + BEHIND_ANSWERS_MAX + 1):
        publisher.write()
        publisher.behind(number - 1)
        publisher.ack(number)
    assert publisher.state == "streaming"


@pytest.mark.parametrize("code", [EndCode.INVALID_REQUEST, EndCode.BAD_BLOCK_PROOF])
def test_every_gateway_is_tried_before_a_refusal_is_final(code: EndCode) -> None:
    publisher = Publisher(gateway_count=5).streaming([5, 6])
    for gateway in (1, 2, 3, 4):
        publisher.write_all()
        publisher.end(code, last=4, proximate=5)
        assert publisher.lose() == [ConnectGateway(gateway, attempt=0)]
        publisher.connect()
    publisher.write_all()
    publisher.end(code, last=4, proximate=5)
    (finish,) = publisher.lose()
    assert isinstance(finish, Finish)
    assert finish.outcome is StreamOutcome.FAILED


def test_progress_ends_a_streak_of_invalid_requests() -> None:
    publisher = Publisher().streaming(range(5, 15))
    for number in range(5, 12):
        publisher.write_all()
        publisher.ack(number)
        publisher.end(EndCode.INVALID_REQUEST, last=number)
        assert isinstance(publisher.lose()[0], ConnectGateway)
        publisher.connect()


def test_acknowledgements_count_while_the_stream_is_ending() -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.write_all()
    publisher.resend(4)
    publisher.ack(6)
    publisher.source_ends()
    assert publisher.lose() == [Finish(StreamOutcome.DONE)]


@pytest.mark.parametrize("number", [U64_MAX, U64_MAX - 1, NUMBER_MAX + 1])
def test_an_acknowledgement_of_a_number_that_no_block_has_is_not_believed(number: int) -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.ack(number)
    assert publisher.report.acknowledged == 0
    assert publisher.write_all() == ["ERROR(5, 6)", "HalfClose"]


def test_the_highest_number_that_a_block_can_have_is_believed() -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.ack(NUMBER_MAX)
    assert publisher.report.safe_through == NUMBER_MAX


# --- bounds -------------------------------------------------------------------------------------------------


def test_the_cache_takes_no_block_beyond_its_bytes() -> None:
    publisher = Publisher(options=MachineLimits(cache_bytes_max=25))
    publisher.take([0])
    publisher.take([1])
    assert publisher.machine.wants_block
    publisher.take([2])
    assert not publisher.machine.wants_block
    publisher.connect().write_all()
    assert not publisher.machine.wants_block
    publisher.ack(0)
    assert publisher.machine.wants_block


def test_the_deadline_fails_a_publisher_that_cannot_connect() -> None:
    publisher = Publisher(options=MachineLimits(deadline_ns=30 * SECOND_NS)).take([5])
    publisher.lose("cannot connect to 127.0.0.1:1")
    assert publisher.machine.wake_at_ns == publisher.now_ns + 30 * SECOND_NS
    assert publisher.wait(29.9) == []
    assert publisher.wait(0.1) == [
        Finish(
            StreamOutcome.FAILED, "block 5 was not acknowledged within 30 s (cannot connect to 127.0.0.1:1)"
        )
    ]


def test_the_deadline_ends_an_open_stream_with_timeout() -> None:
    publisher = Publisher(options=MachineLimits(deadline_ns=30 * SECOND_NS)).streaming([5, 6])
    publisher.write_all()
    publisher.wait(20)
    publisher.ack(5)
    assert publisher.wait(20) == []
    publisher.wait(10)
    assert publisher.write_all() == ["TIMEOUT(6, 6)", "HalfClose"]
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, "block 6 was not acknowledged within 30 s")]


def test_the_deadline_names_no_trouble_from_before_the_last_block_that_became_safe() -> None:
    publisher = Publisher(options=MachineLimits(deadline_ns=30 * SECOND_NS)).take([5, 6, 7])
    publisher.lose("refused")
    publisher.connect()
    publisher.write_all()
    publisher.ack(5)
    publisher.end(EndCode.DUPLICATE_BLOCK, last=6)
    publisher.lose()
    publisher.connect()
    publisher.write_all()
    publisher.wait(30)
    publisher.write_all()
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, "block 7 was not acknowledged within 30 s")]


def test_the_report_says_what_went_wrong_since_a_block_last_became_safe() -> None:
    publisher = Publisher().take([5, 6])
    assert publisher.machine.report().trouble is None
    publisher.lose("refused")
    assert publisher.machine.report().trouble == "refused"
    publisher.connect()
    publisher.write_all()
    assert publisher.machine.report().trouble == "refused"
    publisher.ack(5)
    assert publisher.machine.report().trouble is None


def test_the_deadline_names_no_trouble_that_an_acknowledgement_ended() -> None:
    publisher = Publisher(options=MachineLimits(deadline_ns=30 * SECOND_NS)).take([5, 6])
    publisher.lose("refused")
    publisher.connect()
    publisher.write_all()
    publisher.ack(5)
    publisher.wait(30)
    publisher.write_all()
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, "block 6 was not acknowledged within 30 s")]


def test_the_deadline_does_not_run_while_the_source_has_nothing() -> None:
    publisher = Publisher(options=MachineLimits(deadline_ns=30 * SECOND_NS)).streaming([5])
    publisher.write_all()
    publisher.ack(5)
    assert publisher.machine.wake_at_ns is None
    publisher.wait(100)
    publisher.take([6])
    assert publisher.machine.wake_at_ns == publisher.now_ns + 30 * SECOND_NS


def test_a_silent_gateway_is_left() -> None:
    publisher = Publisher(gateway_count=2).streaming([5])
    assert publisher.machine.wake_at_ns is None  # nothing is offered yet
    publisher.write_all()
    publisher.wait(limits.ANSWER_TIMEOUT_SECONDS_DEFAULT - 1)
    publisher.skip(5)
    publisher.wait(limits.ANSWER_TIMEOUT_SECONDS_DEFAULT - 1)
    assert publisher.state == "streaming"
    publisher.wait(1)
    assert publisher.write_all() == ["TIMEOUT(5, 5)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


@pytest.mark.parametrize("answer", [Acknowledged(4), Skipped(5), Skipped(9), ResendAsked(9)], ids=repr)
def test_a_gateway_that_repeats_itself_and_stores_nothing_is_left(answer: Event) -> None:
    publisher = Publisher(gateway_count=2).streaming([4, 5])
    publisher.write_all()
    publisher.ack(4)
    publisher.skip(5)
    for _ in range(int(limits.ANSWER_TIMEOUT_SECONDS_DEFAULT) - 1):
        publisher.wait(1)
        publisher.hear(answer)
    assert publisher.state == "streaming"
    publisher.wait(1)
    assert publisher.state == "leaving"
    publisher.write_all()
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


@pytest.mark.parametrize("answer", [Acknowledged(5), ResendAsked(5), NodeBehind(4)])
def test_a_gateway_that_answers_and_takes_no_more_bytes_is_left(answer: Event) -> None:
    publisher = Publisher(gateway_count=2).streaming([5, 6], set_count=3)
    publisher.write()
    publisher.hear(answer)  # and the stream does not ask for the next message: this one is stuck
    publisher.wait(limits.ANSWER_TIMEOUT_SECONDS_DEFAULT - 1)
    assert publisher.state == "streaming"
    publisher.wait(1)
    assert publisher.state == "leaving"
    assert publisher.wait(limits.CLOSE_TIMEOUT_SECONDS) == [
        CloseStream("the gateway did not end the stream", force=True)
    ]
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


def test_a_stream_with_nothing_to_send_may_be_silent() -> None:
    publisher = Publisher().streaming([5])
    publisher.write_all()
    publisher.ack(5)
    publisher.wait(10 * limits.ANSWER_TIMEOUT_SECONDS_DEFAULT)
    assert publisher.state == "streaming"


def test_a_routine_reset_is_made_between_blocks() -> None:
    options = MachineLimits(reset_interval_ns=SECOND_NS)
    publisher = Publisher(gateway_count=2, options=options).streaming([5, 6], set_count=2)
    publisher.write()
    publisher.now_ns += SECOND_NS
    assert publisher.write_all() == ["5", "5.", "RESET(5, 6)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


def test_a_stream_that_is_to_be_reset_at_once_brings_a_block_first() -> None:
    """Else it would be opened and left for ever, and no block be stored."""
    options = MachineLimits(reset_interval_ns=0)
    publisher = Publisher(gateway_count=2, options=options).streaming([5, 6])
    assert publisher.write_all() == ["5", "5.", "RESET(5, 6)", "HalfClose"]
    publisher.ack(5)
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    publisher.connect()
    assert publisher.write_all() == ["6", "6.", "RESET(6, 6)", "HalfClose"]


def test_a_stream_is_not_reset_again_before_a_block_is_safe() -> None:
    """A gateway may read more slowly than that: it was left again and again, and nothing was ever stored."""
    options = MachineLimits(reset_interval_ns=SECOND_NS)
    publisher = Publisher(gateway_count=2, options=options).streaming([5, 6])
    publisher.now_ns += SECOND_NS
    assert publisher.write_all() == ["5", "5.", "RESET(5, 6)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    publisher.connect()
    publisher.now_ns += SECOND_NS
    assert publisher.write_all() == ["5", "5.", "6", "6."]
    publisher.ack(5)
    assert publisher.write_all() == ["RESET(6, 6)", "HalfClose"]


def test_after_a_reset_with_nothing_to_offer_the_next_block_goes_to_the_next_gateway() -> None:
    options = MachineLimits(reset_interval_ns=SECOND_NS)
    publisher = Publisher(gateway_count=2, options=options).streaming([5])
    publisher.write_all()
    publisher.now_ns += SECOND_NS
    publisher.ack(5)
    assert publisher.write_all() == ["RESET(5, 5)", "HalfClose"]
    assert publisher.lose() == []
    assert publisher.state == "idle"
    publisher.take([6])
    assert publisher.actions == [ConnectGateway(1, attempt=0)]


@pytest.mark.parametrize("code", [EndCode.PERSISTENCE_FAILED, EndCode.SUCCESS])
def test_a_gateway_that_ends_the_stream_when_nothing_is_left_is_not_asked_first(code: EndCode) -> None:
    publisher = Publisher(gateway_count=2).streaming([5])
    publisher.write_all()
    publisher.ack(5)
    publisher.end(code, last=5)
    assert publisher.lose() == []
    publisher.take([6])
    assert publisher.actions == [ConnectGateway(1, attempt=0)]


# --- stopping -----------------------------------------------------------------------------------------------


def test_stopping_finishes_the_block_in_flight_then_resets() -> None:
    publisher = Publisher().streaming([5, 6], set_count=3)
    publisher.write()
    publisher.stop()
    assert publisher.write_all() == ["5", "5", "5.", "RESET(5, 6)", "HalfClose"]
    publisher.ack(5)
    assert publisher.lose() == [Finish(StreamOutcome.STOPPED)]
    assert (publisher.report.won, publisher.report.unacknowledged) == (1, 1)


def test_stopping_between_blocks_resets_at_once() -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.stop()
    assert publisher.write_all() == ["RESET(5, 6)", "HalfClose"]


def test_stopping_does_not_wait_for_a_blocked_stream() -> None:
    publisher = Publisher().streaming([5], set_count=3)
    publisher.write()
    publisher.stop()
    assert publisher.wait(limits.STOP_TIMEOUT_SECONDS) == [
        CloseStream("the gateway did not end the stream", force=True)
    ]
    assert publisher.lose() == [Finish(StreamOutcome.STOPPED)]


def test_stopping_while_skipped_does_not_send_the_rest() -> None:
    publisher = Publisher().streaming([5], set_count=3)
    publisher.write()
    publisher.stop()
    publisher.skip(5)
    assert publisher.write() == SendEndStream(EndStreamCode.RESET, 5, 5)


def test_who_stops_in_mid_block_stops_also_where_a_gateway_wants_what_is_gone() -> None:
    publisher = Publisher().streaming([9, 10], set_count=2)
    publisher.write()
    publisher.stop()
    publisher.behind(5)
    assert publisher.write() == SendEndStream(EndStreamCode.TOO_FAR_BEHIND, 9, 10)
    publisher.write()
    publisher.lose("")
    assert publisher.state == "stopped"
