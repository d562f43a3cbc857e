"""A race: several publishers of the same blocks in one process, which read the source once.

    source ──► pump ──┬──► publisher 1 ──► its gateways
                      ├──► publisher 2 ──► its gateways
                      └──► publisher 3 ──► its gateways

The pump is a bounded number of bytes ahead of the slowest publisher. A publisher that gives up leaves the
race; the race is lost when all have given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.client import ClientOptions, PublishClient
from sluice.publishers.errors import PublishFailed, SourceCancelled
from sluice.publishers.report import PublishReport

__all__ = ["Pace", "Racer", "race"]

log = logging.getLogger(__name__)

Pace = Callable[[AsyncIterator[Block], Callable[[int], bool]], AsyncIterator[Block]]
"""A delay of the blocks of one publisher: takes them, and whether one is stored, and yields each when it is
due."""


@dataclass(frozen=True, slots=True)
class Racer:
    """One publisher."""

    publisher_id: str
    gateways: tuple[str, ...]
    """`host:port` each, the preferred one first."""


class _Lane:
    """The blocks that one publisher has yet to take."""

    def __init__(self, pump: _Pump) -> None:
        self.blocks: deque[Block] = deque()
        self.size_bytes = 0
        self.is_left = False
        self.changed = asyncio.Event()
        self._pump = pump

    def put(self, block: Block) -> None:
        self.blocks.append(block)
        self.size_bytes += block.size_bytes
        self.changed.set()

    def leave(self) -> None:
        self.is_left = True
        self.blocks.clear()
        self.size_bytes = 0
        self._pump.room.set()

    async def __aiter__(self) -> AsyncIterator[Block]:
        while True:
            while self.blocks:
                block = self.blocks.popleft()
                self.size_bytes -= block.size_bytes
                self._pump.room.set()
                yield block
            if self._pump.is_over:
                if self._pump.error is not None:
                    raise self._pump.error
                return
            self.changed.clear()
            await self.changed.wait()


class _Pump:
    """Takes blocks from the source and puts each into every lane."""

    def __init__(self, source: AsyncIterable[Block], count: int, ahead_bytes_max: int) -> None:
        self.room = asyncio.Event()
        self.is_over = False
        self.error: Exception | None = None
        self.lanes = [_Lane(self) for _ in range(count)]
        self._source = source
        self._ahead_bytes_max = ahead_bytes_max

    async def run(self) -> None:
        last: int | None = None
        try:
            async for block in self._source:
                last = block.number
                lanes = [lane for lane in self.lanes if not lane.is_left]
                for lane in lanes:
                    lane.put(block)
                while any(lane.size_bytes >= self._ahead_bytes_max for lane in lanes):
                    self.room.clear()
                    await self.room.wait()
        except Exception as error:
            self.error = error
        except asyncio.CancelledError:
            # Blocks are missing: this is no end.
            self.error = SourceCancelled(last)
        finally:
            self.is_over = True
            for lane in self.lanes:
                lane.changed.set()


async def race(
    source: AsyncIterable[Block],
    racers: Sequence[Racer],
    options: ClientOptions,
    ahead_bytes_max: int,
    on_client: Callable[[PublishClient], None] | None = None,
    pace: Pace | None = None,
) -> list[PublishReport]:
    """Publish all blocks of a source by several publishers.

    Args:
        source: blocks with consecutive numbers.
        ahead_bytes_max: how far one publisher may be ahead of another.
        pace: delays the blocks of each publisher for itself.

    Raises:
        PublishFailed: every publisher gave up; the error of the first one.
    """
    if len(racers) == 1:
        client = _client(racers[0], options, on_client)
        return [await client.publish(_paced(source, pace, client))]
    pump = _Pump(source, len(racers), ahead_bytes_max)
    pumping = asyncio.create_task(pump.run())
    runs = [
        asyncio.create_task(_run(_client(racer, options, on_client), racer, lane, pace))
        for racer, lane in zip(racers, pump.lanes, strict=True)
    ]
    is_pumped = False
    try:
        results = await asyncio.gather(*runs)
        is_pumped = pumping.done()
    finally:
        for task in (pumping, *runs):
            task.cancel()
        await asyncio.gather(pumping, *runs, return_exceptions=True)
    if is_pumped and pump.error is not None:  # else the pump was cancelled above
        raise pump.error
    failures = [result for result in results if isinstance(result, PublishFailed)]
    if len(failures) == len(racers):
        raise failures[0]
    return [result.report if isinstance(result, PublishFailed) else result for result in results]


def _client(
    racer: Racer, options: ClientOptions, on_client: Callable[[PublishClient], None] | None
) -> PublishClient:
    client = PublishClient(racer.gateways, racer.publisher_id, options)
    if on_client is not None:
        on_client(client)
    return client


def _paced(source: AsyncIterable[Block], pace: Pace | None, client: PublishClient) -> AsyncIterable[Block]:
    return source if pace is None else pace(aiter(source), client.is_stored)


async def _run(
    client: PublishClient, racer: Racer, lane: _Lane, pace: Pace | None
) -> PublishReport | PublishFailed:
    try:
        return await client.publish(_paced(lane, pace, client))
    except PublishFailed as error:
        log.warning("%s leaves the race: %s", racer.publisher_id, error.reason)
        return error
    finally:
        lane.leave()
