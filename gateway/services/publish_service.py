"""The gRPC side of publishing: `BlockStreamPublishService.publishBlockStream`.

A shell: messages become events of the arbiter, its responses become messages. Each stream has a reader and a
writer.

    message                         event
    block_items                     `header` or `items`, once the form of the items is checked
    end_of_block                    `block_end`
    end_stream                      `end_stream`
    none of these, does not parse   `bad_request`
    the publisher closes its side   `half_closed`
    cancelled, connection lost      `left`

While the node's last block may be on its disk alone (`Acknowledging.refusal`), a new stream gets UNAVAILABLE.
When the node ends a stream, the reader drains the other side for a while, so that the publisher reads the
answer before the connection's end. A publisher that reads no responses gets a gRPC status that says so; if it
does not read that either, it loses its connection.
Source: docs/spec/wire.md section 2.1; docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeGuard

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from sluice.gateway.api import publish_pb2
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX, U64_MAX, from_wire
from sluice.gateway.blocks.block_numbers import to_wire as number_to_wire
from sluice.gateway.blocks.errors import ItemError
from sluice.gateway.blocks.item_set import ItemSet, inspect, split
from sluice.gateway.identity import name_of_publisher
from sluice.gateway.limits import INLINE_HASH_ITEMS_MAX, SLOT_ITEMS_MIN
from sluice.gateway.logs import caused_by
from sluice.gateway.pipeline.conductor import Conductor, Outbox
from sluice.gateway.race.actions import (
    Acknowledgement,
    Action,
    Behind,
    EndOfStream,
    PublisherId,
    Resend,
    Response,
    Skip,
)
from sluice.gateway.race.tables import EndStatus
from sluice.gateway.transport.admission import Admission, AdmissionLimits, DenialKind
from sluice.gateway.transport.callers import Caller, caller_of
from sluice.gateway.transport.message_shares import SMALL_BYTES, StreamKey
from sluice.gateway.workers.looking import CROWD_BYTES_MIN, Looking

__all__ = ["BadMessage", "DrainLimits", "PublishService", "to_wire", "write_responses"]

log = logging.getLogger(__name__)

HALF_CLOSE_SECONDS: Final = 0.02
"""A stream that lives so long after the publisher's last message was closed in order. gRPC reports a broken
stream 0.1 ms after its end."""

_SHORT_BYTES_MAX = 512
SERVICE_NAME = "org.hiero.block.api.BlockStreamPublishService"
METHOD_NAME = "publishBlockStream"

_Request = publish_pb2.PublishStreamRequest
_Wire = publish_pb2.PublishStreamResponse
_END_CODE = publish_pb2.PublishStreamRequest.EndStream.Code


@dataclass(frozen=True, slots=True)
class BadMessage:
    """An unusable request."""

    reason: str
    """What, got, expected."""


_Message = _Request | BadMessage | ItemSet
"""An unchecked or unusable request, or a checked item set."""

_DENIAL_STATUS = {
    DenialKind.NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    DenialKind.PUBLISHER_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DenialKind.ADDRESS_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_STATUS = {status: _Wire.EndOfStream.Code.Value(status.name) for status in EndStatus}


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """The times of a stream that the node has ended."""

    silence_seconds: float = 1.0
    """The time that the publisher may be silent. One that writes before it reads gets to the answer."""
    seconds_max: float = 30.0
    """The most time that the stream is read, and that the publisher may leave the node's last response, and
    then the status, unread."""


class PublishService:
    """The publish service of one node."""

    def __init__(
        self, conductor: Conductor, admission: Admission | None = None, drain: DrainLimits | None = None
    ) -> None:
        self._limits = drain or DrainLimits()
        self._conductor = conductor
        self._looking = Looking(conductor.slots)
        self._admission = admission or Admission(AdmissionLimits())
        self._keys: dict[PublisherId, StreamKey] = {}
        self._publisher_ids: dict[StreamKey, PublisherId] = {}

    def add_to(self, server: aio.Server) -> None:
        """Register the service, by hand: a message that does not parse must reach `bad_request`."""
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
        if len(message) > SMALL_BYTES:
            return message
        try:
            found = split(message, INLINE_HASH_ITEMS_MAX)
        except ItemError as error:
            return BadMessage(str(error))
        if found is not None:
            return found
        if len(message) >= CROWD_BYTES_MIN and self._looking.is_crowd(message):
            return message
        return _looked_at(_parsed(message))

    async def _publish(self, _: object, context: aio.ServicerContext[Any, Any]) -> None:
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
        outbox = self._conductor.connect(name, address=caller.address, has_certificate=bool(caller.subjects))
        if (key := caller.key_of(context)) is not None:
            self._keys[outbox.publisher_id] = key
            self._publisher_ids[key] = outbox.publisher_id
        reader = asyncio.ensure_future(self._read(outbox, caller, context))
        reader.add_done_callback(lambda reading: self._on_read(outbox, reading))
        writer = asyncio.ensure_future(write_responses(outbox, context))
        over = asyncio.ensure_future(outbox.over.wait())
        reason = "cancelled, or the connection was lost"
        try:
            await asyncio.wait({writer, over}, return_when=asyncio.FIRST_COMPLETED)
            if not outbox.overflow.is_set():
                await asyncio.wait({writer}, timeout=self._limits.seconds_max)
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
        """Return whether a stream may bring the next block to commit (`MessageShares.hurry`)."""
        publisher_id = self._publisher_ids.get(key)
        return publisher_id is not None and self._conductor.arbiter.is_awaited(publisher_id)

    async def _break_off(
        self, outbox: Outbox, caller: Caller, context: aio.ServicerContext[Any, Any], reason: str
    ) -> None:
        """gRPC cannot reset a stream: the status waits behind the unread data."""
        aborting = asyncio.ensure_future(context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        try:
            if not (await asyncio.wait({aborting}, timeout=self._limits.seconds_max))[0]:
                found = caller.cut_off()
                log.warning(
                    "publisher reads nothing" + (", and is cut off" if found else ""),
                    extra=caused_by(outbox.source.key, publisher=outbox.name, connection=caller.peer),
                )
            await aborting
        finally:
            aborting.cancel()

    async def _drain(self, outbox: Outbox, reader: asyncio.Task[None]) -> None:
        if outbox.said_goodbye:
            await asyncio.wait({reader}, timeout=HALF_CLOSE_SECONDS)
            return
        limits = self._limits
        for _ in range(int(limits.seconds_max / limits.silence_seconds)):
            before = outbox.dropped_count
            await asyncio.wait({reader}, timeout=limits.silence_seconds)
            if reader.done() or outbox.dropped_count == before:
                return

    async def _read(self, outbox: Outbox, caller: Caller, context: aio.ServicerContext[Any, Any]) -> None:
        """A broken connection ends reading as an orderly close does, and then cancels this task."""
        conductor, arbiter, admission = self._conductor, self._conductor.arbiter, self._admission
        key = self._keys.get(outbox.publisher_id)
        while (message := await context.read()) is not aio.EOF:
            if not outbox.closed:
                if admission.has_pace:
                    await self._keep_pace(outbox, caller)
                if arbiter.inflight_bytes >= arbiter.rules.full_bytes_min:
                    await conductor.room_for(outbox)
            if isinstance(message, bytes):
                # Parsed, it takes three times as much, so the next message waits until this one is counted in
                # flight.
                await self._handle_unparsed(outbox, message)
                if key is not None:
                    caller.taken(key.stream)
                if not outbox.closed:
                    await conductor.room_for(outbox)
            elif outbox.closed:
                outbox.dropped_count += 1
            elif _has_many_items(message):
                await self._handle_many_items(outbox, message)
            else:
                self._handle(outbox, message)
            message = None  # frees it before the next one comes
        await asyncio.sleep(HALF_CLOSE_SECONDS)
        if not outbox.closed:
            conductor.perform(arbiter.half_closed(outbox.publisher_id, conductor.now_ns()))

    async def _keep_pace(self, outbox: Outbox, caller: Caller) -> None:
        wait_ns = self._admission.wait_ns(outbox.name, caller.address, self._conductor.now_ns())
        if wait_ns:
            with self._conductor.delaying(outbox):
                await asyncio.sleep(wait_ns / 1e9)

    async def _handle_unparsed(self, outbox: Outbox, message: bytes) -> None:
        """Parse and handle a crowd or a long message, one at a time."""
        if outbox.closed:
            outbox.dropped_count += 1
            return
        with self._conductor.delaying(outbox):
            await self._looking.one_crowd.acquire()
        try:
            if outbox.closed:  # meanwhile
                outbox.dropped_count += 1
            elif _has_many_items(parsed := _looked_at(_parsed(message))):
                await self._handle_many_items(outbox, parsed)
            else:
                self._handle(outbox, parsed)
        finally:
            self._looking.one_crowd.release()

    async def _handle_many_items(self, outbox: Outbox, message: _Request | ItemSet) -> None:
        found: ItemSet | BadMessage
        try:
            with self._conductor.delaying(outbox):
                if isinstance(message, ItemSet):
                    await self._conductor.slots.take()
                    found = message
                else:
                    found = await self._looking.look(message.block_items.block_items)
        except ItemError as error:
            found = BadMessage(str(error))
        except Exception as error:  # as in `_handle`
            self._failed(outbox, error)
            return
        if outbox.closed:  # meanwhile
            outbox.dropped_count += 1
        else:
            self._handle(outbox, found)

    def _handle(self, outbox: Outbox, message: _Message) -> None:
        """Turn a message into an event; an error of ours ends this publisher's stream only."""
        try:
            if isinstance(message, ItemSet):
                self._conductor.offer(outbox, message)
            else:
                self._conductor.perform(self._actions(outbox, message))
        except Exception as error:  # the edge of a shell
            self._failed(outbox, error)

    def _actions(self, outbox: Outbox, message: _Request | BadMessage) -> list[Action]:
        arbiter, publisher_id, now_ns = self._conductor.arbiter, outbox.publisher_id, self._conductor.now_ns()
        if isinstance(message, BadMessage):
            return arbiter.bad_request(publisher_id, message.reason, now_ns)
        if message.HasField("end_of_block"):
            return arbiter.block_end(publisher_id, message.end_of_block.block_number, now_ns)
        if message.HasField("end_stream"):
            return self._end_stream(outbox, message.end_stream, now_ns)
        expected = "block_items, end_of_block or end_stream"
        return arbiter.bad_request(
            publisher_id, f"message: got none of its kinds, expected {expected}", now_ns
        )

    def _on_read(self, outbox: Outbox, reading: asyncio.Task[None]) -> None:
        """If an error has ended reading, end the stream: nobody would hear this publisher."""
        if not (reading.cancelled() or outbox.closed) and (error := reading.exception()) is not None:
            self._failed(outbox, error)

    def _failed(self, outbox: Outbox, error: BaseException) -> None:
        extra = caused_by(outbox.source.key, publisher=outbox.name)
        log.error("message failed", extra=extra, exc_info=error)
        conductor, reason = self._conductor, f"{type(error).__name__}: {error}"
        conductor.perform(conductor.arbiter.publisher_failed(outbox.publisher_id, reason, conductor.now_ns()))

    def _end_stream(self, outbox: Outbox, message: _Request.EndStream, now_ns: int) -> list[Action]:
        """The stream ends in order, whatever the code."""
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


