"""The gRPC side of publishing: `BlockStreamPublishService.publishBlockStream`.

A shell: messages become events of the arbiter, responses become messages. For each stream there are two
loops, one that reads and one that writes.

    message                         event
    block_items                     inspected for its form, then `header` or `items`
    end_of_block                    `block_end`
    end_stream                      `end_stream`
    none of these, does not parse   `bad_request`
    the publisher closes its side   `half_closed`
    cancelled, connection lost      `left`

A stream that is opened while the node's last block may be on its disk alone (`Acknowledging.refusal`) is
refused with the status UNAVAILABLE.
When the node ends a stream, its other side is drained for a while, not reset, so that the publisher reads the
answer before the connection's end. One that does not read its responses is told so with gRPC's status; one
that does not read that either has its connection cut.
Source: docs/spec/wire.md section 2.1; docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from gateway.api import publish_pb2
from gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX, from_wire
from gateway.blocks.block_numbers import to_wire as number_to_wire
from gateway.blocks.errors import ItemError
from gateway.blocks.item_set import ItemSet, inspect
from gateway.identity import name_of_publisher
from gateway.limits import DRAIN_SECONDS, DRAIN_SECONDS_MAX, HALF_CLOSE_SECONDS
from gateway.logs import caused_by
from gateway.pipeline.conductor import Conductor, Outbox
from gateway.race.actions import (
    Acknowledgement,
    Action,
    Behind,
    EndOfStream,
    PublisherId,
    Resend,
    Response,
    Skip,
)
from gateway.race.tables import EndStatus
from gateway.transport.admission import Admission, AdmissionLimits, DenialKind
from gateway.transport.callers import Caller, caller_of
from gateway.transport.message_shares import SMALL_BYTES, StreamKey
from gateway.workers.looking import Looking

__all__ = ["BadMessage", "PublishService", "to_wire"]

log = logging.getLogger(__name__)

_SHORT_BYTES_MAX = 512
"""A message with no more than a header has about 100."""
SERVICE_NAME = "org.hiero.block.api.BlockStreamPublishService"
METHOD_NAME = "publishBlockStream"

_Request = publish_pb2.PublishStreamRequest
_Wire = publish_pb2.PublishStreamResponse
_END_CODE = publish_pb2.PublishStreamRequest.EndStream.Code


@dataclass(frozen=True, slots=True)
class BadMessage:
    """What stands in the place of a request that cannot be used."""

    reason: str
    """What, got, expected."""


_Message = _Request | BadMessage | ItemSet
"""A message as it came, one that cannot be used, or an item set that was looked at already."""

_DENIAL_STATUS = {
    DenialKind.NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    DenialKind.PUBLISHER_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DenialKind.ADDRESS_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_STATUS = {status: _Wire.EndOfStream.Code.Value(status.name) for status in EndStatus}


class PublishService:
    """Serves publishers.

    Args:
        conductor: takes the events.
        admission: who may open a stream.
    """

    def __init__(
        self,
        conductor: Conductor,
        admission: Admission | None = None,
    ) -> None:
        self._conductor = conductor
        self._looking = Looking(conductor.slots)
        self._admission = admission or Admission(AdmissionLimits())
        self._keys: dict[PublisherId, StreamKey] = {}
        self._publisher_ids: dict[StreamKey, PublisherId] = {}

    def add_to(self, server: aio.Server) -> None:
        """Register the service; by hand, since a message that does not parse must reach `bad_request`."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._publish,
            request_deserializer=self._parse,
            response_serializer=_Wire.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE_NAME, {METHOD_NAME: handler}),)
        )

    def _parse(self, message: bytes) -> _Message | bytes:
        if len(message) <= _SHORT_BYTES_MAX:
            return _short_one(message)
        if len(message) > SMALL_BYTES or self._looking.is_crowd(message):
            return message
        return _parsed(message)

    async def _publish(self, _: object, context: aio.ServicerContext[Any, Any]) -> None:
        """Serve one stream, if it is admitted."""
        caller = caller_of(context)
        name = name_of_publisher(caller.subjects, context.invocation_metadata() or (), caller.peer)
        address = caller.address
        denied = self._admission.admit(name, address, frozenset(caller.subjects))
        if denied is not None:
            log.warning("publisher refused", extra=caused_by(address, publisher=name, reason=denied.reason))
            await context.abort(_DENIAL_STATUS[denied.kind], denied.reason)
        try:
            refusal = self._conductor.acknowledging.refusal()
            if refusal is not None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, refusal)
            await self._serve(name, caller, context)
        finally:
            self._admission.release(name, address)

    async def _serve(self, name: str, caller: Caller, context: aio.ServicerContext[Any, Any]) -> None:
        """Start both loops and end when both directions are over."""
        outbox = self._conductor.connect(name, address=caller.address, has_certificate=bool(caller.subjects))
        if (key := caller.key_of(context)) is not None:
            self._keys[outbox.publisher_id] = key
            self._publisher_ids[key] = outbox.publisher_id
        reader = asyncio.ensure_future(self._read(outbox, caller, context))
        reader.add_done_callback(lambda reading: self._on_read(outbox, reading))
        writer = asyncio.ensure_future(self._write(outbox, context))
        over = asyncio.ensure_future(outbox.over.wait())
        reason = "cancelled, or the connection was lost"
        try:
            await asyncio.wait({writer, over}, return_when=asyncio.FIRST_COMPLETED)
            if not outbox.overflow.is_set():
                await asyncio.wait({writer}, timeout=DRAIN_SECONDS_MAX)
            if outbox.overflow.is_set() or not writer.done():
                reason = "the publisher does not read its responses"
                self._conductor.disconnect(outbox, reason)
                await self._break_off(outbox, caller, context, reason)
            writer.result()
            await self._drain(outbox, reader)
            reason = "the stream is over"
        finally:
            for task in (reader, writer, over):
                task.cancel()
            self._conductor.disconnect(outbox, reason)
            if (key := self._keys.pop(outbox.publisher_id, None)) is not None:
                del self._publisher_ids[key]

    def is_urgent(self, key: StreamKey) -> bool:
        """Whether a stream may bring the block that is to be committed next (`MessageShares.hurry`)."""
        publisher_id = self._publisher_ids.get(key)
        return publisher_id is not None and self._conductor.arbiter.is_awaited(publisher_id)

    async def _break_off(
        self, outbox: Outbox, caller: Caller, context: aio.ServicerContext[Any, Any], reason: str
    ) -> None:
        """End a stream whose responses are not read; where its status is not read either, its connection.

        gRPC has no reset: the status waits behind what the publisher has not read.
        """
        aborting = asyncio.ensure_future(context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        try:
            if not (await asyncio.wait({aborting}, timeout=DRAIN_SECONDS_MAX))[0]:
                found = caller.cut_off()
                log.warning(
                    "publisher reads nothing" + (", and is cut off" if found else ""),
                    extra=caused_by(outbox.source.key, publisher=outbox.name, connection=caller.peer),
                )
            await aborting
        finally:
            aborting.cancel()

    async def _drain(self, outbox: Outbox, reader: asyncio.Task[None]) -> None:
        """Let the reader drop what still comes, until nothing comes for a while or it has lasted too long."""
        if outbox.said_goodbye:
            await asyncio.wait({reader}, timeout=HALF_CLOSE_SECONDS)
            return
        for _ in range(int(DRAIN_SECONDS_MAX / DRAIN_SECONDS)):
            before = outbox.dropped_count
            await asyncio.wait({reader}, timeout=DRAIN_SECONDS)
            if reader.done() or outbox.dropped_count == before:
                return

    async def _write(self, outbox: Outbox, context: aio.ServicerContext[Any, Any]) -> None:
        await context.send_initial_metadata(())  # so that a publisher knows that it is heard
        await outbox.send_all(lambda response: context.write(to_wire(response)))

    async def _read(self, outbox: Outbox, caller: Caller, context: aio.ServicerContext[Any, Any]) -> None:
        """Read until the publisher closes its side; what comes after the node's last word is dropped.

        A broken connection ends reading in the same way, and then cancels this task.
        """
        conductor, admission = self._conductor, self._admission
        key = self._keys.get(outbox.publisher_id)
        while (request := await context.read()) is not aio.EOF:
            if not outbox.closed:
                if wait_ns := admission.wait_ns(outbox.name, caller.address, conductor.now_ns()):
                    with conductor.delaying(outbox):
                        await asyncio.sleep(wait_ns / 1e9)
                if not conductor.arbiter.may_read(outbox.publisher_id):
                    await conductor.room_for(outbox)
            if type(request) is bytes:
                # Parsed, it takes three times as much. The next one is received when this one is counted in
                # flight, and there is room.
                await self._handle_any(outbox, request)
                request = None
                if key is not None:
                    caller.taken(key.stream)
                if not outbox.closed:
                    await conductor.room_for(outbox)
            elif outbox.closed:
                outbox.dropped_count += 1
            elif type(request) is ItemSet:
                self._handle_one(outbox, request)
            else:
                await self._handle_any(outbox, request)
            request = None  # not to be held until the next one comes
        await asyncio.sleep(HALF_CLOSE_SECONDS)
        if not outbox.closed:
            conductor.perform(conductor.arbiter.half_closed(outbox.publisher_id, conductor.now_ns()))

    async def _handle_any(self, outbox: Outbox, message: _Message | bytes) -> None:
        """Handle a message; whatever goes wrong on our side ends this stream alone."""
        if isinstance(message, bytes):  # a crowd, or long
            if outbox.closed:
                outbox.dropped_count += 1
                return
            with self._conductor.delaying(outbox):
                await self._looking.one_crowd.acquire()
            try:
                if outbox.closed:  # meanwhile
                    outbox.dropped_count += 1
                else:
                    await self._handle_any(outbox, _parsed(message))
            finally:
                self._looking.one_crowd.release()
            return
        if isinstance(message, _Request) and not Looking.is_quick(message.block_items.block_items):
            try:
                with self._conductor.delaying(outbox):
                    message = await self._item_set_of_many(message)
            except Exception as error:  # as in `_handle_one`
                self._failed(outbox, error)
                return
            if outbox.closed:  # meanwhile
                outbox.dropped_count += 1
                return
        self._handle_one(outbox, message)

    def _handle_one(self, outbox: Outbox, message: _Message) -> None:
        try:
            self._handle(outbox, message)
        except Exception as error:  # the edge of a shell: this publisher's stream ends, others go on
            self._failed(outbox, error)

    def _on_read(self, outbox: Outbox, reading: asyncio.Task[None]) -> None:
        """Reading is over; where an error has ended it, nobody would hear this publisher any more."""
        if not (reading.cancelled() or outbox.closed) and (error := reading.exception()) is not None:
            self._failed(outbox, error)

    def _failed(self, outbox: Outbox, error: BaseException) -> None:
        """Something went wrong on our side: this publisher's stream ends with ERROR."""
        extra = caused_by(outbox.source.key, publisher=outbox.name)
        log.error("message failed", extra=extra, exc_info=error)
        conductor, reason = self._conductor, f"{type(error).__name__}: {error}"
        conductor.perform(conductor.arbiter.publisher_failed(outbox.publisher_id, reason, conductor.now_ns()))

    async def _item_set_of_many(self, request: _Request) -> ItemSet | BadMessage:
        """Look at the items of a message; return in a turn of the event loop."""
        try:
            return await self._looking.look(request.block_items.block_items)
        except ItemError as error:
            return BadMessage(str(error))

    def _handle(self, outbox: Outbox, message: _Message) -> None:
        """Turn one message into one event."""
        conductor, publisher_id = self._conductor, outbox.publisher_id
        if isinstance(message, _Request) and message.HasField("block_items"):
            message = _item_set_of(message)
        if isinstance(message, ItemSet):
            conductor.offer(outbox, message)
            return
        arbiter, now_ns = conductor.arbiter, conductor.now_ns()
        if isinstance(message, BadMessage):
            actions = arbiter.bad_request(publisher_id, message.reason, now_ns)
        elif message.HasField("end_of_block"):
            actions = arbiter.block_end(publisher_id, message.end_of_block.block_number, now_ns)
        elif message.HasField("end_stream"):
            actions = self._end_stream(outbox, message.end_stream, now_ns)
        else:
            expected = "block_items, end_of_block or end_stream"
            actions = arbiter.bad_request(
                publisher_id, f"message: got none of its kinds, expected {expected}", now_ns
            )
        conductor.perform(actions)

    def _end_stream(self, outbox: Outbox, message: _Request.EndStream, now_ns: int) -> list[Action]:
        """EndStream: the stream ends in order, whatever its code."""
        outbox.said_goodbye = True
        code, earliest, latest = message.end_code, message.earliest_block_number, message.latest_block_number
        name = _END_CODE.Name(code) if code in _END_CODE.values() else str(code)
        wrong = code not in _END_CODE.values() or code == _END_CODE.UNKNOWN
        wrong = wrong or not (_may_be_said(earliest) and _may_be_said(latest))
        log.log(
            logging.WARNING if wrong or code == _END_CODE.ERROR else logging.INFO,
            "EndStream breaks the protocol" if wrong else "publisher ends its stream",
            extra=caused_by(
                outbox.source.key,
                publisher=outbox.name,
                code=name,
                earliest=from_wire(earliest),
                latest=from_wire(latest),
            ),
        )
        behind = code == _END_CODE.TOO_FAR_BEHIND and not wrong
        return self._conductor.arbiter.end_stream(
            outbox.publisher_id,
            now_ns,
            target=_last_to_take(earliest, latest) if behind else None,
            is_error=code == _END_CODE.ERROR,
            reason=f"EndStream({name})",
        )


def _parsed(message: bytes) -> _Request | BadMessage:
    """Parse a message."""
    try:
        return _Request.FromString(message)
    except DecodeError as error:
        return BadMessage(f"message of {len(message)} bytes: got {error}, expected a PublishStreamRequest")


@lru_cache(maxsize=16)  # all publishers offer the same header of a block
def _short_one(message: bytes) -> _Message:
    """Parse a short message, and look at its items; once for all who send these bytes."""
    parsed = _parsed(message)
    if not isinstance(parsed, _Request) or not parsed.HasField("block_items"):
        return parsed
    found = _item_set_of(parsed)
    if isinstance(found, ItemSet):  # which several get: nobody may change it
        return found._replace(items=tuple(found.items), kinds=tuple(found.kinds))
    return found


def _item_set_of(request: _Request) -> ItemSet | BadMessage:
    """Look at the items of a message, which are few."""
    try:
        return inspect(list(request.block_items.block_items))
    except ItemError as error:
        return BadMessage(str(error))


def _may_be_said(number: int) -> bool:
    """Whether a number in EndStream is a block's, or one of the two by which Java says that there is none."""
    return number <= BLOCK_NUMBER_MAX or number in (U64_MAX, BLOCK_NUMBER_MAX + 1)


def _last_to_take(earliest: int, latest: int) -> int | None:
    """Say which block this node has to take from others before it can go on with a publisher.

    Args:
        earliest: the first block that the publisher holds; of those before it, it has none.
        latest: the last block that was acknowledged to it, so that others have it.
    """
    first_held, acknowledged = from_wire(earliest), from_wire(latest)
    last = max(-1 if first_held is None else first_held - 1, -1 if acknowledged is None else acknowledged)
    return None if last < 0 else last


@lru_cache(maxsize=16)  # all publishers hear the same of a block
def to_wire(response: Response) -> publish_pb2.PublishStreamResponse:
    """Make the message of a response."""
    match response:
        case Acknowledgement(number):
            return _Wire(acknowledgement=_Wire.BlockAcknowledgement(block_number=number))
        case Skip(number):
            return _Wire(skip_block=_Wire.SkipBlock(block_number=number))
        case Resend(number):
            return _Wire(resend_block=_Wire.ResendBlock(block_number=number))
        case Behind(last):
            return _Wire(node_behind_publisher=_Wire.BehindPublisher(block_number=number_to_wire(last)))
        case EndOfStream(status, last, proximate):
            return _Wire(
                end_stream=_Wire.EndOfStream(
                    status=_STATUS[status],
                    block_number=number_to_wire(last),
                    proximate_block_number=proximate or 0,
                )
            )
