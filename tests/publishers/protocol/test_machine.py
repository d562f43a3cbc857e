"""The publish machine: every (state, event), then the stories of the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from sluice.publishers import limits
from sluice.publishers.errors import BlockOrderError, MachineError
from sluice.publishers.protocol.machine import SECOND_NS
from sluice.publishers.protocol.machine_tables import MachineState
from sluice.publishers.protocol.messages import (
    Acknowledged,
    Clock,
    CloseStream,
    Connected,
    ConnectGateway,
    Disconnected,
    EndCode,
    Event,
    Finish,
    FirstTold,
    NodeBehind,
    ResendAsked,
    Skipped,
    SourceEnded,
    SourceFailed,
    Stop,
    StreamEnded,
    StreamOutcome,
    Writable,
)
from tests.publishers.scenario import Publisher, block_ready, word

# --- every state and every event ----------------------------------------------------------------------------


def idle() -> Publisher:
    return Publisher()


def connecting() -> Publisher:
    return Publisher().take([5, 6, 7], set_count=2)


def streaming() -> Publisher:
    """5 was sent whole, one of two sets of 6 is sent, 7 waits."""
    publisher = Publisher().streaming([5, 6, 7], set_count=2)
    for _ in range(4):
        publisher.write()
    return publisher


def stopping() -> Publisher:
    publisher = streaming()
    publisher.stop()
    return publisher


def leaving() -> Publisher:
    publisher = streaming()
    publisher.resend(4)
    return publisher


def finishing() -> Publisher:
    publisher = streaming()
    publisher.source_ends()
    publisher.ack(7)
    return publisher


def done() -> Publisher:
    publisher = finishing()
    publisher.lose()
    return publisher


def failed() -> Publisher:
    publisher = connecting()
    publisher.hear(SourceFailed("disk on fire"))
    return publisher


def stopped() -> Publisher:
    publisher = connecting()
    publisher.stop()
    return publisher


BUILDERS: dict[MachineState, Callable[[], Publisher]] = {
    MachineState.IDLE: idle,
    MachineState.CONNECTING: connecting,
    MachineState.STREAMING: streaming,
    MachineState.STOPPING: stopping,
    MachineState.LEAVING: leaving,
    MachineState.FINISHING: finishing,
    MachineState.DONE: done,
    MachineState.FAILED: failed,
    MachineState.STOPPED: stopped,
}

EVENTS: dict[str, Event] = {
    "block": block_ready(8),
    "source ended": SourceEnded(),
    "source failed": SourceFailed("gone"),
    "connected": Connected(),
    "disconnected": Disconnected("lost"),
    "writable": Writable(),
    "clock": Clock(),
    "stop": Stop(),
    "ack": Acknowledged(5),
    "skip": Skipped(6),
    "resend": ResendAsked(5),
    "behind": NodeBehind(4),
    "first": FirstTold(4),
    **{f"end {code.name}": StreamEnded(code, 5, 6) for code in EndCode},
}
ANSWERS = ["ack", "skip", "resend", "behind", *(f"end {code.name}" for code in EndCode)]
ENDS = [f"end {code.name}" for code in EndCode]

REFUSED = "refused"
Expected = tuple[str, list[str]] | str
EXPECTED: dict[MachineState, dict[str, Expected]] = {
    MachineState.IDLE: {
        "block": ("connecting", ["ConnectGateway"]),
        "source ended": ("done", ["Finish"]),
        "source failed": ("failed", ["Finish"]),
        "connected": REFUSED,
        "disconnected": REFUSED,
        "writable": REFUSED,
        "clock": ("idle", []),
        "stop": ("stopped", ["Finish"]),
        "first": REFUSED,
        **dict.fromkeys(ANSWERS, REFUSED),
    },
    MachineState.CONNECTING: {
        "block": ("connecting", []),
        "source ended": ("connecting", []),
        "source failed": ("failed", ["Finish"]),
        "connected": ("streaming", []),
        "disconnected": ("connecting", ["ConnectGateway"]),
        "writable": REFUSED,
        "clock": ("connecting", []),
        "stop": ("stopped", ["Finish"]),
        "first": REFUSED,
        **dict.fromkeys(ANSWERS, REFUSED),
    },
    MachineState.STREAMING: {
        "block": ("streaming", []),
        "source ended": ("streaming", []),
        "source failed": ("leaving", []),
        "connected": REFUSED,
        "disconnected": ("connecting", ["ConnectGateway"]),
        "writable": ("streaming", ["6"]),
        "clock": ("streaming", []),
        "stop": ("stopping", []),
        "ack": ("streaming", []),
        "skip": ("streaming", []),
        "resend": ("streaming", []),
        "behind": ("streaming", []),
        "first": ("streaming", []),
        **dict.fromkeys(ENDS, ("leaving", ["CloseStream"])),
    },
    MachineState.STOPPING: {
        "block": ("stopping", []),
        "source ended": ("stopping", []),
        "source failed": ("stopping", []),
        "connected": REFUSED,
        "disconnected": ("stopped", ["Finish"]),
        "writable": ("stopping", ["6"]),
        "clock": ("stopping", []),
        "stop": ("stopping", []),
        "ack": ("stopping", []),
        "skip": ("stopping", []),
        "resend": ("stopping", []),
        "behind": ("stopping", []),
        "first": ("stopping", []),
        **dict.fromkeys(ENDS, ("leaving", ["CloseStream"])),
    },
    MachineState.LEAVING: {
        "block": ("leaving", []),
        "source ended": ("leaving", []),
        "source failed": ("leaving", []),
        "connected": REFUSED,
        "disconnected": ("connecting", ["ConnectGateway"]),
        "writable": ("leaving", ["TOO_FAR_BEHIND(5, 7)"]),
        "clock": ("leaving", []),
        "stop": ("leaving", []),
        "ack": ("leaving", []),
        "skip": ("leaving", []),
        "resend": ("leaving", []),
        "behind": ("leaving", []),
        "first": ("leaving", []),
        **dict.fromkeys(ENDS, ("leaving", ["CloseStream"])),
    },
    MachineState.FINISHING: {
        "block": REFUSED,
        "source ended": REFUSED,
        "source failed": REFUSED,
        "connected": REFUSED,
        "disconnected": ("done", ["Finish"]),
        "writable": ("finishing", ["HalfClose"]),
        "clock": ("finishing", []),
        "stop": ("finishing", []),
        "ack": ("finishing", []),
        "skip": ("finishing", []),
        "resend": ("finishing", []),
        "behind": ("finishing", []),
        "first": ("finishing", []),
        **dict.fromkeys(ENDS, ("finishing", ["CloseStream"])),
    },
    MachineState.DONE: dict.fromkeys(EVENTS, ("done", [])),
    MachineState.FAILED: dict.fromkeys(EVENTS, ("failed", [])),
    MachineState.STOPPED: dict.fromkeys(EVENTS, ("stopped", [])),
}


@pytest.mark.parametrize(("state", "name"), list(itertools.product(MachineState, EVENTS)))
def test_every_state_and_event(state: MachineState, name: str) -> None:
    publisher = BUILDERS[state]()
    assert publisher.machine.state is state
    before = publisher.report
    expected = EXPECTED[state][name]
    if expected == REFUSED:
        event = EVENTS[name]
        with pytest.raises(MachineError) as caught:
            publisher.hear(event)
        assert str(caught.value) == f"publisher: can't handle {event.kind.value} in state {state.value}"
        assert (publisher.machine.state, publisher.report) == (state, before)
    else:
        words = [word(action) for action in publisher.hear(EVENTS[name])]
        assert (publisher.state, words) == expected


# --- the base protocol --------------------------------------------------------------------------------------


def test_nothing_is_opened_before_the_first_block() -> None:
    publisher = Publisher()
    assert publisher.machine.wants_block
    assert publisher.hear(block_ready(5)) == [ConnectGateway(0, attempt=0)]


def test_an_empty_source_is_done_without_a_stream() -> None:
    publisher = Publisher()
    assert publisher.source_ends() == [Finish(StreamOutcome.DONE)]
    assert publisher.report.blocks == 0


def test_blocks_go_out_whole_in_order_and_end_with_a_half_close() -> None:
    publisher = Publisher().streaming([0, 1], set_count=2)
    assert publisher.write_all() == ["0", "0", "0.", "1", "1", "1."]
    publisher.source_ends()
    publisher.ack(0)
    assert publisher.state == "streaming"
    publisher.ack(1)
    assert publisher.state == "finishing"
    assert publisher.write_all() == ["HalfClose"]
    assert publisher.lose("the gateway closed") == [Finish(StreamOutcome.DONE)]
    report = publisher.report
    assert (report.blocks, report.offered, report.won, report.acknowledged) == (2, 2, 2, 2)
    assert (report.first_block, report.last_block, report.safe_through) == (0, 1, 1)
    assert (report.unacknowledged, report.reconnects, report.bytes_sent) == (0, 0, 40)


def test_latency_is_from_the_last_byte_to_the_acknowledgement_of_blocks_won() -> None:
    publisher = Publisher().streaming([0, 1])
    publisher.write_all()
    publisher.now_ns += 7_000_000
    publisher.skip(1)
    publisher.ack(1)
    assert publisher.report.latency_ns == (7_000_000,)
    assert (publisher.report.won, publisher.report.skipped) == (1, 1)


def test_a_gateway_that_does_not_end_the_stream_is_cut_off() -> None:
    publisher = Publisher().streaming([0])
    publisher.write_all()
    publisher.source_ends()
    publisher.ack(0)
    assert publisher.machine.wake_at_ns == publisher.now_ns + int(limits.CLOSE_TIMEOUT_SECONDS * SECOND_NS)
    assert publisher.wait(limits.CLOSE_TIMEOUT_SECONDS - 0.1) == []
    assert publisher.wait(0.1) == [CloseStream("the gateway did not end the stream", force=True)]
    assert publisher.lose() == [Finish(StreamOutcome.DONE)]


def test_a_source_with_a_gap_is_refused_and_nothing_changes() -> None:
    publisher = Publisher().streaming([0, 1])
    before = publisher.report
    with pytest.raises(BlockOrderError) as gap:
        publisher.hear(block_ready(4))
    assert str(gap.value) == "blocks 2 to 3 are missing: block 4 came after block 1"
    with pytest.raises(BlockOrderError) as twice:
        publisher.hear(block_ready(1))
    assert str(twice.value) == "block 1 comes twice or out of order: block 2 was expected"
    assert publisher.report == before
    assert publisher.write_all() == ["0", "0.", "1", "1."]


def test_a_broken_source_is_told_to_the_gateway() -> None:
    publisher = Publisher().streaming([0, 1])
    publisher.hear(SourceFailed("2.blk: truncated"))
    assert publisher.write_all() == ["ERROR(0, 1)", "HalfClose"]
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, "2.blk: truncated")]
    assert publisher.report.failure == "2.blk: truncated"


# --- the race -----------------------------------------------------------------------------------------------


def test_a_laggard_does_not_send_what_is_acknowledged() -> None:
    publisher = Publisher().streaming([9, 10, 11], set_count=2)
    publisher.write()
    publisher.ack(10)  # others were faster: 9 is broken off, 10 is never offered
    assert publisher.write_all() == ["11", "11", "11."]
    publisher.ack(14)
    publisher.take([12, 13, 14, 15])
    assert publisher.write_all() == ["15", "15."]
    report = publisher.report
    assert (report.blocks, report.offered, report.acknowledged, report.won) == (7, 3, 6, 1)


def test_resend_goes_back_and_offers_everything_from_there() -> None:
    publisher = Publisher().streaming([9, 10, 11], set_count=2)
    publisher.write()
    publisher.skip(9)
    for _ in range(4):
        publisher.write()
    publisher.resend(9)  # in mid-block 11
    assert publisher.write_all() == ["9", "9", "9.", "10", "10", "10.", "11", "11", "11."]
    assert publisher.report.resent == 1
    publisher.ack(11)
    assert publisher.report.won == 3


def test_resend_of_a_block_that_is_gone_ends_the_stream_with_the_range_held() -> None:
    publisher = Publisher().streaming([9, 10, 11])
    publisher.write_all()
    publisher.ack(9)
    assert publisher.resend(9) == []
    assert publisher.write_all() == ["TOO_FAR_BEHIND(10, 11)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]
    assert publisher.report.too_far_behind == 1


def test_a_late_skip_does_not_break_off_the_block_offered_again() -> None:
    publisher = Publisher().streaming([9, 10], set_count=2)
    publisher.write_all()
    publisher.resend(9)
    for _ in range(4):
        publisher.write()  # 9 whole, half of 10, for the second time
    publisher.skip(10)  # the answer to the first header of 10
    assert publisher.write_all() == ["10", "10."]
    publisher.resend(9)
    for _ in range(4):
        publisher.write()
    publisher.skip(10)  # late again
    publisher.skip(10)  # now about the present
    assert publisher.write_all() == []


def test_the_example_of_alice_bob_and_carol_as_carol_sees_it() -> None:
    carol = Publisher().streaming([9, 10, 11, 12], set_count=3)
    carol.write()
    carol.skip(9)
    carol.write()
    carol.skip(10)
    assert word(carol.write() or Finish(StreamOutcome.DONE)) == "11"
    carol.resend(9)  # Alice timed out
    assert word(carol.write() or Finish(StreamOutcome.DONE)) == "9"
    carol.skip(9)
    assert word(carol.write() or Finish(StreamOutcome.DONE)) == "10"
    carol.skip(10)
    assert [word(carol.write() or Finish(StreamOutcome.DONE)) for _ in range(4)] == ["11", "11", "11", "11."]
    carol.ack(9)
    carol.ack(10)
    carol.ack(11)
    carol.write()
    carol.skip(12)
    report = carol.report
    assert (report.won, report.skipped, report.acknowledged, report.resent) == (1, 3, 3, 1)


# --- behind and duplicate -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "held_first"), [(None, 0), (4, 5), (5, 5)])
def test_behind_goes_on_after_the_last_block_of_the_gateway(last: int | None, held_first: int) -> None:
    publisher = Publisher().streaming(range(held_first, held_first + 3))
    sent = publisher.write_all()
    publisher.behind(last)
    wanted = 0 if last is None else last + 1
    again = [part for number in range(wanted, held_first + 3) for part in (f"{number}", f"{number}.")]
    assert publisher.write_all() == again
    assert set(again) <= set(sent)
    assert publisher.report.duplicate == wanted - held_first


def test_behind_below_what_is_held_says_what_is_held_and_tries_the_next_gateway() -> None:
    publisher = Publisher(gateway_count=2).streaming([5, 6])
    publisher.write_all()
    publisher.behind(None)
    assert publisher.write_all() == ["TOO_FAR_BEHIND(5, 6)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


def test_behind_a_block_that_no_header_was_ahead_of_is_not_believed() -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.write_all()
    assert publisher.behind(6) == []
    assert publisher.behind(100) == []
    assert (publisher.machine.safe_through, publisher.report.duplicate) == (None, 0)


def test_publishing_again_what_is_stored_takes_one_stream() -> None:
    publisher = Publisher().streaming(range(10))
    publisher.write()
    assert publisher.end(EndCode.DUPLICATE_BLOCK, last=999) == [
        CloseStream("DUPLICATE_BLOCK: the gateway has the block already")
    ]
    assert publisher.lose() == []
    assert publisher.state == "idle"
    publisher.take(range(10, 1000))
    assert publisher.source_ends() == [Finish(StreamOutcome.DONE)]
    report = publisher.report
    assert (report.blocks, report.offered, report.duplicate, report.reconnects) == (1000, 1, 1000, 0)


def test_duplicate_goes_on_at_once_behind_what_is_stored() -> None:
    publisher = Publisher(gateway_count=2).streaming([0, 1, 2, 3])
    publisher.write()
    publisher.end(EndCode.DUPLICATE_BLOCK, last=1)
    assert publisher.lose() == [ConnectGateway(0, attempt=0)]
    publisher.connect()
    assert publisher.write_all() == ["2", "2.", "3", "3."]
    assert publisher.report.reconnects == 1


def test_duplicate_that_crossed_with_its_acknowledgement_goes_on_at_once() -> None:
    publisher = Publisher(gateway_count=2).streaming([5, 6])
    publisher.write()
    publisher.ack(5)  # another publisher's; the node reads our header of 5 only now
    publisher.end(EndCode.DUPLICATE_BLOCK, last=5)
    assert publisher.lose() == [ConnectGateway(0, attempt=0)]
    publisher.connect()
    publisher.end(EndCode.DUPLICATE_BLOCK, last=5)  # nothing of this stream can have been meant
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]


@pytest.mark.parametrize(("proximate", "won"), [(7, 2), (6, 1), (0, 0)])
def test_an_acknowledgement_that_crossed_with_our_sending_is_no_win(proximate: int, won: int) -> None:
    publisher = Publisher().streaming([5, 6, 7, 8])
    publisher.write_all()
    publisher.ack(7)
    assert publisher.report.won == 3
    publisher.end(EndCode.DUPLICATE_BLOCK, last=7, proximate=proximate)
    assert publisher.report.won == won
    assert len(publisher.report.latency_ns) == won


def test_a_win_is_taken_back_even_when_all_is_safe_and_the_stream_is_ending() -> None:
    publisher = Publisher().streaming([5, 6])
    publisher.write_all()
    publisher.source_ends()
    publisher.ack(6)
    assert (publisher.state, publisher.report.won) == ("finishing", 2)
    publisher.end(EndCode.DUPLICATE_BLOCK, last=6, proximate=6)
    assert publisher.report.won == 1


def test_a_skip_of_a_stored_block_takes_its_win_back_also_while_the_stream_is_ending() -> None:
    """Within its duplicate window a gateway says so; four racers had 26 wins of 12 blocks."""
    publisher = Publisher().streaming([5, 6, 7])
    publisher.write_all()
    publisher.ack(6)
    publisher.skip(5)
    assert (publisher.report.won, publisher.report.skipped) == (1, 1)
    publisher.source_ends()
    publisher.ack(7)
    assert (publisher.state, publisher.report.won) == ("finishing", 2)
    publisher.skip(7)
    assert (publisher.report.won, publisher.report.skipped, publisher.report.acknowledged) == (1, 2, 3)


@pytest.mark.parametrize("last", [None, 4])
def test_duplicate_without_news_waits_before_it_tries_again(last: int | None) -> None:
    publisher = Publisher().streaming([5])
    publisher.write()
    publisher.ack(4)
    publisher.end(EndCode.DUPLICATE_BLOCK, last=last)
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]
    assert publisher.report.duplicate == 0
