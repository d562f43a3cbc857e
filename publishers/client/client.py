"""The publish client: the asyncio shell around the publish machine.

Four tasks share one machine in one event loop, without locks:

    feeder   takes blocks from the source while the machine wants them
    driver   opens the streams that the machine asks for, and passes their answers to it
    writer   sends the machine's messages, one at a time, as fast as flow control allows
    ticker   passes the time to the machine when it asked for that

Source: docs/spec/wire.md section 2.1; publishers/README.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
from tenacity import RetryCallState, wait_exponential_jitter
from tenacity.asyncio import AsyncRetrying
from tenacity.wait import wait_base

from sluice.gateway.api import block_items_pb2, node_pb2, node_pb2_grpc, publish_pb2, publish_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import from_wire
from sluice.gateway.errors import TlsError
from sluice.gateway.services.node_service import begins_with
from sluice.gateway.transport.channels import ClientTls, open_channel, refused_headers
from sluice.gateway.transport.failures import why_failed_at
from sluice.gateway.transport.message_size import why_too_long
from sluice.publishers import limits
from sluice.publishers.errors import OptionError, PublishFailed, SourceCancelled
from sluice.publishers.protocol.item_sets import split_items
from sluice.publishers.protocol.machine import MachineLimits, PublisherMachine
from sluice.publishers.protocol.messages import (
    Acknowledged,
    Action,
    AskFirst,
    BlockReady,
    Clock,
    CloseStream,
    Connected,
    ConnectGateway,
    Disconnected,
    EndCode,
    Event,
    Finish,
    FirstTold,
    HalfClose,
    NodeBehind,
    ResendAsked,
    SendEndOfBlock,
    SendEndStream,
    SendItems,
    Skipped,
    SourceEnded,
    SourceFailed,
    Stop,
    StreamEnded,
    StreamOutcome,
    Writable,
)
from sluice.publishers.report import PublishReport

__all__ = [
    "ClientOptions",
    "PublishClient",
    "check_publisher_id",
    "event_of",
    "publish_blocks",
    "request_of",
    "retry_wait",
]

log = logging.getLogger(__name__)

RETRY_SECONDS_FIRST: Final = 1.0
"""Wait before the first retry; each further one doubles it."""
RETRY_SECONDS_MAX: Final = 30.0
"""Longest such wait."""
RETRY_JITTER_SECONDS: Final = 1.0
"""So that publishers do not all come back at once."""
SOON_SECONDS: Final = 0.1
"""While the load moves between nodes, both end streams for a moment."""
CONNECT_TIMEOUT_SECONDS: Final = 5.0
PUBLISHER_ID_METADATA: Final = "publisher-id"

SECOND_NS: Final = 1_000_000_000
_CLOCK_PAUSE_SECONDS: Final = 0.01  # the least time between two clock events

_WHY_SECONDS_MAX: Final = 0.2  # a connection that has failed says so at once

REFUSAL_SECONDS_MAX: Final = 1.0
"""Longest wait for an answer after a call whose status gRPC lost."""
REFUSAL_STATUS_SECONDS_MAX: Final = 0.1
"""A refusal is empty, with its status right behind."""
# grpcio's status if a write is the first to find the call over.
_STATUS_LOST: Final = "Internal error from Core"
_STATUS_LOST_REASON: Final = "ended while it was written to; gRPC does not say why"

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),  # the feeder checks `message_bytes_max`
    # A connection for each publisher, and waits of gRPC below those of the machine.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)

_Call = grpc.aio.StreamStreamCall[publish_pb2.PublishStreamRequest, publish_pb2.PublishStreamResponse]


def retry_wait() -> wait_base:
    """Return the retry policy: exponential, with jitter."""
    return wait_exponential_jitter(
        initial=RETRY_SECONDS_FIRST,
        max=RETRY_SECONDS_MAX,
        jitter=RETRY_JITTER_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The limits and policies of a client."""

    machine: MachineLimits = field(default_factory=MachineLimits)
    set_bytes_max: int = limits.ITEM_SET_BYTES_DEFAULT
    """A larger item goes alone."""
    message_bytes_max: int = limits.MESSAGE_BYTES_MAX
    """The longest message that the gateways take."""
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    wait: wait_base = field(default_factory=retry_wait)
    """The wait before each retry."""
    soon_seconds: float = SOON_SECONDS
    refusal_seconds_max: float = REFUSAL_SECONDS_MAX
    refusal_status_seconds_max: float = REFUSAL_STATUS_SECONDS_MAX
    tls: ClientTls | None = None
    """None: connect without TLS."""


async def publish_blocks(
    source: AsyncIterable[Block],
    gateways: Sequence[str],
    publisher_id: str,
    options: ClientOptions | None = None,
) -> PublishReport:
    """Publish all blocks of a source; see `PublishClient.publish`."""
    return await PublishClient(gateways, publisher_id, options).publish(source)


