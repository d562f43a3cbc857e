"""Machine messages to gRPC messages and back."""

from __future__ import annotations

import pytest

from sluice.gateway.api import block_items_pb2, publish_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.publishers.client.client import event_of, request_of
from sluice.publishers.number_range import NUMBER_MAX
from sluice.publishers.protocol.messages import (
    Acknowledged,
    EndCode,
    EndStreamCode,
    Event,
    NodeBehind,
    ResendAsked,
    SendEndOfBlock,
    SendEndStream,
    SendItems,
    Skipped,
    StreamEnded,
)

Response = publish_pb2.PublishStreamResponse
Request = publish_pb2.PublishStreamRequest


@pytest.mark.parametrize(
    ("response", "event"),
    [
        (Response(acknowledgement=Response.BlockAcknowledgement(block_number=5)), Acknowledged(5)),
        (Response(acknowledgement=Response.BlockAcknowledgement()), Acknowledged(0)),
        (Response(skip_block=Response.SkipBlock(block_number=5)), Skipped(5)),
        (Response(resend_block=Response.ResendBlock(block_number=5)), ResendAsked(5)),
        (Response(node_behind_publisher=Response.BehindPublisher(block_number=5)), NodeBehind(5)),
        (Response(node_behind_publisher=Response.BehindPublisher(block_number=U64_MAX)), NodeBehind(None)),
        (
            Response(
                end_stream=Response.EndOfStream(
                    status=Response.EndOfStream.BAD_BLOCK_PROOF, block_number=5, proximate_block_number=6
                )
            ),
            StreamEnded(EndCode.BAD_BLOCK_PROOF, 5, 6),
        ),
        (
            Response(node_behind_publisher=Response.BehindPublisher(block_number=NUMBER_MAX + 1)),
            NodeBehind(None),
        ),
        (
            Response(node_behind_publisher=Response.BehindPublisher(block_number=NUMBER_MAX)),
            NodeBehind(NUMBER_MAX),
        ),
        (
            Response(end_stream=Response.EndOfStream(block_number=U64_MAX)),
            StreamEnded(EndCode.UNKNOWN, None, 0),
        ),
        (Response(), None),
    ],
)
def test_answers(response: publish_pb2.PublishStreamResponse, event: Event | None) -> None:
    assert event_of(Response.FromString(response.SerializeToString())) == event


def test_a_code_of_a_later_version_is_unknown() -> None:
    response = Response.FromString(b"\x12\x02\x08\x63")  # end_stream {status: 99}
    assert event_of(response) == StreamEnded(EndCode.UNKNOWN, 0, 0)


def test_an_answer_of_a_later_version_is_none() -> None:
    assert event_of(Response.FromString(b"\x4a\x02\x08\x05")) is None


@pytest.mark.parametrize(
    ("action", "request_"),
    [
        (
            SendItems(5, (b"\x0a\x00", b"\x4a\x00")),
            Request(block_items=block_items_pb2.BlockItemSet(block_items=[b"\x0a\x00", b"\x4a\x00"])),
        ),
        (SendEndOfBlock(5), Request(end_of_block=block_items_pb2.BlockEnd(block_number=5))),
        (
            SendEndStream(EndStreamCode.TOO_FAR_BEHIND, 5, 9),
            Request(
                end_stream=Request.EndStream(
                    end_code=Request.EndStream.TOO_FAR_BEHIND, earliest_block_number=5, latest_block_number=9
                )
            ),
        ),
    ],
)
def test_sends(
    action: SendItems | SendEndOfBlock | SendEndStream, request_: publish_pb2.PublishStreamRequest
) -> None:
    assert request_of(action) == request_
