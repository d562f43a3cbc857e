"""Other nodes that hold the true chain: the peers of the real `gateway.cluster.peer_follower`.

A channel in memory replaces gRPC's. A faulty peer may not answer, break off in mid-block, fall silent, lie,
or be behind. Limits are so small that two peers often bring blocks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any

import grpc
from grpc import aio

from sluice.gateway.api import block_items_pb2, node_pb2, subscribe_pb2
from sluice.gateway.blocks.block_numbers import to_wire
from sluice.gateway.cluster.limits import ClusterLimits
from sluice.gateway.cluster.ranges import RangeRules
from tests.simulation.coverage import EXPECTED, Coverage
from tests.simulation.options import Options
from tests.simulation.true_chain import true_blocks, with_broken_proof
from tests.simulation.world import MILLISECOND_NS, SECOND_NS, World

STALL_SECONDS = 3.0
"""Silence after which a peer is left."""
PEER_LIMITS = ClusterLimits(
    peer_poll_seconds=0.05,
    peer_share_seconds=0.05,
    ranges=RangeRules(
        blocks_min=2, seconds=0.05, late_factor=20.0, range_bytes_max=4 * 1024, held_bytes_max=8 * 1024
    ),
)
"""Ranges of a few blocks, which wait for memory."""
_Response = subscribe_pb2.SubscribeStreamResponse


def unavailable(details: str) -> aio.AioRpcError:
    nothing = aio.Metadata()
    return aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details)


class Peers:
    """All peers of a run."""

    def __init__(self, world: World, options: Options, coverage: Coverage) -> None:
        self.world, self.options, self.coverage = world, options, coverage
        self.is_faulty = True
        self.sending: set[PeerCall] = set()
        """The calls of the node that have begun and not ended."""
        self.addresses = tuple(f"peer-{index}:1" for index in range(options.peers))
        self._last = {address: world.random.randint(-1, options.blocks - 1) for address in self.addresses}

    def open_channel(self, address: str, *_: object) -> PeerChannel:
        return PeerChannel(self, address)

    def last_of(self, address: str) -> int:
        """Return the last block of a peer, which grows; -1: it is empty."""
        if self.world.chance(0.3):
            self._last[address] = min(self._last[address] + 1, self.options.blocks - 1)
        return self._last[address]

    async def pause(self) -> None:
        most_ns = self.world.random.choice([0, MILLISECOND_NS, 50 * MILLISECOND_NS])
        await asyncio.sleep(self.world.between(0, most_ns) / 1e9)

    def fault(self) -> str:
        """Draw the fault of an attempt; "" for none."""
        if not self.is_faulty or self.world.chance(0.5):
            return "none"
        fault = self.world.random.choice(PEER_FAULTS)
        self.coverage.count("peer", fault)
        return fault


PEER_FAULTS = ("does not answer", "breaks off", "is silent", "lies", "ends too early")


class PeerChannel:
    """A connection to one peer, as far as `PeerFollower` uses it."""

    def __init__(self, peers: Peers, address: str) -> None:
        self._peers, self._address = peers, address
        self._fault = peers.fault()

    async def __aenter__(self) -> PeerChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Do nothing."""

    def unary_unary(self, path: str, **_: object) -> Callable[..., Any]:
        return lambda request, **_: PeerAnswer(self._status())

    async def _status(self) -> node_pb2.ServerStatusResponse:
        await self._peers.pause()
        if self._fault == "does not answer":
            raise unavailable("nobody listens")
        last = self._peers.last_of(self._address)
        return node_pb2.ServerStatusResponse(last_available_block=to_wire(None if last < 0 else last))

    def unary_stream(self, path: str, **_: object) -> Callable[..., Any]:
        def subscribe(request: subscribe_pb2.SubscribeStreamRequest) -> PeerCall:
            last = min(self._peers.last_of(self._address), request.end_block_number)
            return PeerCall(self._peers, self._address, request.start_block_number, last, self._fault)

        return subscribe


class PeerAnswer:
    """A call with one answer and no trailing metadata."""

    def __init__(self, answer: Coroutine[Any, Any, node_pb2.ServerStatusResponse]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, node_pb2.ServerStatusResponse]:
        return self._answer.__await__()

    async def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return none, as a peer does that is not Sluice."""
        return ()


class PeerCall:
    def __init__(self, peers: Peers, address: str, first: int, last: int, fault: str) -> None:
        self._peers, self._address = peers, address
        if any(other._address != address for other in peers.sending):
            peers.coverage.count("peer", "another peer sends, too")
        peers.sending.add(self)
        self._messages = self._send(first, last, fault)
        self._is_reading = False

    async def read(self) -> Any:
        assert not self._is_reading, "one at a time"
        self._is_reading = True
        try:
            response = await anext(self._messages, aio.EOF)
            if response is aio.EOF:
                self.cancel()
            return response
        finally:
            self._is_reading = False

    def cancel(self) -> None:
        """Note that the call has ended."""
        self._peers.sending.discard(self)

    async def _send(self, first: int, last: int, fault: str) -> AsyncIterator[_Response]:
        world = self._peers.world
        wrong = world.random.randint(first, max(first, last))
        for number in range(first, last + 1):
            is_wrong = number == wrong
            items = true_blocks()[number].items
            if is_wrong and fault == "lies":
                items = with_broken_proof(number).items
            if is_wrong and fault == "ends too early":
                break
            for start in range(0, len(items), 2):
                await self._peers.pause()
                if is_wrong and start and fault == "breaks off":
                    raise unavailable("the connection broke")
                if is_wrong and start and fault == "is silent":
                    await asyncio.sleep(world.between(0, 20 * SECOND_NS) / 1e9)
                items_of_set = block_items_pb2.BlockItemSet(block_items=items[start : start + 2])
                yield _Response(block_items=items_of_set)
            yield _Response(end_of_block=block_items_pb2.BlockEnd(block_number=number))
        await self._peers.pause()
        yield _Response(status=_Response.Code.SUCCESS)


EXPECTED["peer"] = [*PEER_FAULTS, "a block of a peer is stored", "another peer sends, too"]
