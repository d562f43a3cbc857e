"""Blocks prepared in a thread, and their pace."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from sluice.gateway.blocks.block import Block
from sluice.publishers.client.feeding import PACE_LEAD_SECONDS, PreparedBlocks, paced


def blocks(count: int, size: int = 100) -> Iterator[Block]:
    for number in range(count):
        yield Block(number, (bytes(size),))


async def numbers_of(prepared: PreparedBlocks) -> list[int]:
    return [block.number async for block in prepared]


async def test_all_blocks_come_in_order_and_memory_is_bounded() -> None:
    pulled: list[int] = []

    def source() -> Iterator[Block]:
        for block in blocks(500):
            pulled.append(block.number)
            yield block

    async def run() -> None:
        prepared = PreparedBlocks(source(), size_bytes_max=1000)
        prepared.start()
        number = 0
        async for block in prepared:
            assert block.number == number
            number += 1
            # Ten are held at most; one more waits for room.
            assert len(pulled) <= number + 11
        assert number == 500

    await run()


def test_the_thread_waits_while_nobody_reads() -> None:
    pulled: list[int] = []
    full = threading.Event()

    def source() -> Iterator[Block]:
        for block in blocks(50):
            pulled.append(block.number)
            if block.number == 10:  # ten are held, this one waits
                full.set()
            yield block

    prepared = PreparedBlocks(source(), size_bytes_max=1000)
    prepared.start()
    assert full.wait(10)
    assert len(pulled) == 11
    prepared.stop()


async def test_what_goes_wrong_comes_after_the_blocks_before_it() -> None:
    def source() -> Iterator[Block]:
        yield from blocks(3)
        raise LookupError("no more")

    async def run() -> list[int]:
        prepared = PreparedBlocks(source(), 1000)
        prepared.start()
        seen = []
        held = aiter(prepared)
        for _ in range(3):
            seen.append((await anext(held)).number)
        with pytest.raises(LookupError, match="no more"):
            await anext(held)
        return seen

    assert await run() == [0, 1, 2]


async def test_nothing_at_all() -> None:
    prepared = PreparedBlocks(blocks(0), 10)
    prepared.start()
    assert await numbers_of(prepared) == []


WAIT = asyncio.sleep
"""The real one."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each sleep of the event loop, which takes no time."""
    seconds_asked: list[float] = []

    async def sleep(seconds: float) -> None:
        seconds_asked.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return seconds_asked


def nothing_stored(number: int) -> bool:
    return False


async def test_paced_blocks_are_sent_when_they_are_due(asked: list[float]) -> None:
    async def source() -> AsyncIterator[Block]:
        for number in range(5):
            yield Block(number, ())

    async def run(opened_at: float | None) -> list[int]:
        blocks = paced(source(), nothing_stored, per_second=0.001, opened_at=opened_at)
        return [block.number async for block in blocks]

    for opened_at, lead_seconds in ((time.time(), PACE_LEAD_SECONDS), (None, 0.0)):
        asked.clear()
        assert await run(opened_at) == [0, 1, 2, 3, 4]
        # A block is due every 1,000 s and up to half of that later, by chance; no time passes here.
        for count, seconds in enumerate(asked):
            assert count * 1000 - 1 <= seconds - lead_seconds <= count * 1000 + 500


async def test_after_a_wait_for_blocks_there_is_no_burst(asked: list[float]) -> None:
    """Ten blocks come after a second in which a hundred would have been due."""

    async def source() -> AsyncIterator[Block]:
        yield Block(0, ())
        await WAIT(1.0)
        for number in range(1, 11):
            yield Block(number, ())

    assert [block.number async for block in paced(source(), nothing_stored, 100, opened_at=None)] == list(
        range(11)
    )
    assert asked[-1] > 0.05  # the tenth is due a tenth of a second after the first of them


async def test_stored_blocks_take_no_time_and_the_next_one_has_their_beat(asked: list[float]) -> None:
    async def source() -> AsyncIterator[Block]:
        for number in range(1_000):
            yield Block(number, ())

    blocks = paced(source(), lambda number: 1 <= number < 990, per_second=0.001, opened_at=None)
    assert [block.number async for block in blocks] == list(range(1_000))
    assert len(asked) == 11  # the first, before anything is known, and the last ten
    for count, seconds in enumerate(asked):
        assert count * 1000 - 1 <= seconds <= count * 1000 + 500


async def test_a_clock_that_differs_neither_delays_nor_bursts(asked: list[float]) -> None:
    async def source() -> AsyncIterator[Block]:
        yield Block(0, ())

    for apart_seconds, lead_seconds in ((600.0, PACE_LEAD_SECONDS), (-600.0, 0.0)):
        asked.clear()
        opened_at = time.time() + apart_seconds
        paced_blocks = paced(source(), nothing_stored, 1000, opened_at=opened_at)
        assert [block.number async for block in paced_blocks] == [0]
        assert lead_seconds - 0.5 <= asked[0] <= lead_seconds + 0.01
