"""The rules of the race, and its responses as they go over the wire."""

from __future__ import annotations

from typing import get_args

import pytest

from sluice.gateway.api import publish_pb2
from sluice.gateway.race.actions import Behind, EndOfStream, Response
from sluice.gateway.race.records import RaceRules
from sluice.gateway.race.tables import EndStatus
from sluice.gateway.services.publish_service import to_wire
from tests.nodes import text_of


def test_it_is_full_for_nobody_below_the_least_of_the_limits() -> None:
    rules = RaceRules(inflight_bytes_max=300, publisher_bytes_max=100, address_bytes_max=200)
    assert rules.full_bytes_min == 100


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
