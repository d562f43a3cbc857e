"""The gRPC side of subscribing: `BlockStreamSubscribeService.subscribeBlockStream`.

A shell.

Other nodes have their own places, threads and bytes: acknowledgements may wait for them.

A write waits until gRPC accepts the message, so a slow subscriber holds one batch and a position. Long
batches share a budget, and a stream that waits for it holds nothing. A subscriber that reads nothing loses
its connection: gRPC could end its stream only behind the unread data.

Source: docs/spec/wire.md section 2.2; gateway/README.md, "From the stream to a subscriber".
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from sluice.datastream.errors import DatastreamError, PageNotLocal
from sluice.gateway.api import subscribe_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.blocks.errors import StoredDataError
from sluice.gateway.logs import caused_by
from sluice.gateway.metrics import Metrics
from sluice.gateway.services.block_reader import SUBSCRIBE_READ_THREADS, BlockReader, Position
from sluice.gateway.services.subscriber_state import READ, WAIT, Held, Subscriber, SubscriptionEnd
from sluice.gateway.services.subscription_client import status_name
from sluice.gateway.store.block_store import BlockStore
from sluice.gateway.transport.callers import Caller, caller_of
from sluice.gateway.transport.message_shares import MessageShares, StreamKey

__all__ = ["SubscribeLimits", "SubscribeService"]

log = logging.getLogger(__name__)

SUBSCRIBE_REQUEST_BYTES_MAX: Final = 4096
"""A request's two numbers take 22."""

SERVICE_NAME = "org.hiero.block.api.BlockStreamSubscribeService"
METHOD_NAME = "subscribeBlockStream"

