"""Acknowledgement latency at half of the load that small blocks can be published at, against two flushes.

    python -m benchmarks.publish_latency [--quick]

First a node is driven as fast as it goes, for the load; then another gets a block every so many milliseconds,
half as often, and each block's latency is the time from sending its end to its acknowledgement. The load is
measured anew in each round, since a machine's minutes are not alike: what is half of a node's load in one may
be three quarters of it in another. The first blocks of a node are counted apart. The bare pair writes as
many bytes as such a block has and flushes, writes 38 bytes and flushes (`fdatasync`), on the same disk, at
the same pace. The bare loop is between the two: gRPC and such a pair for each block, and nothing else
(`benchmarks.bare_server`). They take turns.

The ratio is to what a pair takes once it has begun. A disk that stands still for 0.1 s makes one slow pair,
but dozens of slow blocks, since blocks come when they are due. What a pair takes from when it was due stands
behind: where that is as large as the latency of blocks, the disk has made both.

The publisher is bare (`benchmarks.bare_publisher`), since what gRPC's own client adds, threads of its own on
the same processors, is not the node's; with it stands behind.

Blocks are sent when a thread says so: the timers of an event loop come at whole milliseconds, so that of
blocks that are to be 2.1 ms apart every second one would follow the one before after 1 ms.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from statistics import median, quantiles

import uvloop
from grpc import aio

from benchmarks.bare_publisher import open_bare
from benchmarks.chains import Chain, make_chain
from benchmarks.publish_processes import METHOD, bare_server, node, open_call, publish
from gateway.api import publish_pb2

__all__ = ["latencies", "run"]

ITEMS_PER_BLOCK, ITEM_BYTES = 30, 165
BLOCK_COUNT = 2_000
FIRST_BLOCKS = 100
"""Blocks of a node that has just started, which are counted apart."""
ROUNDS = 9
"""Of 5, one stretch of 4 s in which the machine stood still more often could decide the p99."""


async def _due(count: int, per_second: float) -> AsyncIterator[int]:
    """Yield numbers from 0 on, each when it is due."""
    loop, due = asyncio.get_running_loop(), asyncio.Semaphore(0)

    def tell() -> None:
        begun = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, begun + number / per_second - time.perf_counter()))
            loop.call_soon_threadsafe(due.release)

    telling = asyncio.ensure_future(asyncio.to_thread(tell))
    for number in range(count):
        await due.acquire()
        yield number
    await telling


async def latencies(address: str, chain: Chain, blocks_per_second: float) -> list[float]:
    """Send a block every so often; return the seconds from each block's end to its acknowledgement."""
    count = len(chain.messages)
    sent = [0.0] * count
    found: list[float] = []
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(response: publish_pb2.PublishStreamResponse | str) -> None:
        number = len(found)
        if over.done():
            return
        if isinstance(response, str) or response.acknowledgement.block_number != number:
            error = f"block {number}: got {response}, expected its acknowledgement"
            over.set_exception(RuntimeError(error))
        else:
            found.append(time.perf_counter() - sent[number])
            if len(found) == count:
                over.set_result(None)

    async def send() -> None:
        async for number in _due(count, blocks_per_second):
            *first, last = chain.messages[number]
            publisher.send(first)
            sent[number] = time.perf_counter()
            publisher.send([last])

    publisher = await open_bare(address, METHOD, "benchmark", hear)
    sending = asyncio.ensure_future(send())
    try:
        await over
    finally:
        sending.cancel()
        publisher.close()
    return found


async def _grpc_latencies(address: str, chain: Chain, blocks_per_second: float) -> list[float]:
    """As `latencies`, with gRPC's own client."""
    count = len(chain.messages)
    sent = [0.0] * count
    async with aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = open_call(channel)
        await call.initial_metadata()

        async def send() -> None:
            async for number in _due(count, blocks_per_second):
                *first, last = chain.messages[number]
                for message in first:
                    await call.write(message)
                sent[number] = time.perf_counter()
                await call.write(last)

        sending = asyncio.ensure_future(send())
        found = []
        for number in range(count):
            response = await call.read()
            assert isinstance(response, publish_pb2.PublishStreamResponse), "the node closed the stream"
            if response.acknowledgement.block_number != number:
                raise SystemExit(f"block {number}: got {response}, expected its acknowledgement")
            found.append(time.perf_counter() - sent[number])
        await sending
    return found


