"""A node for tests to follow over real gRPC; a script makes it lie, stall or break off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from sluice.gateway.api import node_pb2, node_pb2_grpc, subscribe_pb2, subscribe_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.cluster import peer_follower as following
from sluice.gateway.cluster.catch_up import Range
from sluice.gateway.cluster.peer_stream import PeerStream
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.services.node_service import STATUS_KEY

_StatusService = node_pb2_grpc.BlockNodeServiceServicer
_SubscribeService = subscribe_pb2_grpc.BlockStreamSubscribeServiceServicer
Response = subscribe_pb2.SubscribeStreamResponse
Code = Response.Code
Script = Callable[["FakePeer", int, int], AsyncIterator[Response]]


def items_of(*items: bytes) -> Response:
    """Return an item set."""
    response = Response()
    response.block_items.block_items.extend(items)
    return response


def end_of(number: int) -> Response:
    """The end of a block."""
    response = Response()
    response.end_of_block.block_number = number
    return response


def whole(*blocks: Block) -> list[Response]:
    """Blocks, each in one set."""
    return [response for block in blocks for response in (items_of(*block.items), end_of(block.number))]


async def honest(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send the requested blocks that exist, and end in order."""
    for block in peer.blocks:
        if start <= block.number <= end:
            for response in whole(block):
                yield response
    yield Response(status=Code.SUCCESS)


async def silent(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
    """Send nothing."""
    await asyncio.Event().wait()
    yield Response()


def says(*responses: Response) -> Script:
    """Return a script that sends these responses and ends."""

    async def script(peer: FakePeer, start: int, end: int) -> AsyncIterator[Response]:
        for response in responses:
            yield response

    return script


class FakePeer(
    node_pb2_grpc.BlockNodeServiceServicer, subscribe_pb2_grpc.BlockStreamSubscribeServiceServicer
):
    """A peer with some blocks.

    Args:
        blocks: the blocks of `honest` and of its status.
        script: answers a subscription.
    """

    def __init__(self, blocks: Sequence[Block], script: Script = honest) -> None:
        self.blocks = blocks
        self.script = script
        self.last: int | None = blocks[-1].number if blocks else None
        self.asked: list[tuple[int, int]] = []
        """The subscriptions, start and end of each."""
        self.status_count = 0
        self.role = ""
        """Its reported role; empty: not a Sluice node."""
        self.report: dict[str, Any] = {}
        """What it reports beside its role."""
        self.is_mute = False
        """Whether it ignores status requests, like a hung process."""
        self.address = ""

    async def serverStatus(self, request: Any, context: Any) -> node_pb2.ServerStatusResponse:
        self.status_count += 1
        if self.is_mute:
            await asyncio.Event().wait()
        if self.role or self.report:
            report = {"role": self.role} | self.report
            context.set_trailing_metadata(((STATUS_KEY, json.dumps(report)),))
        if self.last is None:
            return node_pb2.ServerStatusResponse(last_available_block=U64_MAX)
        first = self.blocks[0].number if self.blocks else 0
        return node_pb2.ServerStatusResponse(first_available_block=first, last_available_block=self.last)

    async def serverStatusDetail(self, request: Any, context: Any) -> node_pb2.ServerStatusDetailResponse:
        return node_pb2.ServerStatusDetailResponse()

    async def subscribeBlockStream(
        self, request: subscribe_pb2.SubscribeStreamRequest, context: Any
    ) -> AsyncIterator[Response]:
        start, end = request.start_block_number, request.end_block_number
        self.asked.append((start, end))
        async for response in self.script(self, start, end):
            yield response


async def _nonsense(request: bytes, context: Any) -> bytes:
    return b"\xff\xff"


async def _nonsense_stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield await _nonsense(request, context)


@asynccontextmanager
async def nonsense_peer() -> AsyncIterator[str]:
    """Yield the address of a peer whose answers do not parse."""
    server = aio.server()
    answer: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(_nonsense)
    for service, method in (("BlockNodeService", "serverStatus"), ("BlockAccessService", "getBlock")):
        name = f"org.hiero.block.api.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {method: answer}),))
    answers: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(_nonsense_stream)
    name = "org.hiero.block.api.BlockStreamSubscribeService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"subscribeBlockStream": answers}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def fake_peer(blocks: Sequence[Block], script: Script = honest) -> AsyncIterator[FakePeer]:
    """Yield a listening peer."""
    peer = FakePeer(blocks, script)
    server = aio.server()
    node_pb2_grpc.add_BlockNodeServiceServicer_to_server(peer, server)
    subscribe_pb2_grpc.add_BlockStreamSubscribeServiceServicer_to_server(peer, server)
    peer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield peer
    finally:
        await server.stop(0)


def give_up_soon(monkeypatch: pytest.MonkeyPatch, peer: FakePeer) -> None:
    """Give this silent peer up after 0.2 s; others have the time of the settings."""

    def opened(
        conductor: Conductor, address: str, plan: Range, stall_seconds: float, **more: Any
    ) -> PeerStream:
        seconds = 0.2 if address == peer.address else stall_seconds
        return PeerStream(conductor, address, plan, seconds, **more)

    monkeypatch.setattr(following, "PeerStream", opened)