class PublishClient:
    """One publisher; it publishes one source, once."""

    def __init__(
        self,
        gateways: Sequence[str],
        publisher_id: str,
        options: ClientOptions | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Name the gateways, the preferred one first; `publish` connects."""
        check_publisher_id(publisher_id)
        self._gateways = tuple(gateways)
        self._publisher_id = publisher_id
        self._options = options or ClientOptions()
        self._now_ns = now_ns
        self._machine = PublisherMachine(publisher_id, len(self._gateways), self._options.machine)
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._has_read_tls = False
        self._call: _Call | None = None
        self._channel_in_use: grpc.aio.Channel | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_closing = False
        self._unexplained: set[int] = set()  # gateways whose last status gRPC lost
        self._connect: ConnectGateway | None = None
        self._finish: Finish | None = None
        self._source_error: Exception | None = None
        self._clock_at_ns: int | None = None
        self._room = asyncio.Event()  # wakes the feeder
        self._decision = asyncio.Event()  # wakes the driver
        self._work = asyncio.Event()  # wakes the writer
        self._clock = asyncio.Event()  # wakes the ticker

    def report(self) -> PublishReport:
        """Return the report so far."""
        return self._machine.report()

    def is_stored(self, number: int) -> bool:
        """Return whether a block is known to be stored."""
        through = self._machine.safe_through
        return through is not None and number <= through

    def stop(self) -> None:
        """Finish the block in flight, end the stream (RESET), and end."""
        if self._finish is None:
            self._hear(Stop())

    async def publish(self, source: AsyncIterable[Block]) -> PublishReport:
        """Publish all blocks of `source`, and return when every one is known to be stored.

        When cancelled, it first finishes the block in flight and ends the stream (RESET).

        Args:
            source: blocks with consecutive numbers, read as far ahead as the cache allows.

        Raises:
            PublishFailed: a gateway refused a block for good, or the deadline passed.
            ItemTooLarge, BlockOrderError: the source yielded a bad block; those before may be unacknowledged.
            SourceCancelled: the source was cancelled, and this publisher was not.
            TlsError: a file of `tls` cannot be read at the first connection; later that is retried.
            Exception: what the source raised.
        """
        driver = asyncio.create_task(self._drive(source))
        try:
            await asyncio.shield(driver)
        except asyncio.CancelledError:
            if not driver.done():
                self._hear(Stop())
            try:
                seconds = limits.STOP_TIMEOUT_SECONDS + limits.CLOSE_TIMEOUT_SECONDS
                await asyncio.wait({driver}, timeout=seconds)
            finally:  # after a second cancellation, too
                await _cancel(driver)
            raise
        if self._source_error is not None:
            raise self._source_error
        report = self._machine.report()
        assert self._finish is not None, "the driver ends with a Finish"
        if self._finish.outcome is StreamOutcome.FAILED:
            raise PublishFailed(self._finish.reason or "no reason", report)
        return report

    # --- tasks -------------------------------------------------------------------------------------------

    async def _drive(self, source: AsyncIterable[Block]) -> None:
        helpers = [asyncio.create_task(self._feed(source)), asyncio.create_task(self._tick())]
        try:
            while self._finish is None:
                if self._connect is None:
                    self._decision.clear()
                    await self._or_broken(self._decision.wait(), helpers)
                    continue
                connect, self._connect = self._connect, None
                stream = asyncio.create_task(self._stream(connect))
                try:
                    while not stream.done() and self._finish is None:
                        self._decision.clear()
                        await self._or_broken(self._decision.wait(), [*helpers, stream])
                finally:
                    await _cancel(stream)
        finally:
            await _cancel(*helpers)
            for gateway in tuple(self._channels):
                await self._drop_channel(gateway)

    async def _or_broken(
        self, awaited: Coroutine[Any, Any, Any], tasks: Sequence[asyncio.Task[None]]
    ) -> None:
        """Await something, but raise at once what one of the tasks raised, which is a bug."""
        waiter = asyncio.create_task(awaited)
        pending = [task for task in tasks if not task.done()]
        try:
            await asyncio.wait({waiter, *pending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _feed(self, source: AsyncIterable[Block]) -> None:
        blocks = aiter(source)
        try:
            while True:
                while not self._machine.wants_block:
                    self._room.clear()
                    await self._room.wait()
                try:
                    block = await anext(blocks)
                except StopAsyncIteration:
                    self._hear(SourceEnded())
                    return
                sets = split_items(
                    block.number,
                    block.items,
                    self._options.set_bytes_max,
                    self._options.message_bytes_max - limits.MESSAGE_MARGIN_BYTES,
                )
                self._hear(BlockReady(block.number, sets, block.size_bytes))
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            self._fail_source(SourceCancelled(self._machine.report().last_block))
        except Exception as error:
            # Also ItemTooLarge and BlockOrderError.
            self._fail_source(error)
        finally:
            if isinstance(blocks, AsyncIterator) and hasattr(blocks, "aclose"):
                with contextlib.suppress(Exception):
                    await blocks.aclose()

    def _fail_source(self, error: Exception) -> None:
        self._source_error = error
        self._hear(SourceFailed(str(error)))

    async def _tick(self) -> None:
        while True:
            self._clock.clear()
            at_ns = self._clock_at_ns = self._machine.wake_at_ns
            if at_ns is None:
                await self._clock.wait()
                continue
            wait_seconds = max(_CLOCK_PAUSE_SECONDS, (at_ns - self._now_ns()) / SECOND_NS)
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._clock.wait()
            except TimeoutError:
                self._hear(Clock())

    async def _stream(self, connect: ConnectGateway) -> None:
        if connect.is_soon:
            await asyncio.sleep(self._options.soon_seconds)
        elif connect.attempt:
            await asyncio.sleep(self._wait_seconds(connect.attempt))
        address = self._gateways[connect.gateway]
        try:
            channel = self._channel(connect.gateway)
        except TlsError as unread:
            if not self._has_read_tls:
                raise
            # Somebody is renewing the files.
            self._hear(Disconnected(f"cannot connect to {address}: {unread}"))
            return
        try:
            async with asyncio.timeout(self._connect_timeout_seconds()):
                if not await self._ready(channel):
                    raise TimeoutError
        except TimeoutError:
            seconds = min(self._connect_timeout_seconds() / 4, _WHY_SECONDS_MAX)
            why = await _why_not(channel, address, self._options.tls, seconds)
            await self._drop_channel(connect.gateway)
            self._hear(Disconnected(f"cannot connect to {address}: {why}"))
            return
        first = await self._first_of(channel)
        stub = publish_pb2_grpc.BlockStreamPublishServiceStub(channel)
        call = stub.publishBlockStream(metadata=((PUBLISHER_ID_METADATA, self._publisher_id),))
        self._call, self._is_closing = call, False
        self._channel_in_use = channel
        self._hear(Connected(first))
        writer = asyncio.create_task(self._write(call, connect.gateway))
        writer.add_done_callback(lambda task: _cancel_if_broken(task, call))
        try:
            reason = await self._read(call, connect.gateway)
        finally:
            self._call = None
            await _cancel(writer, *filter(None, (self._asking,)))
            self._asking = None
            call.cancel()
        if not writer.cancelled() and (error := writer.exception()) is not None:
            raise error
        if reason is not None:
            await self._drop_channel(connect.gateway)
        too_long = why_too_long(reason, "grpc.max_message_bytes of the gateway")
        text = f"{address}: {too_long or reason or 'the gateway ended the stream'}"
        self._hear(Disconnected(text, is_too_long=too_long is not None))

    async def _first_of(self, channel: grpc.aio.Channel) -> int | None:
        """Ask a gateway for its first block; None: it does not say."""
        status = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus
        try:
            answer: node_pb2.ServerStatusResponse | None = await status(
                node_pb2.ServerStatusRequest(), timeout=self._connect_timeout_seconds()
            )
        except grpc.aio.AioRpcError as error:
            # We believe that a gateway without that service stores all.
            return 0 if error.code() is grpc.StatusCode.UNIMPLEMENTED else None
        return None if answer is None else begins_with(answer)  # None: unparsable bytes

    async def _tell_first(self, channel: grpc.aio.Channel) -> None:
        self._hear(FirstTold(await self._first_of(channel)))

    async def _ready(self, channel: grpc.aio.Channel) -> bool:
        """Wait for a connection; return False if it failed and there is another gateway.

        With one gateway, gRPC retries sooner than the retry policy would.
        """
        while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and len(self._gateways) > 1:
                return False
            await channel.wait_for_state_change(state)
        return True

    async def _read(self, call: _Call, gateway: int) -> str | None:
        try:
            async for response in call:
                if response is None:  # unparsable bytes
                    call.cancel()
                    return "an answer that does not parse"
                self._unexplained.discard(gateway)
                event = event_of(response)
                if event is not None:
                    log.debug("%s hears %s", self._publisher_id, event)
                    self._hear(event)
            status = await call.code()
            if status is grpc.StatusCode.OK:
                return None
            return self._ending(gateway, status, await call.details())
        except grpc.aio.AioRpcError as error:
            return self._ending(gateway, error.code(), error.details())
        except asyncio.CancelledError:
            # `_close` cancelled the call, or somebody cancels this task.
            if _is_being_cancelled():
                raise
            return "closed from this side"

    def _ending(self, gateway: int, status: grpc.StatusCode, details: str | None) -> str:
        """Return how a call ended; if gRPC lost the status, the next call waits for an answer."""
        if status is grpc.StatusCode.INTERNAL and details == _STATUS_LOST:
            self._unexplained.add(gateway)
            return _STATUS_LOST_REASON
        refused_headers(self._gateways[gateway], details)  # the next connection is relayed
        return f"{status.name}: {' '.join((details or 'no details').split())}"

    async def _write(self, call: _Call, gateway: int) -> None:
        # The reader reports how the call ended; closing raises an InternalError.
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            if gateway in self._unexplained:
                await self._answered(call)
            while not self._is_closing:
                actions = self._hear(Writable())
                if not actions:
                    self._work.clear()
                    await self._work.wait()
                for action in actions:
                    if isinstance(action, HalfClose):
                        await call.done_writing()
                        return
                    assert isinstance(action, SendItems | SendEndOfBlock | SendEndStream)
                    await call.write(request_of(action))
            await call.done_writing()

    async def _answered(self, call: _Call) -> None:
        """Wait briefly for a gateway's first answer or refusal; it may itself wait for our first message."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.refusal_seconds_max):
                await call.initial_metadata()
            async with asyncio.timeout(self._options.refusal_status_seconds_max):
                await call.code()

    # --- between the tasks and the machine ---------------------------------------------------------------

    def _hear(self, event: Event) -> list[Action]:
        sends: list[Action] = []
        for action in self._machine.handle(event, self._now_ns()):
            if isinstance(action, ConnectGateway):
                self._connect = action
                self._decision.set()
            elif isinstance(action, Finish):
                self._finish = action
                self._decision.set()
            elif isinstance(action, CloseStream):
                self._close(action)
            elif isinstance(action, AskFirst):
                assert self._channel_in_use is not None
                self._asking = asyncio.create_task(self._tell_first(self._channel_in_use))
            else:
                sends.append(action)
        self._room.set()
        self._work.set()
        wake_at_ns = self._machine.wake_at_ns
        if wake_at_ns is not None and (self._clock_at_ns is None or wake_at_ns < self._clock_at_ns):
            self._clock.set()
        return sends

    def _close(self, action: CloseStream) -> None:
        log.info("%s closes its stream: %s", self._publisher_id, action.reason)
        self._is_closing = True
        if action.force and self._call is not None:
            self._call.cancel()

    def _connect_timeout_seconds(self) -> float:
        """Return half the deadline at most, or its error could not say why."""
        deadline_ns = self._options.machine.deadline_ns
        if deadline_ns is None:
            return self._options.connect_timeout_seconds
        return min(self._options.connect_timeout_seconds, deadline_ns / SECOND_NS / 2)

    def _wait_seconds(self, attempt: int) -> float:
        state = RetryCallState(AsyncRetrying(wait=self._options.wait), None, (), {})
        state.attempt_number = attempt
        return self._options.wait(state)

    def _channel(self, gateway: int) -> grpc.aio.Channel:
        if gateway not in self._channels:
            self._channels[gateway] = open_channel(
                self._gateways[gateway], self._options.tls, options=_CHANNEL_OPTIONS
            )
            self._has_read_tls = True
        return self._channels[gateway]

    async def _drop_channel(self, gateway: int) -> None:
        channel = self._channels.pop(gateway, None)
        if channel is not None:
            await channel.close()


async def _why_not(channel: grpc.aio.Channel, address: str, tls: ClientTls | None, seconds: float) -> str:
    """Make a call: only a failed one tells."""
    status = node_pb2_grpc.BlockNodeServiceStub(channel).serverStatus
    try:
        await status(node_pb2.ServerStatusRequest(), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        return await asyncio.to_thread(why_failed_at, address, error, tls)
    return "no answer in time"


def _cancel_if_broken(task: asyncio.Task[None], call: _Call) -> None:
    if not task.cancelled() and task.exception() is not None:
        call.cancel()


def check_publisher_id(name: str) -> None:
    """Raise OptionError unless gRPC can send a publisher's name as metadata."""
    if not (name.isascii() and name.isprintable()):
        raise OptionError("publisher_id", ascii(name), "printable ASCII characters")


def _is_being_cancelled() -> bool:
    """Return whether somebody cancels the current task, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    awaitables: Sequence[Awaitable[Any]] = tasks
    await asyncio.gather(*awaitables, return_exceptions=True)


# --- between the machine and the wire -----------------------------------------------------------------------

_END_CODES: Final = {int(code): code for code in EndCode}


def event_of(response: publish_pb2.PublishStreamResponse) -> Event | None:
    """Return the event of a gateway's message; None: this version does not know the message."""
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
    """Return the message of a send."""
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
