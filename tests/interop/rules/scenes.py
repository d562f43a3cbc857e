"""Helpers for tests of the rules: a node with a movable clock, and publishers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sluice.gateway.blocks.block import Block
from sluice.gateway.node.node import Node
from sluice.gateway.node.rules import NodeLimits
from sluice.gateway.race.tables import BlockState
from sluice.gateway.services.publish_service import DrainLimits
from tests.nodes import (
    ANSWER_SECONDS,
    Publisher,
    Wire,
    make_blocks,
    running_node,
    stream_bytes,
    until,
    wire_to,
)

BLOCKS = make_blocks(14)


class Clock:
    """The node's clock, which runs, and jumps on request."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._offset_ns = 0
        conductor = node.conductor
        conductor.now_ns = self._now_ns
        for part in (conductor.in_flight, conductor.acknowledging):
            part._now_ns = self._now_ns

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._offset_ns

    def jump(self, seconds: float) -> None:
        """Let time pass at once without the node standing still."""
        self._offset_ns += int(seconds * 1e9)
        conductor = self._node.conductor
        conductor._timer_at_ns = self._now_ns()
        conductor._on_time()


class Stage(Wire):
    """Publishers of one node, by name, and its clock."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.clock = Clock(node)

    async def publishers(self, *names: str) -> list[Publisher]:
        """Open a publish stream for each name."""
        return [await self.publisher(name) for name in names]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so inside the node."""
        await until(condition)

    async def held(self, number: int) -> None:
        """Wait until block `number` is complete."""
        live = (BlockState.COMPLETE, BlockState.VERIFIED, BlockState.COMMITTING)
        blocks = self.node.conductor.arbiter.blocks
        await self.until(lambda: number in blocks and blocks[number].state in live)

    async def opened(self, number: int) -> None:
        """Wait until block `number` has failed."""
        blocks = self.node.conductor.arbiter.blocks
        await self.until(lambda: number in blocks and blocks[number].state is BlockState.OPEN)

    async def left(self, count: int) -> None:
        """Wait until only this many streams are open."""
        await self.until(lambda: len(self.node.conductor.arbiter.streams) == count)


_PATIENT = DrainLimits(silence_seconds=ANSWER_SECONDS)


@asynccontextmanager
async def playing(
    data_dir: Path, *, committed: int = 9, drain: DrainLimits = _PATIENT, **settings: Any
) -> AsyncIterator[Stage]:
    """A node that has blocks 0 to committed - 1.

    By default a publisher may be silent for long on a stream that the node has ended: it closes its side when
    it is done.
    """
    async with running_node(data_dir, NodeLimits(drain=drain), **settings) as node:
        if committed:
            async with wire_to(node) as wire:
                first = await wire.publisher("first")
                await first.block(*BLOCKS[:committed])
                await first.call.done_writing()
                await first.expect(*(f"ack {number}" for number in range(committed)), "closed")
        stage = Stage(node)
        try:
            await stage.left(0)
            yield stage
        finally:
            await stage.close()


async def played(data_dir: Path, scene: Callable[[Stage], Awaitable[None]], **options: Any) -> bytes:
    """Play a scene; return the stream file's bytes."""
    async with playing(data_dir, **options) as stage:
        await scene(stage)
    return stream_bytes(data_dir)


async def begin(stage: Stage, publisher: Publisher, number: int) -> None:
    """Send the first half of a block, and wait until its publisher has won it."""
    items = BLOCKS[number].items
    await publisher.items(*items[: len(items) // 2])
    await stage.begun(number)


async def finish(publisher: Publisher, number: int) -> None:
    """Send the second half of a block."""
    items = BLOCKS[number].items
    await publisher.items(*items[len(items) // 2 :])
    await publisher.end(number)


async def offer(publisher: Publisher, *numbers: int) -> None:
    """Send the first set of each block, like a publisher that expects to be skipped."""
    for number in numbers:
        await publisher.items(*BLOCKS[number].items[:2])


def broken(block: Block) -> list[bytes]:
    """Return the block's items with an invalid proof."""
    proof = bytearray(block.items[-1])
    proof[-1] ^= 1
    return [*block.items[:-1], bytes(proof)]
