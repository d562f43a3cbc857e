"""Sixteen racing publishers against one: blocks acknowledged a second.

    python -m benchmarks.publish_race [--quick]

The chain is the same, and the same client process sends it. All publishers offer the header of each block,
the first to arrive wins, and the others, who are told to skip it, send nothing more of it. They offer the
next block while this one is being sent, so that its winner is known when it is its turn. A publisher alone
sends the same messages, one after the other.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from statistics import median

import uvloop
from grpc import aio

from benchmarks.chains import Chain, make_chain
from benchmarks.publish_processes import Call, node, open_call
from gateway.api import publish_pb2

__all__ = ["run"]

PUBLISHER_COUNT = 16
ITEM_BYTES = 1_000
CASES = ((60, 1_500), (16, 6_000))
"""(blocks, items in each): what a loser costs is the same for both."""
# An answer to a header that comes when its block is on disk already is Skip, not the end of the stream.
_ARGUMENTS = ("--publish-duplicate-skip-window", "1000")


class _Race:
    """Publishers that send one chain to one node."""

    def __init__(self, chain: Chain, calls: list[Call]) -> None:
        self._chain = chain
        self._calls = calls
        self._skipped: defaultdict[int, set[int]] = defaultdict(set)
        self._heard = asyncio.Condition()
        self._busy = [asyncio.Lock() for _ in calls]

    async def run(self) -> None:
        """Send all blocks and wait until every publisher has heard of the last."""
        everybody = set(range(len(self._calls)))
        async with asyncio.TaskGroup() as group:
            for index in everybody:
                group.create_task(self._read(index))
            offering = everybody
            self._offer(group, offering, 0)
            for number, messages in enumerate(self._chain.messages):
                winner = await self._winner_of(number, offering)
                others = everybody - {winner}
                self._offer(group, others, number + 1)
                await self._write(winner, messages[1:])
                self._offer(group, {winner}, number + 1)
                offering = others or everybody

    def _offer(self, group: asyncio.TaskGroup, indexes: set[int], number: int) -> None:
        """Have publishers send the header of a block, if there is one."""
        for messages in self._chain.messages[number : number + 1]:
            for index in indexes:
                group.create_task(self._write(index, messages[:1]))

    async def _winner_of(self, number: int, offering: set[int]) -> int:
        """Wait until all but one of those who offer a block were told to skip it; return the one."""
        await asyncio.sleep(0)  # their headers are first in their queues
        async with self._heard:
            await self._heard.wait_for(lambda: len(offering - self._skipped[number]) == 1)
        return (offering - self._skipped[number]).pop()

    async def _write(self, index: int, messages: list[bytes]) -> None:
        async with self._busy[index]:
            for message in messages:
                await self._calls[index].write(message)

    async def _read(self, index: int) -> None:
        last = len(self._chain.messages) - 1
        while True:
            response = await self._calls[index].read()
            assert isinstance(response, publish_pb2.PublishStreamResponse), "the node closed the stream"
            kind = response.WhichOneof("response")
            if kind == "acknowledgement":
                if response.acknowledgement.block_number == last:
                    return
            elif kind == "skip_block":
                async with self._heard:
                    self._skipped[response.skip_block.block_number].add(index)
                    self._heard.notify_all()
            else:
                raise SystemExit(f"publisher {index}: got {response}, expected an acknowledgement or a skip")


async def _race(address: str, chain: Chain, publisher_count: int) -> float:
    """Publish the chain; return the seconds."""
    options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each
    channels = [aio.insecure_channel(address, options=options) for _ in range(publisher_count)]
    try:
        calls = [open_call(channel, f"publisher-{index}") for index, channel in enumerate(channels)]
        for call in calls:
            await call.initial_metadata()
        started = time.perf_counter()
        await _Race(chain, calls).run()
        return time.perf_counter() - started
    finally:
        for channel in channels:
            await channel.close()


def run(quick: bool = False) -> list[tuple[str, str]]:
    """Race in turns with a publisher alone; return a label and a text for each size of block."""
    rows = []
    for block_count, items_per_block in CASES:
        chain = make_chain(block_count // (4 if quick else 1), items_per_block, ITEM_BYTES, header_apart=True)
        alone, racing = [], []
        for _ in range(1 if quick else 3):
            with node(chain, _ARGUMENTS) as facts:
                alone.append(uvloop.run(_race(facts.address, chain, 1)))
            with node(chain, _ARGUMENTS) as facts:
                racing.append(uvloop.run(_race(facts.address, chain, PUBLISHER_COUNT)))
        count = len(chain.messages)
        ratios = [one / many for one, many in zip(alone, racing, strict=True)]
        text = (
            f"{count / min(racing):,.1f} blocks/s, alone {count / min(alone):,.1f}; "
            f"ratio {min(alone) / min(racing):.2f}, median of {len(ratios)} pairs {median(ratios):.2f}"
        )
        rows.append((f"publish, {PUBLISHER_COUNT} racing, {items_per_block} items of 1 kB", text))
    return rows


if __name__ == "__main__":
    for label, text in run(quick="--quick" in sys.argv):
        print(f"{label}: {text}")
