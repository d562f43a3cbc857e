"""The network between one publisher and one node: a stream of messages each way, in memory.

Each direction keeps its order and has a window, like gRPC's flow control: when it is full, the sender waits.
A broken connection loses what is on its way, and each side notices in its own time. The node's side has the
interface of `grpc.aio.ServicerContext`, so the real service runs on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from grpc import aio

from sluice.gateway.api import publish_pb2
from tests.simulation.world import World

POISON = b"\xffpoison"
"""A message whose handling fails as if we had a bug."""

NOTICE_NS = 20_000_000
"""Time in which both sides notice a lost connection."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    delay_ns: tuple[int, int]
    window: int


class Client(Protocol):
    """The publisher's side."""

    def on_response(self, message: bytes) -> None:
        """Hear a message of the node."""

    def on_room(self) -> None:
        """Hear that another message may be sent."""

    def on_end(self, reason: str) -> None:
        """Hear once that the stream is over."""


class StreamAborted(Exception):
    """The exception that `ServicerContext.abort` raises."""


class Connection:
    """One publish stream.

    Args:
        world: time and chance.
        client: the publisher's side.
        options: delays and windows.
        identity: certificate subject, `publisher-id` or None, and address.
    """

    def __init__(
        self, world: World, client: Client, options: LinkOptions, identity: tuple[str | None, str | None, str]
    ) -> None:
        self.world = world
        self.client: Client | None = client
        self.options = options
        self.subject, self.publisher_id, self.peer = identity
        self.context: ServerContext | None = None
        self.broken = False
        self.is_reading = True
        self.half_closed = False
        self._up_count = 0
        self._up_at_ns = self._down_at_ns = 0
        self._arrived: deque[bytes | str] = deque()

    # --- the publisher's side ------------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        return not self.broken and not self.half_closed and self._up_count < self.options.window

    def send(self, message: bytes) -> None:
        self._up_count += 1
        self._up(self._arrive_up, message)

    def half_close(self) -> None:
        if not self.half_closed:
            self.half_closed = True
            self._up(self._arrive_up, None)

    def cancel(self) -> None:
        self.break_off("closed from this side")

    def read_on(self) -> None:
        """Read again what has arrived."""
        self.is_reading = True
        self._consume()

    def improve(self, options: LinkOptions) -> None:
        self.options = options
        if self.context is not None:
            self.context.has_room()

    def open(self, accept: Callable[[Connection], None]) -> None:
        """Let the node accept the stream before any message."""
        self._up(accept, self)

    def _up(self, call: Callable[..., None], *args: Any) -> None:
        self._up_at_ns = max(self._up_at_ns, self.world.now_ns + self.world.between(*self.options.delay_ns))
        self.world.at(self._up_at_ns - self.world.now_ns, call, *args)

    def _arrive_up(self, message: bytes | None) -> None:
        if not self.broken and self.context is not None:
            self.context.arrive(message)

    def taken(self) -> None:
        self._down_control(self._room)

    def _room(self) -> None:
        self._up_count -= 1
        if self.client is not None and not self.broken:
            self.client.on_room()

    # --- the node's side -----------------------------------------------------------------------------------

    def deliver(self, message: bytes | str) -> None:
        """Send a response, or, as a text, the end of the stream."""
        self._down_control(self._arrive_down, message)

    def _down_control(self, call: Callable[..., None], *args: Any) -> None:
        self._down_at_ns = max(
            self._down_at_ns, self.world.now_ns + self.world.between(*self.options.delay_ns)
        )
        self.world.at(self._down_at_ns - self.world.now_ns, call, *args)

    def _arrive_down(self, message: bytes | str) -> None:
        if not self.broken:
            self._arrived.append(message)
            self._consume()

    def _consume(self) -> None:
        while self._arrived and self.is_reading and not self.broken and self.client is not None:
            message = self._arrived.popleft()
            if isinstance(message, str):
                self._end(message)
            else:
                if self.context is not None:
                    self.context.consumed()
                self.client.on_response(message)

    # --- the end -------------------------------------------------------------------------------------------

    def break_off(self, reason: str, *, here_ns: int = NOTICE_NS, there_ns: int = NOTICE_NS) -> None:
        """Break the connection: what is on its way is lost.

        Args:
            reason: for the publisher.
            here_ns: time in which the publisher notices.
            there_ns: time in which the node does. A node that hears nothing takes the stream for alive.
        """
        if self.broken:
            return
        self.broken = True
        world = self.world
        world.at(world.between(0, here_ns), self._end, reason)
        if self.context is not None:
            world.at(world.between(0, there_ns), self.context.lose)

    def _end(self, reason: str) -> None:
        self.broken = True
        client, self.client = self.client, None
        if client is not None:
            client.on_end(reason)


