"""Catching up from a peer, and reading a chain over gRPC, against publishing the same chain in the same run.

    python -m benchmarks.catch_up [--quick]

Two nodes, each a process of its own (`sluice serve`, mode full, Ed25519 proofs); the second has the first as
its peer. A publisher sends the chain to the first; one subscriber reads it whole; then a publisher offers the
second the chain's last block, and the time until that node holds the chain counts. Each round has fresh
nodes; the best counts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop
from grpc import aio

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.publish import CASES
from benchmarks.publish_processes import node, open_call, publish
from sluice.gateway.api import node_pb2, node_pb2_grpc, subscribe_pb2

__all__ = ["measure", "run"]

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


async def catch_up(address: str, chain: Chain) -> float:
    """Offer a node the chain's last block, and wait until it holds that; return the seconds."""
    last_number = len(chain.messages) - 1
    async with aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = open_call(channel)
        started = time.perf_counter()
        await call.write(chain.messages[last_number][0])
        status = node_pb2_grpc.BlockNodeServiceStub(channel)
        while True:
            answer = await status.serverStatus(node_pb2.ServerStatusRequest())
            if answer.last_available_block == last_number:
                return time.perf_counter() - started
            await asyncio.sleep(0.01)


def measure(chain: Chain, round_count: int) -> tuple[float, float, float]:
    """Publish, subscribe and catch up, alternating; return the best seconds of each."""
    rounds = []
    for _ in range(round_count):
        with node(chain) as first, node(chain, ("--peer", first.address)) as second:
            published = uvloop.run(publish(first.address, chain))
            subscribed = uvloop.run(subscribe(first.address, len(chain.messages) - 1))
            rounds.append((published, subscribed, uvloop.run(catch_up(second.address, chain))))
    published_all, subscribed_all, caught_up_all = zip(*rounds, strict=True)
    return min(published_all), min(subscribed_all), min(caught_up_all)


def run(quick: bool = False) -> Rows:
    """Run every case; return a label and a text for each figure."""
    rows = []
    for case in CASES[1:2] if quick else CASES:
        chain = make_chain(case.block_count, case.items_per_block, case.item_bytes)
        published, subscribed, caught_up = measure(chain, 1 if quick else 3)
        megabytes = chain.size_bytes / 1e6
        text = (
            f"{case.block_count / caught_up:,.0f} blocks/s, {megabytes / caught_up:,.1f} MB/s; "
            f"published at {megabytes / published:,.1f} MB/s: ratio {published / caught_up:.2f}; "
            f"one subscriber reads {megabytes / subscribed:,.1f} MB/s"
        )
        rows.append((f"catch-up, {case.label}", text))
    return rows


if __name__ == "__main__":
    print_rows(run)
