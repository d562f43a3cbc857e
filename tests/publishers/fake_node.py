"""A node that does what a script says, over real gRPC on a port of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Self

import grpc
import grpc.aio

from sluice.gateway.api import publish_pb2, publish_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, block_number_of, kind_of
from sluice.gateway.limits import MESSAGE_BYTES_DEFAULT

Response = publish_pb2.PublishStreamResponse
Code = publish_pb2.PublishStreamResponse.EndOfStream.Code
NO_BLOCK = 2**64 - 1


class StreamOver(Exception):
    """The publisher closed its side."""


class FakeStream:
    """One publish stream as its script sees it."""

    def __init__(self, node: FakeNode, requests: AsyncIterator[Any], context: Any) -> None:
        self.node = node
        self._requests = requests
        self._context = context
        self._sending = asyncio.Lock()
        metadata = dict(context.invocation_metadata() or ())
        self.publisher_id = metadata.get("publisher-id")

    async def receive(self) -> publish_pb2.PublishStreamRequest:
        """The next message."""
        async for request in self._requests:
            assert isinstance(request, publish_pb2.PublishStreamRequest)
            self.node.message_sizes.append(request.ByteSize())
            return request
        raise StreamOver

    async def header(self) -> tuple[int, list[bytes]]:
        """The next block's number and the items of its first set; other messages before it are refused."""
        request = await self._part()
        items = list(request.block_items.block_items)
        assert items, f"expected a header, got {request.WhichOneof('request')}"
        assert kind_of(items[0]) == ItemKind.BLOCK_HEADER
        return block_number_of(items[0]), items

    async def rest(self, number: int, items: list[bytes]) -> Block:
        """The rest of a block, up to its end."""
        while True:
            request = await self._part()
            if request.HasField("end_of_block"):
                assert request.end_of_block.block_number == number
                block = Block(number, tuple(items))
                self.node.received.append(block)
                return block
            more = list(request.block_items.block_items)
            assert more
            assert kind_of(more[0]) != ItemKind.BLOCK_HEADER
            items += more

    async def _part(self) -> publish_pb2.PublishStreamRequest:
        """The next message of a block; a publisher may end its stream at any time, also in a block."""
        request = await self.receive()
        if self._note(request):
            raise StreamOver
        return request

    def _note(self, request: publish_pb2.PublishStreamRequest) -> bool:
        """Note an EndStream, and say whether it is one."""
        if not request.HasField("end_stream"):
            return False
        end = request.end_stream
        name = publish_pb2.PublishStreamRequest.EndStream.Code.Name(end.end_code)
        self.node.words.append(f"{name}({end.earliest_block_number}, {end.latest_block_number})")
        return True

    async def block(self) -> Block:
        """The next block, whole."""
        return await self.rest(*await self.header())

    async def drain(self) -> None:
        """Read to the end of the publisher's side, noting an EndStream."""
        try:
            while True:
                self._note(await self.receive())
        except StreamOver:
            return

    async def acknowledge(self, number: int) -> None:
        await self._send(Response(acknowledgement=Response.BlockAcknowledgement(block_number=number)))

    async def skip(self, number: int) -> None:
        await self._send(Response(skip_block=Response.SkipBlock(block_number=number)))

    async def resend(self, number: int) -> None:
        await self._send(Response(resend_block=Response.ResendBlock(block_number=number)))

    async def behind(self, last: int) -> None:
        await self._send(Response(node_behind_publisher=Response.BehindPublisher(block_number=last)))

    async def end(self, code: str, last: int, proximate: int = 0) -> None:
        status = Code.Value(code)
        await self._send(
            Response(
                end_stream=Response.EndOfStream(
                    status=status, block_number=last, proximate_block_number=proximate
                )
            )
        )

    async def abort(self, details: str) -> None:
        """Break the stream with an error status."""
        await self._context.abort(grpc.StatusCode.INTERNAL, details)

    async def _send(self, response: Response) -> None:
        async with self._sending:  # gRPC takes one write at a time, and a race acknowledges to everybody
            await self._context.write(response)


