"""Tests of `gateway.work_thread`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Never

import pytest
import uvloop

from gateway.work_thread import WorkThread
from tests.nodes import ANSWER_SECONDS


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_work_is_done_in_order_in_one_thread_of_that_name(run: Callable[..., None]) -> None:
    async def main() -> None:
        thread = WorkThread("commit")
        done: list[tuple[int, str]] = []

        def work(number: int) -> int:
            done.append((number, threading.current_thread().name))
            return number * number

        results = await asyncio.gather(*(thread.run(partial(work, number)) for number in range(20)))
        assert results == [number * number for number in range(20)]
        assert done == [(number, "commit") for number in range(20)]
        thread.shutdown()

    run(main())


def test_an_error_is_raised_to_who_ordered_and_the_thread_goes_on() -> None:
    def fail() -> Never:
        raise OSError("the disk")

    async def main() -> None:
        thread = WorkThread("commit")
        with pytest.raises(OSError, match=r"^the disk$"):
            await thread.run(fail)
        assert await thread.run(lambda: 7) == 7
        thread.shutdown()

    asyncio.run(main())


def test_work_that_was_cancelled_before_it_began_is_not_done_and_what_has_begun_is() -> None:
    async def main() -> None:
        thread, begun, go_on = WorkThread("commit"), threading.Event(), threading.Event()
        done: list[str] = []

        def first() -> None:
            begun.set()
            assert go_on.wait(ANSWER_SECONDS)
            done.append("first")

        orders = [thread.run(first), thread.run(lambda: done.append("second"))]
        assert await asyncio.to_thread(begun.wait, ANSWER_SECONDS)
        for order in orders:
            order.cancel()
        go_on.set()
        await thread.run(lambda: done.append("third"))
        assert done == ["first", "third"]
        assert all(order.cancelled() for order in orders)
        thread.shutdown()

    asyncio.run(main())


def test_its_end_waits_for_what_was_ordered_and_takes_nothing_more() -> None:
    done: list[int] = []

    async def main() -> WorkThread:
        thread = WorkThread("commit")
        thread.shutdown()  # one that has done nothing
        thread = WorkThread("commit")
        for number in range(3):
            thread.run(partial(done.append, number))
        thread.shutdown()
        assert done == [0, 1, 2]
        thread.shutdown()
        with pytest.raises(RuntimeError, match=r"^thread commit: got work after its end, expected none$"):
            thread.run(lambda: None)
        return thread

    asyncio.run(main())
    assert "commit" not in {thread.name for thread in threading.enumerate()}


def test_work_that_outlives_its_event_loop_ends_quietly(
    recwarn: pytest.WarningsRecorder,
) -> None:
    thread, begun, go_on = WorkThread("commit"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(ANSWER_SECONDS)

    async def main() -> None:
        thread.run(work)
        assert begun.wait(ANSWER_SECONDS)

    asyncio.run(main())
    go_on.set()
    thread.shutdown()
    assert [str(warning.message) for warning in recwarn] == []
