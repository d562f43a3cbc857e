"""What a gateway's first block means for a publisher: nothing below it is ever taken as stored."""

from __future__ import annotations

import pytest

from sluice.publishers.protocol.messages import (
    AskFirst,
    CloseStream,
    Connected,
    ConnectGateway,
    Disconnected,
    EndCode,
    Event,
    Finish,
    FirstTold,
    ResendAsked,
    SourceFailed,
    Stop,
    StreamOutcome,
)
from tests.publishers.scenario import Publisher

NOWHERE = "no gateway stores blocks 5 to 999: the gateway begins with block 1000"


def connected(first: int | None, gateway_count: int = 1) -> Publisher:
    """A publisher that holds blocks 5 to 7, on a stream to a gateway whose first block is told."""
    publisher = Publisher(gateway_count).take([5, 6, 7])
    publisher.hear(Connected(first))
    return publisher


def test_a_gateway_that_begins_above_the_oldest_block_is_left_and_if_there_is_no_other_that_is_final() -> (
    None
):
    publisher = connected(1000)
    assert publisher.state == "leaving"
    assert publisher.write_all() == ["RESET(5, 7)", "HalfClose"]
    assert publisher.lose("the gateway ended the stream") == [Finish(StreamOutcome.FAILED, NOWHERE)]
    assert (publisher.report.failure, publisher.report.stored_from) == (NOWHERE, 1000)
    assert (publisher.report.safe_through, publisher.report.unacknowledged) == (None, 3)


@pytest.mark.parametrize("first", [0, 4, 5])
def test_one_that_begins_at_the_oldest_block_or_below_is_believed(first: int) -> None:
    publisher = connected(first)
    publisher.ack(6)
    assert (publisher.report.safe_through, publisher.report.acknowledged) == (6, 2)


def test_what_is_told_while_such_a_gateway_is_left_is_not_believed() -> None:
    publisher = connected(1000)
    publisher.ack(1003)
    publisher.end(EndCode.DUPLICATE_BLOCK, 1003)
    publisher.lose()
    assert (publisher.report.safe_through, publisher.report.duplicate) == (None, 0)


def test_another_gateway_that_stores_the_block_is_gone_to() -> None:
    publisher = connected(1000, gateway_count=2)
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    publisher.hear(Connected(0))
    publisher.ack(7)
    assert (publisher.report.acknowledged, publisher.report.stored_from) == (3, None)


def test_one_that_does_not_answer_may_store_the_block_and_is_waited_for() -> None:
    publisher = connected(1000, gateway_count=2)
    publisher.lose()
    publisher.hear(Disconnected("refused"))
    publisher.hear(Connected(1000))
    assert publisher.lose() == [ConnectGateway(1, attempt=0)]
    publisher.hear(Connected(6))
    publisher.lose()
    assert (
        publisher.report.failure
        == "no gateway stores block 5: of the gateways the earliest begins with block 6"
    )


def test_a_gateway_that_may_begin_anywhere_is_asked_before_its_acknowledgement_counts() -> None:
    publisher = connected(None)
    publisher.write_all()
    assert publisher.ack(5) == [AskFirst()]
    assert publisher.ack(6) == []  # it is being asked
    assert publisher.report.acknowledged == 0
    publisher.hear(FirstTold(5))
    assert (publisher.report.acknowledged, publisher.report.won, publisher.report.safe_through) == (2, 2, 6)
    assert publisher.ack(7) == []
    assert publisher.report.acknowledged == 3


def test_one_that_began_above_the_oldest_block_meanwhile_is_left() -> None:
    publisher = connected(None)
    publisher.ack(1000)
    publisher.hear(FirstTold(1000))
    publisher.ack(1001)
    assert publisher.report.safe_through is None
    assert publisher.lose() == [Finish(StreamOutcome.FAILED, NOWHERE)]


def test_where_it_does_not_say_the_acknowledgement_is_not_believed_and_the_next_one_asks_again() -> None:
    publisher = connected(None)
    publisher.ack(5)
    assert publisher.hear(FirstTold(None)) == []
    assert publisher.report.acknowledged == 0
    assert publisher.ack(6) == [AskFirst()]
    publisher.hear(FirstTold(0))
    assert publisher.report.acknowledged == 2


def test_a_duplicate_of_one_that_has_not_said_its_first_block_is_not_believed() -> None:
    publisher = connected(None)
    publisher.write_all()
    assert publisher.end(EndCode.DUPLICATE_BLOCK, 7)[0] == CloseStream(
        "DUPLICATE_BLOCK: the gateway has the block already"
    )
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]  # not at once: it might go round and round
    publisher.hear(Connected(5))
    publisher.write_all()
    publisher.end(EndCode.DUPLICATE_BLOCK, 7)
    assert publisher.report.duplicate == 3


def test_behind_none_is_behind_the_first_block_that_is_awaited() -> None:
    """Block 5 has failed, and 6 was on its way: the node is empty still, and begins with 5."""
    publisher = connected(5)
    publisher.write_all()
    publisher.behind(None)
    assert publisher.write_all() == ["5", "5.", "6", "6.", "7", "7."]


def test_behind_none_of_one_that_awaits_what_is_gone_is_too_far_behind() -> None:
    publisher = connected(3)
    publisher.write_all()
    publisher.behind(None)
    assert publisher.write_all() == ["TOO_FAR_BEHIND(5, 7)", "HalfClose"]
    assert publisher.lose() == [ConnectGateway(0, attempt=1)]


def test_one_who_is_told_to_stop_while_it_is_asked_stops() -> None:
    publisher = connected(None)
    publisher.write()
    publisher.stop()
    publisher.ack(1000)
    publisher.hear(FirstTold(1000))
    assert publisher.lose() == [Finish(StreamOutcome.STOPPED)]


@pytest.mark.parametrize(
    ("event", "state"), [(Stop(), "stopping"), (ResendAsked(4), "leaving")], ids=["stopping", "leaving"]
)
def test_the_answer_counts_while_it_stops_or_leaves(event: Event, state: str) -> None:
    publisher = connected(None)
    publisher.write()
    publisher.ack(5)
    publisher.hear(event)
    assert publisher.state == state
    publisher.hear(FirstTold(5))
    assert (publisher.report.acknowledged, publisher.report.safe_through) == (1, 5)


@pytest.mark.parametrize(
    ("event", "state"), [(Stop(), "stopped"), (SourceFailed("gone"), "failed")], ids=["stopped", "failed"]
)
def test_the_answer_changes_nothing_when_it_is_over(event: Event, state: str) -> None:
    publisher = connected(None)
    publisher.write()
    publisher.ack(5)
    publisher.hear(event)
    publisher.lose()
    assert publisher.state == state
    publisher.hear(FirstTold(5))
    assert publisher.report.acknowledged == 0
