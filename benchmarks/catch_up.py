"""Catching up from a peer, and reading a chain over gRPC, against publishing the same chain in the same run.

    python -m benchmarks.catch_up [--quick]

Two nodes, each a process of its own (`sluice serve`, mode full, Ed25519 proofs); the second has the first as
its peer. A publisher sends the chain to the first; one subscriber reads it whole; then a publisher offers the
second the chain's last block. The pace of catching up counts from the first blocks that this node holds; the
time until then, its start, is told apart. Each round has fresh nodes; the best counts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import uvloop
from grpc import aio

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish import CASES
from benchmarks.publish_processes import node, open_call, publish
from sluice.gateway.api import node_pb2, node_pb2_grpc, subscribe_pb2
from sluice.gateway.blocks.block_numbers import from_wire

__all__ = ["CaughtUp", "measure", "run"]

_METHOD = "/org.hiero.block.api.BlockStreamSubscribeService/subscribeBlockStream"
_Request = subscribe_pb2.SubscribeStreamRequest


async def subscribe(address: str, last_number: int) -> float:
    """Read the chain as one subscriber that parses no messages; return the seconds."""
    async with aio.insecure_channel(address, options=(("grpc.max_receive_message_length", -1),)) as channel:
        await channel.channel_ready()
        request = _Request(start_block_number=0, end_block_number=last_number)
        started = time.perf_counter()
        method: Any = channel.unary_stream(_METHOD)
        status = b""
        async for message in method(request.SerializeToString()):
            status = message
        seconds = time.perf_counter() - started
        code = subscribe_pb2.SubscribeStreamResponse.FromString(status).status
        if code != subscribe_pb2.SubscribeStreamResponse.Code.SUCCESS:
            raise SystemExit(f"subscription: got status {code}, expected SUCCESS")
        return seconds


class CaughtUp(NamedTuple):
    """How a node caught up."""

    start_seconds: float
    """Until it held its first blocks."""
    start_count: int
    """The blocks that it held then."""
    seconds: float
    """Until it held all."""

    def blocks_per_second(self, block_count: int) -> float:
        """Return the pace after the start."""
        return (block_count - self.start_count) / (self.seconds - self.start_seconds)


async def catch_up(address: str, chain: Chain) -> CaughtUp:
    """Offer a node the chain's last block, and wait until it holds that."""
    last_number = len(chain.messages) - 1
    async with aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = open_call(channel)
        started = time.perf_counter()
        await call.write(chain.messages[last_number][0])
        status = node_pb2_grpc.BlockNodeServiceStub(channel)
        start: tuple[float, int] | None = None
        while True:
            answer = await status.serverStatus(node_pb2.ServerStatusRequest())
            seconds, held = time.perf_counter() - started, from_wire(answer.last_available_block)
            if held == last_number:
                return CaughtUp(*(start or (0.0, 0)), seconds)
            if start is None and held is not None:
                start = seconds, held + 1
            await asyncio.sleep(0.01)


def measure(chain: Chain, round_count: int) -> tuple[float, float, CaughtUp]:
    """Publish, subscribe and catch up, alternating; return the best of each."""
    rounds = []
    for _ in range(round_count):
        with node(chain) as first, node(chain, ("--peer", first.address)) as second:
            published = uvloop.run(publish(first.address, chain))
            subscribed = uvloop.run(subscribe(first.address, len(chain.messages) - 1))
            rounds.append((published, subscribed, uvloop.run(catch_up(second.address, chain))))
    published_all, subscribed_all, caught_up_all = zip(*rounds, strict=True)
    fastest = max(caught_up_all, key=lambda found: found.blocks_per_second(len(chain.messages)))
    return min(published_all), min(subscribed_all), fastest


def run(quick: bool = False) -> Rows:
    """Run every case; return a label and a text for each figure."""
    rows = []
    for case in CASES[1:2] if quick else CASES:
        block_count = 2 * case.block_count
        chain = make_chain(block_count, case.items_per_block, case.item_bytes)
        published, subscribed, caught_up = measure(chain, 1 if quick else 3)
        megabytes, pace = chain.size_bytes / 1e6 / block_count, caught_up.blocks_per_second(block_count)
        text = (
            f"{pace:,.0f} blocks/s, {pace * megabytes:,.1f} MB/s "
            f"after a start of {caught_up.start_seconds:.2f} s; "
            f"published at {block_count / published * megabytes:,.1f} MB/s: "
            f"ratio {pace * published / block_count:.2f}; "
            f"one subscriber reads {block_count / subscribed * megabytes:,.1f} MB/s"
        )
        rows.append((f"catch-up, {case.label}", text))
    return rows


if __name__ == "__main__":
    print_rows(run)