SENDING_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of long batches in memory, here and in gRPC, until subscribers have them."""

NODE_STREAMS_MAX: Final = 256
"""A cluster has a few nodes."""
NODE_STREAMS_PER_ADDRESS_MAX: Final = 64
"""The same to one address, which many may share behind NAT."""

_Request = subscribe_pb2.SubscribeStreamRequest
_Response = subscribe_pb2.SubscribeStreamResponse
_Code = _Response.Code


@dataclass(frozen=True, slots=True)
class SubscribeLimits:
    """The limits of subscribing."""

    future_blocks_max: int = 4_000
    """The most blocks between the last block and a start above it."""
    streams_max: int = 1_000
    streams_per_address_max: int = 256
    write_timeout_seconds: float = 300.0
    """0: no limit."""
    item_set_bytes: int = 1 << 20
    sending_bytes_max: int = SENDING_BYTES_MAX


@dataclass(eq=False, slots=True)
class _Stream:
    subscriber: Subscriber
    caller: Caller
    places: _Places
    blocks_sent: int = 0
    writing_since: float | None = None
    """The time since which a message waits for gRPC."""
    is_cut_off: bool = False
    number: int = 0
    refusal: SubscriptionEnd | None = None

    @property
    def name(self) -> str:
        return self.caller.peer

    @property
    def key(self) -> StreamKey:
        return StreamKey(self.caller.address, self.name, self.number)


class _Places:
    def __init__(
        self,
        store: BlockStore,
        limits: SubscribeLimits,
        streams_max: int,
        streams_per_address_max: int,
        ensure: Callable[[int], None],
        threads: int = SUBSCRIBE_READ_THREADS,
    ) -> None:
        self.reader = BlockReader(store, limits.item_set_bytes, threads=threads, ensure=ensure)
        # Sending needs no pace: a subscriber that reads nothing is cut off.
        self.shares = MessageShares(
            budget_bytes=limits.sending_bytes_max,
            message_bytes_max=limits.sending_bytes_max,
            small_bytes=2 * limits.item_set_bytes,  # with the tags and lengths of its items
        )
        self.by_address: Counter[str] = Counter()
        self._streams_max = streams_max
        self._streams_per_address_max = streams_per_address_max

    def too_many(self, address: str) -> str | None:
        """Return why an address gets no place for another subscriber, if so."""
        if self.by_address.total() >= self._streams_max:
            return f"got another subscriber, expected at most {self._streams_max} (subscriber.max_streams)"
        if self.by_address[address] >= self._streams_per_address_max:
            return (
                f"got another subscriber of this address, expected at most {self._streams_per_address_max} "
                "(subscriber.max_streams_per_address)"
            )
        return None


class SubscribeService:
    """The subscribe service of one node."""

    def __init__(
        self,
        store: BlockStore,
        first_number: int | None,
        metrics: Metrics,
        limits: SubscribeLimits,
        *,
        ensure: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._store = store
        self._first_number = first_number
        self._metrics = metrics
        self._limits = limits
        self._strangers = _Places(store, limits, limits.streams_max, limits.streams_per_address_max, ensure)
        self._nodes = _Places(
            store, limits, NODE_STREAMS_MAX, NODE_STREAMS_PER_ADDRESS_MAX, ensure, threads=1
        )
        self._waiting: dict[StreamKey, asyncio.Event] = {}
        self._stream_number = 0
        self._streams: set[_Stream] = set()
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._unlisten = store.on_advance(self._wake)
        metrics.subscribers.set_function(lambda: len(self._streams))
        metrics.subscriber_lag_blocks.set_function(lambda: self.lag_blocks)

    @property
    def stream_count(self) -> int:
        """Number of subscribers."""
        return len(self._streams)

    def add_to(self, server: aio.Server) -> None:
        """Register the service, by hand: the reading threads serialize messages."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._subscribe, request_deserializer=_parse, response_serializer=None
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE_NAME, {METHOD_NAME: handler}),)
        )

    def source_failed(self, reason: str) -> None:
        """The last publisher has failed: end live subscribers with ERROR."""
        held = self.held()
        count = sum(stream.subscriber.source_failed(held, reason) for stream in self._streams)
        if count:
            log.warning("source error", extra=caused_by("publishers", reason=reason, subscribers=count))
        self._wake()

    async def close(self) -> None:
        """End every subscriber with SUCCESS after its block; return when all have left."""
        self._closing = True
        held = self.held()
        for stream in self._streams:
            stream.subscriber.shut_down(held)
        self._wake()
        await self._empty.wait()

    def release(self) -> None:
        """Release the block store and the threads, after the last stream."""
        self._unlisten()
        if self._watching is not None:
            self._watching.cancel()
        for places in (self._strangers, self._nodes):
            places.reader.close()

    def held(self) -> Held:
        """Return the blocks that the node holds now."""
        last = self._store.last_number
        return Held(self._first_number if last is None else self._store.first_available, last)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def lag_blocks(self) -> int:
        """Committed blocks that the slowest subscriber was not sent yet."""
        held = self.held()
        return max((stream.subscriber.lag(held) for stream in self._streams), default=0)

    # --- one stream ----------------------------------------------------------------------------------------

    async def _subscribe(
        self, request: subscribe_pb2.SubscribeStreamRequest | None, context: aio.ServicerContext[Any, Any]
    ) -> None:
        caller = caller_of(context)
        address = caller.address
        places = self._nodes if caller.is_node() else self._strangers
        too_many = places.too_many(address)
        if too_many is not None:
            extra = caused_by(address, subscriber=caller.peer, reason=too_many)
            log.warning("subscriber refused", extra=extra)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, too_many)
        start, end = (0, 0) if request is None else (request.start_block_number, request.end_block_number)
        self._stream_number += 1
        subscriber = Subscriber(start, end, self._limits.future_blocks_max)
        stream = _Stream(subscriber, caller, places, number=self._stream_number)
        if request is None:
            stream.refusal = SubscriptionEnd(_Code.INVALID_REQUEST, "a request that does not parse")
        if self._closing:
            stream.subscriber.shut_down(self.held())
        self._streams.add(stream)
        places.by_address[address] += 1
        self._watch()
        self._empty.clear()
        log.info(
            "subscriber connected",
            extra=caused_by(address, subscriber=stream.name, start=_text(start), end=_text(end)),
        )
        ended = SubscriptionEnd(_Code.UNKNOWN, "cancelled, or the connection was lost")
        try:
            ended = await self._serve(stream, context)
        except Exception:
            if not stream.is_cut_off:  # else the write was cut off
                raise
        finally:
            if stream.is_cut_off:
                ended = SubscriptionEnd(_Code.UNKNOWN, "it took nothing of what was sent to it")
            self._streams.discard(stream)
            places.by_address -= Counter((address,))  # forgets a count of 0
            if not self._streams:
                self._empty.set()
            log.info(
                "subscriber left",
                extra=caused_by(
                    address,
                    subscriber=stream.name,
                    status=status_name(ended.status),
                    reason=ended.reason,
                    blocks=stream.blocks_sent,
                ),
            )

    def _watch(self) -> None:
        if self._limits.write_timeout_seconds and (self._watching is None or self._watching.done()):
            self._watching = asyncio.ensure_future(self._cut_off_idle())

    async def _cut_off_idle(self) -> None:
        most_seconds, loop = self._limits.write_timeout_seconds, asyncio.get_running_loop()
        while self._streams:
            await asyncio.sleep(most_seconds / 4)
            for stream in tuple(self._streams):
                since = stream.writing_since
                if since is None or loop.time() - since < most_seconds or stream.is_cut_off:
                    continue
                stream.is_cut_off = True
                found = stream.caller.cut_off()
                log.warning(
                    "subscriber takes nothing" + (", and is cut off" if found else ""),
                    extra=caused_by(
                        stream.caller.address,
                        subscriber=stream.name,
                        seconds=most_seconds,
                        blocks=stream.blocks_sent,
                    ),
                )

    async def _serve(self, stream: _Stream, context: aio.ServicerContext[Any, Any]) -> SubscriptionEnd:
        stream.subscriber.take_place(self.held())  # before it knows that it is served
        await context.send_initial_metadata(())  # tells a waiting subscriber that it is served
        position: Position | None = None
        while True:
            changed = self._changed
            step = stream.refusal or stream.subscriber.step(self.held())
            if step is WAIT:
                await changed.wait()
                continue
            if step is READ:
                try:
                    position = await self._send_batch(stream, context, position)
                    continue
                except (StoredDataError, DatastreamError, OSError) as error:
                    extra = caused_by(stream.caller.address, subscriber=stream.name, got=str(error))
                    log.error("blocks cannot be read", extra=extra)
                    is_away = isinstance(error, PageNotLocal)
                    step = SubscriptionEnd(_Code.NOT_AVAILABLE if is_away else _Code.ERROR, str(error))
            assert isinstance(step, SubscriptionEnd)
            last_word = _Response(status=step.status)  # type: ignore[arg-type]
            await _write(stream, context, last_word.SerializeToString())
            return step

    async def _send_batch(
        self, stream: _Stream, context: aio.ServicerContext[Any, Any], position: Position | None
    ) -> Position:
        """Return where to go on."""
        subscriber, reader, shares = stream.subscriber, stream.places.reader, stream.places.shares
        if position is None:
            assert subscriber.next_number is not None
            position = await reader.find(subscriber.next_number)
        batch = await reader.read(position, subscriber.last_wanted)
        try:
            if not shares.ask(stream.key, batch.size_bytes, 0):
                del batch  # frees it while others are sent theirs
                await self._granted(stream.key)
                batch = await reader.read(position, subscriber.last_wanted)
            for message in batch.messages:
                await _write(stream, context, message.data)
                self._metrics.subscriber_sent_bytes.inc(len(message.data))
                if message.ended is not None:
                    stream.blocks_sent += 1
                    self._metrics.subscriber_blocks_sent.inc()
                if not subscriber.wrote(message.ended):
                    break  # the subscriber was ended: the rest is not for it
            return batch.following
        finally:
            for key in shares.done(stream.key, 0):
                self._waiting[key].set()

    async def _granted(self, key: StreamKey) -> None:
        granted = self._waiting[key] = asyncio.Event()
        try:
            await granted.wait()
        finally:
            del self._waiting[key]


async def _write(stream: _Stream, context: aio.ServicerContext[Any, Any], message: bytes) -> None:
    stream.writing_since = asyncio.get_running_loop().time()
    await context.write(message)
    stream.writing_since = None


def _parse(message: bytes) -> subscribe_pb2.SubscribeStreamRequest | None:
    if len(message) > SUBSCRIBE_REQUEST_BYTES_MAX:
        return None
    try:
        return _Request.FromString(message)
    except DecodeError:
        return None


def _text(number: int) -> str:
    return "max" if number == U64_MAX else str(number)
