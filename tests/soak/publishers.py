"""The clients of the soak: real publishers that come and go, and raw streams that misbehave.

    client    `publishers.client.client.PublishClient`, stopped politely and started again
    breaker   breaks its connection, mostly in the middle of a block
    slow      sends items with pauses, and so loses its blocks to a timeout or a stall
    deaf      reads no answer until the node, or its own patience, ends the stream
    stuck     a publisher and a subscriber whose connections read nothing, until the node cuts them off

All but the stuck ones send the same chain, at the pace of `Feed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import click
import uvloop
from grpc import aio

from sluice.gateway.addresses import parse_address
from sluice.gateway.api import block_items_pb2, publish_pb2, publish_pb2_grpc, subscribe_pb2
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.services import publish_service, subscribe_service
from sluice.publishers.blocks.maker import BlockMaker
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.errors import PublisherError
from tests.deaf_client import DeafClient
from tests.nodes import KEY, SMALL

__all__ = ["Feed", "Raw", "Visits", "publish_all", "run_client", "run_raw"]

KEPT_BLOCKS = 4_000
AHEAD_BLOCKS_MAX = KEPT_BLOCKS // 2
"""How far the chain runs ahead of the stored blocks: a block that is dropped too early could never be
sent."""
WAIT_SECONDS = 0.1
DEAF_PAUSE_SECONDS = 30.0
STUCK_SECONDS = 120.0
"""How long a client that reads nothing waits to be cut off; the node does so after 2 and 30 s."""
_Request = publish_pb2.PublishStreamRequest


class Feed:
    """The chain at a steady pace; it keeps the newest blocks for later publishers."""

    def __init__(self, maker: BlockMaker, blocks_per_second: float) -> None:
        self._maker = maker
        self._seconds_per_block = 1 / blocks_per_second
        self._blocks: dict[int, Block] = {}
        self._more = asyncio.Condition()
        self.count = 0
        """The number of the next block."""
        self.ended = False
        """The chain has ended."""
        self.waited_seconds = 0.0
        """How long the pace paused because too few blocks were stored."""

    async def run(self, count: int, visits: Visits) -> None:
        """Make `count` blocks, never too far ahead of the last stored one; fewer if that took time."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        end = begun + count * self._seconds_per_block
        for block in self._maker.blocks(count):
            while block.number > visits.last_number + AHEAD_BLOCKS_MAX:
                await asyncio.sleep(WAIT_SECONDS)
                begun += WAIT_SECONDS  # the pace does not rise afterwards
                self.waited_seconds += WAIT_SECONDS
            if self.waited_seconds and loop.time() > end:
                break
            await asyncio.sleep(begun + self.count * self._seconds_per_block - loop.time())
            async with self._more:
                self._blocks[block.number] = block
                self._blocks.pop(block.number - KEPT_BLOCKS, None)
                self.count = block.number + 1
                self._more.notify_all()
        async with self._more:
            self.ended = True
            self._more.notify_all()

    async def ends_within(self, seconds: float) -> None:
        """Wait for the end of the chain, at most this long."""
        async with self._more:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait_for(lambda: self.ended), seconds)

    async def block(self, number: int) -> Block | None:
        """Wait for a block; None: the chain ended before it, or dropped it."""
        if number not in self._blocks:
            async with self._more:
                await self._more.wait_for(lambda: self.count > number or self.ended)
        return self._blocks.get(number)

    async def blocks(self, number: int) -> AsyncIterator[Block]:
        """Blocks from `number` on, until the chain's end."""
        while (block := await self.block(number)) is not None:
            yield block
            number += 1


@dataclass(slots=True)
class Visits:
    """The counts of the publishers, for the report."""

    counts: Counter[str] = field(default_factory=Counter)
    last_number: int = -1
    """The highest block reported as stored."""

    def heard(self, number: int) -> None:
        """Note an acknowledgement, or the last block in another answer."""
        if number < 1 << 63:  # 2^64 - 1 stands for none
            self.last_number = max(self.last_number, number)


