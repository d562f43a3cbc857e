"""Tests of `workers.work_thread`: calls are made in order, in one thread, and come back to the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import uvloop

from gateway.workers.work_thread import WorkThread

LOOPS = [uvloop.run, asyncio.run]


@pytest.mark.parametrize("run", LOOPS)
def test_calls_are_made_in_order_in_one_thread(run: Callable[..., None]) -> None:
    async def main() -> None:
        made: list[tuple[int, str]] = []

        def work(number: int) -> int:
            made.append((number, threading.current_thread().name))
            return number * 2

        thread = WorkThread("worker")
        assert await asyncio.gather(*(thread.run(work, number) for number in range(5))) == [0, 2, 4, 6, 8]
        thread.close()
        assert made == [(number, "worker") for number in range(5)]

    run(main())


@pytest.mark.parametrize("run", LOOPS)
def test_an_error_comes_to_who_awaits_it_and_the_next_call_is_made(run: Callable[..., None]) -> None:
    async def main() -> None:
        def fail() -> None:
            raise OSError(28, "No space left on device")

        thread = WorkThread("worker")
        failing, next_one = thread.run(fail), thread.run(str, 7)
        with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$"):
            await failing
        assert await next_one == "7"
        thread.close()

    run(main())


def test_a_call_whose_future_is_cancelled_is_made_all_the_same() -> None:
    async def main() -> None:
        gate, made = threading.Event(), list[int]()
        thread = WorkThread("worker")
        waiting, cancelled, last = thread.run(gate.wait), thread.run(made.append, 1), thread.run(len, made)
        cancelled.cancel()
        gate.set()
        assert await waiting is True
        assert await last == 1
        assert cancelled.cancelled()
        thread.close()

    asyncio.run(main())


def test_closing_waits_for_the_calls_and_ends_the_thread() -> None:
    def is_there() -> bool:
        return "one of this test" in {thread.name for thread in threading.enumerate()}

    async def main() -> None:
        made: list[int] = []
        thread = WorkThread("one of this test")
        thread.close()  # it has not begun
        for number in range(3):
            thread.run(made.append, number)
        assert is_there()
        thread.close()
        thread.close()
        assert made == [0, 1, 2]
        assert not is_there()

    asyncio.run(main())


def test_a_call_that_ends_after_its_loop_is_nobodys() -> None:
    gate = threading.Event()
    thread = WorkThread("worker")

    async def main() -> None:
        thread.run(gate.wait)

    asyncio.run(main())
    gate.set()
    thread.close()  # with an error in the thread, pytest would tell of it
    assert gate.is_set()


def test_nothing_of_a_call_is_kept_when_it_is_over() -> None:
    class Block:
        pass

    async def main() -> None:
        thread = WorkThread("worker")
        block = Block()
        kept = weakref.ref(block)
        assert await thread.run(id, block) == id(block)
        del block
        await thread.run(gc.collect)
        assert kept() is None
        thread.close()

    asyncio.run(main())


@pytest.mark.parametrize("run", LOOPS)
def test_an_error_that_no_future_takes_comes_as_another(run: Callable[..., None]) -> None:
    """Whoever awaited it would have waited for ever."""

    async def main() -> None:
        thread = WorkThread("worker")
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match=r"^a call in a thread: got StopIteration\(\), expected"):
                await thread.run(next, iter(()))
            assert await thread.run(str, 7) == "7"
        thread.close()

    run(main())


def test_what_ends_a_process_ends_no_thread() -> None:
    async def main() -> None:
        thread = WorkThread("worker")
        failing, next_one = thread.run(exit_now), thread.run(str, 7)
        assert await next_one == "7"
        assert isinstance(failing.exception(), SystemExit)
        thread.close()

    def exit_now() -> None:
        raise SystemExit(3)

    asyncio.run(main())


def test_a_call_that_nobody_would_make_is_refused() -> None:
    async def main() -> None:
        thread = WorkThread("worker")
        assert await thread.run(str, 7) == "7"
        thread.close()
        with pytest.raises(RuntimeError, match=r"^threads can only be started once$"):
            thread.run(str, 8)

    asyncio.run(main())


def test_where_a_thread_cannot_be_started_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        thread = WorkThread("worker")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match=r"^can't start new thread$"):
                thread.run(str, 7)
        assert await thread.run(str, 8) == "8"
        thread.close()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    asyncio.run(main())
