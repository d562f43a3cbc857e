"""Acknowledgement latency of small blocks at half of the maximum load, against two flushes.

    python -m benchmarks.publish_latency [--quick]

Each round first drives a node as fast as it goes, for the load; then another gets blocks at half that pace,
and a block's latency is the time to its acknowledgement. The first blocks of a node are counted apart. The
bare pair writes as many bytes as such a block has and flushes, writes 38 bytes and flushes (`fdatasync`), on
the same disk, at the same pace. The bare loop is gRPC and such a pair for each block
(`benchmarks.bare_server`). They alternate.

Blocks and pairs are both timed from when they were due. A disk that stands still for 0.1 s makes dozens of
blocks slow, but only one pair if pairs were timed from their beginning. The text in brackets has the times
since sending, and since the beginning of a pair.

The publisher is bare, with one thread (`benchmarks.paced_publisher`), since the threads of gRPC's own client
take the node's processors; the figures with it are in brackets. There a second thread wakes the event loop
for each block, as the loop's timers have whole milliseconds.

`python -m benchmarks.block_times` breaks a block's time down.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from operator import attrgetter
from statistics import median

import uvloop
from grpc import aio

from benchmarks.chains import Chain, make_chain
from benchmarks.measuring import Rows, print_rows
from benchmarks.paced_publisher import Latency, latencies, p99
from benchmarks.publish_processes import bare_server, node, open_call, publish
from sluice.gateway.api import publish_pb2

__all__ = ["run"]

ITEMS_PER_BLOCK, ITEM_BYTES = 30, 165
BLOCK_COUNT = 2_000
FIRST_BLOCKS = 100
"""The blocks of a fresh node that are counted apart."""
ROUNDS = 9
"""With 5, one bad stretch of 4 s could decide the p99."""
_SINCE_SENT, _SINCE_DUE = attrgetter("since_sent"), attrgetter("since_due")


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


async def _grpc_latencies(address: str, chain: Chain, blocks_per_second: float) -> list[float]:
    """Return the seconds from each block's last message to its acknowledgement, with gRPC's own client."""
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


def _flush_pairs(count: int, size_bytes: int, pairs_per_second: float) -> list[Latency]:
    """Write and flush twice at a steady pace; return the times of each pair."""
    found = []
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
            found.append(Latency(due, started, time.perf_counter()))
    return found


def _ms(figure: Callable[[Sequence[float]], float], rounds: Iterable[Sequence[float]]) -> float:
    """Return the median of a figure of each round, in milliseconds."""
    return median(map(figure, rounds)) * 1e3


def _each(time_of: Callable[[Latency], float], rounds: Iterable[Sequence[Latency]]) -> list[list[float]]:
    return [list(map(time_of, found)) for found in rounds]


def run(quick: bool = False) -> Rows:
    """Measure load, latency and flushes; return a label and a text."""
    chain = make_chain(BLOCK_COUNT // (4 if quick else 1), ITEMS_PER_BLOCK, ITEM_BYTES)
    count = len(chain.messages)
    loads, firsts, blocks, pairs, loops, grpc = [], [], [], [], [], []
    for _ in range(1 if quick else ROUNDS):
        with node(chain) as facts:
            load = count / uvloop.run(publish(facts.address, chain))
        loads.append(load)
        with bare_server("echo", 1, count) as address:
            loops.append(latencies(address, chain, load / 2)[FIRST_BLOCKS:])
        with node(chain) as facts:
            found = latencies(facts.address, chain, load / 2)
        firsts.append(found[:FIRST_BLOCKS])
        blocks.append(found[FIRST_BLOCKS:])
        pairs.append(_flush_pairs(count, chain.size_bytes // count, load / 2))
        with node(chain) as facts:
            grpc.append(uvloop.run(_grpc_latencies(facts.address, chain, load / 2))[FIRST_BLOCKS:])
    load = median(loads)
    sent, first, loop, pair = (_each(_SINCE_SENT, rounds) for rounds in (blocks, firsts, loops, pairs))
    due, pair_due = (_each(_SINCE_DUE, rounds) for rounds in (blocks, pairs))
    text = (
        f"at {load / 2:,.0f} of {load:,.0f} blocks/s: "
        f"since they were due median {_ms(median, due):.2f} ms, p99 {_ms(p99, due):.2f} ms; "
        f"a pair of flushes {_ms(median, pair_due):.2f} ms, p99 {_ms(p99, pair_due):.2f} ms; "
        f"ratio {_ms(median, due) / _ms(median, pair_due):.1f}, p99 {_ms(p99, due) / _ms(p99, pair_due):.1f} "
        f"(since they were sent: median {_ms(median, sent):.2f} ms, p99 {_ms(p99, sent):.2f} ms, of a pair "
        f"once it has begun {_ms(median, pair):.2f} ms, p99 {_ms(p99, pair):.2f} ms, "
        f"ratio {_ms(median, sent) / _ms(median, pair):.1f}, p99 {_ms(p99, sent) / _ms(p99, pair):.1f}; "
        f"the bare loop {_ms(median, loop):.2f} ms, p99 {_ms(p99, loop):.2f} ms; "
        f"with gRPC's client {_ms(median, grpc):.2f} ms, p99 {_ms(p99, grpc):.2f} ms); "
        f"the first {FIRST_BLOCKS} blocks: median {_ms(median, first):.2f} ms, worst {_ms(max, first):.2f} ms"
    )
    return [("publish, latency of small blocks", text)]


if __name__ == "__main__":
    print_rows(run)
