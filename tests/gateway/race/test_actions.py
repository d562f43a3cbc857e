"""Tests of the actions: plain values, all of them known to the shell and to the wire."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from gateway.api import publish_pb2
from gateway.race import actions as race_actions
from gateway.race.actions import (
    Acknowledgement,
    Action,
    Append,
    AttemptId,
    Behind,
    EndOfStream,
    Response,
    SendResponse,
)
from gateway.race.tables import EndStatus
from gateway.services.publish_service import to_wire
from tests.nodes import text_of

CLASSES = [value for value in vars(race_actions).values() if dataclasses.is_dataclass(value)]


def test_every_class_is_an_action_or_a_response() -> None:
    assert set(CLASSES) == set(get_args(Action)) | set(get_args(Response))
    assert not set(get_args(Action)) & set(get_args(Response))


@pytest.mark.parametrize("kind", CLASSES)
def test_an_action_is_a_value(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(kind)
    assert kind.__doc__


def test_actions_compare_by_what_they_say() -> None:
    assert Acknowledgement(3) == Acknowledgement(3) != Acknowledgement(4)
    assert Append(AttemptId(1), [b"a"], [4], 1) != Append(AttemptId(2), [b"a"], [4], 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Acknowledgement(3).block_number = 4  # type: ignore[misc]
    assert {field.name for field in dataclasses.fields(SendResponse)} == {"publisher_id", "response"}


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