def _flush_pairs(count: int, size_bytes: int, pairs_per_second: float) -> tuple[list[float], list[float]]:
    """Write and flush twice, every so often; return the seconds of each pair, and those since it was due."""
    found, since_due = [], []
    data = bytes(size_bytes)
    with tempfile.TemporaryFile(buffering=0) as file:
        fd = file.fileno()
        os.ftruncate(fd, 4096 + count * size_bytes)
        os.fdatasync(fd)
        begun = time.perf_counter()
        for number in range(count):
            due = begun + number / pairs_per_second
            time.sleep(max(0.0, due - time.perf_counter()))
            started = time.perf_counter()
            os.pwrite(fd, data, 4096 + number * size_bytes)
            os.fdatasync(fd)
            os.pwrite(fd, data[:38], 16)
            os.fdatasync(fd)
            ended = time.perf_counter()
            found.append(ended - started)
            since_due.append(ended - due)
    return found, since_due


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def run(quick: bool = False) -> list[tuple[str, str]]:
    """Measure load, latency and flushes; return a label and a text."""
    chain = make_chain(BLOCK_COUNT // (4 if quick else 1), ITEMS_PER_BLOCK, ITEM_BYTES)
    count = len(chain.messages)
    loads, ours, first, loop, bare, bare_since_due, grpc = [], [], [], [], [], [], []
    for _ in range(1 if quick else ROUNDS):
        with node(chain) as facts:
            load = count / uvloop.run(publish(facts.address, chain))
        loads.append(load)
        with bare_server("echo", 1, count) as address:
            loop.append(uvloop.run(latencies(address, chain, load / 2))[FIRST_BLOCKS:])
        with node(chain) as facts:
            found = uvloop.run(latencies(facts.address, chain, load / 2))
        first.append(found[:FIRST_BLOCKS])
        ours.append(found[FIRST_BLOCKS:])
        pairs, pairs_since_due = _flush_pairs(count, chain.size_bytes // count, load / 2)
        bare.append(pairs)
        bare_since_due.append(pairs_since_due)
        with node(chain) as facts:
            grpc.append(uvloop.run(_grpc_latencies(facts.address, chain, load / 2))[FIRST_BLOCKS:])
    load = median(loads)
    medians = [median(map(median, rounds)) * 1e3 for rounds in (ours, bare, loop, first, grpc)]
    p99s = [median(map(_p99, rounds)) * 1e3 for rounds in (ours, bare, loop, grpc, bare_since_due)]
    worst = median(map(max, first)) * 1e3
    text = (
        f"at {load / 2:,.0f} of {load:,.0f} blocks/s: median {medians[0]:.2f} ms, p99 {p99s[0]:.2f} ms; "
        f"a pair of flushes {medians[1]:.2f} ms, p99 {p99s[1]:.2f} ms, since it was due {p99s[4]:.2f} ms; "
        f"ratio {medians[0] / medians[1]:.1f}, p99 {p99s[0] / p99s[1]:.1f} "
        f"(the bare loop {medians[2]:.2f} ms, p99 {p99s[2]:.2f} ms; "
        f"with gRPC's client {medians[4]:.2f} ms, p99 {p99s[3]:.2f} ms); "
        f"the first {FIRST_BLOCKS} blocks: median {medians[3]:.2f} ms, worst {worst:.2f} ms"
    )
    return [("publish, latency of small blocks", text)]


if __name__ == "__main__":
    for label, text in run(quick="--quick" in sys.argv):
        print(f"{label}: {text}")
