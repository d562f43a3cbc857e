"""The small parts of the race: records, history, and the responses as they go over the wire."""

from __future__ import annotations

from typing import get_args

import pytest

from sluice.gateway.api import publish_pb2
from sluice.gateway.limits import ITEM_OVERHEAD_BYTES
from sluice.gateway.race.actions import Behind, EndOfStream, Response
from sluice.gateway.race.history import RACE_HISTORY_BLOCKS, RaceHistory, Won
from sluice.gateway.race.records import BlockRecord, RaceRules
from sluice.gateway.race.tables import EndStatus
from sluice.gateway.services.publish_service import to_wire
from tests.nodes import text_of


def test_items_cost_more_than_their_bytes() -> None:
    assert BlockRecord(9, size_bytes=1000, item_count=10).held_bytes == 1000 + 10 * ITEM_OVERHEAD_BYTES


def test_it_is_full_for_nobody_below_the_least_of_the_limits() -> None:
    rules = RaceRules(inflight_bytes_max=300, publisher_bytes_max=100, address_bytes_max=200)
    assert rules.full_bytes_min == 100


def test_winners_are_counted_most_first_and_then_by_name() -> None:
    history = RaceHistory()
    assert (history.blocks, history.counts(), history.median_seconds()) == ((), [], None)
    for number, name in enumerate(("bob", "alice", "carol", "carol")):
        history.won(number, name, 0.01 * number)
    assert history.counts() == [("carol", 2), ("alice", 1), ("bob", 1)]
    assert history.blocks[-1] == Won(3, "carol", 0.03)
    assert history.median_seconds() == 0.02


def test_the_oldest_winners_are_forgotten() -> None:
    history = RaceHistory()
    for number in range(RACE_HISTORY_BLOCKS + 5):
        history.won(number, "alice", 0.0)
    assert history.blocks[0].number == 5
    assert history.counts() == [("alice", RACE_HISTORY_BLOCKS)]


@pytest.mark.parametrize("kind", get_args(Response))
def test_every_response_has_its_message(kind: type) -> None:
    response = EndOfStream(EndStatus.ERROR, 4, 5, "not sent") if kind is EndOfStream else kind(4)
    message = to_wire(response)
    assert message.WhichOneof("response") is not None
    assert b"not sent" not in message.SerializeToString()
    assert " 4" in text_of(message)


def test_no_block_yet_is_the_highest_number_on_the_wire() -> None:
    for response in (Behind(None), EndOfStream(EndStatus.SUCCESS, None)):
        assert "none" in text_of(to_wire(response))


@pytest.mark.parametrize("status", EndStatus)
def test_every_status_has_its_code(status: EndStatus) -> None:
    message = to_wire(EndOfStream(status, 1))
    assert message.end_stream.status == status.value
    assert publish_pb2.PublishStreamResponse.EndOfStream.Code.Name(message.end_stream.status) == status.name
