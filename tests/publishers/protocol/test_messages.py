"""Events and actions agree with the wire."""

from __future__ import annotations

import typing

from sluice.gateway.api import publish_pb2
from sluice.publishers.protocol import messages as signals


def test_codes_are_those_of_the_wire() -> None:
    end = publish_pb2.PublishStreamResponse.EndOfStream.Code
    end_stream = publish_pb2.PublishStreamRequest.EndStream.Code
    assert {code.name: int(code) for code in signals.EndCode} == dict(end.items())
    assert {code.name: int(code) for code in signals.EndStreamCode} == dict(end_stream.items())


def test_every_event_has_its_own_kind() -> None:
    kinds = [event.kind for event in typing.get_args(signals.Event)]
    assert sorted(kinds, key=lambda kind: kind.value) == sorted(
        signals.EventKind, key=lambda kind: kind.value
    )