async def run_client(name: str, address: str, feed: Feed, visits: Visits, rng: Random) -> None:
    """Publish with the real client until the chain ends; sometimes stop it and begin another."""
    while True:
        client = PublishClient([address], name, ClientOptions())
        publishing = asyncio.ensure_future(client.publish(feed.blocks(visits.last_number + 1)))
        try:
            await asyncio.wait({publishing}, timeout=rng.uniform(2, 40))
            publishing.cancel()  # no effect on a finished task
            with contextlib.suppress(asyncio.CancelledError, PublisherError):
                await publishing
        except asyncio.CancelledError:
            publishing.cancel()
            await asyncio.wait({publishing})
            raise
        visits.counts["clients stopped"] += 1
        if feed.ended and visits.last_number + 1 >= feed.count:
            return
        await asyncio.sleep(rng.uniform(0, 1))


@dataclass(frozen=True, slots=True)
class Raw:
    """The behaviour of a raw stream."""

    breaks: float = 0.0
    """The probability of a broken connection at an item set."""
    item_pause_seconds: float = 0.0
    """The pause between two items, each in its own set; 0 sends halves of a block."""
    reads: bool = True
    """Whether answers are read."""


async def run_raw(name: str, address: str, feed: Feed, visits: Visits, rng: Random, raw: Raw) -> None:
    """Open raw streams, one after the other, until the chain ends."""
    while not (feed.ended and visits.last_number + 1 >= feed.count):
        async with aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub = publish_pb2_grpc.BlockStreamPublishServiceStub(channel)
            call = stub.publishBlockStream(metadata=(("publisher-id", name),))
            stream = _RawStream(call, feed, visits, rng, raw)
            tasks = [asyncio.ensure_future(stream.write())]
            if raw.reads:
                tasks.append(asyncio.ensure_future(stream.read()))
            patience = rng.uniform(5, 60) if raw.reads else rng.uniform(5, 20)
            try:
                await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()
        visits.counts[f"{name.rstrip('0123456789-')} streams"] += 1
        # grpcio keeps the connection of a call with unread answers until the process ends, so deaf publishers
        # are rare.
        if raw.reads:
            await asyncio.sleep(rng.uniform(0, 0.5))
        else:
            await feed.ends_within(rng.uniform(0, DEAF_PAUSE_SECONDS))