Script = Callable[[FakeStream], Awaitable[None]]


async def polite(stream: FakeStream) -> None:
    """Take every next block, acknowledge it; answer the others as the protocol says."""
    node = stream.node
    while True:
        number, items = await stream.header()
        if number <= node.last:
            await stream.end("DUPLICATE_BLOCK", node.last)
            return
        assert number == node.last + 1, f"block {number} after {node.last}"
        await stream.rest(number, items)
        node.last = number
        await stream.acknowledge(number)


async def racing(stream: FakeStream) -> None:
    """Let the first header of a block win, skip the others, tell everybody what is stored."""
    node = stream.node
    node.racers.append(stream)
    try:
        while True:
            request = await stream.receive()
            items = list(request.block_items.block_items)
            if not items or kind_of(items[0]) != ItemKind.BLOCK_HEADER:
                continue  # the rest of a block that was skipped
            number = block_number_of(items[0])
            if number <= node.last:
                await stream.end("DUPLICATE_BLOCK", node.last, proximate=number)
                return
            if number <= node.streaming:
                await stream.skip(number)
                continue
            assert number == node.streaming + 1, f"block {number} after {node.streaming}"
            node.streaming = number
            await stream.rest(number, items)
            node.whole.add(number)
            async with node.committing:
                while node.last + 1 in node.whole:
                    node.last += 1
                    for racer in tuple(node.racers):
                        with suppress(grpc.aio.UsageError):  # one that has just left
                            await racer.acknowledge(node.last)
    finally:
        node.racers.remove(stream)


def stopping_at(number: int, stop: threading.Event) -> Script:
    """Acknowledge blocks up to one, at which the publisher is stopped; it is the block in flight."""

    async def script(stream: FakeStream) -> None:
        while True:
            block = await stream.block()
            stream.node.last = block.number
            if block.number == number:
                stop.set()
                await stream.drain()  # the block is in flight until it has heard of it
            await stream.acknowledge(block.number)

    return script


@contextmanager
def running(node: FakeNode) -> Iterator[FakeNode]:
    """Run a node in a thread of its own, for publishers that are not in this event loop."""
    started, stopped = threading.Event(), threading.Event()

    async def run() -> None:
        async with node:
            started.set()
            await asyncio.to_thread(stopped.wait)

    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(lambda: asyncio.run(run()))
        try:
            assert started.wait(10)
            yield node
        finally:
            stopped.set()
            future.result(10)


class FakeNode(publish_pb2_grpc.BlockStreamPublishServiceServicer):
    """Runs one script per stream, in the order of the streams; the default when there are no more."""

    def __init__(self, scripts: Iterable[Script] = (), last: int = -1, default: Script = polite) -> None:
        self.scripts = list(scripts)
        self.default = default
        self.streaming = last
        self.whole: set[int] = set()
        self.racers: list[FakeStream] = []
        self.committing = asyncio.Lock()
        self.last = last
        self.received: list[Block] = []
        self.words: list[str] = []
        self.publisher_ids: list[str | None] = []
        self.message_sizes: list[int] = []
        self.failures: list[BaseException] = []
        self.address = ""
        self.message_bytes_max = MESSAGE_BYTES_DEFAULT
        self._port = 0

    @property
    def stream_count(self) -> int:
        return len(self.publisher_ids)

    async def publishBlockStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> None:
        stream = FakeStream(self, request_iterator, context)
        self.publisher_ids.append(stream.publisher_id)
        script = self.scripts.pop(0) if self.scripts else self.default
        try:
            await script(stream)
        except StreamOver:
            return
        except (grpc.aio.AbortError, grpc.aio.UsageError):
            raise
        except Exception as error:
            self.failures.append(error)
            raise

    def at(self, port: int) -> Self:
        """Listen at this port, not at a free one."""
        self._port = port
        return self

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=(("grpc.max_receive_message_length", self.message_bytes_max),))
        publish_pb2_grpc.add_BlockStreamPublishServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(0)
        assert not self.failures, self.failures