class Elsewhere(Connection):
    """A stream to another node, which takes no blocks: it answers nothing and ends after a while."""

    def __init__(self, world: World, client: Client) -> None:
        super().__init__(world, client, LinkOptions((0, 0), 1 << 30), (None, None, "elsewhere"))
        kind = publish_pb2.PublishStreamResponse.EndOfStream
        end = kind(status=kind.Code.SUCCESS, block_number=(1 << 64) - 1)
        if world.chance(0.5):
            self.deliver(publish_pb2.PublishStreamResponse(end_stream=end).SerializeToString())
        world.at(world.between(0, 4_000_000_000), self._end, "the other node went away")

    def send(self, message: bytes) -> None:
        """Take a message, and forget it."""

    def half_close(self) -> None:
        self.half_closed = True
        self.deliver("OK")


class ServerContext:
    """The node's side of a connection, as the service sees it.

    Args:
        connection: the whole.
        loop: the node's.
        parse: the service's deserializer.
        on_write: called with each response that the service writes.
        on_read: called with each message that the service reads, and its parsed form.
        on_half_close: called when the service has read their end.
        on_over: called when the service has ended the call in order.
    """

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        parse: Callable[[bytes], Any],
        on_write: Callable[[ServerContext, publish_pb2.PublishStreamResponse], None],
        on_read: Callable[[bytes, Any], None],
        on_half_close: Callable[[ServerContext], None],
        on_over: Callable[[ServerContext], None],
    ) -> None:
        self.connection = connection
        self.task: asyncio.Task[Any] | None = None
        self._loop = loop
        self._parse = parse
        self._on_write = on_write
        self._on_read = on_read
        self._on_half_close = on_half_close
        self._on_over = on_over
        self._inbox: deque[bytes | None] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._unread_count = 0
        self._lost = False

    @property
    def can_write(self) -> bool:
        is_over = self._lost or self.task is None or self.task.done()
        return not is_over and self._unread_count < self.connection.options.window

    # --- what the service asks -----------------------------------------------------------------------------

    def auth_context(self) -> dict[str, list[bytes]]:
        subject = self.connection.subject
        return {} if subject is None else {"x509_subject": [subject.encode()]}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        name = self.connection.publisher_id
        return () if name is None else (("publisher-id", name),)

    def peer(self) -> str:
        return self.connection.peer

    async def read(self) -> Any:
        await asyncio.sleep(0)  # gRPC answers through the event loop even if the message is here
        while not self._inbox and not self._lost:
            self._reader = self._loop.create_future()
            await self._reader
        message = None if self._lost else self._inbox[0]
        if message is None:
            if not self._lost:
                self._on_half_close(self)
            return aio.EOF
        self._inbox.popleft()
        self.connection.taken()
        request = self._parse(message)
        self._on_read(message, request)
        return Poison() if message == POISON else request

    async def write(self, response: publish_pb2.PublishStreamResponse) -> None:
        while self._unread_count >= self.connection.options.window or self._lost:
            self._writer = self._loop.create_future()
            await self._writer
        self._unread_count += 1
        self._on_write(self, response)
        self.connection.deliver(response.SerializeToString())

    async def send_initial_metadata(self, metadata: object) -> None:
        """Do nothing: the publishers do not wait for it."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.connection.deliver(f"{code.name}: {details}")
        raise StreamAborted(details)

    # --- what the connection tells -------------------------------------------------------------------------

    def arrive(self, message: bytes | None) -> None:
        """Take a message, or the end of the publisher's side."""
        self._inbox.append(message)
        _wake(self._reader)

    def consumed(self) -> None:
        """Note that the publisher has read a response."""
        self._unread_count -= 1
        self.has_room()

    def has_room(self) -> None:
        _wake(self._writer)

    def lose(self) -> None:
        """Note that the connection is gone: reading ends, and soon after the call is cancelled."""
        self._lost = True
        _wake(self._reader)
        self.connection.world.at(self.connection.world.between(0, 10_000_000), self._cancel)

    def end(self) -> None:
        """The node is gone: what its cancelled tasks still write is lost."""
        self._lost = True

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, StreamAborted):
                self.connection.world.break_rule("No error in our own code", f"a stream died of {error!r}")
            return
        if not task.cancelled():
            self._on_over(self)
            self.connection.deliver("OK")


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Poison:
    """A request whose handling fails, as if our code had a bug there."""

    def WhichOneof(self, name: str) -> str:
        raise RuntimeError("a simulated bug")