class _RawStream:
    """One raw stream, and its position in the chain."""

    def __init__(
        self, call: aio.StreamStreamCall[Any, Any], feed: Feed, visits: Visits, rng: Random, raw: Raw
    ) -> None:
        self._call = call
        self._feed = feed
        self._visits = visits
        self._rng = rng
        self._raw = raw
        self._next = visits.last_number + 1
        self._skipped = -1

    async def read(self) -> None:
        """Read answers until the node ends the stream."""
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
            async for response in self._call:
                kind = response.WhichOneof("response")
                self._visits.counts[kind] += 1
                if kind == "acknowledgement":
                    number = response.acknowledgement.block_number
                    self._visits.heard(number)
                    self._next = max(self._next, number + 1)
                elif kind == "skip_block":
                    self._skipped = response.skip_block.block_number
                    self._next = max(self._next, self._skipped + 1)
                elif kind == "resend_block":
                    self._next = response.resend_block.block_number
                elif kind == "node_behind_publisher":
                    last = response.node_behind_publisher.block_number
                    self._next = 0 if last >= 1 << 63 else last + 1
                elif kind == "end_stream":
                    self._visits.heard(response.end_stream.block_number)
                    return

    async def write(self) -> None:
        """Send blocks until the connection breaks or the chain ends."""
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
            while (block := await self._feed.block(self._next)) is not None:
                if not await self._send(block):
                    return
            await asyncio.sleep(1)

    async def _send(self, block: Block) -> bool:
        """Send a block or its beginning; return whether the stream goes on."""
        self._next = number = block.number
        size = 1 if self._raw.item_pause_seconds else -(-len(block.items) // 2)
        for start in range(0, len(block.items), size):
            items = block_items_pb2.BlockItemSet(block_items=block.items[start : start + size])
            await self._call.write(_Request(block_items=items))
            if self._rng.random() < self._raw.breaks:
                self._visits.counts["broken in mid-block"] += 1
                return False
            await asyncio.sleep(self._raw.item_pause_seconds)
            if self._next != number or self._skipped == number:
                return True
        await self._call.write(_Request(end_of_block=block_items_pb2.BlockEnd(block_number=number)))
        if self._next == number:
            self._next = number + 1
        return True


async def run_stuck(
    name: str, address: str, feed: Feed, visits: Visits, path: str, message: bytes, *, stays: bool
) -> None:
    """Make calls whose answers nobody reads, one after the other, until the last block is made.

    `stays`: wait for the end of the last call, too.
    """
    while not feed.ended:
        with DeafClient(parse_address(address), STUCK_SECONDS) as client:
            client.ask(path, message)
            cut = asyncio.ensure_future(asyncio.to_thread(client.expect_close))
            while not cut.done() and (stays or not feed.ended):
                await asyncio.wait({cut}, timeout=WAIT_SECONDS)
            if cut.done():
                visits.counts[f"{name} cut off"] += 1
            client.hang_up()
            await cut


async def publish_all(address: str, count: int, blocks_per_second: float, seed: int) -> Visits:
    """Send a chain of `count` blocks with four clients and four raw streams, beside two stuck ones."""
    rng = Random(seed)
    feed, visits = Feed(BlockMaker(seed, KEY, SMALL), blocks_per_second), Visits()
    raws = {
        "breaker-1": Raw(breaks=0.05),
        "breaker-2": Raw(breaks=0.01),
        "slow": Raw(item_pause_seconds=0.2),
        "deaf": Raw(reads=False),
    }
    async with asyncio.TaskGroup() as group:
        group.create_task(feed.run(count, visits))
        group.create_task(_collect_garbage(feed))
        for index in range(1, 5):
            group.create_task(run_client(f"client-{index}", address, feed, visits, Random(rng.random())))
        first = await feed.block(0)
        assert first is not None, "a chain without blocks"
        # The node has it soon, and answers a second offer.
        offer = _Request(block_items=block_items_pb2.BlockItemSet(block_items=first.items[:1]))
        every = subscribe_pb2.SubscribeStreamRequest(start_block_number=0, end_block_number=U64_MAX)
        stuck = {
            "stuck publisher": (publish_service, offer),
            "stuck subscriber": (subscribe_service, every),
        }
        for name, (service, message) in stuck.items():
            path, asked = f"/{service.SERVICE_NAME}/{service.METHOD_NAME}", message.SerializeToString()
            stays = service is subscribe_service  # soon cut off
            group.create_task(run_stuck(name, address, feed, visits, path, asked, stays=stays))
        for name, raw in raws.items():
            group.create_task(run_raw(name, address, feed, visits, Random(rng.random()), raw))
    visits.counts["seconds without a new block"] = round(feed.waited_seconds)
    return visits


async def _collect_garbage(feed: Feed) -> None:
    """Let connections close soon: grpcio holds each until its last call goes, and calls form cycles."""
    while not feed.ended:
        await asyncio.sleep(5)
        gc.collect()


def main() -> None:
    """Publish; arguments: ADDRESS BLOCKS BLOCKS_PER_SECOND SEED."""
    address, count, blocks_per_second, seed = sys.argv[1:]
    visits = uvloop.run(publish_all(address, int(count), float(blocks_per_second), int(seed)))
    click.echo(", ".join(f"{name}: {times}" for name, times in sorted(visits.counts.items())))


if __name__ == "__main__":
    main()
