"""Tests of `gateway.workers.loop_slots`: one slot in each iteration, in order, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from sluice.gateway.workers.loop_slots import LoopSlots
from tests.gateway.iterations import Iterations


def with_slots(
    play: Callable[[LoopSlots, Iterations], Awaitable[None]], run: Callable[..., None] = uvloop.run
) -> None:
    async def main() -> None:
        iterations = Iterations()
        try:
            await play(LoopSlots(), iterations)
        finally:
            iterations.stop()

    run(main())


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_those_who_are_ready_together_have_a_iteration_each_in_order(run: Callable[..., None]) -> None:
    async def play(slots: LoopSlots, iterations: Iterations) -> None:
        async def work(name: int) -> None:
            for piece in "ab":
                asked.append((name, piece))
                await slots.take()
                iterations.note((name, piece))

        asked: list[object] = []
        await asyncio.gather(*(work(name) for name in range(5)))
        assert iterations.most == 1
        assert iterations.all == asked
        assert len(asked) == 10

    with_slots(play, run)


def test_nobody_waits_for_a_turn_that_nobody_else_has() -> None:
    async def play(slots: LoopSlots, iterations: Iterations) -> None:
        for _ in range(3):
            before = iterations.number
            await slots.take()
            assert iterations.number == before
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with_slots(play)


def test_a_newcomer_waits_for_the_iteration_after_the_last_waiting_slot() -> None:
    async def play(slots: LoopSlots, iterations: Iterations) -> None:
        async def work(name: str) -> None:
            await slots.take()
            iterations.note(name)
            if name == "second":  # another one comes in its iteration
                late.append(asyncio.ensure_future(work("late")))

        late: list[asyncio.Task[None]] = []
        await asyncio.gather(work("first"), work("second"))
        await late[0]
        assert iterations.all == ["first", "second", "late"]
        assert iterations.most == 1

    with_slots(play)


def test_timers_come_between_slots() -> None:
    async def play(slots: LoopSlots, iterations: Iterations) -> None:
        async def work() -> None:
            await slots.take()
            iterations.note("slot")

        works = [asyncio.ensure_future(work()) for _ in range(1_000)]
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert 0 < len(iterations.all) < len(works)
        for one in works:
            one.cancel()

    with_slots(play)


@pytest.mark.parametrize("cancelled", [0, 1, 2, 3])
def test_one_that_is_given_up_keeps_nobody_waiting(cancelled: int) -> None:
    """Also one that has its slot and has not run yet."""

    async def play(slots: LoopSlots, iterations: Iterations) -> None:
        async def work(name: int) -> None:
            await slots.take()
            iterations.note(name)

        works = [asyncio.ensure_future(work(name)) for name in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        works[cancelled].cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*works, return_exceptions=True)
            await work(4)
        assert iterations.all == [name for name in range(5) if name != cancelled or name == 0]  # 0 was done
        assert iterations.most == 1

    with_slots(play)
