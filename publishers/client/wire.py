"""Between the machine's signals and the messages of `publishBlockStream`.

Pure. Source: docs/spec/wire.md section 2.1.
"""

from __future__ import annotations

from gateway.api import block_items_pb2, publish_pb2
from gateway.blocks.block_numbers import from_wire
from publishers.protocol.messages import (
    Acknowledged,
    EndCode,
    Event,
    NodeBehind,
    ResendAsked,
    SendEndOfBlock,
    SendEndStream,
    SendItems,
    Skipped,
    StreamEnded,
)

__all__ = ["event_of", "request_of"]

_END_CODES = {int(code): code for code in EndCode}


def event_of(response: publish_pb2.PublishStreamResponse) -> Event | None:
    """Translate an answer; None for one that this version does not know."""
    match response.WhichOneof("response"):
        case "acknowledgement":
            return Acknowledged(response.acknowledgement.block_number)
        case "skip_block":
            return Skipped(response.skip_block.block_number)
        case "resend_block":
            return ResendAsked(response.resend_block.block_number)
        case "node_behind_publisher":
            return NodeBehind(from_wire(response.node_behind_publisher.block_number))
        case "end_stream":
            end = response.end_stream
            code = _END_CODES.get(int(end.status), EndCode.UNKNOWN)
            return StreamEnded(code, from_wire(end.block_number), end.proximate_block_number)
        case _:
            return None


def request_of(action: SendItems | SendEndOfBlock | SendEndStream) -> publish_pb2.PublishStreamRequest:
    """Translate a send."""
    if isinstance(action, SendItems):
        items = block_items_pb2.BlockItemSet(block_items=action.items)
        return publish_pb2.PublishStreamRequest(block_items=items)
    if isinstance(action, SendEndOfBlock):
        end = block_items_pb2.BlockEnd(block_number=action.number)
        return publish_pb2.PublishStreamRequest(end_of_block=end)
    code = publish_pb2.PublishStreamRequest.EndStream.Code.Value(action.code.name)
    end_stream = publish_pb2.PublishStreamRequest.EndStream(
        end_code=code, earliest_block_number=action.earliest, latest_block_number=action.latest
    )
    return publish_pb2.PublishStreamRequest(end_stream=end_stream)