async def write_responses(outbox: Outbox, context: aio.ServicerContext[Any, Any]) -> None:
    """Write the responses in an outbox, one after the other, until the stream is over."""
    await context.send_initial_metadata(())  # so that a publisher knows that it is heard
    while True:
        while outbox.responses:
            await context.write(to_wire(outbox.responses.popleft()))
        if outbox.closed:
            return
        outbox.changed.clear()
        await outbox.changed.wait()


def _parsed(message: bytes) -> _Request | BadMessage:
    try:
        return _Request.FromString(message)
    except DecodeError as error:
        return BadMessage(f"message of {len(message)} bytes: got {error}, expected a PublishStreamRequest")


@lru_cache(maxsize=16)  # all publishers offer the same header of a block
def _short_one(message: bytes) -> _Message:
    found = _looked_at(_parsed(message))
    if isinstance(found, ItemSet):  # shared: nobody may change it
        return found._replace(items=tuple(found.items), kinds=tuple(found.kinds))
    return found


def _looked_at(message: _Request | BadMessage) -> _Message:
    if isinstance(message, BadMessage) or not message.HasField("block_items"):
        return message
    items = message.block_items.block_items
    if len(items) >= SLOT_ITEMS_MIN:
        return message
    try:
        return inspect(list(items))
    except ItemError as error:
        return BadMessage(str(error))


def _has_many_items(message: _Message) -> TypeGuard[_Request | ItemSet]:
    """Return whether the items of a message wait for a slot; those of a request are still unchecked."""
    if isinstance(message, ItemSet):
        return len(message.items) >= SLOT_ITEMS_MIN
    return isinstance(message, _Request) and message.HasField("block_items")


def _may_be_said(number: int) -> bool:
    """Return whether a number in EndStream is a block's, or one of Java's two for "none"."""
    return number <= BLOCK_NUMBER_MAX or number in (U64_MAX, BLOCK_NUMBER_MAX + 1)


def _last_to_take(earliest: int, latest: int) -> int | None:
    """Return the last block that this node must get from others before a publisher can go on, if any.

    Args:
        earliest: the first block that the publisher holds.
        latest: the last block that some node acknowledged to it.
    """
    first_held, acknowledged = from_wire(earliest), from_wire(latest)
    last = max(-1 if first_held is None else first_held - 1, -1 if acknowledged is None else acknowledged)
    return None if last < 0 else last


@lru_cache(maxsize=16)
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
